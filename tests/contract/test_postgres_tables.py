"""The tables a stream finds in its sink database, on a real PostgreSQL: its target with a key, and Millrace's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from millrace.adapters.postgres_connection import connect
from millrace.adapters.postgres_tables import SCHEMA_VERSION, TargetTable, ensure_schema
from millrace.errors import DeclarationError
from millrace.settings import PostgresSettings
from support.control_databases import Databases
from support.sink_writer import COLUMNS, Writer
from support.waiting import Deadline, at_once

KEY = "_topic_id, _partition, _offset, _ordinal"
TABLE = (
    "CREATE TABLE {name}.rows (name text, amount numeric(12,2), _topic_id text NOT NULL, _partition int NOT NULL, "
    "_offset bigint NOT NULL, _ordinal int NOT NULL, _timeline int NOT NULL{more})"
)


def ensure(admin, name: str) -> str:
    with admin.transaction(), admin.cursor() as cursor:
        return TargetTable(name, "rows").ensure(cursor, COLUMNS)


@pytest.fixture
def make(admin, name):
    def table(more: str = "", then: str = "") -> None:
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        admin.execute(f"CREATE SCHEMA {name}")
        admin.execute(TABLE.format(name=name, more=more))
        if then:
            admin.execute(then.format(rows=f"{name}.rows", key=KEY))

    return table


@pytest.mark.parametrize(
    ("more", "then"),
    [
        ("", ""),
        ("", "CREATE INDEX ON {rows} ({key})"),
        ("", "CREATE UNIQUE INDEX ON {rows} ({key}) WHERE _offset > 0"),
        ("", "CREATE UNIQUE INDEX ON {rows} (_topic_id, _partition, abs(_offset), _ordinal)"),
        ("", "CREATE UNIQUE INDEX ON {rows} (_offset, _ordinal, _topic_id, _partition)"),
        ("", "CREATE UNIQUE INDEX ON {rows} ({key}, _timeline)"),
        ("", "CREATE UNIQUE INDEX ON {rows} (_topic_id, _partition, _offset) INCLUDE (_ordinal)"),
        ("", "ALTER TABLE {rows} ADD UNIQUE ({key}) DEFERRABLE"),
        (", id serial PRIMARY KEY", ""),
    ],
)
def test_a_table_without_the_key_is_refused_with_the_statement_that_adds_it(make, admin, name, more, then):
    make(more, then)
    with pytest.raises(DeclarationError, match="no key on its source columns") as refused:
        ensure(admin, name)
    kind = "UNIQUE" if more else "PRIMARY KEY"
    _, _, statement = refused.value.next_step.partition(": ")
    assert kind in statement
    admin.execute(statement)
    assert ensure(admin, name) == "rows_source"


@pytest.mark.parametrize(
    ("then", "key"),
    [
        ("ALTER TABLE {rows} ADD CONSTRAINT theirs PRIMARY KEY ({key})", "theirs"),
        ("CREATE UNIQUE INDEX an_index ON {rows} ({key}) INCLUDE (name)", "an_index"),
    ],
)
def test_a_key_of_any_name_is_one(make, admin, name, then, key):
    make(then=then)
    assert ensure(admin, name) == key


def test_a_table_of_ours_has_its_key_and_one_without_a_timeline_is_not_ours(make, admin, database, name):
    Writer(database, name, 1).ready()
    assert ensure(admin, name) == "rows_source"
    make(then="ALTER TABLE {rows} DROP COLUMN _timeline")
    with pytest.raises(DeclarationError, match="lacks _timeline"):
        ensure(admin, name)


# Millrace's own tables

VERSION_1 = """
ALTER TABLE millrace.quarantine DROP COLUMN timestamp_ms;
DELETE FROM millrace.version;
INSERT INTO millrace.version VALUES (1)
"""


@pytest.fixture
def empty(control_databases: Databases) -> PostgresSettings:
    """A database of the test's own."""
    return control_databases.create().owner


@pytest.fixture
def own(empty: PostgresSettings) -> Iterator[psycopg.Connection]:
    with connect(empty, "test") as connection:
        connection.autocommit = True
        yield connection


def ensured(settings: PostgresSettings) -> None:
    with connect(settings, "another") as connection, connection.cursor() as cursor:
        ensure_schema(cursor)


def version(own) -> list[tuple]:
    return own.execute("SELECT version FROM millrace.version ORDER BY 1").fetchall()


def columns(own) -> int:
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'millrace.quarantine'::regclass AND attname = %s"
    return own.execute(query, ("timestamp_ms",)).fetchone()[0]


def test_tables_of_the_version_before_are_brought_up_to_date_with_what_they_hold(empty, own):
    ensured(empty)
    own.execute(VERSION_1)
    own.execute(
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, rule, '
        "error, epoch) VALUES ('a.s', 1, 't', 'id', 0, 5, '[]', 'not_json', 'why', 1)"
    )
    at_once([lambda: ensured(empty)] * 4, within=Deadline.SERVER, what="four starts at once")
    assert version(own) == [(1,), (SCHEMA_VERSION,)]
    assert columns(own) == 1
    assert own.execute('SELECT "offset", timestamp_ms FROM millrace.quarantine').fetchall() == [(5, None)]


def test_an_empty_database_is_given_tables_by_many_at_once(empty, own):
    at_once([lambda: ensured(empty)] * 4, within=Deadline.SERVER, what="four starts at once")
    assert version(own) == [(SCHEMA_VERSION,)]


def test_tables_of_a_newer_version_are_left_alone(empty, own):
    ensured(empty)
    own.execute("INSERT INTO millrace.version VALUES (%s)", (SCHEMA_VERSION + 1,))
    with pytest.raises(DeclarationError, match="this Millrace knows"):
        ensured(replace(empty))
