"""Rows that were made again, compared by a real database: types, missing ones, refused ones, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.schema import ensure_schema
from millrace.adapters.sinks.postgres.comparison import MADE, SinkComparison, open_comparison
from millrace.adapters.sinks.postgres.tables import TargetColumn
from millrace.domain.quality.recompute import Row
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition
from millrace.errors import DeclarationError, SinkFailedError
from millrace.settings import PostgresSettings
from support.sinks.table_columns import OWN_WITH_KEY, SOURCE

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

P0, P1 = (TopicPartition("t", "id", number) for number in (0, 1))
BOTH = (OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100))
COLUMNS = {
    "text": "text",
    "Number": "numeric(12,2)",
    "real": "real",
    "double": "double precision",
    "at": "timestamp with time zone",
    "plain": "timestamp without time zone",
    "day": "date",
    "flag": "boolean",
    "bytes": "bytea",
    'od"d': "bigint",
}
ONE = [
    'a, "b"\n',
    "1.50",
    "0.1",
    "0.30000000000000004",
    "2026-05-01 12:00:00.123456+00",
    "2026-05-01 12:00:00",
    "2026-05-01",
    "true",
    "\\x00ff",
    "9223372036854775807",
]
OTHER = [
    "a",
    "1.51",
    "0.2",
    "0.3",
    "2026-05-01 12:00:00.123457+00",
    "2026-05-01 12:00:01",
    "2026-05-02",
    "false",
    "\\x00fe",
    "9223372036854775806",
]


@pytest.fixture
def table(admin: psycopg.Connection[Any], name: str) -> str:
    with admin.cursor() as cursor:
        ensure_schema(cursor)
    admin.execute(f"CREATE SCHEMA {name}")
    columns = ", ".join('"' + column.replace('"', '""') + f'" {type_}' for column, type_ in COLUMNS.items())
    idle = "idle text NOT NULL DEFAULT 'x', CHECK (idle <> text)"
    admin.execute(f"CREATE TABLE {name}.rows ({columns}, {idle}, {OWN_WITH_KEY})")
    return f"{name}.rows"


@pytest.fixture
def comparison(database: PostgresSettings, table: str) -> Iterator[SinkComparison]:
    with open_comparison(database, "shop.s", table) as opened:
        yield opened


def columns(*names: str) -> list[TargetColumn]:
    return [TargetColumn(name, COLUMNS[name]) for name in names or COLUMNS]


def place(partition: int, offset: int, ordinal: int = 0) -> dict[str, object]:
    return {"_topic_id": "id", "_partition": partition, "_offset": offset, "_ordinal": ordinal}


def put(connection: psycopg.Connection[Any], table: sql.Identifier, row: dict[str, object]) -> None:
    values = ", ".join(["%s"] * len(row))
    statement = sql.SQL("INSERT INTO {} ({}) VALUES (" + values + ")")
    connection.execute(statement.format(table, sql.SQL(", ").join(map(sql.Identifier, row))), list(row.values()))


def values(texts: list[str]) -> dict[str, object]:
    return dict(zip(COLUMNS, texts, strict=True))


def store(admin: psycopg.Connection[Any], table: str, row: dict[str, object]) -> None:
    put(admin, sql.Identifier(*table.split(".")), {**row, "_timeline": 3})


def test_each_column_is_compared_by_its_own_type(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    found = comparison.prepare(columns())
    assert [column.name for column in found.both] == list(COLUMNS)
    assert (found.lacking, found.retyped, found.idle) == ((), (), ("idle",))
    names = list(COLUMNS)
    for number in range(len(COLUMNS)):
        store(admin, table, {**values(ONE), **place(0, number)})
        put(comparison.connection, MADE, {**values(ONE), names[number]: OTHER[number], **place(0, number)})
    store(admin, table, {**values(ONE), **place(0, 50)})
    put(comparison.connection, MADE, {**values(ONE), **place(0, 50)})
    store(admin, table, {**values(ONE), "double": "NaN", "text": None, **place(0, 51)})
    put(comparison.connection, MADE, {**values(ONE), "double": "NaN", "text": None, **place(0, 51)})
    store(admin, table, {**values(ONE), "flag": None, **place(0, 52)})
    put(comparison.connection, MADE, {**values(ONE), "day": None, **place(0, 52)})
    rows = {row.source.offset: row for row in comparison.compare(BOTH)[0]}
    assert {offset: row.columns for offset, row in rows.items()} == {
        **{number: (name,) for number, name in enumerate(names)},
        50: (),
        51: (),
        52: ("day", "flag"),
    }
    assert {(row.made, row.stored, row.count) for row in rows.values()} == {(True, True, 1)}


def test_what_is_only_made_or_only_stored_is_told_and_nothing_of_other_offsets(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    comparison.prepare(columns())
    for partition, offset in ((0, 1), (0, 99), (0, 100), (1, 0), (2, 5)):
        store(admin, table, {**values(ONE), **place(partition, offset)})
    for row in (place(0, 1), place(0, 1, 1), place(1, 7), place(1, 7, 1), place(1, 7, 2)):
        put(comparison.connection, MADE, {**values(ONE), **row})
    expected = {
        Row(SourceAt("t", 0, 1), made=True, stored=True),
        Row(SourceAt("t", 0, 1), made=True, stored=False),
        Row(SourceAt("t", 0, 99), made=False, stored=True),
        Row(SourceAt("t", 1, 0), made=False, stored=True),
        Row(SourceAt("t", 1, 7), made=True, stored=False, count=3),
    }
    assert set(comparison.compare(BOTH)[0]) == expected
    again = comparison.compare(BOTH)[0]  # what was made is gone
    assert {(row.source.offset, row.made) for row in again} == {(1, False), (99, False), (0, False)}


def test_a_source_of_which_a_row_was_refused_has_none(comparison: SinkComparison) -> None:
    comparison.prepare(columns())
    for row in (place(0, 1), place(0, 1, 1), place(0, 2)):
        put(comparison.connection, MADE, {**values(ONE), **row})
    comparison.leave_out([])
    comparison.leave_out([("id", 0, 1), ("id", 1, 2)])
    assert comparison.compare(BOTH)[0] == [Row(SourceAt("t", 0, 2), made=True, stored=False)]


def test_an_app_that_makes_a_row_twice_is_no_app_whose_rows_are_alike(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    comparison.prepare(columns())
    store(admin, table, {**values(ONE), **place(0, 7)})
    for _ in range(2):
        put(comparison.connection, MADE, {**values(ONE), **place(0, 7)})
    with pytest.raises(DeclarationError, match="several rows with `_ordinal` 0 of one record, t/0@7"):
        comparison.compare(BOTH)


def test_columns_that_the_table_lacks_or_has_as_another_type_are_named_and_not_compared(
    comparison: SinkComparison, admin: psycopg.Connection[Any], database: PostgresSettings, table: str
) -> None:
    made = [*columns("text", "day"), TargetColumn("Number", "double precision"), TargetColumn("new", "date")]
    found = comparison.prepare(made)
    assert found.both == tuple(columns("text", "day"))
    assert found.lacking == ("new",)
    [retyped] = found.retyped
    assert retyped.startswith("Number is numeric(12,2), but the transform returns double precision; stop the stream")
    assert found.idle == (*[name for name in COLUMNS if name not in ("text", "day", "Number")], "idle")
    admin.execute(retyped.rpartition(": ")[2])  # the statement that changes it
    comparison.connection.close()
    with open_comparison(database, "shop.s", table) as again:
        assert again.prepare(made).retyped == ()


def test_what_is_in_quarantine_is_told_with_its_rule(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str, name: str
) -> None:
    insert = (
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, rule, '
        "error, epoch) VALUES (%s, 1, 't', %s, %s, %s, '[]', 'not_json', 'e', 1)"
    )
    stream = f"{name}.s"
    for row in ((stream, "id", 0, 5), (stream, "id", 0, 100), ("other.s", "id", 0, 6), (stream, "former", 0, 7)):
        admin.execute(insert, row)
    mine = SinkComparison(comparison.connection, stream, table)
    mine.prepare(columns("day"))
    assert mine.compare(BOTH) == ([], {SourceAt("t", 0, 5): "not_json"})
    admin.execute("DELETE FROM millrace.quarantine WHERE stream IN (%s, 'other.s')", (stream,))


def test_a_table_that_is_not_there_not_a_streams_or_without_its_key_is_named(
    database: PostgresSettings, admin: psycopg.Connection[Any], table: str, name: str
) -> None:
    admin.execute(f"CREATE TABLE {name}.other (id int)")
    admin.execute(f"CREATE TABLE {name}.keyless AS SELECT * FROM {table}")
    for other, why in (
        ("nothing", "does not exist"),
        ("other", "lacks _topic_id"),
        ("keyless", "no key on its source"),
    ):
        with (
            open_comparison(database, "shop.s", f"{name}.{other}") as opened,
            pytest.raises(DeclarationError, match=why),
        ):
            opened.prepare(columns())


def test_who_only_reads_by_default_compares_and_who_may_not_is_told_what_is_lacking(
    control_databases: Databases,
) -> None:
    made = control_databases.create()
    name, reader = made.owner.database, made.working.user
    control_databases.execute(made.owner, f"CREATE TABLE rows (day date, {OWN_WITH_KEY})")
    control_databases.execute(made.owner, f"GRANT SELECT ON rows TO {reader}")
    with connect(made.owner, "test") as owner, owner.cursor() as cursor:
        ensure_schema(cursor)
        owner.execute(f"GRANT USAGE ON SCHEMA millrace TO {reader}; GRANT SELECT ON millrace.quarantine TO {reader}")
    control_databases.execute(made.owner, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with open_comparison(made.working, "shop.s", "public.rows") as opened:
        opened.prepare(columns("day"))
        put(opened.connection, MADE, {"day": "2026-05-01", **place(0, 7)})
        assert [row.made for row in opened.compare(BOTH)[0]] == [True]
    control_databases.as_superuser(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    control_databases.execute(made.owner, f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
    with (
        open_comparison(made.working, "shop.s", "public.rows") as opened,
        pytest.raises(DeclarationError, match="may not create temporary tables"),
    ):
        opened.prepare(columns("day"))


def test_what_the_database_refuses_is_said_in_its_words(database: PostgresSettings, table: str) -> None:
    with pytest.raises(SinkFailedError, match="compare rows"), open_comparison(database, "s", table) as opened:
        opened.connection.execute("SELECT * FROM nothing_of_this_name")


def test_two_comparisons_at_once_do_not_see_each_other(
    comparison: SinkComparison, database: PostgresSettings, table: str
) -> None:
    comparison.prepare(columns())
    with open_comparison(database, "shop.s", table) as second:
        second.prepare(columns())
        put(second.connection, MADE, {**values(ONE), **place(0, 1)})
        assert comparison.compare(BOTH)[0] == []
        assert len(second.compare(BOTH)[0]) == 1


def test_no_more_of_a_large_table_is_read_than_its_places(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    admin.execute(
        f"INSERT INTO {table} ({SOURCE}, _timeline) SELECT 'id', n % 2, n / 2, 0, 1 FROM generate_series(0, 99999) AS n"
    )
    admin.execute(f"ANALYZE {table}")
    comparison.prepare(columns("day"))
    places = [OffsetRange(P1, first, first + 20) for first in range(0, 50_000, 500)]
    rows, _ = comparison.compare(places)
    assert len(rows) == 100 * 20
    comparison.connection.execute("SELECT pg_stat_force_next_flush()")
    read = admin.execute(
        "SELECT idx_tup_fetch, (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes AS i WHERE i.relid = t.relid) "
        "FROM pg_stat_all_tables AS t WHERE relid = %s::regclass",
        (table,),
    ).fetchone()
    assert read == (2000, 2000)


def test_of_a_partitioned_table_only_the_parts_are_waited_for_that_hold_the_places(
    database: PostgresSettings, admin: psycopg.Connection[Any], table: str, name: str
) -> None:
    admin.execute(f"CREATE TABLE {name}.parts (LIKE {table} INCLUDING ALL) PARTITION BY LIST (_partition)")
    for number in range(3):
        admin.execute(f"CREATE TABLE {name}.part{number} PARTITION OF {name}.parts FOR VALUES IN ({number})")
        store(admin, f"{name}.parts", {**values(ONE), **place(number, 7)})
    with open_comparison(database, "shop.s", f"{name}.parts") as opened:
        opened.prepare(columns())
        with connect(database, "test") as other:  # in a transaction
            other.execute(f"LOCK TABLE {name}.part2 IN ACCESS EXCLUSIVE MODE")
            rows, _ = opened.compare(BOTH)
    assert {row.source.partition for row in rows} == {0, 1}
