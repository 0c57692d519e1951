"""Rows that were made again, compared by a real database: types, missing ones, refused ones, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millrace.adapters.postgres_connection import SinkStatementError
from millrace.adapters.postgres_tables import ensure_schema
from millrace.adapters.sink_comparison import COMPUTED, Row, SinkComparison, open_comparison
from millrace.domain.books import SourceAt
from millrace.domain.offsets import OffsetRange, TopicPartition
from millrace.errors import DeclarationError
from millrace.settings import PostgresSettings

P0, P1 = (TopicPartition("t", "id", number) for number in (0, 1))
BOTH = (OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100))
OWN = (
    '_topic_id text COLLATE "C" NOT NULL, _partition int NOT NULL, _offset bigint NOT NULL, _ordinal int NOT NULL, '
    "_timeline int NOT NULL, PRIMARY KEY (_topic_id, _partition, _offset, _ordinal)"
)
COLUMNS = {
    "text": "text",
    "Number": "numeric(12,2)",
    "real": "real",
    "double": "double precision",
    "at": "timestamptz",
    "plain": "timestamp",
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
    admin.execute(f"CREATE TABLE {name}.rows ({columns}, idle text NOT NULL DEFAULT 'x', {OWN}, CHECK (idle <> text))")
    return f"{name}.rows"


@pytest.fixture
def comparison(database: PostgresSettings, table: str) -> Iterator[SinkComparison]:
    with open_comparison(database, "shop.s", table) as opened:
        yield opened


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
    columns = comparison.prepare(list(COLUMNS))
    assert (columns.both, columns.lacking, columns.idle) == (tuple(COLUMNS), (), ("idle",))
    names = list(COLUMNS)
    for number in range(len(COLUMNS)):
        store(admin, table, {**values(ONE), **place(0, number)})
        put(comparison.connection, COMPUTED, {**values(ONE), names[number]: OTHER[number], **place(0, number)})
    store(admin, table, {**values(ONE), **place(0, 50)})
    put(comparison.connection, COMPUTED, {**values(ONE), **place(0, 50)})
    store(admin, table, {**values(ONE), "double": "NaN", "text": None, **place(0, 51)})
    put(comparison.connection, COMPUTED, {**values(ONE), "double": "NaN", "text": None, **place(0, 51)})
    store(admin, table, {**values(ONE), "flag": None, **place(0, 52)})
    put(comparison.connection, COMPUTED, {**values(ONE), "day": None, **place(0, 52)})
    found = {row[0].offset: row for row in comparison.compare(BOTH, columns.both)[0]}
    assert {offset: row[3] for offset, row in found.items()} == {
        **{number: (name,) for number, name in enumerate(names)},
        50: (),
        51: (),
        52: ("day", "flag"),
    }
    assert {(made, stored) for _, made, stored, _ in found.values()} == {(True, True)}


def test_what_is_only_made_or_only_stored_is_told_and_nothing_of_other_offsets(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    both = comparison.prepare(list(COLUMNS)).both
    for partition, offset in ((0, 1), (0, 99), (0, 100), (1, 0), (2, 5)):
        store(admin, table, {**values(ONE), **place(partition, offset)})
    for row in (place(0, 1), place(0, 1, 1), place(1, 7)):
        put(comparison.connection, COMPUTED, {**values(ONE), **row})
    made, stored, kept = (True, False, ()), (False, True, ()), (True, True, ())
    expected: list[Row] = [
        (SourceAt("t", 0, 1), *kept),
        (SourceAt("t", 0, 1), *made),
        (SourceAt("t", 0, 99), *stored),
        (SourceAt("t", 1, 0), *stored),
        (SourceAt("t", 1, 7), *made),
    ]
    assert sorted(comparison.compare(BOTH, both)[0]) == sorted(expected)
    assert sorted(comparison.compare(BOTH, both)[0])[0] == (SourceAt("t", 0, 1), *stored)  # what was made is gone


def test_a_source_of_which_a_row_was_refused_has_none(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    both = comparison.prepare(list(COLUMNS)).both
    for row in (place(0, 1), place(0, 1, 1), place(0, 2)):
        put(comparison.connection, COMPUTED, {**values(ONE), **row})
    comparison.leave_out([])
    comparison.leave_out([("id", 0, 1), ("id", 1, 2)])
    assert comparison.compare(BOTH, both)[0] == [(SourceAt("t", 0, 2), True, False, ())]


def test_the_tables_checks_hold_for_what_is_made_and_columns_that_nobody_makes_are_left_out(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str
) -> None:
    admin.execute(f'ALTER TABLE {table} ADD CHECK ("Number" < 100)')
    columns = comparison.prepare(["Number", "new"])
    assert columns.both == ("Number",)
    assert columns.lacking == ("new",)
    assert columns.idle == (*[name for name in COLUMNS if name != "Number"], "idle")
    with pytest.raises(psycopg.errors.CheckViolation):
        put(comparison.connection, COMPUTED, {"Number": 100, **place(0, 1)})


def test_what_is_in_quarantine_is_told_with_its_rule(
    comparison: SinkComparison, admin: psycopg.Connection[Any], name: str
) -> None:
    insert = (
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, rule, '
        "error, epoch) VALUES (%s, 1, 't', %s, %s, %s, '[]', 'not_json', 'e', 1)"
    )
    stream = f"{name}.s"
    for row in ((stream, "id", 0, 5), (stream, "id", 0, 100), ("other.s", "id", 0, 6), (stream, "former", 0, 7)):
        admin.execute(insert, row)
    mine = SinkComparison(comparison.connection, stream, f"{name}.rows")
    assert mine.compare(BOTH, mine.prepare(["day"]).both) == ([], {SourceAt("t", 0, 5): "not_json"})
    admin.execute("DELETE FROM millrace.quarantine WHERE stream IN (%s, 'other.s')", (stream,))


def test_a_table_that_is_not_there_or_not_a_streams_is_named(
    database: PostgresSettings, admin: psycopg.Connection[Any], table: str, name: str
) -> None:
    admin.execute(f"CREATE TABLE {name}.other (id int)")
    for other, why in (("nothing", "it is not there"), ("other", "it lacks _topic_id")):
        with (
            open_comparison(database, "shop.s", f"{name}.{other}") as opened,
            pytest.raises(DeclarationError, match=why),
        ):
            opened.prepare(["id"])


def test_what_the_database_refuses_is_said_in_its_words(database: PostgresSettings, table: str) -> None:
    with pytest.raises(SinkStatementError, match="compare rows"), open_comparison(database, "s", table) as opened:
        opened.connection.execute("SELECT * FROM nothing_of_this_name")


def test_two_comparisons_at_once_do_not_see_each_other(
    comparison: SinkComparison, database: PostgresSettings, table: str
) -> None:
    both = comparison.prepare(list(COLUMNS)).both
    with open_comparison(database, "shop.s", table) as second:
        second.prepare(list(COLUMNS))
        put(second.connection, COMPUTED, {**values(ONE), **place(0, 1)})
        assert comparison.compare(BOTH, both)[0] == []
        assert len(second.compare(BOTH, both)[0]) == 1


def test_no_more_of_a_large_table_is_read_than_its_places(
    comparison: SinkComparison, admin: psycopg.Connection[Any], table: str, name: str
) -> None:
    admin.execute(
        f"INSERT INTO {table} (_topic_id, _partition, _offset, _ordinal, _timeline) "
        "SELECT 'id', n % 2, n / 2, 0, 1 FROM generate_series(0, 99999) AS n"
    )
    admin.execute(f"ANALYZE {table}")
    columns = comparison.prepare(["day"]).both
    places = [OffsetRange(P1, first, first + 20) for first in range(0, 50_000, 500)]
    rows, _ = comparison.compare(places, columns)
    assert len(rows) == 100 * 20
    comparison.connection.execute("SELECT pg_stat_force_next_flush()")
    read = admin.execute(
        "SELECT idx_tup_fetch, (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes AS i "
        "WHERE i.relid = t.relid) FROM pg_stat_all_tables AS t WHERE relid = %s::regclass",
        (table,),
    ).fetchone()
    assert read == (2000, 2000)
