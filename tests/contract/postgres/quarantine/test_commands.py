"""`millrace quarantine` on a real PostgreSQL: what is counted, what of a record is read, and how bytes are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.schema import ensure_schema
from millrace.adapters.sinks.postgres import reader as sink_reader
from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.cli.quarantine import commands as quarantine
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.settings import PostgresSettings
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.streams import FakePlatform
from support.stack.control_databases import Databases

STREAM, TOPIC = "shop.purchases", "shop.purchases"
INSERT = (
    'INSERT INTO millrace.quarantine (stream, timeline, epoch, topic, topic_id, partition, "offset", timestamp, key, '
    "value, headers, rule, error, quarantined_at) SELECT %s, 1, 1, %s, %s, %s, "
    "generate_series(%s::bigint, %s::bigint), '2026-05-01', %s, %s, %s, %s, 'why it is bad', %s"
)


@pytest.fixture(scope="module")
def database(control_databases: Databases) -> PostgresSettings:
    """A sink database of this module's own."""
    return control_databases.create().owner


@pytest.fixture
def sink(database: PostgresSettings) -> Iterator[psycopg.Connection[Any]]:
    with connect(database, "test") as connection:
        connection.autocommit = True
        with connection.transaction(), connection.cursor() as cursor:
            ensure_schema(cursor)
        yield connection
        connection.execute("DROP SCHEMA millrace CASCADE")


@pytest.fixture
def _platform(tmp_path: Path, database: PostgresSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = FakePlatform(example_project(tmp_path))
    monkeypatch.setattr(platform, "sinks_tables", lambda connection: SinkReader(database), raising=False)
    use_platform(monkeypatch, platform, quarantine)


pytestmark = pytest.mark.usefixtures("_platform")


def put(
    sink: psycopg.Connection[Any],
    offsets: tuple[int, int],
    *,
    rule: str = "not_json",
    stream: str = STREAM,
    partition: int = 0,
    topic_id: str = "id-1",
    at: str = "2026-05-02T10:00:00Z",
    key: bytes | None = b"00001",
    value: bytes | None = b"{",
    headers: str = "[]",
) -> None:
    """Quarantine the records from the first to the last of these offsets."""
    sink.execute(INSERT, (stream, TOPIC, topic_id, partition, *offsets, key, value, headers, rule, at))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(quarantine.app, arguments)


def counts(*arguments: str) -> list[dict[str, Any]]:
    done = call("list", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["counts"]
    return found


def shown(record: str) -> dict[str, str]:
    done = call("show", STREAM, record)
    assert done.exit_code == 0, done.exception
    return {name.strip(): text.strip() for name, text in (line.split("  ", 1) for line in done.stdout.splitlines())}


def refusal(*arguments: str) -> MillraceError:
    error = call(*arguments).exception
    assert isinstance(error, MillraceError), error
    return error


def test_records_are_counted_by_stream_and_rule_with_the_first_and_the_last(sink: psycopg.Connection[Any]) -> None:
    put(sink, (10, 2009), partition=1, at="2026-05-02T10:00:00Z")
    put(sink, (5, 5), partition=3, at="2026-05-02T11:00:00Z")
    put(sink, (7, 7), rule="wrong_type")
    put(sink, (1, 3), stream="old.events")
    found = counts()
    assert [(count["stream"], count["rule"], count["records"]) for count in found] == [
        ("old.events", "not_json", 3),
        (STREAM, "not_json", 2001),
        (STREAM, "wrong_type", 1),
    ]
    assert (found[1]["first"], found[1]["first_at"]) == (f"{TOPIC}/1@10", "2026-05-02T10:00:00+00:00")
    assert (found[1]["last"], found[1]["last_at"]) == (f"{TOPIC}/3@5", "2026-05-02T11:00:00+00:00")
    assert {count["stream"] for count in counts("--stream", STREAM)} == {STREAM}
    assert "2,001" in call("list").stdout


def test_a_list_that_is_cut_says_so(sink: psycopg.Connection[Any]) -> None:
    for rule in ("a", "b", "c"):
        put(sink, (ord(rule), ord(rule)), rule=rule)
    done = call("list", "--limit", "2", "--json")
    assert ([count["rule"] for count in json.loads(done.stdout)["counts"]], json.loads(done.stdout)["is_cut"]) == (
        ["a", "b"],
        True,
    )
    assert "truncated: only the first 2" in call("list", "--limit", "2").stdout


def test_nothing_in_quarantine_and_no_table_yet_are_no_error(sink: psycopg.Connection[Any]) -> None:
    assert counts() == []
    assert "no record is in quarantine" in call("list").stdout
    sink.execute("DROP TABLE millrace.quarantine")
    assert counts() == []


def test_counting_that_takes_too_long_is_given_up_and_named(
    sink: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sink, (1, 1))
    sink.execute("ALTER TABLE millrace.quarantine RENAME TO kept")
    sink.execute(
        "CREATE VIEW millrace.quarantine AS SELECT kept.* FROM millrace.kept, pg_sleep(60) WHERE pg_sleep IS NOT NULL"
    )
    monkeypatch.setitem(sink_reader.SinkReader.__init__.__kwdefaults__, "statement_seconds", 0.1)
    done = call("list", "--json")
    assert done.exit_code == 3
    [problem] = json.loads(done.stdout)["problems"]
    assert "did not answer within 0.1 s" in problem["what"]
    assert isinstance(refusal("show", STREAM, f"{TOPIC}/0@1"), UnreachableError)


def test_a_record_is_shown_with_all_that_is_known_of_it(sink: psycopg.Connection[Any]) -> None:
    headers = json.dumps([{"key": "trace", "value": b"abc".hex()}, {"key": "none", "value": None}])
    put(sink, (748, 748), value=b'{"amount": "caf\xc3\xa9', headers=headers)
    assert shown(f"{TOPIC}/0@748") == {
        "record": f"{TOPIC}/0@748",
        "stream": STREAM,
        "rule": "not_json",
        "error": "why it is bad",
        "timestamp": "2026-05-01 00:00:00 UTC",
        "quarantined": "2026-05-02 10:00:00 UTC, epoch 1, timeline 1",
        "key": "00001",
        "value": '{"amount": "caf\u00e9',
        "header trace": "abc",
        "header none": "(none)",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"a\x1b[2J\nb\r\x07", "a\\x1b[2J\\nb\\r\\x07"),
        (b"\xff\x00", "not UTF-8, in hexadecimal: ff 00"),
        (b"", "(empty)"),
        (None, "(none)"),
    ],
)
def test_bytes_can_do_nothing_to_a_terminal(sink: psycopg.Connection[Any], value: bytes | None, text: str) -> None:
    put(sink, (1, 1), value=value, key=value)
    assert (shown(f"{TOPIC}/0@1")["value"], shown(f"{TOPIC}/0@1")["key"]) == (text, text)


def test_of_a_long_value_the_beginning_is_read_and_the_end_is_said_to_be_missing(
    sink: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine.quarantine, "LONGEST_BYTES", 4)
    put(sink, (1, 1), value="abc\u00e9def".encode())
    assert shown(f"{TOPIC}/0@1")["value"] == "abc (truncated: the first 4 of 8 bytes)"
    document = json.loads(call("show", STREAM, f"{TOPIC}/0@1", "--json").stdout)
    assert document["value"] == {"text": "abc", "size_bytes": 8, "truncated": True}
    assert document["key"] == {"text": "0000", "size_bytes": 5, "truncated": True}


def test_of_a_topic_that_was_made_again_the_latest_record_is_shown(sink: psycopg.Connection[Any]) -> None:
    put(sink, (1, 1), value=b"former")
    put(sink, (1, 1), value=b"latest", topic_id="id-2", at="2026-05-03T10:00:00Z")
    assert shown(f"{TOPIC}/0@1")["value"] == "latest"


@pytest.mark.usefixtures("sink")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("show", STREAM, f"{TOPIC}/0@9"), "has no record shop.purchases/0@9 in quarantine"),
        (("show", STREAM, "0@9"), "is not the name of a record"),
        (("show", "shop.nobody", f"{TOPIC}/0@9"), "pipeline shop has no stream nobody"),
        (("list", "--stream", "shop.nobody"), "pipeline shop has no stream nobody"),
    ],
)
def test_what_is_not_there_is_a_usage_error(arguments: tuple[str, ...], what: str) -> None:
    error = refusal(*arguments)
    assert isinstance(error, UsageError)
    assert what in error.what


def test_a_sink_of_an_older_version_is_named_and_nobody_is_told_to_drop_anything(
    sink: psycopg.Connection[Any],
) -> None:
    put(sink, (1, 1))
    sink.execute("ALTER TABLE millrace.quarantine DROP COLUMN timestamp_ms")
    error = refusal("show", STREAM, f"{TOPIC}/0@1")
    assert "timestamp_ms" in error.what
    assert "drop" not in error.next_step
    assert "the next start" in error.next_step


def test_a_database_that_refuses_is_one_problem_of_the_list(
    sink: psycopg.Connection[Any], control_databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sink, (1, 1))
    stranger = control_databases.create().working
    here = sink.info
    settings = replace(stranger, host=here.host, port=here.port, database=here.dbname)
    platform = quarantine.open_platform(None)  # type: ignore[arg-type]
    monkeypatch.setattr(platform, "sinks_tables", lambda connection: SinkReader(settings))
    done = call("list", "--json")
    assert done.exit_code == 3
    [problem] = json.loads(done.stdout)["problems"]
    assert "permission denied" in problem["what"]
