"""The example's report is not its own judge: the wheel's file against the sink, by SQL, and a report that notices.

Nothing of the package compares here: the file is read by this test, the rows by psycopg, the archive by boto3.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from millrace.cli.example import run as example
from millrace.cli.example.run import run_with_bar
from millrace.declarations import load_pipeline
from millrace.embedded import ports
from millrace.embedded.stack import PARTS, Stack
from millrace.settings import Settings
from millrace.usecases.example.run import ExampleReport
from millrace.usecases.groups.check import check
from millrace.usecases.groups.listing import list_groups
from millrace.usecases.groups.snapshots import take_due
from millrace.usecases.retention.growth import foresee
from millrace.wiring import open_platform
from support.archive.truth import PlainBucket, compare
from support.checks.budget import Kind, spend
from support.documents.calls import AT_THE_END, BESIDE, UP, WITH_SPARK, WITH_THE_EXAMPLE
from support.documents.kept import hold
from support.documents.running import Caller, Entry, call, project_beside, text_of, topic_for_a_restore, words_of_stack
from support.groups.readers import wait_for_the_stock_tool
from support.stack.embedded import start
from support.stack.faulty_proxy import plain_client
from support.topics.plain_consumer import read_topic
from support.topics.reader import committed_records
from support.ui.airflow_ui import AirflowUser
from support.waiting import Deadline, eventually

PURCHASES = 69_659
WHEEL = "Lifetimes-0.11.3-py3-none-any.whl"
WHEEL_SHA256 = "261e3dc89977c2b60767ca6728aaa29d429de0c814635070a749c36555895da8"
BAD = {
    "not JSON": "not_json",
    "truncated JSON": "not_json",
    "missing field": "missing_field",
    "missing all fields": "missing_field",
    "wrong type: text for a number": "wrong_type",
    "wrong type: true for a number": "wrong_type",
    "wrong type: object for a text": "wrong_type",
    "wrong type: fraction for a whole number": "wrong_type",
    "empty value": "empty_value",
    "null value": "null_value",
    "null key": "null_key",
    "timestamp -1": "no_timestamp",
    "trailing garbage": "not_json",
    "duplicate field": "duplicate_field",
    "number too precise": "out_of_range",
    "number too big": "out_of_range",
    "zero character in a text": "nul_character",
    "900 KB of garbage": "not_json",
    "invalid UTF-8": "invalid_utf8",
    "JSON array instead of an object": "wrong_type",
    "null in a required field": "wrong_type",
    "impossible date": "out_of_range",
}
QUALITY_DAG = "shop.quality.purchases"
COLUMNS = "customer_id, purchased_on, quantity, amount, unit_amount, weekday, month"


@pytest.fixture(scope="module")
def purchases(report: Callable[[], ExampleReport]) -> Counter[tuple[object, ...]]:
    """The rows the file asks for, as a multiset: read here, not by the source program, which has fetched the wheel."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wheel = caches / "millrace" / "sources" / WHEEL
    assert sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
    lines = zipfile.ZipFile(wheel).read("lifetimes/datasets/CDNOW_master.txt").decode().splitlines()[1:]
    rows: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        customer, day_text, quantity, amount = line.split()
        day = date(int(day_text[:4]), int(day_text[4:6]), int(day_text[6:]))
        unit = (Decimal(amount) / int(quantity)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
        values = (customer, day, int(quantity), Decimal(amount), unit, day.isoweekday(), day.replace(day=1))
        rows[values] += 1
    assert rows.total() == PURCHASES
    return rows


@pytest.fixture(scope="module")
def reported(idle_stack: Stack, stopping_the_example: None, stopping_the_backup: None) -> list[ExampleReport]:
    """The example's reports; it has run once, as `up` runs it."""
    return []


@pytest.fixture(scope="module")
def no_hourly_check(idle_stack: Stack) -> Iterator[None]:
    """Pause the DAG that checks the table a minute before each hour: `quality list` shows the last check of all."""

    def pause(paused: bool) -> None:
        admin = AirflowUser(start(idle_stack, *PARTS))
        eventually(
            lambda: admin.request("PATCH", f"/dags/{QUALITY_DAG}", {"is_paused": paused}).is_success,
            within=Deadline.AIRFLOW,
            what=f"{QUALITY_DAG} to be known",
        )

    pause(True)
    yield
    pause(False)


@pytest.fixture(scope="module")
def up(idle_stack: Stack, reported: list[ExampleReport], no_hourly_check: None) -> Entry:
    """How `up` ended, which ran the example."""
    stack = start(idle_stack, *PARTS)
    spend(Kind.DAG_RUNS, 5)  # topics, source, operate for the stream and for the backup, the audit

    def run_and_keep(settings: Settings, url: str, console: Console) -> ExampleReport:
        reported.append(run_with_bar(settings, url, console))
        return reported[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "run_with_bar", run_and_keep)
        return call([UP], stack.root)


@pytest.fixture(scope="module")
def report(idle_stack: Stack, reported: list[ExampleReport], up: Entry) -> Callable[[], ExampleReport]:
    """Run the example again. It only reports, which takes a start of Spark."""
    stack = start(idle_stack, "kafka", "s3", "postgres", "airflow")
    url = f"http://127.0.0.1:{ports.read(stack.layout)['airflow']}"

    def run() -> ExampleReport:
        reported.append(run_with_bar(stack.settings(), url, Console(stderr=True)))
        return reported[-1]

    assert up["exit"] == 0, up
    return run


@pytest.fixture(scope="module")
def sink(idle_stack: Stack, report: Callable[[], ExampleReport]) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The sink's database, after the example."""
    settings = idle_stack.settings().postgres("millrace_sink")
    with psycopg.connect(
        host=settings.host,
        port=settings.port,
        dbname=settings.database,
        user=settings.user,
        password=settings.password,
        autocommit=True,
    ) as connection:
        yield connection


@pytest.fixture(scope="module")
def caller(sink: psycopg.Connection[tuple[object, ...]], idle_stack: Stack) -> Iterator[Caller]:
    """Calls of commands in the example's project. Its topics are forecast, and a snapshot knows all that was done."""
    platform = open_platform(idle_stack.settings())
    foresee(platform, load_pipeline(idle_stack.root, "shop"))  # once a day: the hourly DAG may have come before
    take_due(platform, datetime.now(UTC) + timedelta(hours=1))
    [(topic_id,)] = sink.execute("SELECT DISTINCT _topic_id FROM shop.purchases").fetchall()
    caller = Caller(idle_stack.root, words_of_stack(idle_stack, str(topic_id)))
    with topic_for_a_restore(idle_stack) as target:
        caller.learn("target", target)
        yield caller


def test_the_documents_of_commands_are_those_that_were_reviewed(
    caller: Caller, up: Entry, reported: list[ExampleReport], stack: Stack
) -> None:
    """The lists among them hold the example alone: tests of other pipelines may have run before."""
    made = {UP: caller.masked(UP, {**up, "text": text_of(reported[0])})}
    made |= {name: caller.call(name) for name in WITH_THE_EXAMPLE}
    hold(made)


def test_the_documents_of_a_plan_that_is_run_are_those_that_were_reviewed(
    caller: Caller, stack: Stack, tmp_path: Path
) -> None:
    with project_beside(tmp_path, stack) as root:
        beside = caller.inside(root)
        made = {name: beside.call(name) for name in BESIDE}
    hold(made)


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_SPARK)
def test_the_document_of_a_command_that_starts_spark_is_the_one_that_was_reviewed(
    caller: Caller, name: str, stack: Stack
) -> None:
    """In the second tier: each takes a quarter of a minute."""
    made = {name: caller.call(name)}
    hold(made)


def test_the_rows_are_the_files_rows_as_multisets(
    sink: psycopg.Connection[tuple[object, ...]], purchases: Counter[tuple[object, ...]]
) -> None:
    assert Counter(sink.execute(f"SELECT {COLUMNS} FROM shop.purchases").fetchall()) == purchases


def test_the_sources_in_sink_and_quarantine_are_the_topics_as_multisets(
    sink: psycopg.Connection[tuple[object, ...]], stack: Stack
) -> None:
    stored = Counter(sink.execute("SELECT _partition, _offset FROM shop.purchases").fetchall())
    stored += Counter(
        sink.execute(
            """SELECT partition, "offset" FROM millrace.quarantine WHERE stream = 'shop.purchases'"""
        ).fetchall()
    )
    records = committed_records(stack.settings().kafka().bootstrap_servers, "shop.purchases")
    assert stored == Counter((record.partition, record.offset) for record in records)
    assert stored.total() == PURCHASES + len(BAD)


def test_the_archives_manifests_count_every_committed_record_and_its_objects_hold_them(
    sink: psycopg.Connection[tuple[object, ...]], stack: Stack
) -> None:
    settings = stack.settings()
    [(topic_id,)] = sink.execute("SELECT DISTINCT _topic_id FROM shop.purchases").fetchall()
    bucket = PlainBucket(plain_client(settings.s3()), settings.s3().bucket)
    known = read_topic(settings.kafka().librdkafka, "shop.purchases")
    keys = sorted(bucket.keys(f"archive/shop.purchases/{topic_id}/manifest/"))
    manifests = [json.loads(bucket.get(key) or b"") for key in keys]
    counted = sum(entry["count"] for manifest in manifests for entry in manifest["objects"])
    assert counted == len(known.records) == PURCHASES + len(BAD)
    assert compare(bucket, "shop.purchases", str(topic_id), known.records, known.bounds) == []


@pytest.mark.usefixtures("report")
def test_stream_and_backup_are_seen_as_kafkas_own_tool_sees_them(idle_stack: Stack) -> None:
    """By a snapshot, in the control database that `up` made, as DAG millrace.snapshots takes one."""
    groups = ("millrace.shop.purchases", "millrace.shop.backup")
    wait_for_the_stock_tool(idle_stack, groups)
    platform = open_platform(idle_stack.settings())
    later = datetime.now(UTC) + timedelta(hours=1)  # whatever the DAG has taken, one is due
    assert [one.failed for one in take_due(platform, later)] == [False]
    found = {row.name: row for row in list_groups(platform, "millrace_kafka").groups}
    assert [found[name].what for name in groups] == ["stream shop.purchases", "backup shop.backup"]
    assert [(found[name].reading.lag, found[name].risks) for name in groups] == [(0, ())] * 2
    assert not check(platform).wrong


@pytest.mark.full
def test_the_audits_dag_is_red_with_the_offsets_until_the_archive_is_whole_again(
    report: Callable[[], ExampleReport], stack: Stack
) -> None:
    settings = stack.settings().s3()
    client, airflow = plain_client(settings), AirflowUser(stack)
    bucket = PlainBucket(client, settings.bucket)
    key = min(key for key in bucket.keys("archive/shop.purchases/") if key.endswith(".parquet"))
    for evidence in [key for key in bucket.keys("audit/shop.purchases/") if "/deep/" in key]:
        client.delete_object(Bucket=settings.bucket, Key=evidence)  # so that a deep look is due
    data = bucket.get(key)
    client.delete_object(Bucket=settings.bucket, Key=key)
    try:
        red = airflow.run("shop.backup_audit", {})
        told = report()
    finally:
        client.put_object(Bucket=settings.bucket, Key=key, Body=data)
    partition, name = key.split("/")[-2:]
    first, next_ = map(int, name.split("-")[:2])
    assert red["state"] == "failed"
    lines = airflow.errors("shop.backup_audit", red["dag_run_id"], "shop.purchases")
    assert f"[{first}, {next_}) of partition {partition}" in lines[0]
    assert key in lines[0]
    assert told.exit_code == 1
    assert airflow.run("shop.backup_audit", {})["state"] == "success"


def test_every_bad_record_is_in_quarantine_under_its_rule_with_its_content(
    sink: psycopg.Connection[tuple[object, ...]],
) -> None:
    found = sink.execute(
        """SELECT headers::text, rule, key IS NULL, value IS NULL, octet_length(value), error <> ''
        FROM millrace.quarantine WHERE stream = 'shop.purchases'"""
    ).fetchall()
    assert sorted(rule for _, rule, *_ in found) == sorted(BAD.values())
    assert [no_key for _, rule, no_key, *_ in found if rule == "null_key"] == [True]
    assert [no_value for _, rule, _, no_value, *_ in found if rule == "null_value"] == [True]
    assert max(size or 0 for *_, size, _ in found) == 900_000
    assert all(has_error for *_, has_error in found)


ROW = "WHERE _topic_id = (SELECT _topic_id FROM kept LIMIT 1) AND _partition = 2 AND _offset = {offset}"
NAMED = r"recomputed: {what}: 1, of records of [^@]* after: shop\.purchases/2@{{offset}}"
DAMAGES = [
    (
        f"DELETE FROM shop.purchases {ROW}",
        r"books: missing: shop\.purchases/2 \[{offset}, \d+\), 1 offset",
        NAMED.format(what="made by the app, and nothing of the record is stored"),
    ),
    (
        f"CREATE TEMPORARY TABLE twin AS SELECT * FROM kept {ROW}; UPDATE twin SET _ordinal = _ordinal + 1; "
        "INSERT INTO shop.purchases SELECT * FROM twin; DROP TABLE twin",
        NAMED.format(what="stored, and the app makes no row of the record"),
    ),
    (f"UPDATE shop.purchases SET amount = amount + 0.01 {ROW}", NAMED.format(what="column amount: differs")),
    (f"UPDATE shop.purchases SET month = month + 1 {ROW}", NAMED.format(what="column month: differs")),
]
"""What is done to a row, and every finding that it has to lead to."""


@contextmanager
def damaged(sink: psycopg.Connection[tuple[object, ...]]) -> Iterator[list[str]]:
    """Rows of partition 2 are damaged, each in another way, and right again afterwards; what has to be found."""
    sink.execute(
        "CREATE TEMPORARY TABLE kept AS SELECT * FROM shop.purchases WHERE _partition = 2 ORDER BY _offset "
        f"OFFSET 17 LIMIT {len(DAMAGES)}"
    )
    offsets = [offset for (offset,) in sink.execute("SELECT _offset FROM kept ORDER BY 1").fetchall()]
    expected: list[str] = []
    try:
        for offset, (statements, *findings) in zip(offsets, DAMAGES, strict=True):
            sink.execute(statements.format(offset=offset))  # type: ignore[arg-type]
            expected += [finding.format(offset=offset) for finding in findings]
        yield expected
    finally:
        of_kept = "(SELECT _topic_id, _partition, _offset FROM kept)"
        sink.execute(f"DELETE FROM shop.purchases WHERE (_topic_id, _partition, _offset) IN {of_kept}")
        sink.execute("INSERT INTO shop.purchases SELECT * FROM kept; DROP TABLE kept")


@pytest.mark.full
def test_every_damaged_row_is_named_with_what_is_wrong_and_turns_the_exit_code(
    sink: psycopg.Connection[tuple[object, ...]], report: Callable[[], ExampleReport]
) -> None:
    """One row is lost and one is there twice, under two ordinals, so that no count tells."""
    with damaged(sink) as expected:
        told = report()
    assert told.exit_code == 1
    assert told.rows_out == PURCHASES
    assert len(told.findings) == len(expected)
    for one in expected:
        assert [finding for finding in told.findings if re.fullmatch(one, finding)], (one, told.findings)


@pytest.mark.usefixtures("report")
def test_the_report_names_every_bad_record_and_counts_right(reported: list[ExampleReport]) -> None:
    first = reported[0]
    assert not first.already_done
    judge(first)


@pytest.mark.full
def test_the_report_is_right_again_after_the_damage_and_says_that_nothing_was_done(
    report: Callable[[], ExampleReport],
) -> None:
    again = report()
    assert again.already_done
    judge(again)


def judge(told: ExampleReport) -> None:
    """Assert every number and every bad record of a report without findings."""
    assert (told.findings, told.exit_code) == ((), 0)
    assert (told.records_in, told.rows_out, told.lag) == (PURCHASES + len(BAD), PURCHASES, 0)
    assert told.backup is not None
    assert str(told.backup).startswith("69,681 of 69,681 records proven, lost 0; evidence: audit/shop.purchases/")
    assert {entry.shows: entry.rule for entry in told.quarantined} == BAD


def test_the_documents_of_a_backup_that_is_stopped_are_those_that_were_reviewed(caller: Caller, stack: Stack) -> None:
    """The last test here: nothing of the example is archived any more."""
    made = {name: caller.call(name) for name in AT_THE_END}
    hold(made)
