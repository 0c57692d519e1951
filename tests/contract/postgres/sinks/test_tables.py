"""The tables a stream finds in its sink database, on a real PostgreSQL: its target with a key, and Millrace's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.locks import bounds
from millrace.adapters.postgres.schema import SCHEMA_VERSION, ensure_schema
from millrace.adapters.sinks.postgres.tables import TargetTable
from millrace.adapters.sinks.postgres.types import target_columns
from millrace.domain.declaration.sinks import SYSTEM_COLUMNS
from millrace.errors import DeclarationError
from millrace.settings import PostgresSettings
from support.sinks.table_columns import OWN, SOURCE
from support.sinks.writer import COLUMNS, Writer
from support.stack.control_databases import Databases
from support.waiting import Deadline, at_once, eventually, in_background, result_of

OF_ANOTHER_COLLATION = OWN.replace(' COLLATE "C"', "")
TABLE = f"CREATE TABLE {{name}}.rows (name text, amount numeric(12,2), {OF_ANOTHER_COLLATION}{{more}})"


def ensure(admin, name: str, *, table: str = "rows") -> str:
    with admin.transaction(), admin.cursor() as cursor:
        return TargetTable(name, table).ensure(cursor, target_columns(COLUMNS, "the test"))


def statement_that_adds_the_key(admin, name: str, *, table: str = "rows") -> str:
    with pytest.raises(DeclarationError, match="no key on its source columns") as refused:
        ensure(admin, name, table=table)
    assert refused.value.next_step is not None
    return refused.value.next_step.partition(": ")[2]


@pytest.fixture
def make(admin, name):
    def table(more: str = "", then: str = "") -> None:
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        admin.execute(f"CREATE SCHEMA {name}")
        admin.execute(TABLE.format(name=name, more=more))
        if then:
            admin.execute(then.format(rows=f"{name}.rows", key=SOURCE))

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
        ("", 'CREATE UNIQUE INDEX ON {rows} (_topic_id COLLATE "C", _partition, _offset, _ordinal)'),
        (", id serial PRIMARY KEY", ""),
        (") PARTITION BY LIST (_partition", ""),
    ],
)
def test_a_table_without_the_key_is_refused_with_the_statement_that_adds_it(make, admin, name, more, then):
    make(more, then)
    statement = statement_that_adds_the_key(admin, name)
    assert ("UNIQUE" if "serial" in more else "PRIMARY KEY") in statement
    admin.execute(statement)
    assert ensure(admin, name) == "rows_source"


@pytest.mark.parametrize(
    "then",
    [
        "ALTER TABLE {rows} ADD CONSTRAINT rows_source UNIQUE ({key}) DEFERRABLE",
        "ALTER TABLE {rows} ADD CONSTRAINT rows_source CHECK (_offset >= 0)",
        "CREATE INDEX rows_source ON {rows} (_offset)",
    ],
)
def test_the_statement_takes_no_name_that_is_taken(make, admin, name, then):
    make(then=then)
    admin.execute(statement_that_adds_the_key(admin, name))
    assert ensure(admin, name) != "rows_source"


def test_an_index_that_was_never_built_to_its_end_is_no_key(make, admin, name):
    make()
    row = f"INSERT INTO {name}.rows VALUES ('x', 1, 'id', 0, 0, 0, 1)"
    admin.execute(f"{row}, ('y', 1, 'id', 0, 0, 0, 1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        admin.execute(f"CREATE UNIQUE INDEX CONCURRENTLY ON {name}.rows ({SOURCE})")
    admin.execute(f"DELETE FROM {name}.rows")
    admin.execute(statement_that_adds_the_key(admin, name))
    assert ensure(admin, name) == "rows_source"


def test_the_statement_names_the_table_as_postgresql_reads_it(make, admin, name):
    make()
    admin.execute(f'ALTER TABLE {name}.rows RENAME TO "order"')
    admin.execute(statement_that_adds_the_key(admin, name, table="order"))
    assert ensure(admin, name, table="order") == "order_source"


def test_a_table_partitioned_by_its_own_columns_can_have_no_key(make, admin, name):
    make(") PARTITION BY LIST (name")
    with pytest.raises(DeclarationError, match="cannot have one"):
        ensure(admin, name)


def test_tables_whose_names_begin_alike_each_have_their_key(make, admin, name):
    admin.execute(f"CREATE SCHEMA {name}")
    keys = [ensure(admin, name, table="a" * 60 + end) for end in ("_x", "_y")]
    assert keys[0] != keys[1]
    assert [ensure(admin, name, table="a" * 60 + end) for end in ("_x", "_y")] == keys


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
    row = f"INSERT INTO {name}.rows VALUES ('x', 1, 'id', 0, 0, 0, 1)"
    admin.execute(row)
    with pytest.raises(psycopg.errors.UniqueViolation) as violated:
        admin.execute(row)
    assert violated.value.diag.constraint_name == key


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ("VIEW {rows} AS SELECT * FROM {table}", "it is a view"),
        ("MATERIALIZED VIEW {rows} AS SELECT * FROM {table}", "it is a materialized view"),
        ("SEQUENCE {rows}", "it is a sequence"),
        ("TYPE {rows} AS (name text)", "it is no table"),
        ("TABLE {rows} ()", "lacks _topic_id"),
    ],
)
def test_what_cannot_hold_a_streams_rows_is_refused(make, admin, name, made, what):
    make(then="ALTER TABLE {rows} RENAME TO others")
    admin.execute("CREATE " + made.format(rows=f"{name}.rows", table=f"{name}.others"))
    with pytest.raises(DeclarationError, match=what) as refused:
        ensure(admin, name)
    assert "ALTER" not in refused.value.next_step


def test_a_table_that_a_crash_empties_is_refused_with_the_statement_that_keeps_it(make, admin, name):
    make(then="ALTER TABLE {rows} ADD PRIMARY KEY ({key})")
    admin.execute(f"ALTER TABLE {name}.rows SET UNLOGGED")
    with pytest.raises(DeclarationError, match="unlogged") as refused:
        ensure(admin, name)
    admin.execute(refused.value.next_step.partition(": ")[2])
    assert ensure(admin, name) == "rows_pkey"


def test_a_partition_that_a_crash_empties_is_refused_too(make, admin, name):
    make(more=") PARTITION BY RANGE (_offset")
    admin.execute(f"CREATE TABLE {name}.first PARTITION OF {name}.rows FOR VALUES FROM (0) TO (10)")
    admin.execute(f"CREATE UNLOGGED TABLE {name}.second PARTITION OF {name}.rows FOR VALUES FROM (10) TO (20)")
    with pytest.raises(DeclarationError, match=f"{name}.second is unlogged"):
        ensure(admin, name)


def test_a_table_of_ours_has_its_key_and_one_without_a_timeline_is_not_ours(make, admin, database, name):
    Writer(database, name, 1).ready()
    assert ensure(admin, name) == "rows_source"
    make(then="ALTER TABLE {rows} DROP COLUMN _timeline")
    with pytest.raises(DeclarationError, match="lacks _timeline"):
        ensure(admin, name)


@pytest.mark.parametrize(
    ("column", "former", "amount"),
    [("amount", "numeric(10,2)", "99999999.99"), ("amount", "text", "7.5"), ("Amount due", "numeric(12,0)", "7")],
)
def test_the_refusal_of_another_type_names_the_statement_that_changes_it(make, admin, name, column, former, amount):
    make(then="ALTER TABLE {rows} ADD PRIMARY KEY ({key})")
    admin.execute(f'ALTER TABLE {name}.rows RENAME TO "order"')
    admin.execute(f'ALTER TABLE {name}."order" DROP amount, ADD "{column}" {former}')
    admin.execute(f"INSERT INTO {name}.\"order\" VALUES ('x', 'id', 0, 0, 0, 1, {amount})")
    columns = target_columns(pa.schema([("name", pa.string()), (column, pa.decimal128(14, 4))]), "the test")
    with admin.transaction(), admin.cursor() as cursor, pytest.raises(DeclarationError) as refused:
        TargetTable(name, "order").ensure(cursor, columns)
    assert f"column {column} is {former}, but the transform now returns numeric(14,4)" in refused.value.what
    assert "drop the views" in refused.value.next_step
    admin.execute(refused.value.next_step.rpartition(": ")[2])
    with admin.transaction(), admin.cursor() as cursor:
        assert TargetTable(name, "order").ensure(cursor, columns) == "rows_pkey"
    assert admin.execute(f'SELECT "{column}" FROM {name}."order"').fetchall() == [(Decimal(amount),)]


def test_the_names_that_are_refused_are_those_that_postgresql_keeps(admin, name):
    own = "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_class'::regclass AND attnum < 0"
    assert {system for (system,) in admin.execute(own).fetchall()} == SYSTEM_COLUMNS
    columns = target_columns(pa.schema([(system.upper(), pa.int64()) for system in sorted(SYSTEM_COLUMNS)]), "the test")
    with admin.transaction(), admin.cursor() as cursor:
        TargetTable(name, "rows").ensure(cursor, columns)


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
        cursor.execute(bounds(timedelta(seconds=5), timedelta(seconds=30)))  # as who starts does
        ensure_schema(cursor)


def version(own) -> list[tuple]:
    return own.execute("SELECT version FROM millrace.version ORDER BY 1").fetchall()


def waits_for_a_lock(own) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'millrace.quarantine'::regclass)"
    return own.execute(query).fetchone()[0]


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


VERSION_3 = """
DROP TABLE millrace.redrives;
ALTER TABLE millrace.quarantine DROP COLUMN former;
DELETE FROM millrace.version;
INSERT INTO millrace.version VALUES (3)
"""


def test_records_that_were_in_quarantine_before_there_were_redrives_have_no_former_reasons(empty, own):
    ensured(empty)
    own.execute(VERSION_3)
    own.execute(
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, rule, '
        "error, epoch) VALUES ('a.s', 1, 't', 'id', 0, 5, '[]', 'not_json', 'why', 1)"
    )
    at_once([lambda: ensured(empty)] * 4, within=Deadline.SERVER, what="four starts at once")
    assert version(own) == [(3,), (SCHEMA_VERSION,)]
    assert own.execute('SELECT "offset", former FROM millrace.quarantine').fetchall() == [(5, [])]
    assert own.execute("SELECT count(*) FROM millrace.redrives").fetchone() == (0,)


VERSION_2 = """
DROP TABLE millrace.ledger, millrace.redrives;
DELETE FROM millrace.version;
INSERT INTO millrace.version VALUES (2)
"""


def test_an_upgrade_waits_for_no_reader_of_tables_that_lack_nothing(empty, own):
    ensured(empty)
    own.execute(VERSION_2)
    with connect(empty, "reader") as reader:
        reader.execute("SELECT count(*) FROM millrace.quarantine")
        ensured(empty)
    assert version(own) == [(2,), (SCHEMA_VERSION,)]


VERSION_5 = """
DROP TABLE millrace.timelines;
DELETE FROM millrace.version;
INSERT INTO millrace.version VALUES (5)
"""


def test_an_upgrade_waits_for_no_batch_that_writes_what_it_replaces(empty, own):
    ensured(empty)
    own.execute(VERSION_5)
    with connect(empty, "batch") as batch:
        batch.execute("DELETE FROM millrace.replaced")
        ensured(empty)
    assert version(own) == [(5,), (SCHEMA_VERSION,)]


BY_RULE_THERE = "SELECT to_regclass('millrace.quarantine_by_rule') IS NOT NULL"


def test_a_quarantine_that_is_there_gets_no_index_by_an_upgrade_which_would_wait_for_batches(empty, own):
    ensured(empty)
    assert own.execute(BY_RULE_THERE).fetchone() == (True,)
    own.execute(f"DROP INDEX millrace.quarantine_by_rule; {VERSION_5}")
    with connect(empty, "batch") as batch:
        batch.execute("DELETE FROM millrace.quarantine")
        ensured(empty)
    assert version(own) == [(5,), (SCHEMA_VERSION,)]
    assert own.execute(BY_RULE_THERE).fetchone() == (False,)


def test_the_index_of_what_was_replaced_is_made_where_it_is_missing(empty, own):
    ensured(empty)
    own.execute(f"DROP INDEX millrace.replaced_by_age; {VERSION_5}")
    ensured(empty)
    assert own.execute("SELECT to_regclass('millrace.replaced_by_age') IS NOT NULL").fetchone() == (True,)


def test_whoever_might_use_the_tables_may_use_those_that_came_later(empty, own, control_databases):
    other, reader = (control_databases.create().working for _ in range(2))
    ensured(empty)
    own.execute(VERSION_2)
    own.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON millrace.progress TO {other.user}")
    own.execute(f"GRANT SELECT ON millrace.progress TO {reader.user}, PUBLIC")
    ensured(empty)
    asked = "SELECT grantee, string_agg(privilege_type, ' ' ORDER BY privilege_type) FROM "
    asked += "information_schema.role_table_grants WHERE table_name = %s AND grantee <> current_user GROUP BY 1"
    for table in ("ledger", "redrives"):
        assert dict(own.execute(asked, (table,)).fetchall()) == {
            other.user: "DELETE INSERT SELECT UPDATE",
            reader.user: "SELECT",
            "PUBLIC": "SELECT",
        }


def test_tables_of_a_newer_version_are_left_alone(empty, own):
    ensured(empty)
    own.execute("INSERT INTO millrace.version VALUES (%s)", (SCHEMA_VERSION + 1,))
    with pytest.raises(DeclarationError, match="this Millrace supports"):
        ensured(empty)
    assert version(own) == [(SCHEMA_VERSION,), (SCHEMA_VERSION + 1,)]


def test_tables_are_brought_up_to_date_when_a_batch_that_writes_them_has_ended(empty, own):
    ensured(empty)
    own.execute(VERSION_1)
    with connect(empty, "batch") as batch:
        batch.execute("DELETE FROM millrace.quarantine")
        upgrade = in_background(lambda: ensured(empty))
        eventually(lambda: waits_for_a_lock(own), within=Deadline.SERVER, what="the upgrade to wait for the batch")
        batch.commit()
        result_of(upgrade, within=Deadline.SERVER, what="the upgrade")
    assert columns(own) == 1


def test_tables_that_somebody_goes_on_reading_are_left_as_they_are_and_free_for_the_streams(empty, own):
    """Behind an upgrade that waits, every batch would wait too."""
    ensured(empty)
    own.execute(VERSION_1)
    with connect(empty, "reader") as reader:
        reader.execute("SELECT count(*) FROM millrace.quarantine")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ensured(empty)
        own.execute("DELETE FROM millrace.quarantine")
        assert (version(own), columns(own)) == ([(1,)], 0)
    ensured(empty)
    assert (version(own), columns(own)) == ([(1,), (SCHEMA_VERSION,)], 1)
