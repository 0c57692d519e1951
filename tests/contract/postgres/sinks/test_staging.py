"""What of a sink is PostgreSQL's own, on a real one: locks, tables, staging.

What every sink promises: `test_promises`.
"""

from __future__ import annotations

import threading

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from millrace.adapters.postgres import connection as postgres_connection
from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.sink import PostgresAppend
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import DeclarationError
from support.sinks.writer import COLUMNS, P0, Writer
from support.waiting import Deadline, eventually, happened, joined

P1 = TopicPartition("t", "id-one", 1)


def rows(admin, name: str) -> list[tuple]:
    return admin.execute(f"SELECT _offset, name FROM {name}.rows ORDER BY 1, 2").fetchall()


def done(writer: Writer) -> int:
    return writer.sink.read_record().next_offsets[P0]


def test_a_takeover_ends_a_writer_that_holds_the_fence(database, name, admin):
    old = Writer(database, name, 1).ready()
    with connect(database, old.identity.application_name) as stopped:
        stopped.execute("SELECT * FROM millrace.fence WHERE stream = %s FOR SHARE", (old.identity.stream,))
        new = Writer(database, name, 2)
        new.sink.take_over()
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")
    assert admin.execute("SELECT epoch FROM millrace.fence WHERE stream = %s", (old.identity.stream,)).fetchone() == (
        2,
    )


def test_the_record_is_only_moved_from_where_it_was_seen(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.sink.begin_batch()
    waiting = threading.Event()

    def interfere() -> None:
        with connect(database, "other") as other:
            other.execute("UPDATE millrace.progress SET next_offset = 9 WHERE stream = %s", (writer.identity.stream,))
            waiting.set()
            eventually(
                lambda: admin.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone(),
                within=Deadline.THREAD,
                what="the writer waits for the row",
            )

    thread = threading.Thread(target=interfere, daemon=True)
    thread.start()
    happened(waiting, what="somebody else's change")
    assert writer.commit(0, 2).rows_out == 0  # the range was done by somebody meanwhile: skipped, not doubled
    joined(thread, what="somebody else's transaction")
    assert done(writer) == 9


def test_several_rows_of_one_record_need_an_ordinal(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.sink.begin_batch()
    writer.stage([0])
    writer.stage([0])
    with pytest.raises(DeclarationError, match="_ordinal"):
        writer.merge(0, 1, rows=2)
    writer.sink.begin_batch()
    writer.stage([0])
    writer.stage([0], ordinal=1)
    assert writer.merge(0, 1, rows=2).rows_out == 2


def test_tables_grow_and_are_never_changed_otherwise(database, name, admin):
    Writer(database, name, 1).ready()
    Writer(database, name, 2).ready(COLUMNS.append(pa.field("extra", pa.int64())))
    columns = admin.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'rows'", (name,)
    ).fetchall()
    assert ("extra",) in columns
    with pytest.raises(DeclarationError, match=r"name is text, but the transform now returns integer"):
        Writer(database, name, 3).ready(pa.schema([("name", pa.int32())]))
    admin.execute(f"ALTER TABLE {name}.rows ADD needed int NOT NULL")
    with pytest.raises(DeclarationError, match="needed is NOT NULL"):
        Writer(database, name, 4).ready()
    admin.execute(f"CREATE TABLE {name}.foreign_table (id int)")
    foreign = PostgresAppend(database, Identity(f"{name}.f", 1, "i"), f"{name}.foreign_table")
    foreign.take_over()
    with pytest.raises(DeclarationError, match="Millrace did not create it"):
        foreign.prepare(COLUMNS)


def test_staging_of_former_epochs_is_dropped(database, name, admin):
    Writer(database, name, 1).ready()
    Writer(database, name, 2).ready()
    left = admin.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'millrace_staging' AND tablename LIKE %s", (f"{name}%",)
    ).fetchall()
    assert sorted(left) == [(f"{name}.s#2",), (f"{name}.s#2!",)]


@pytest.mark.parametrize("options", [None, ""], ids=["direct", "behind a pooler that drops options"])
def test_bounds_that_the_role_has_do_not_end_a_long_merge(database, name, admin, monkeypatch, options):
    if options is not None:
        monkeypatch.setattr(postgres_connection, "_OPTIONS", options)
    settings = {"timezone": "UTC", "statement_timeout": "300ms", "lock_timeout": "300ms"}
    settings |= {"transaction_timeout": "300ms"} if admin.info.server_version >= 170000 else {}
    role = sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {}").format(sql.Identifier(database.database))
    try:
        for setting, value in settings.items():
            admin.execute(sql.SQL("{} SET {} = {}").format(role, sql.Identifier(setting), sql.Literal(value)))
        writer = Writer(database, name, 1).ready()
        admin.execute(
            f"CREATE FUNCTION {name}.slowly() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$; "
            f"CREATE TRIGGER slowly AFTER INSERT ON {name}.rows EXECUTE FUNCTION {name}.slowly()"
        )
        assert writer.commit(0, 3).rows_out == 3
    finally:
        for setting in settings:
            admin.execute(sql.SQL("{} RESET {}").format(role, sql.Identifier(setting)))
    assert done(writer) == 3


@pytest.mark.parametrize("options", [None, ""], ids=["direct", "behind a pooler that drops options"])
def test_a_writers_session_has_read_committed_and_no_time_limit(control_databases, monkeypatch, options):
    """Zone and dates are the role's own, UTC and ISO: they do not tell that the options are lost."""
    if options is not None:
        monkeypatch.setattr(postgres_connection, "_OPTIONS", options)
    settings = control_databases.create().owner
    wanted = {"default_transaction_isolation": "read committed", "statement_timeout": "0", "lock_timeout": "0"}
    others = {"timezone": "UTC", "datestyle": "ISO", "default_transaction_isolation": "serializable"}
    with psycopg.connect(**settings.keywords()) as connection:
        wanted |= {"transaction_timeout": "0"} if connection.info.server_version >= 170000 else {}
    for setting in others | wanted:
        value = others.get(setting, "300ms")
        control_databases.as_superuser(f"ALTER ROLE {settings.user} SET {setting} = '{value}'")
    with connect(settings, "test", transactions_bounded=False) as connection:
        found = {setting: connection.execute(f"SHOW {setting}").fetchone()[0] for setting in wanted}
        assert found == wanted
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
