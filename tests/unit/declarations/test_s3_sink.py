"""Streams that write to a bucket: which prefixes there may be, over several files, and how often they are written."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from millrace import declarations
from millrace.adapters.archive.audits import evidence as audits
from millrace.adapters.s3.probe import PROBE_PREFIX
from millrace.declarations.prefixes import overlapping, overlaps
from millrace.declarations.project import Survey
from millrace.declarations.reader import plain, read
from millrace.declarations.show import effective
from millrace.domain.archive import names as archive
from millrace.domain.declaration.pipeline import S3Sink
from millrace.domain.quality import evidence as quality
from millrace.domain.sinks.capabilities import Capability
from support.declarations import PRODUCTION, RETURNS, SHOP, replace_once, valid_project

ITEMS = "{postgres: {connection: millrace_sink, table: returns.items}}"
CUSTOMERS = "{postgres: {connection: millrace_sink, table: shop.customers}}"
PREFIX = "streams.items.writes.s3.prefix"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return valid_project(tmp_path)


def dataset(prefix: str, fields: str = "", trigger: str = "60s") -> str:
    """What stands behind `writes: `, with a trigger after it."""
    return f"{{s3: {{prefix: {prefix}{fields}}}}}\n    trigger: {trigger}"


def declare(root: Path, name: str, *prefixes: str) -> None:
    """A pipeline more, a stream for each prefix."""
    lines = [f"pipeline: {name}", "owner: me", "streams:"]
    for number, prefix in enumerate(prefixes):
        reads = "app: shop_customers, reads: [shop.customers], trigger: 60s"
        lines.append(f"  s{number}: {{{reads}, writes: {{s3: {{prefix: {prefix}}}}}}}")
    (root / f"include/pipelines/{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def said(root: Path) -> list[tuple[str, str, str]]:
    return [(each.file, each.field, each.what) for each in declarations.check(root, "production")]


def test_a_stream_writes_to_a_dataset(root: Path) -> None:
    replace_once(root / RETURNS, ITEMS, dataset("lake/items", ", connection: other_s3, event_date: returned_at"))
    replace_once(root / SHOP, CUSTOMERS, dataset("lake/customers"))

    returns, shop = (declarations.load_pipeline(root, name) for name in ("returns", "shop"))
    items, customers = returns.stream("items"), shop.stream("customers")

    assert said(root) == []
    assert items.sink == S3Sink("other_s3", "lake/items", "returned_at")
    assert customers.sink == S3Sink("millrace_s3", "lake/customers")
    assert (items.connections, customers.connections) == (("other_s3",), ("millrace_s3",))
    assert (items.sink.connection, items.sink.named) == ("millrace_control", "dataset lake/items")
    assert (items.writes_topics, items.reads_itself) == ((), False)
    assert [returns.able(each) for each in (Capability.TABLE, Capability.REDRIVE)] == [(), ()]
    assert shop.able(Capability.TABLE) == shop.able(Capability.REDRIVE) == (shop.stream("purchases"),)


def test_without_a_value_a_record_is_bad_for_a_dataset_whatever_its_topic_says(root: Path) -> None:
    replace_once(root / SHOP, "        name STRING\n", "        name STRING\n      tombstones: delete\n")
    replace_once(root / SHOP, CUSTOMERS, dataset("lake/customers"))

    pipeline = declarations.load_pipeline(root, "shop")
    stream = pipeline.stream("customers")

    (declared,), (read,) = pipeline.topics[1:], pipeline.topics_of(stream).values()
    assert declared.value is not None
    assert read.value is not None
    assert (declared.value.tombstones, read.value.tombstones, stream.able(Capability.DELETES)) == (True, False, False)


@pytest.mark.parametrize(
    "prefix",
    ["a", "A.b_c-9", "9/8/7", "a/b/c/d/e/f/g/h", "archives/a", "a/archive", f"{'a' * 63}/{'b' * 63}", "a/b."],
)
def test_which_prefixes_there_may_be(root: Path, prefix: str) -> None:
    replace_once(root / RETURNS, ITEMS, dataset(f'"{prefix}"'))

    assert declarations.load_pipeline(root, "returns").stream("items").sink == S3Sink("millrace_s3", prefix)


RULE = "is not segments, with `/` between them, of a letter or digit and up to 62 letters, digits, `.`, `_` and `-`"
LONGEST = "/".join(["a" * 63, "b" * 63, "c" * 63, "d" * 8])


@pytest.mark.parametrize(
    ("prefix", "what"),
    [
        ("/lake", "`/lake` begins or ends with a slash"),
        ("lake/", "`lake/` begins or ends with a slash"),
        ("/", "`/` begins or ends with a slash"),
        *((each, f"`{each}` {RULE}") for each in ("a//b", "..", "a/../b", "_a", "a/-b", "a b", "ä", "a" * 64, "a/*")),
        ("a/b/c/d/e/f/g/h/i", "the prefix has 9 segments, more than 8"),
        (f"{LONGEST}d", "the prefix has 201 characters, more than 200"),
        ("archive", "`archive/` is reserved: it holds the backups of topics"),
        ("audit/a", "`audit/` is reserved: it holds the evidence of backup audits"),
        ("quality/a/b", "`quality/` is reserved: it holds the evidence of quality checks"),
        ("millrace-probe", "`millrace-probe/` is reserved: Millrace tests the bucket there"),
    ],
)
def test_which_prefixes_there_may_not_be(root: Path, prefix: str, what: str) -> None:
    replace_once(root / RETURNS, ITEMS, dataset(f'"{prefix}"'))

    assert said(root) == [(RETURNS, PREFIX, what)]


def test_a_prefix_has_up_to_200_characters(root: Path) -> None:
    replace_once(root / RETURNS, ITEMS, dataset(LONGEST))

    assert (len(LONGEST), said(root)) == (200, [])


@pytest.mark.parametrize("own", [archive.ROOT, audits.ROOT, quality.ROOT, PROBE_PREFIX])
def test_nothing_is_written_where_millrace_keeps_something_itself(root: Path, own: str) -> None:
    replace_once(root / RETURNS, ITEMS, dataset(f"{own}purchases"))

    ((_, field, what),) = said(root)

    assert (field, what.partition(":")[0]) == (PREFIX, f"`{own}` is reserved")


@pytest.mark.parametrize(
    ("first", "second", "way"),
    [
        ("lake/a", "lake/a", "is used"),
        ("lake/a", "lake/a/b", "lies inside `lake/a`, which is used"),
        ("lake", "lake/a/b/c", "lies inside `lake`, which is used"),
        ("lake/a/b", "lake/a", "contains `lake/a/b`, which is used"),
        ("lake/a/b/c", "lake", "contains `lake/a/b/c`, which is used"),
        ("lake/a", "lake/ab", None),
        ("lake/a", "lake/a.b", None),
        ("lake/a", "lake/a-b/c", None),
        ("lake/ab", "lake/a", None),
        ("lake/a/b", "lake/a/c", None),
        ("lake/a", "a", None),
        ("a", "lake/a", None),
        ("lake/a", "Lake/a", None),
    ],
)
def test_of_prefixes_that_overlap_the_first_keeps_its_own(root: Path, first: str, second: str, way: str | None) -> None:
    declare(root, "aaa", first)
    replace_once(root / RETURNS, ITEMS, dataset(second))

    what = f"the prefix `{second}` of `millrace_s3` {way} by the stream aaa.s0 already"
    assert said(root) == ([(RETURNS, PREFIX, what)] if way else [])
    assert declarations.load_pipeline(root, "aaa").stream("s0").sink == S3Sink("millrace_s3", first)
    if way:
        with pytest.raises(declarations.InvalidDeclarationError) as caught:
            declarations.load_pipeline(root, "returns")
        assert [each.what for each in caught.value.findings] == [what]
    else:
        assert declarations.load_pipeline(root, "returns").stream("items").sink == S3Sink("millrace_s3", second)


def test_the_pipeline_that_a_prefix_is_named_after_keeps_it(root: Path) -> None:
    declare(root, "aaa", "returns/items/more")
    replace_once(root / RETURNS, ITEMS, dataset("returns/items"))

    what = "lies inside `returns/items`, which is used by the stream returns.items already"
    ((file, field, found),) = said(root)
    assert (file, field) == ("include/pipelines/aaa.yaml", "streams.s0.writes.s3.prefix")
    assert found == f"the prefix `returns/items/more` of `millrace_s3` {what}"


def test_two_streams_of_one_file_have_no_prefix_together(root: Path) -> None:
    declare(root, "aaa", "lake/a", "lake/b", "lake/a")

    what = "the prefix `lake/a` of `millrace_s3` is used by the stream aaa.s0 already"
    assert said(root) == [("include/pipelines/aaa.yaml", "streams.s2.writes.s3.prefix", what)]
    assert declarations.check(root)[0].next_step == "give this stream a prefix of its own"


def test_prefixes_of_two_connections_do_not_overlap_until_an_environment_makes_them_one(root: Path) -> None:
    declare(root, "aaa", "lake/a")
    replace_once(root / RETURNS, ITEMS, dataset("lake/a", ", connection: other_s3"))
    assert said(root) == []

    replace_once(root / PRODUCTION, "{millrace_sink: warehouse}", "{other_s3: bucket, millrace_s3: bucket}")

    assert said(root) == [(RETURNS, PREFIX, "the prefix `lake/a` of `bucket` is used by the stream aaa.s0 already")]


def test_an_environment_names_another_bucket_and_gives_nobody_one(root: Path) -> None:
    declare(root, "aaa", "lake/a")
    replace_once(root / PRODUCTION, "{millrace_sink: warehouse}", "{millrace_s3: bucket}")

    aaa, shop = (declarations.load_pipeline(root, name, "production") for name in ("aaa", "shop"))

    assert aaa.stream("s0").sink == S3Sink("bucket", "lake/a")
    assert [isinstance(stream.sink, S3Sink) for stream in shop.streams] == [False, False]


@pytest.mark.parametrize(
    ("trigger", "warns"),
    [("", "2s"), ("    trigger: 9999ms\n", "9999ms"), ("    trigger: 10s\n", None), ("    trigger: 1h\n", None)],
)
def test_small_objects_are_warned_of(root: Path, trigger: str, warns: str | None) -> None:
    replace_once(root / RETURNS, f"{ITEMS}\n", f"{{s3: {{prefix: lake/items}}}}\n{trigger}")

    found = declarations.check(root, "production")

    assert [(each.severity, each.field) for each in found] == (
        [(declarations.Severity.WARNING, "streams.items.trigger")] if warns else []
    )
    assert all(f"a trigger of {warns} makes many small objects" in each.what for each in found)
    assert all(each.next_step.startswith("declare `trigger: 60s` or longer; above `max_rec") for each in found)
    assert declarations.load_pipeline(root, "returns").stream("items").sink == S3Sink("millrace_s3", "lake/items")


def test_streams_that_write_elsewhere_are_not_warned_of_small_objects(root: Path) -> None:
    assert declarations.load_pipeline(root, "returns").stream("items").trigger == timedelta(seconds=2)
    assert said(root) == []


def test_show_tells_which_dataset_is_written_to(root: Path) -> None:
    replace_once(root / RETURNS, ITEMS, dataset("lake/items", ", event_date: returned_at"))
    replace_once(root / SHOP, CUSTOMERS, dataset("lake/customers"))

    returns, shop = (
        {each.field.partition(".writes.")[2]: each for each in effective(root, name).values if ".s3." in each.field}
        for name in ("returns", "shop")
    )

    assert {field: (each.value, each.where) for field, each in returns.items()} == {
        "s3.connection": ("millrace_s3", "default"),
        "s3.prefix": ("lake/items", f"{RETURNS}:11"),
        "s3.event_date": ("returned_at", f"{RETURNS}:11"),
    }
    assert (shop["s3.event_date"].value, shop["s3.event_date"].where) == ("the timestamp of each record", "default")


def test_the_json_schema_takes_what_is_a_prefix() -> None:
    checker = Draft202012Validator(json.loads(json.dumps(declarations.json_schema())))
    table = {"connection": "millrace_sink", "table": "shop.customers"}

    for written, wrong in (
        ({"s3": {"prefix": "lake/a"}}, 0),
        ({"s3": {"prefix": LONGEST, "connection": "bucket", "event_date": "at"}}, 0),
        ({"s3": {}}, 1),
        ({"s3": {"prefix": f"{LONGEST}d"}}, 1),
        ({"s3": {"prefix": "lake/"}}, 1),
        ({"s3": {"prefix": "a/b/c/d/e/f/g/h/i"}}, 1),
        ({"s3": {"prefix": "lake/a"}, "postgres": table}, 1),
        ({"s3": {"prefix": "lake/a"}, "kafka": {"topic": "shop.a"}}, 1),
    ):
        stream = {"app": "shop_customers", "reads": ["shop.b"], "writes": written}
        document = {"pipeline": "shop", "owner": "me", "streams": {"customers": stream}}
        assert len(list(checker.iter_errors(document))) == wrong, written


_prefixes = some.lists(some.sampled_from(["a", "ab", "a.b", "b"]), min_size=1, max_size=4).map("/".join)


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@given(some.lists(some.tuples(some.sampled_from(["s", "t"]), _prefixes), max_size=9))
def test_what_is_refused_overlaps_the_first_before_it_and_the_rest_overlap_none(claims: list[tuple[str, str]]) -> None:
    numbered = [*enumerate(claims)]

    found = {claim[0]: first[0] for claim, first in overlaps(numbered, lambda claim: claim[1])}

    for number, (store, prefix) in numbered:
        before = [at for at, (of, other) in numbered[:number] if of == store and _overlap(prefix, other)]
        assert found.get(number) == (before[0] if before else None)


WAYS = [
    "prefix: {}",
    "prefix:   {}   # ours",
    "prefix : {}",
    'prefix: "{}"',
    "prefix: '{}'",
    '"prefix": {}',
    "'prefix' : {}",
    "{{s3: {{prefix: {}, connection: x}}}}",
    "{{s3: {{connection: x,prefix: {}}}}}",
    '{{s3: {{prefix: "{}"}}}}',
    '{{"s3":{{"prefix":"{}"}}}}',
    '{{"s3":{{"prefix":{}}}}}',
    "prefix:\n  {}",
    "prefix: # ours\n  {}",
    "prefix:\r\n\r\n  # ours\r\n  '{}'",
    "prefix: |-\n  {}",
    "prefix: >-\n  {}",
    "prefix: &ours {}",
    "prefix: &ours\n  {}",
    "? prefix\n: {}",
    "? prefix # ours\n# and theirs\n: {}",
    "{{? prefix : {}}}",
    '"pre\\x66ix": {}',
    '"\\u0070refix"  :  "{}"',
    '"prefix": "\\\n  {}"',
    'prefix: "{}\\\n  "',
]


def _declared(text: str) -> list[object]:
    """What stands under the keys `prefix` of a file of this text."""
    tree, _ = read(text.encode(), "a.yaml")
    found: list[object] = []
    nodes = [plain(tree)] if tree else []
    while nodes:
        if isinstance(node := nodes.pop(), dict):
            found += [node[key] for key in node if key == "prefix"]
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return found


@pytest.mark.parametrize("way", WAYS)
@given(_prefixes, _prefixes)
def test_a_file_with_a_prefix_that_overlaps_is_found_by_its_text(way: str, one: str, other: str) -> None:
    text = way.format(other)

    assert _declared(text) == [other]
    assert not _overlap(one, other) or re.search(overlapping(one), text)


@pytest.mark.parametrize(
    "other", ["lake", "lake/a", "lake/a/b", "lake/a/b/c"], ids=lambda other: other.replace("/", "-")
)
def test_so_is_one_that_is_spelled_with_escapes(other: str) -> None:
    for text in (other.replace("/", "\\/"), other.replace("a", "\\x61"), other.replace("k", "\\\n  k")):
        written = f'{{s3: {{prefix: "{text}"}}}}'
        assert _declared(written) == [other]
        assert re.search(overlapping("lake/a/b"), written)


SCRAPS = [
    *("prefix", "a", "a/b", "b", ":", ": ", " ", "  ", "\n", "\n  ", "\r\n", "\t", "\u2028", "\x85"),
    *('"', "'", "{", "}", "[", "]", ", ", "? ", "- ", "# ", "|", ">", "-", "&x ", "*x", "!!str "),
    *("\\x61", "\\/", "\\\n", "pre\\x66ix", "prefix: ", '"prefix":', "{prefix: ", "s3:\n  ", "? prefix", "\n: "),
]
_scraps = some.lists(some.sampled_from(SCRAPS), min_size=2, max_size=12).map("".join)


@given(_scraps, some.sampled_from(["a", "a/b", "a/b/c"]))
def test_no_text_that_declares_a_prefix_that_overlaps_is_missed(text: str, one: str) -> None:
    overlap = [each for each in _declared(text) if isinstance(each, str) and each and _overlap(one, each)]
    assert not overlap or re.search(overlapping(one), text)


@pytest.mark.parametrize(
    "text",
    [
        "streams:\n  lake:\n    app: lake\n",
        "streams:\n  lake: {app: x, reads: [lake.a], writes: {s3: {connection: lake, prefix: other/lake}}}",
        "writes: {s3: {prefix: lake/b, connection: lake}}  # beside lake/a",
        "writes: {s3: {prefix: 'lake/ab'}}",
        'writes: {"s3": {"prefix": "lakes", "event_date": "lake"}}',
        "prefix:   lakes\n",
        "prefix  :\tlake-a/a\n",
        "prefix: la/ke\nowner: lake/a\n",
        'description: "a \\"lake\\" of lake/a: what?"\nwrites: {s3: {prefix: sea}}',
        "prefixes: lake/a",
    ],
)
def test_a_file_that_has_the_words_of_a_prefix_elsewhere_is_not_read_for_it(text: str) -> None:
    assert not re.search(overlapping("lake/a"), text)


def test_only_the_files_with_a_prefix_that_overlaps_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, prefix in (("aaa", "lake/aaa"), ("bbb", "lake/bbb"), ("ccc", "lake"), ("ddd", "lake/aaa/more")):
        declare(root, name, prefix)
        others = root / f"include/pipelines/{name}.yaml"
        others.write_text(others.read_text(encoding="utf-8").replace("shop.customers]", f"{name}.customers]"))
    replace_once(root / "include/pipelines/aaa.yaml", "aaa.customers]", "shop.customers]")
    replace_once(root / "include/pipelines/bbb.yaml", "owner: me", "owner: lake")
    seen: list[str] = []
    add = Survey.add
    monkeypatch.setattr(Survey, "add", lambda self, name: (seen.append(name), add(self, name))[1])

    declarations.load_pipeline(root, "aaa")

    assert {"ccc", "ddd"} <= {*seen}
    assert "bbb" not in seen


def test_ten_thousand_datasets() -> None:
    claims = [("s", f"lake/p{number}/x") for number in range(10_000)]

    assert list(overlaps(claims, lambda claim: claim)) == []
    assert len(list(overlaps([*claims, ("s", "lake")], lambda claim: claim))) == 1
    assert len(list(overlaps([("s", "lake"), *claims], lambda claim: claim))) == 10_000
