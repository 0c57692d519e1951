"""Loading: values, defaults, environments, and that one broken file takes no other down."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from millrace import declarations
from millrace.declarations import draft, reader
from millrace.domain.declaration.pipeline import (
    Backup,
    Cleanup,
    Expect,
    Manage,
    Notifier,
    OnRewind,
    PostgresSink,
    Resources,
    Retention,
    SinkMode,
)
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import DeclarationError, UsageError
from support.declarations import PRODUCTION, RETURNS, SHOP, replace_once, valid_project
from support.waiting import Deadline

GIB = 1024**3


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MILLRACE_ENVIRONMENT", raising=False)
    return valid_project(tmp_path)


def test_makes_values_of_what_is_declared(root: Path) -> None:
    shop = declarations.load_pipeline(root, "shop")

    topic, stream = shop.topic("shop.purchases"), shop.stream("purchases")
    assert topic.retention == Retention(timedelta(days=7), 2 * GIB)
    assert topic.config == (("max.message.bytes", "1048576"), ("message.timestamp.type", "LogAppendTime"))
    assert topic.value is not None
    assert topic.value.ddl == "customer_id STRING NOT NULL, amount DECIMAL(12,2)"
    assert stream.resources == Resources(2, GIB, 50_000)
    assert stream.group == "shop-team.purchases"
    assert shop.sources[0].writes == "shop.purchases"


def test_a_topic_may_have_records_that_delete_their_key(root: Path) -> None:
    assert [_decoded(root, name) for name in ("shop.purchases", "shop.customers")] == [
        ["customer_id", "amount"],
        ["id", "name"],
    ]
    replace_once(root / SHOP, "    value:\n", "    value:\n      tombstones: delete\n")
    assert _decoded(root, "shop.customers") == ["id", "name", "_deleted"]


def _decoded(root: Path, topic: str) -> list[str]:
    value = declarations.load_pipeline(root, "shop").topic(topic).value
    assert value is not None
    return [column.name for column in value.decoded]


def test_fills_defaults_in(root: Path) -> None:
    stream = declarations.load_pipeline(root, "shop").stream("customers")

    assert stream.group == "millrace.shop.customers"
    assert stream.trigger == timedelta(seconds=2)
    assert stream.on_rewind is OnRewind.REPROCESS
    assert declarations.load_pipeline(root, "shop").topic("shop.customers").cleanup is Cleanup.COMPACT
    assert declarations.load_pipeline(root, "returns").kafka == "millrace_kafka"


def test_unlimited_retention_is_no_limit(root: Path) -> None:
    replace_once(root / SHOP, "{time: 7d, size_per_partition: 2GiB}", "{time: unlimited}")

    assert declarations.load_pipeline(root, "shop").topic("shop.purchases").retention == Retention(None, None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{}", Backup(timedelta(seconds=60), timedelta(minutes=10), None)),
        ("{keep: unlimited}", Backup()),
        ("{every: 10s, max_lag: 1m, keep: 10y}", Backup(timedelta(seconds=10), timedelta(minutes=1), timedelta(3650))),
    ],
)
def test_a_topic_says_how_it_is_backed_up(root: Path, written: str, meant: Backup) -> None:
    replace_once(root / RETURNS, "    manage: none\n", f"    manage: none\n    backup: {written}\n")

    returns = declarations.load_pipeline(root, "returns")

    assert returns.topic("returns.items").backup == meant
    assert [app.qualified_name for app in returns.apps] == ["returns.items", "returns.backup"]
    assert returns.app("backup").reads == ("returns.items",)  # what it only reads is its owner's to back up


def test_a_topic_says_what_is_expected_of_it_also_where_it_is_only_read(root: Path) -> None:
    replace_once(root / RETURNS, "    manage: none\n", "    manage: none\n    expect: {rate: 30/min, record: 250B}\n")
    replace_once(root / SHOP, "    cleanup: delete\n", "    cleanup: delete\n    expect: {growth: 1%/day}\n")

    shop, returns = (declarations.load_pipeline(root, name) for name in ("shop", "returns"))

    assert returns.topic("returns.items").expect == Expect(0.5, 250, None)
    growth = shop.topic("shop.purchases").expect
    assert growth is not None
    assert growth == Expect(None, None, pytest.approx(0.01))
    assert shop.topic("shop.customers").expect is None


def test_an_environment_expects_something_else_as_a_whole(root: Path) -> None:
    replace_once(root / SHOP, "    cleanup: delete\n", "    cleanup: delete\n    expect: {rate: 5/s, record: 250B}\n")
    replace_once(root / PRODUCTION, "partitions: 12, ", "partitions: 12, expect: {rate: 500/s}, ")

    assert declarations.load_pipeline(root, "shop", "production").topic("shop.purchases").expect == Expect(500)
    assert declarations.load_pipeline(root, "shop").topic("shop.purchases").expect == Expect(5, 250)


def test_an_environment_that_keeps_records_shorter_than_their_backup_may_lag_is_refused(root: Path) -> None:
    replace_once(root / SHOP, "    cleanup: delete\n", "    cleanup: delete\n    backup: {max_lag: 1d}\n")
    replace_once(root / PRODUCTION, "{time: 30d}", "{time: 47h}")

    (found,) = declarations.check(root, "production")

    assert found.file == PRODUCTION
    assert found.what.startswith("47h is less than twice the backup's `max_lag` (1d)")
    assert declarations.check(root, "embedded") == ()


def test_a_topic_of_another_file_is_a_reference(root: Path) -> None:
    returns = declarations.load_pipeline(root, "returns")

    assert [(topic.name, topic.pipeline) for topic in returns.references] == [("shop.purchases", "shop")]
    assert returns.topic("returns.items").manage is Manage.NONE
    assert returns.topic("returns.items").replication is None


def test_embedded_has_one_replica_also_without_its_file(root: Path) -> None:
    replications = {topic.replication for topic in declarations.load_pipeline(root, "shop").topics}

    assert replications == {1}


def test_an_environment_overrides_only_what_it_names(root: Path) -> None:
    shop = declarations.load_pipeline(root, "shop", "production")

    purchases, customers = shop.topic("shop.purchases"), shop.topic("shop.customers")
    assert (purchases.partitions, purchases.replication) == (12, 3)
    assert purchases.retention == Retention(timedelta(days=30), None)
    assert (customers.partitions, customers.replication) == (4, 3)
    assert shop.stream("purchases").resources == Resources(8, 2 * GIB, 50_000)
    assert shop.stream("customers").resources == Resources(1, 2 * GIB, 100_000)
    assert {stream.sink.connection for stream in shop.streams} == {"warehouse"}
    assert shop.kafka == "millrace_kafka"


def test_a_connection_that_is_only_a_default_is_renamed_too(root: Path) -> None:
    replace_once(root / PRODUCTION, "{millrace_sink: warehouse}", "{millrace_kafka: main_kafka}")
    replace_once(root / SHOP, "kafka: millrace_kafka\n", "")

    assert declarations.load_pipeline(root, "shop", "production").kafka == "main_kafka"
    assert declarations.load_pipeline(root, "returns", "production").kafka == "main_kafka"


def test_an_environment_names_notifiers_and_operators(root: Path) -> None:
    environment = declarations.load_environment(root, "production")

    assert environment == declarations.load(root, "production").environment
    assert environment.operators == ("anna", "ben")
    assert environment.notifiers == (
        Notifier("log"),
        Notifier("airflow.providers.slack.notifications.slack.SlackNotifier", (("channel", "#alarms"),)),
    )


@pytest.mark.parametrize("name", ["embedded", "staging"])
def test_an_environment_bounds_what_is_rewound_by_one_person(root: Path, name: str) -> None:
    file = root / "include/environments" / f"{name}.yaml"
    longest, records = (None, None) if name == "embedded" else (timedelta(hours=1), 1_000_000)
    for text, bounds in (
        ("description: nothing said", (longest, records)),
        ("unapproved_rewind: {longest: 2d}", (timedelta(days=2), records)),
        ("unapproved_rewind: {records: 5}", (longest, 5)),
    ):
        file.write_text(f"{text}\n")
        environment = declarations.load_environment(root, name)
        assert (environment.longest_rewind, environment.most_rewound) == bounds


def test_the_variable_names_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "production")

    assert declarations.load(root).environment.name == "production"


@pytest.mark.parametrize("name", ["nowhere", "../secrets", "a/b"])
def test_an_environment_without_a_file_is_refused(root: Path, name: str) -> None:
    with pytest.raises(UsageError):
        declarations.load(root, name)


def test_a_broken_environment_lets_nothing_through(root: Path) -> None:
    (root / PRODUCTION).write_text("operatorz: []\n", encoding="utf-8")

    with pytest.raises(DeclarationError):
        declarations.load(root, "production")
    assert [each.file for each in declarations.check(root, "production")] == [PRODUCTION]
    assert declarations.load_pipeline(root, "shop").name == "shop"


@pytest.mark.parametrize("broken", [b"{", b"", b"\xff", b"pipeline: [", b"pipeline: other\n"])
def test_a_broken_file_takes_no_other_down(root: Path, broken: bytes) -> None:
    (root / "include/pipelines/aaa.yaml").write_bytes(broken)

    project = declarations.load(root)

    assert [pipeline.name for pipeline in project.pipelines] == ["returns", "shop"]
    assert {each.file for each in project.findings} == {"include/pipelines/aaa.yaml"}
    assert declarations.load_pipeline(root, "shop").name == "shop"
    with pytest.raises(declarations.InvalidDeclarationError):
        declarations.load_pipeline(root, "aaa")
    with pytest.raises(UsageError):
        declarations.load_pipeline(root, "bbb")


def test_a_new_file_that_claims_what_is_another_ones_is_the_one_that_fails(root: Path) -> None:
    text = (root / SHOP).read_text(encoding="utf-8").replace("pipeline: shop", "pipeline: aaa")
    text = text.replace("    group: shop-team.purchases\n", "")
    (root / "include/pipelines/aaa.yaml").write_text(text, encoding="utf-8")

    project = declarations.load(root)

    assert [pipeline.name for pipeline in project.pipelines] == ["returns", "shop"]
    assert declarations.load_pipeline(root, "shop").name == "shop"
    with pytest.raises(declarations.InvalidDeclarationError) as caught:
        declarations.load_pipeline(root, "aaa")
    assert set(caught.value.findings) == set(project.findings)
    assert {each.field for each in caught.value.findings} == {
        "topics.shop.purchases",
        "topics.shop.customers",
        "streams.purchases.writes.postgres.table",
        "streams.customers.writes.postgres.table",
    }


def test_topics_of_two_files_that_collide_in_kafka_are_a_finding_in_the_newer_claim(root: Path) -> None:
    declared = "pipeline: aaa\nowner: me\ntopics:\n  shop_purchases: {partitions: 2}\n"
    (root / "include/pipelines/aaa.yaml").write_text(declared, encoding="utf-8")

    (found,) = declarations.check(root)

    assert found.what == f"Kafka cannot hold `shop_purchases` beside `shop.purchases` of {SHOP}:6"
    assert (found.file, found.line) == ("include/pipelines/aaa.yaml", 4)
    with pytest.raises(declarations.InvalidDeclarationError):
        declarations.load_pipeline(root, "aaa")
    assert declarations.load_pipeline(root, "shop").name == "shop"


def test_a_topic_elsewhere_may_have_findings_that_its_readers_need_not_mind(root: Path) -> None:
    replace_once(root / SHOP, "replication: 3", "replication: 0")

    assert declarations.load_pipeline(root, "returns").references[0].value is not None


def test_one_pipeline_and_the_whole_project_agree(root: Path) -> None:
    for environment in ("embedded", "production"):
        for pipeline in declarations.load(root, environment).pipelines:
            assert declarations.load_pipeline(root, pipeline.name, environment) == pipeline


def test_an_unknown_pipeline_is_named_with_the_nearest(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        declarations.load_pipeline(root, "shopp")

    assert caught.value.next_step == "did you mean `shop`?"


def test_warns_of_what_is_probably_not_meant(root: Path) -> None:
    replace_once(root / SHOP, "    partitions: 4\n    replication: 3\n", "    partitions: 1\n    replication: 1\n")
    replace_once(root / SHOP, "max.message.bytes: 1048576", "min.insync.replica: 2, min.insync.replicas: 2")
    replace_once(root / SHOP, "customer_id STRING NOT NULL", "customer_id STRING")
    replace_once(root / PRODUCTION, "all_topics: {replication: 3}\n", "")
    replace_once(root / PRODUCTION, "partitions: 12, ", "")

    project = declarations.load(root, "production")

    assert [pipeline.name for pipeline in project.pipelines] == ["returns", "shop"]
    assert [(each.line, each.field.removeprefix("topics.shop.purchases.")) for each in project.warnings] == [
        (7, "partitions"),
        (8, "replication"),
        (9, "key.field"),
        (12, "config.min.insync.replica"),
        (12, "config.min.insync.replicas"),
    ]
    assert {each.severity for each in project.warnings} == {declarations.Severity.WARNING}


def test_warns_of_a_column_that_no_table_can_have_where_a_stream_writes_one(root: Path) -> None:
    assert not declarations.load(root).warnings
    replace_once(root / SHOP, "customer_id STRING NOT NULL", "xmin BIGINT, CTID INT, customer_id STRING NOT NULL")

    warnings = declarations.load(root).warnings

    assert [(each.file, each.field) for each in warnings] == [
        (RETURNS, "streams.items.reads[1]"),
        (SHOP, "streams.purchases.reads[0]"),
    ]
    assert {each.what.partition(":")[0] for each in warnings} == {
        "the topic `shop.purchases` has a column `xmin`, and PostgreSQL has a system column of this name in every table"
    }
    assert {each.next_step for each in warnings} == {'rename it in the app: col("xmin").alias("record_xmin")'}


CUSTOMERS = "{postgres: {connection: millrace_sink, table: shop.customers}}"
ITEMS = "{postgres: {connection: millrace_sink, table: returns.items}}"


def upserting(key: str, table: str = "shop.customers") -> str:
    return f"{{postgres: {{connection: millrace_sink, table: {table}, mode: upsert, key: {key}}}}}"


def test_a_stream_may_upsert_by_some_columns(root: Path) -> None:
    replace_once(root / SHOP, CUSTOMERS, upserting("[id, name]"))

    purchases, customers = declarations.load_pipeline(root, "shop", "production").streams
    assert customers.sink == PostgresSink("warehouse", "shop.customers", SinkMode.UPSERT, ("id", "name"))
    assert (purchases.sink.mode, purchases.sink.key) == (SinkMode.APPEND, ())
    assert declarations.load_pipeline(root, "shop").able(Capability.REDRIVE) == (
        declarations.load_pipeline(root, "shop").stream("purchases"),
    )


BYTES = "    value: {format: bytes}\n"
COMPACT = "    cleanup: compact\n    value:\n"
KEPT = "    cleanup: delete\n    value:\n"
TOMBSTONES = "      tombstones: delete\n"
DELETED = "a tombstone of the topic `shop.customers` knows `id` and no other column, and the sink's key has "
LOST = "the topic `shop.customers` is compacted, and without `tombstones: delete` its deletes go to quarantine"
SCATTERED = "the topic `shop.customers` has the key `id`, which is not a column of the sink's key: records of one row"
NARROWED = "make `id` alone the sink's key, as `key: [id]`"
MENDED = "add `tombstones: delete` to its `value`"


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        ("[id]", COMPACT + TOMBSTONES),
        ("[id]", COMPACT.replace("compact", "compact,delete") + TOMBSTONES),
        ("[id]", KEPT + TOMBSTONES),
        ("[id]", KEPT),
        ("[name, id]", KEPT),
        ("[name, id]", KEPT + TOMBSTONES.replace("delete", "quarantine")),
    ],
)
def test_of_a_topic_whose_key_lies_in_the_sinks_nothing_is_said(root: Path, key: str, topic: str) -> None:
    replace_once(root / SHOP, CUSTOMERS, upserting(key))
    replace_once(root / SHOP, COMPACT, topic)

    assert declarations.check(root, "production") == ()


def test_warns_of_a_topic_that_is_keyed_otherwise_than_the_sink(root: Path) -> None:
    replace_once(root / SHOP, CUSTOMERS, upserting("[name]"))
    replace_once(root / SHOP, COMPACT, KEPT)

    (found,) = declarations.check(root, "production")

    assert (found.severity, found.file, found.line) == (declarations.Severity.WARNING, SHOP, 40)
    assert found.field == "streams.customers.reads[0]"
    assert found.what == f"{SCATTERED} may come from several partitions, and then the latest timestamp decides"
    assert found.next_step.startswith("add `id` to the sink's key if it belongs there, or check that its timestamps")


@pytest.mark.parametrize(
    ("key", "topic", "said"),
    [
        ("[name, id]", COMPACT + TOMBSTONES, [(f"{DELETED}`name`: if the app", f"{NARROWED}, or derive")]),
        ("[name, id, day]", KEPT + TOMBSTONES, [(f"{DELETED}`name`, `day`: if the app", NARROWED)]),
        ("[name]", KEPT + TOMBSTONES, [(DELETED, NARROWED), (SCATTERED, f"{NARROWED}, or check that its timest")]),
        ("[id]", COMPACT, [(LOST, MENDED)]),
        ("[id]", COMPACT + TOMBSTONES.replace("delete", "quarantine"), [(LOST, MENDED)]),
        ("[id]", COMPACT.replace("compact", "compact,delete"), [(LOST, MENDED)]),
        ("[name, id]", COMPACT, [(LOST, f"{MENDED}, and {NARROWED}")]),
        ("[name]", COMPACT, [(SCATTERED, NARROWED), (LOST, f"{MENDED}, and {NARROWED}")]),
    ],
)
def test_warns_of_deletes_that_would_go_to_quarantine(
    root: Path, key: str, topic: str, said: list[tuple[str, str]]
) -> None:
    replace_once(root / SHOP, CUSTOMERS, upserting(key))
    replace_once(root / SHOP, COMPACT, topic)

    found = declarations.check(root, "production")

    assert {(each.severity, each.field) for each in found} == {
        (declarations.Severity.WARNING, "streams.customers.reads[0]")
    }
    for each, (what, step) in zip(found, said, strict=True):
        assert each.what.startswith(what)
        assert each.next_step.startswith(step)


def test_says_nothing_of_deletes_where_rows_are_appended_or_records_are_not_decoded(root: Path) -> None:
    assert declarations.check(root, "production") == ()
    replace_once(root / SHOP, CUSTOMERS, upserting("[key]"))
    replace_once(root / SHOP, "{field: id}", "{field: key}")
    replace_once(root / SHOP, "    value:\n      schema: |\n        id STRING NOT NULL,\n        name STRING\n", BYTES)
    assert declarations.check(root, "production") == ()


def test_warns_once_of_each_topic_also_of_another_file_and_of_one_without_a_key(root: Path) -> None:
    replace_once(root / RETURNS, ITEMS, upserting("[id, amount]", "returns.items"))

    found = declarations.check(root, "production")

    assert [(each.severity, each.file, each.field) for each in found] == [
        (declarations.Severity.WARNING, RETURNS, "streams.items.reads[0]"),
        (declarations.Severity.WARNING, RETURNS, "streams.items.reads[1]"),
    ]
    assert found[0].what.startswith("the topic `returns.items` declares no key: records of one row may come from")
    assert found[0].next_step.startswith("declare its key, as `key: {field: id}`, or check")
    assert found[1].what.startswith("the topic `shop.purchases` has the key `customer_id`, which is not a column")


def test_findings_travel_through_pickle_and_print_whole(root: Path) -> None:
    (root / RETURNS).write_text("pipeline: returns\nowner: 3\nkafkas: x\n", encoding="utf-8")
    with pytest.raises(declarations.InvalidDeclarationError) as caught:
        declarations.load_pipeline(root, "returns")

    copy = pickle.loads(pickle.dumps(caught.value))

    assert copy.findings == caught.value.findings
    assert str(copy).count("\n  next: ") == 2
    assert f"{RETURNS}:2: owner: the number 3 is not text" in str(copy)


def test_loading_one_pipeline_parses_only_files_that_name_something_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (root / f"include/pipelines/other_{number}.yaml").write_text("broken: [", encoding="utf-8")
    parsed: list[str] = []

    def read(data: bytes, file: str) -> object:
        parsed.append(file)
        return reader.read(data, file)

    monkeypatch.setattr(draft, "read", read)
    declarations.load_pipeline(root, "returns", "production")

    assert parsed == [PRODUCTION, RETURNS, SHOP]


def test_a_tree_that_was_read_cannot_change() -> None:
    tree, _ = reader.read(b"reads: [a]\n", "a.yaml")
    assert tree is not None
    reads = tree.get("reads")
    assert isinstance(reads, reader.Sequence)

    with pytest.raises(TypeError):
        tree.entries["owner"] = tree.entries["reads"]  # type: ignore[index]
    with pytest.raises(TypeError):
        reads.items[0] = tree  # type: ignore[index]


def test_imports_nothing_heavy() -> None:
    heavy = "{'pyspark', 'airflow', 'pandas', 'confluent_kafka', 'sqlalchemy', 'great_expectations', 'rich'}"
    code = f"import sys, millrace.declarations; print(sorted({heavy} & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(declarations.__file__).parents[2])},
        timeout=Deadline.COMMAND.seconds,
    )

    assert done.stdout == "[]\n"
