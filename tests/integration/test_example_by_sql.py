"""The example's report is not its own judge: the wheel's file against the sink, by SQL, and a report that notices.

Nothing of the package compares here: the file is read by this test, the rows by psycopg.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from decimal import ROUND_HALF_UP, Decimal

import psycopg
import pytest
from rich.console import Console

from millrace.cli.example import run_with_bar
from millrace.embedded import ports
from millrace.embedded.stack import Stack
from millrace.usecases.example import ExampleReport
from support.topic_reader import committed_records
from support.waiting import Deadline

PURCHASES = 69_659
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
COLUMNS = "customer_id, purchased_on, quantity, amount, unit_amount, weekday, month"


@pytest.fixture(scope="module")
def purchases(tmp_path_factory: pytest.TempPathFactory) -> Counter[tuple[object, ...]]:
    """The rows the file asks for, as a multiset: fetched and read here, not by the source program."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), "Lifetimes==0.11.3"]
    subprocess.run(command, check=True, timeout=Deadline.COMMAND.seconds)
    (wheel,) = folder.glob("*.whl")
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


@pytest.fixture
def report(stack: Stack, stopping_the_example: None) -> Callable[[], ExampleReport]:
    """Runs the example as `up` does; the second time it only reports."""
    url = f"http://127.0.0.1:{ports.read(stack.layout)['airflow']}"
    return lambda: run_with_bar(stack.settings(), url, Console(stderr=True))


@pytest.fixture
def sink(stack: Stack, report: Callable[[], ExampleReport]) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The sink's database, after the example."""
    assert report().exit_code == 0
    settings = stack.settings().postgres("millrace_sink")
    with psycopg.connect(
        host=settings.host,
        port=settings.port,
        dbname=settings.database,
        user=settings.user,
        password=settings.password,
        autocommit=True,
    ) as connection:
        yield connection


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


def test_the_report_names_every_bad_record_and_counts_right(
    sink: psycopg.Connection[tuple[object, ...]], report: Callable[[], ExampleReport]
) -> None:
    told = report()
    assert told.already_done
    assert (told.records_in, told.rows_out, told.lag) == (PURCHASES + len(BAD), PURCHASES, 0)
    assert {entry.shows: entry.rule for entry in told.quarantined} == BAD


@contextmanager
def damaged(sink: psycopg.Connection[tuple[object, ...]], damage: str, repair: str) -> Iterator[tuple[int, int]]:
    """One row of partition 2 damaged, and right again afterwards."""
    sink.execute(
        "CREATE TEMPORARY TABLE victim AS SELECT * FROM shop.purchases WHERE _partition = 2 ORDER BY _offset "
        "OFFSET 17 LIMIT 1"
    )
    row = sink.execute("SELECT _partition, _offset FROM victim").fetchone()
    assert row is not None
    sink.execute(damage)
    try:
        yield row[0], row[1]  # type: ignore[misc]
    finally:
        sink.execute(repair)
        sink.execute("DROP TABLE victim")


WHERE = "WHERE (_topic_id, _partition, _offset) = (SELECT _topic_id, _partition, _offset FROM victim)"


@pytest.mark.parametrize(
    ("fault", "damage", "repair"),
    [
        (
            "lost: neither in the sink nor in quarantine",
            f"DELETE FROM shop.purchases {WHERE}",
            "INSERT INTO shop.purchases SELECT * FROM victim",
        ),
        (
            "doubled: 2 rows in the sink and 0 entries in quarantine",
            "UPDATE victim SET _ordinal = _ordinal + 1; INSERT INTO shop.purchases SELECT * FROM victim",
            f"DELETE FROM shop.purchases {WHERE} AND _ordinal = (SELECT _ordinal FROM victim)",
        ),
        (
            "changed: amount is ",
            f"UPDATE shop.purchases SET amount = amount + 0.01 {WHERE}",
            f"UPDATE shop.purchases SET amount = amount - 0.01 {WHERE}",
        ),
        (
            "changed: month is ",
            f"UPDATE shop.purchases SET month = month + 1 {WHERE}",
            f"UPDATE shop.purchases SET month = month - 1 {WHERE}",
        ),
    ],
    ids=["deleted", "doubled", "changed", "changed-result"],
)
def test_one_damaged_row_turns_the_exit_code_and_is_named(
    sink: psycopg.Connection[tuple[object, ...]],
    report: Callable[[], ExampleReport],
    fault: str,
    damage: str,
    repair: str,
) -> None:
    with damaged(sink, damage, repair) as (partition, offset):
        told = report()
    assert told.exit_code == 1
    (finding,) = told.findings
    assert finding.startswith(f"shop.purchases/{partition}@{offset}: {fault}")
    assert report().exit_code == 0


def test_one_row_lost_and_another_doubled_are_both_named(
    sink: psycopg.Connection[tuple[object, ...]], report: Callable[[], ExampleReport]
) -> None:
    repair = "INSERT INTO shop.purchases SELECT * FROM victim; DELETE FROM shop.purchases WHERE _ordinal = 9"
    double = (
        "CREATE TEMPORARY TABLE other AS SELECT * FROM shop.purchases WHERE _partition = 1 ORDER BY _offset LIMIT 1; "
        "UPDATE other SET _ordinal = 9; INSERT INTO shop.purchases SELECT * FROM other; DROP TABLE other"
    )
    with damaged(sink, f"DELETE FROM shop.purchases {WHERE}; {double}", repair):
        told = report()
    assert told.rows_out == PURCHASES
    assert [finding.split(": ")[1] for finding in told.findings] == ["doubled", "lost"]
    assert told.exit_code == 1
