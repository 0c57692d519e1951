"""Streams that write to topics: which topics may be written to, over several files, and circles of streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from millrace import declarations
from millrace.declarations.circles import Flow, circles
from millrace.declarations.show import effective
from millrace.domain.declaration.pipeline import KafkaSink
from millrace.domain.sinks.capabilities import Capability
from support.declarations import RETURNS, SHOP, replace_once, valid_project

ITEMS = "{postgres: {connection: millrace_sink, table: returns.items}}"
CUSTOMERS = "{postgres: {connection: millrace_sink, table: shop.customers}}"
LAST = "include/pipelines/last.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return valid_project(tmp_path)


def declare(root: Path, name: str, topics: str = "", streams: str = "", header: str = "") -> None:
    """A pipeline more: lines of topics and of streams, the streams without their app."""
    lines = [f"pipeline: {name}", "owner: me", *([header] if header else [])]
    for section, text in (("topics", topics), ("streams", streams)):
        lines += [f"{section}:", *(f"  {line}" for line in text.splitlines())] if text else []
    text = "\n".join(lines).replace("{reads", "{app: shop_customers, reads")
    (root / f"include/pipelines/{name}.yaml").write_text(text + "\n", encoding="utf-8")


def stream(name: str, reads: str, topic: str) -> str:
    return f"{name}: {{reads: [{reads}], writes: {{kafka: {{topic: {topic}}}}}}}"


def topics(*names: str) -> str:
    return "\n".join(f'{name}: {{partitions: 2, value: {{schema: "id STRING"}}}}' for name in names)


def said(root: Path, environment: str = "production") -> list[tuple[str, str, str]]:
    return [(each.file, each.field, each.what) for each in declarations.check(root, environment)]


def test_a_stream_writes_to_one_topic_or_to_those_that_its_rows_name(root: Path) -> None:
    declare(root, "last", topics("last.seen"))
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: shop.customers}}")
    replace_once(root / SHOP, CUSTOMERS, "{kafka: {topics: [shop.customers, last.seen]}}")

    returns, shop = (declarations.load_pipeline(root, name) for name in ("returns", "shop"))

    assert declarations.check(root, "production") == ()
    assert returns.stream("items").sink == KafkaSink(("shop.customers",))
    assert shop.stream("customers").sink == KafkaSink(("shop.customers", "last.seen"), by_column=True)
    assert (shop.stream("customers").reads_itself, returns.stream("items").reads_itself) == (True, False)
    assert shop.able(Capability.REDRIVE) == (shop.stream("purchases"),)
    assert [pipeline.name for pipeline in declarations.load(root).pipelines] == ["last", "returns", "shop"]


def test_one_topic_of_a_list_is_named_by_the_rows_too(root: Path) -> None:
    replace_once(root / RETURNS, ITEMS, "{kafka: {topics: [shop.customers]}}")

    assert declarations.load_pipeline(root, "returns").stream("items").sink == KafkaSink(
        ("shop.customers",), by_column=True
    )


def test_a_pipeline_alone_knows_the_topic_of_another_file_that_it_writes_to(root: Path) -> None:
    declare(root, "last", topics=topics("last.seen"))
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: last.seen}}")

    returns = declarations.load_pipeline(root, "returns")

    assert [(each.name, each.pipeline) for each in returns.references] == [
        ("last.seen", "last"),
        ("shop.purchases", "shop"),
    ]
    assert returns.topic("last.seen").value is not None
    assert returns in declarations.load(root).pipelines


BYTES = "value: {format: bytes}"
TO_LAST = "include/pipelines/returns.yaml", "streams.items.writes.kafka.topic"
WITH_KEY = "the key of a record is the text of its field `id` of the topic `last.seen`, and"
OWN_FINDINGS = "the topic `last.seen` is declared in include/pipelines/last.yaml:4, which has findings of its own"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ('value: {schema: "id STRING"}', None),
        (f"key: {{field: key}}, {BYTES}", None),
        ('key: {field: id}, cleanup: compact, value: {schema: "id STRING NOT NULL"}', None),
        ('key: {field: id}, value: {schema: "id STRING NOT NULL, topic STRING"}', None),
        *((f'key: {{field: id}}, value: {{schema: "id {each} NOT NULL"}}', None) for each in ("TINYINT", "BIGINT")),
        *((f'key: {{field: id}}, value: {{schema: "id {each} NOT NULL"}}', None) for each in ("SMALLINT", "INT")),
        *(
            (
                f'key: {{field: id}}, value: {{schema: "id {each} NOT NULL"}}',
                f"{WITH_KEY} {each} has no single text form",
            )
            for each in ("BOOLEAN", "FLOAT", "DOUBLE", "DECIMAL(12,2)", "DATE", "TIMESTAMP")
        ),
        ("cleanup: delete", "the topic `last.seen` declares no `value`, so no row can become a record of it"),
    ],
)
def test_which_topics_can_take_the_rows_of_a_stream(root: Path, fields: str, what: str | None) -> None:
    declare(root, "last", topics=f"last.seen: {{partitions: 2, {fields}}}")
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: last.seen}}")

    found = said(root)

    assert found == ([(*TO_LAST, what)] if what else [])
    if what:
        with pytest.raises(declarations.InvalidDeclarationError) as caught:
            declarations.load_pipeline(root, "returns", "production")
        assert [each.what for each in caught.value.findings] == [what]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ('cleanup: compact, value: {schema: "id STRING"}', "cleanup"),
        ('cleanup: "compact,delete", value: {schema: "id STRING"}', "cleanup"),
        ('cleanup: compacted, value: {schema: "id STRING"}', "cleanup"),
        ('key: {field: ids}, value: {schema: "id STRING"}', "key.field"),
        ('key: id, value: {schema: "id STRING"}', "key"),
        ('value: {schema: "id MONEY"}', "value.schema"),
    ],
)
def test_a_topic_elsewhere_has_to_be_sound_where_a_record_is_made_by_it(root: Path, fields: str, field: str) -> None:
    declare(root, "last", topics=f"last.seen: {{partitions: 2, {fields}}}")
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: last.seen}}")

    found = said(root)

    assert [each[:2] for each in found] == [(LAST, f"topics.last.seen.{field}"), TO_LAST]
    assert found[1][2] == OWN_FINDINGS
    with pytest.raises(declarations.InvalidDeclarationError):
        declarations.load_pipeline(root, "returns")


def test_what_else_is_wrong_with_a_topic_elsewhere_its_writers_need_not_mind(root: Path) -> None:
    declare(root, "last", topics='last.seen: {partitions: 0, value: {schema: "id STRING"}}')
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: last.seen}}")

    assert declarations.load_pipeline(root, "returns").topic("last.seen").value is not None


def test_a_compacted_topic_without_a_key_is_found_once_in_its_own_file(root: Path) -> None:
    replace_once(root / SHOP, "    key: {field: id}\n", "")
    replace_once(root / SHOP, CUSTOMERS, "{kafka: {topic: shop.customers}}")

    assert [each[1] for each in said(root)] == ["topics.shop.customers.cleanup"]


@pytest.mark.parametrize("column", ["topic", "Topic"])
def test_where_rows_name_their_topic_none_has_such_a_column_of_its_own(root: Path, column: str) -> None:
    declare(root, "last", topics=topics("last.seen").replace("id STRING", f"{column} STRING"))
    replace_once(root / RETURNS, ITEMS, "{kafka: {topics: [shop.customers, last.seen]}}")

    (found,) = said(root)

    what = f"the topic `last.seen` has a column `{column}`, and with `topics` that column names the topic of a row"
    assert found == (RETURNS, "streams.items.writes.kafka.topics[1]", what)


def test_nobody_writes_to_topics_of_kafkas_own_or_of_another_cluster(root: Path) -> None:
    declare(root, "last", topics("last.seen"), header="kafka: other_kafka")
    replace_once(root / SHOP, "topics:\n", f"topics:\n  __groups: {{manage: none, {BYTES}}}\n")
    replace_once(root / RETURNS, ITEMS, "{kafka: {topics: [__groups, last.seen]}}")

    field = "streams.items.writes.kafka.topics"
    assert said(root) == [
        (RETURNS, f"{field}[0]", "`__groups` is reserved: Kafka alone writes it"),
        (
            RETURNS,
            f"{field}[1]",
            "the topic `last.seen` is on the cluster of `other_kafka`, this pipeline on `millrace_kafka`",
        ),
    ]


def test_a_sink_has_at_most_100_topics(root: Path) -> None:
    names = [f"last.t{number}" for number in range(101)]
    declare(root, "last", topics=topics(*names))
    replace_once(root / RETURNS, ITEMS, f"{{kafka: {{topics: [{', '.join(names)}]}}}}")

    (found,) = declarations.check(root, "production")
    replace_once(root / RETURNS, ", last.t100]", "]")

    assert found.what == "the sink has 101 topics, more than 100"
    assert found.next_step == "share them out among several streams"
    assert declarations.check(root, "production") == ()


WITHOUT_END = "the output of the stream comes back to it through others, without end: "


def test_a_circle_of_two_files_is_refused_at_the_stream_that_writes_to_a_topic_of_the_other(root: Path) -> None:
    declare(root, "aaa", streams=stream("back", "shop.customers", "shop.purchases"))
    replace_once(root / SHOP, CUSTOMERS, "{kafka: {topic: shop.customers}}")
    replace_once(root / SHOP, "      - shop.customers\n", "      - shop.purchases\n")

    (found,) = declarations.check(root)

    assert (found.file, found.line) == ("include/pipelines/aaa.yaml", 4)
    assert found.field == "streams.back.writes.kafka.topic"
    assert found.what == f"{WITHOUT_END}aaa.back -> shop.purchases -> shop.customers -> shop.customers -> aaa.back"
    assert found.next_step.startswith("read or write another topic")
    assert declarations.load_pipeline(root, "shop").name == "shop"
    with pytest.raises(declarations.InvalidDeclarationError) as caught:
        declarations.load_pipeline(root, "aaa")
    assert caught.value.findings == (found,)


def test_two_streams_that_read_and_write_the_same_topic_are_a_circle(root: Path) -> None:
    own = stream("first", "last.seen", "last.seen")
    declare(root, "last", topics("last.seen"), own)
    assert declarations.check(root) == ()
    declare(root, "last", topics("last.seen"), f"{own}\n{stream('second', 'last.seen', 'last.seen')}")

    what = f"{WITHOUT_END}last.second -> last.seen -> last.first -> last.seen -> last.second"
    assert said(root) == [(LAST, "streams.second.writes.kafka.topic", what)]


@pytest.mark.parametrize("length", [3, 5, 9])
def test_a_pipeline_alone_is_refused_for_a_circle_through_files_that_name_nothing_of_it(
    root: Path, length: int
) -> None:
    """Names run against the order of the files, and behind the circle there is more that is none of its matter."""
    for number in range(length):
        to = f"p{(number - 1) % length}.out"
        declare(root, f"p{number}", topics(f"p{number}.out"), stream("carry", f"p{number}.out", to))
    declare(root, "before", topics("before.out"), stream("carry", "before.out", "p1.out"))
    declare(root, "behind", topics("behind.out"), stream("carry", "p1.out", "behind.out"))

    whole = declarations.load(root)

    (found,) = whole.findings
    way = [f"p{number}.carry -> p{(number - 1) % length}.out" for number in range(length - 1, -1, -1)]
    if length > 8:
        way[4:5] = ["... (1 more) ..."]
    assert found.what == f"{WITHOUT_END}{' -> '.join(way)} -> p{length - 1}.carry"
    for pipeline in whole.pipelines:
        assert declarations.load_pipeline(root, pipeline.name) == pipeline
    with pytest.raises(declarations.InvalidDeclarationError) as caught:
        declarations.load_pipeline(root, f"p{length - 1}")
    assert caught.value.findings == (found,)


def test_topics_of_two_clusters_make_no_circle(root: Path) -> None:
    declare(root, "one", topics("one.a", "one.b"), stream("carry", "one.a", "one.b"))
    declare(root, "two", "", stream("carry", "one.b", "one.a"), header="kafka: other_kafka")

    assert [each for each in said(root) if WITHOUT_END in each[2]] == []


def test_show_tells_which_topics_are_written_to(root: Path) -> None:
    declare(root, "last", topics("last.seen"))
    replace_once(root / RETURNS, ITEMS, "{kafka: {topic: shop.customers}}")
    replace_once(root / SHOP, CUSTOMERS, "{kafka: {topics: [shop.customers, last.seen]}}")

    shown = [
        [each for each in effective(root, name).values if ".writes." in each.field][-1] for name in ("returns", "shop")
    ]

    assert [(each.field, each.value, each.file, each.line) for each in shown] == [
        ("streams.items.writes.kafka.topic", "shop.customers", RETURNS, 11),
        ("streams.customers.writes.kafka.topics", "shop.customers, last.seen", SHOP, 41),
    ]


def test_the_json_schema_takes_one_sink_of_one_kind() -> None:
    checker = Draft202012Validator(json.loads(json.dumps(declarations.json_schema())))
    table = {"connection": "millrace_sink", "table": "shop.customers"}

    for written, wrong in (
        ({"kafka": {"topic": "shop.a"}}, 0),
        ({"kafka": {"topics": ["shop.a", "shop.b"]}}, 0),
        ({"postgres": table}, 0),
        ({}, 1),
        ({"kafka": {}}, 1),
        ({"kafka": {"topic": "shop.a", "topics": ["shop.a"]}}, 1),
        ({"kafka": {"topics": []}}, 1),
        ({"kafka": {"topics": ["shop.a", "shop.a"]}}, 1),
        ({"kafka": {"topics": [f"shop.t{number}" for number in range(101)]}}, 1),
        ({"kafka": {"topic": "shop.a"}, "postgres": table}, 1),
    ):
        stream = {"app": "shop_customers", "reads": ["shop.b"], "writes": written}
        document = {"pipeline": "shop", "owner": "me", "streams": {"customers": stream}}
        assert len(list(checker.iter_errors(document))) == wrong, written


_topics = some.lists(some.sampled_from("abcdef"), max_size=3, unique=True).map(tuple)
_flows = some.lists(some.builds(Flow, _topics, _topics), max_size=9)


def _follow(flows: Sequence[Flow], index: int, without: frozenset[int] = frozenset()) -> Iterator[int]:
    for other, flow in enumerate(flows):
        if other != index and other not in without and set(flows[index].writes) & set(flow.reads):
            yield other


def _behind(flows: Sequence[Flow], index: int, without: frozenset[int] = frozenset()) -> set[int]:
    """The streams that records of one come to, by others."""
    found: set[int] = set()
    waiting = [index]
    while waiting:
        for other in _follow(flows, waiting.pop(), without):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


@given(_flows)
def test_what_is_refused_are_circles_and_without_it_there_is_none(flows: list[Flow]) -> None:
    found = list(circles(flows))

    for circle in found:
        assert len(set(circle)) == len(circle) > 1
        for index, following in zip(circle, [*circle[1:], circle[0]], strict=True):
            assert following in _follow(flows, index)
    refused = frozenset(circle[0] for circle in found)
    assert len(refused) == len(found)
    left = [index for index in range(len(flows)) if index not in refused]
    assert [index for index in left if index in _behind(flows, index, refused)] == []
    assert not refused & frozenset(circle[each] for circle in found for each in range(1, len(circle)))


@given(_flows)
def test_of_a_stream_the_same_is_said_where_only_what_is_behind_it_is_known(flows: list[Flow]) -> None:
    refused = {circle[0]: circle for circle in circles(flows)}

    for index in range(len(flows)):
        near = sorted({index, *_behind(flows, index)})
        known = [[near[each] for each in circle] for circle in circles([flows[each] for each in near])]
        assert [circle for circle in known if circle[0] == index] == ([refused[index]] if index in refused else [])


def test_ten_thousand_streams() -> None:
    number = 10_000
    chain = [Flow((f"t{index}",), (f"t{index + 1}",)) for index in range(number)]
    ring = [*chain[:-1], Flow((f"t{number - 1}",), ("t0",))]
    knot = [Flow(("all",), ("all",))] * number

    assert list(circles(chain)) == []
    assert list(circles(ring)) == [[number - 1, *range(number - 1)]]
    assert sorted(circles(knot)) == [[index, 0] for index in range(1, number)]
