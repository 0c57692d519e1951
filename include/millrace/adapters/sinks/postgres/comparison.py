"""Rows that were made again, held against those of a sink's table, inside the database that knows their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres.connection import connect, sink_error
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, SOURCE_COLUMNS, TargetColumn, TargetTable, canonical
from millrace.domain.quality.recompute import Row
from millrace.domain.topics.offsets import OffsetRange, Source, SourceAt
from millrace.errors import Code, DeclarationError, RefusedError
from millrace.settings import PostgresSettings

MADE = sql.Identifier("pg_temp", "millrace_made")
"""The temporary table that takes the rows that were made."""

_STORED = sql.Identifier("pg_temp", "millrace_stored")
_SESSION = (
    "SET statement_timeout = '2min'; SET lock_timeout = '10s'; SET idle_session_timeout = 0; "
    # A role that only reads by default may make temporary tables, and a client that is gone is noticed.
    "SET default_transaction_read_only = off; SET client_connection_check_interval = '5s'"
)
_KEY = tuple(name for name, _ in SOURCE_COLUMNS)
_PLACE = "{topic_id} = %(topic_id)s AND {partition} = %(partition)s AND {offset} >= %(first)s AND {offset} < %(next)s"
# Rows that differ in the same way are one, so that a record with many rows is not many here.
_ROWS = """
SELECT _topic_id, _partition, _offset, is_made, is_stored, differ, count(*) FROM (
    SELECT _topic_id, _partition, _offset, made._ordinal IS NOT NULL AS is_made,
        stored._ordinal IS NOT NULL AS is_stored,
        CASE WHEN made._ordinal IS NULL OR stored._ordinal IS NULL THEN ARRAY[]::int[]
            ELSE array_remove(ARRAY[{differs}]::int[], NULL) END AS differ
    FROM {made} AS made FULL JOIN {stored} AS stored USING (_topic_id, _partition, _offset, _ordinal)
) AS compared GROUP BY 1, 2, 3, 4, 5, 6
"""
_TWICE = """
SELECT _topic_id, _partition, _offset, _ordinal FROM {made}
GROUP BY _topic_id, _partition, _offset, _ordinal HAVING count(*) > 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Columns:
    """What of an app's columns can be compared with a table's.

    Attributes:
        both: what can.
        lacking: what the table does not have.
        retyped: what it has as another type, said in words.
        idle: what only the table has.
    """

    both: tuple[TargetColumn, ...]
    lacking: tuple[str, ...]
    retyped: tuple[str, ...]
    idle: tuple[str, ...]


class SinkComparison:
    """One connection to a sink on which rows are compared. It changes nothing but its own temporary tables.

    Args:
        connection: in autocommit.
        stream: whose rows they are.
        table: `schema.table`.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], stream: str, table: str) -> None:
        self.connection = connection
        self._stream = stream
        self._target = TargetTable.parse(table)
        self._columns: tuple[TargetColumn, ...] = ()

    def prepare(self, made: Sequence[TargetColumn]) -> Columns:
        """Make the temporary tables for rows of these columns.

        Raises:
            DeclarationError: there is no such table, it has no key on its source columns, or this role may not make
                temporary tables.
            RefusedError: this server is a standby.
        """
        self._must_take_temporary_tables()
        found = self.connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self._target.identifier.as_string(self.connection),),
        ).fetchall()
        there = {str(name): str(type_) for name, type_ in found}
        where = f"table {self._target}"
        if missing := [name for name in _KEY if name not in there]:
            raise DeclarationError(
                "the table has no rows of a stream: "
                + (f"it lacks {', '.join(missing)}" if there else "it does not exist"),
                where=where,
                next_step="check that the stream has run, and which table its declaration names",
                code=Code.WRONG_TABLE,
            )
        with self.connection.cursor() as cursor:
            if self._target.find_key(cursor) is None:
                raise DeclarationError(
                    "the table has no key on its source columns: a row may exist twice, and rows cannot be found",
                    where=where,
                    next_step="stop and start the stream: it refuses the table, and names the statement for the key",
                    code=Code.WRONG_TABLE,
                )
        retyped = {
            column.name: self._retyped(column, there[column.name])
            for column in made
            if column.name in there and there[column.name] != canonical(column.type)
        }
        self._columns = tuple(column for column in made if column.name in there and column.name not in retyped)
        names = sql.SQL(", ").join(map(sql.Identifier, (*_KEY, *(column.name for column in self._columns))))
        for table in (MADE, _STORED):
            copy = sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA")
            self.connection.execute(copy.format(table, names, self._target.identifier))
        given = {column.name for column in made}
        return Columns(
            self._columns,
            lacking=tuple(column.name for column in made if column.name not in there),
            retyped=tuple(retyped.values()),
            idle=tuple(name for name in there if name not in {*_KEY, "_timeline", *given}),
        )

    def _retyped(self, column: TargetColumn, present: str) -> str:
        statement = self._target.retyping(column.name, present, canonical(column.type))
        what = f"{column.name} is {present}, but the transform returns {column.type}"
        return f"{what}; stop the stream and drop the views of the column, then run: {statement}"

    def _must_take_temporary_tables(self) -> None:
        [(standby, may)] = self.connection.execute(
            "SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'TEMP')"
        ).fetchall()
        if standby:
            raise RefusedError(
                "the sink's Connection leads to a standby, which has no temporary tables",
                where=f"table {self._target}",
                next_step="change the Connection to the primary",
                code=Code.WRONG_CONNECTION,
            )
        if not may:
            raise DeclarationError(
                "this role may not create temporary tables, and the comparison needs one",
                where=f"database {self.connection.info.dbname}",
                next_step=f"run GRANT TEMPORARY ON DATABASE {self.connection.info.dbname} "
                f"TO {self.connection.info.user}",
                code=Code.MISSING_RIGHT,
            )

    def leave_out(self, refused: Iterable[Source]) -> None:
        """Take away all rows of these sources: some row of each was refused, and a record is in one place only."""
        sources = list(map(list, zip(*refused, strict=True)))
        if sources:
            self.connection.execute(
                sql.SQL(
                    "DELETE FROM {} USING unnest(%s::text[], %s::int[], %s::bigint[]) AS _bad (_t, _p, _o) "
                    "WHERE _topic_id = _t AND _partition = _p AND _offset = _o"
                ).format(MADE),
                sources,
            )

    def compare(self, ranges: Sequence[OffsetRange]) -> tuple[list[Row], dict[SourceAt, str]]:
        """Every row of these ranges that was made or is stored, and what of them is in quarantine, with its rule.

        Table and quarantine are seen as they are at one moment. Then the temporary tables are empty.

        Args:
            ranges: of sources; what was made is of no others.

        Raises:
            DeclarationError: the app gives several rows of one record and ordinal.
        """
        topics = {range_.partition.topic_id: range_.partition.topic for range_ in ranges}
        if twice := self.connection.execute(sql.SQL(_TWICE).format(made=MADE)).fetchone():
            topic_id, number, offset, ordinal = twice
            raise DeclarationError(
                f"the transform returns several rows with `_ordinal` {ordinal} of one record, "
                f"{SourceAt(topics.get(topic_id, topic_id), number, offset)}",
                where=f"stream {self._stream}",
                next_step="add an integer column `_ordinal` that numbers the rows of one record",
                code=Code.WRONG_TRANSFORM,
            )
        quarantined = self._fetch_stored(ranges)
        statement = sql.SQL(_ROWS).format(
            made=MADE,
            stored=_STORED,
            differs=sql.SQL(", ").join(map(_differs, range(len(self._columns)), self._columns)),
        )
        rows = list[Row]()
        for topic_id, number, offset, made, stored, differ, count in self.connection.execute(statement).fetchall():
            source = SourceAt(topics.get(topic_id, topic_id), number, offset)
            rows.append(Row(source, made, stored, tuple(self._columns[at].name for at in differ), count))
        self.connection.execute(sql.SQL("TRUNCATE {}, {}").format(MADE, _STORED))
        return rows, quarantined

    def _fetch_stored(self, ranges: Sequence[OffsetRange]) -> dict[SourceAt, str]:
        """Copy what is stored of these ranges; what of them is in quarantine.

        Range by range with values that the planner knows: it then opens the partitions of a table that they lie in, and
        finds them by the key.
        """
        columns = sql.SQL(", ").join(map(sql.Identifier, (*_KEY, *(column.name for column in self._columns))))
        own = dict(zip(("topic_id", "partition", "offset"), map(sql.Identifier, _KEY[:3]), strict=True))
        bad = {name: sql.Identifier(name) for name in own}
        copy = sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE " + _PLACE).format(
            _STORED, columns, self._target.identifier, **own
        )
        look = sql.SQL(
            'SELECT partition, "offset", rule FROM millrace.quarantine WHERE stream = %(stream)s AND ' + _PLACE
        ).format(**bad)
        found: dict[SourceAt, str] = {}
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.connection.execute(BY_THE_KEY)
            for range_ in ranges:
                place = {
                    "stream": self._stream,
                    "topic_id": range_.partition.topic_id,
                    "partition": range_.partition.partition,
                    "first": range_.first,
                    "next": range_.next,
                }
                self.connection.execute(copy, place)
                for number, offset, rule in self.connection.execute(look, place).fetchall():
                    found[SourceAt(range_.partition.topic, number, offset)] = rule
        return found


def _differs(number: int, column: TargetColumn) -> sql.Composed:
    """The number of a column where its two values differ; text to the byte, whatever its collation calls the same."""
    collate = sql.SQL(' COLLATE "C"' if column.type == "text" else "")
    return sql.SQL("CASE WHEN made.{0}{1} IS DISTINCT FROM stored.{0}{1} THEN {2} END").format(
        sql.Identifier(column.name), collate, number
    )


@contextmanager
def open_comparison(settings: PostgresSettings, stream: str, table: str) -> Iterator[SinkComparison]:
    """A comparison on a connection of its own.

    Raises:
        SinkUnreachableError: the database does not answer, or went away.
        SinkExhaustedError, SinkFailedError: it refuses a statement.
    """
    with connect(settings, "millrace recompute") as connection:
        connection.autocommit = True
        try:
            connection.execute(_SESSION)
            yield SinkComparison(connection, stream, table)
        except psycopg.Error as error:
            raise sink_error(settings, error, "compare rows") from error
