"""Millrace among others who hold locks: it waits for nobody for long at a time, and says who is in its way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from millrace.adapters.control.database.connection import open_engine, translated
from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.postgres import locks as postgres_locks
from millrace.adapters.postgres import schema as postgres_schema
from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.locks import LockedError, in_turns
from millrace.adapters.sinks import fence as postgres_fence
from millrace.errors import MillraceError, UnreachableError
from millrace.settings import PostgresSettings
from support.sinks.writer import COLUMNS, Writer
from support.stack.control_databases import Databases, make_version
from support.waiting import Deadline, eventually, in_time, joined

MORE = COLUMNS.append(pa.field("more", pa.string()))
A_WHILE = timedelta(seconds=2)


@pytest.fixture
def others(database: PostgresSettings) -> Iterator[ExitStack]:
    """Whoever else works in the database; all of them leave at the end."""
    with ExitStack() as cleanup:
        yield cleanup


def report(others: ExitStack, database: PostgresSettings, statement: str) -> psycopg.Connection[Any]:
    """A transaction that has run a statement and is left open."""
    connection = others.enter_context(connect(database, "a long report"))
    connection.execute(statement)
    return connection


def left(admin: psycopg.Connection[Any], name: str) -> list[str]:
    """The staging tables of the stream."""
    found = admin.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE %s ORDER BY 1", (f"{name}.s#%",))
    return [row[0] for row in found.fetchall()]


def test_readers_get_past_a_start_that_waits_to_alter_its_table(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any], others: ExitStack
) -> None:
    Writer(database, name, 1).ready().commit(0, 3)
    long = report(others, database, f"SELECT count(*) FROM {name}.rows")
    second = Writer(database, name, 2)
    second.sink.take_over()
    starting = threading.Thread(target=lambda: second.sink.prepare(MORE), daemon=True)
    starting.start()

    def waits() -> bool:
        query = "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        return bool(admin.execute(query, (second.identity.application_name,)).fetchall())

    for _ in range(3):  # each time the start is back in the queue, before the reader
        eventually(waits, within=Deadline.SERVER, what="the start to wait for its lock")
        [(count,)] = in_time(
            lambda: admin.execute(f"SELECT count(*) FROM {name}.rows").fetchall(),
            within=Deadline.THREAD,
            what="a reader that comes after the start",
        )
        assert count == 3
    assert starting.is_alive()
    long.rollback()
    joined(starting, within=Deadline.SERVER, what="the start, now that nobody is in its way")
    assert second.commit(3, 4).rows_out == 1


def test_a_start_that_cannot_alter_its_table_says_who_is_in_the_way(
    database: PostgresSettings,
    name: str,
    admin: psycopg.Connection[Any],
    others: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Writer(database, name, 1).ready()
    long = report(others, database, f"SELECT count(*) FROM {name}.rows")
    second = Writer(database, name, 2)
    second.sink.take_over()
    monkeypatch.setattr(
        postgres_fence, "in_turns", lambda *arguments, **named: in_turns(*arguments, **named, within=A_WHILE)
    )
    with pytest.raises(LockedError) as raised:
        second.sink.prepare(MORE)
    assert (
        f"blocked by: pid {long.info.backend_pid} (user {long.info.user}, a long report, idle in" in raised.value.what
    )
    assert "`prepare the table and its staging`" in raised.value.what
    assert isinstance(raised.value, UnreachableError), "the next epoch tries again"
    second.sink.prepare(COLUMNS)  # and it was let go of: nothing to alter, nothing to wait for


def test_a_zombies_staging_is_dropped_when_it_is_free_and_holds_nobody_up(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any], others: ExitStack
) -> None:
    first = Writer(database, name, 1).ready()
    second = Writer(database, name, 2)
    second.sink.take_over()
    rows = first.sink.staging.rows.as_string(admin)
    zombie = report(others, database, f"LOCK TABLE {rows} IN ROW EXCLUSIVE MODE")

    in_time(lambda: second.sink.prepare(COLUMNS), within=Deadline.SERVER, what="the start beside a zombie")
    assert left(admin, name) == [f"{name}.s#1", f"{name}.s#2", f"{name}.s#2!"]
    second.sink.open_positions(1, {})
    zombie.rollback()
    Writer(database, name, 3).ready()
    assert left(admin, name) == [f"{name}.s#3", f"{name}.s#3!"]


def test_a_backup_that_reads_all_tables_holds_no_batch_up(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any], others: ExitStack
) -> None:
    """pg_dump takes ACCESS SHARE on every table and keeps it to its end: a TRUNCATE would wait for hours."""
    writer = Writer(database, name, 1).ready()
    writer.commit(0, 3)
    tables = ", ".join(one.as_string(admin) for one in (writer.sink.staging.rows, writer.sink.staging.bad_records))
    dump = report(others, database, f"LOCK TABLE {tables}, {name}.rows IN ACCESS SHARE MODE")
    for first in (3, 5):
        done = in_time(
            lambda at=first: writer.commit(at, at + 2), within=Deadline.SERVER, what="a batch beside a backup"
        )  # type: ignore[misc]
        assert done.rows_out == 2
    assert left(admin, name) == [f"{name}.s#1", f"{name}.s#1!", f"{name}.s#1~1", f"{name}.s#1~1!"]
    in_time(writer.sink.discard, within=Deadline.SERVER, what="the end of a stream beside a backup")
    assert left(admin, name) == [f"{name}.s#1", f"{name}.s#1!"]
    dump.rollback()
    assert admin.execute(f"SELECT _offset FROM {name}.rows ORDER BY 1").fetchall() == [(n,) for n in range(7)]


def test_the_tables_of_a_former_backup_are_dropped_when_the_next_one_begins(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any], others: ExitStack
) -> None:
    writer = Writer(database, name, 1).ready()
    for night in range(3):
        writer.commit(2 * night, 2 * night + 1)
        staging = writer.sink.staging.rows.as_string(admin)
        dump = report(others, database, f"LOCK TABLE {staging} IN ACCESS SHARE MODE")
        writer.commit(2 * night + 1, 2 * night + 2)
        dump.rollback()
    assert left(admin, name) == [f"{name}.s#1~2", f"{name}.s#1~3", f"{name}.s#1~3!"]
    assert admin.execute(f"SELECT _offset FROM {name}.rows ORDER BY 1").fetchall() == [(n,) for n in range(6)]


def test_an_upgrade_of_the_control_database_says_who_is_in_its_way(
    control_databases: Databases, others: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = control_databases.create()
    make_version(fresh.owner, "0002")
    long = report(others, fresh.owner, "SELECT count(*) FROM alarm")
    monkeypatch.setattr(postgres_locks.in_turns, "__kwdefaults__", {"within": A_WHILE})
    with pytest.raises(LockedError, match=rf"blocked by: pid {long.info.backend_pid} \(user "):
        upgrade(fresh.owner, fresh.working.user)
    long.rollback()
    assert upgrade(fresh.owner, fresh.working.user).applied != ()


def test_an_upgrade_that_cannot_make_what_kafka_streams_keep_says_who_is_in_its_way_and_keeps_the_rest(
    control_databases: Databases, others: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = control_databases.create()
    start = report(others, fresh.owner, f"SELECT pg_advisory_xact_lock({postgres_schema._SCHEMA_LOCK})")
    with monkeypatch.context() as patched:
        patched.setattr(postgres_locks.in_turns, "__kwdefaults__", {"within": A_WHILE})
        with pytest.raises(LockedError, match=rf"blocked by: pid {start.info.backend_pid} \(user "):
            upgrade(fresh.owner, fresh.working.user)
    start.rollback()
    after = upgrade(fresh.owner, fresh.working.user)
    assert (after.applied, after.aside) == ((), "")


def test_no_statement_on_the_control_database_lasts_for_ever(
    control_databases: Databases, others: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = control_databases.create()
    upgrade(fresh.owner, fresh.working.user)
    report(others, fresh.owner, "LOCK TABLE alarm IN ACCESS EXCLUSIVE MODE")
    engine = open_engine(fresh.working)

    def ask() -> MillraceError:
        with pytest.raises(UnreachableError) as raised, translated(fresh.working), engine.connect() as connection:
            connection.execute(sa.text("SELECT count(*) FROM alarm"))
        return raised.value

    assert "lock timeout" in in_time(ask, within=Deadline.SERVER, what="an end of the wait").what
    engine.dispose()
