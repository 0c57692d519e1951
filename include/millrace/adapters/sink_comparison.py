"""Rows that were made again, held against those of a sink's table, inside the database that knows their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres_connection import SinkFailure, connect
from millrace.adapters.postgres_merge import Source
from millrace.adapters.postgres_tables import BY_THE_KEY, SOURCE_COLUMNS, TargetTable
from millrace.domain.books import SourceAt
from millrace.domain.offsets import OffsetRange
from millrace.errors import DeclarationError
from millrace.settings import PostgresSettings

COMPUTED = sql.Identifier("pg_temp", "millrace_recomputed")
"""The temporary table that takes the rows: the sink's, with its checks and without its triggers."""

_STATEMENT_SECONDS = 600
_SOURCE = tuple(name for name, _ in SOURCE_COLUMNS)
_RANGES = (
    "unnest(%(ids)s::text[], %(partitions)s::int[], %(firsts)s::bigint[], %(nexts)s::bigint[]) "
    "AS _range (_t, _p, _first, _next)"
)
# OFFSET 0: range by range, each by the key. Without it the planner makes a join of them that reads the whole table.
_ROWS = (
    "WITH stored AS (SELECT _row.* FROM " + _RANGES + " CROSS JOIN LATERAL (SELECT * FROM {target} "
    "WHERE _topic_id = _t AND _partition = _p AND _offset >= _first AND _offset < _next OFFSET 0) AS _row) "
    "SELECT _topic_id, _partition, _offset, made._ordinal IS NOT NULL, stored._ordinal IS NOT NULL, "
    "CASE WHEN made._ordinal IS NULL OR stored._ordinal IS NULL THEN ARRAY[]::int[] "
    "ELSE array_remove(ARRAY[{differs}]::int[], NULL) END "
    "FROM {computed} AS made FULL JOIN stored USING (_topic_id, _partition, _offset, _ordinal)"
)
_QUARANTINED = (
    'SELECT _t, _p, "offset", rule FROM ' + _RANGES + ' CROSS JOIN LATERAL (SELECT "offset", rule '
    "FROM millrace.quarantine WHERE stream = %(stream)s AND topic_id = _t AND partition = _p "
    'AND "offset" >= _first AND "offset" < _next OFFSET 0) AS _bad'
)

Row = tuple[SourceAt, bool, bool, tuple[str, ...]]
"""A row's source, whether it was made, whether it is stored, and the columns that differ."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns can be compared, which the table lacks, and which of its own nobody makes."""

    both: tuple[str, ...]
    lacking: tuple[str, ...]
    idle: tuple[str, ...]


class SinkComparison:
    """One connection to a sink on which rows are compared. It changes nothing but its own temporary table.

    Args:
        connection: in autocommit.
        stream: whose rows they are.
        table: `schema.table`.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], stream: str, table: str) -> None:
        self.connection = connection
        self._stream = stream
        self._target = TargetTable.parse(table)

    def prepare(self, made: Sequence[str]) -> Columns:
        """Make the temporary table for rows of these columns.

        Raises:
            DeclarationError: there is no such table.
        """
        found = self.connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum",
            (self._target.identifier.as_string(self.connection),),
        ).fetchall()
        there = [str(name) for (name,) in found]
        if missing := [name for name in _SOURCE if name not in there]:
            what = f"it lacks {', '.join(missing)}" if there else "it is not there"
            raise DeclarationError(
                f"the table has no rows of a stream: {what}",
                where=f"table {self._target}",
                next_step="see that the stream has run, and which table its declaration names",
            )
        own = {*_SOURCE, "_timeline"}
        both = tuple(name for name in made if name in there)
        idle = tuple(name for name in there if name not in own and name not in both)
        like = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS)")
        self.connection.execute(like.format(COMPUTED, self._target.identifier))
        for name in ("_timeline", *idle):
            drop = sql.SQL("ALTER TABLE {} DROP COLUMN {}")
            self.connection.execute(drop.format(COMPUTED, sql.Identifier(name)))
        return Columns(both, tuple(name for name in made if name not in there), idle)

    def leave_out(self, refused: Iterable[Source]) -> None:
        """Take away all rows of these sources: some row of each was refused, and a record is in one place only."""
        sources = list(map(list, zip(*refused, strict=True)))
        if sources:
            self.connection.execute(
                sql.SQL(
                    "DELETE FROM {} USING unnest(%s::text[], %s::int[], %s::bigint[]) AS _bad (_t, _p, _o) "
                    "WHERE _topic_id = _t AND _partition = _p AND _offset = _o"
                ).format(COMPUTED),
                sources,
            )

    def compare(self, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> tuple[list[Row], dict[SourceAt, str]]:
        """Every row of these ranges that was made or is stored, and what of them is in quarantine, with its rule.

        Table and quarantine are seen as they are at one moment. Then the temporary table is empty.

        Args:
            ranges: of sources; what was made is of no others.
            columns: the compared ones.
        """
        differs = [
            sql.SQL("CASE WHEN made.{0} IS DISTINCT FROM stored.{0} THEN {1} END").format(sql.Identifier(name), number)
            for number, name in enumerate(columns)
        ]
        statement = sql.SQL(_ROWS).format(
            target=self._target.identifier, computed=COMPUTED, differs=sql.SQL(", ").join(differs)
        )
        topics = {range_.partition.topic_id: range_.partition.topic for range_ in ranges}
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.connection.execute(BY_THE_KEY)
            found = self.connection.execute(statement, _arrays(ranges)).fetchall()
            bad = self.connection.execute(_QUARANTINED, {**_arrays(ranges), "stream": self._stream}).fetchall()
        self.connection.execute(sql.SQL("TRUNCATE {}").format(COMPUTED))
        rows = list[Row]()
        for topic_id, number, offset, made, stored, differ in found:
            source = SourceAt(topics.get(topic_id, topic_id), number, offset)
            rows.append((source, made, stored, tuple(columns[at] for at in differ)))
        return rows, {SourceAt(topics[topic_id], number, offset): rule for topic_id, number, offset, rule in bad}


def _arrays(ranges: Sequence[OffsetRange]) -> dict[str, list[Any]]:
    return {
        "ids": [range_.partition.topic_id for range_ in ranges],
        "partitions": [range_.partition.partition for range_ in ranges],
        "firsts": [range_.first for range_ in ranges],
        "nexts": [range_.next for range_ in ranges],
    }


@contextmanager
def open_comparison(settings: PostgresSettings, stream: str, table: str) -> Iterator[SinkComparison]:
    """A comparison on a connection of its own.

    Raises:
        SinkUnreachableError: the database does not answer, or went away.
        SinkExhaustedError, SinkStatementError: it refuses a statement.
    """
    with connect(settings, "millrace recompute") as connection:
        connection.autocommit = True
        try:
            connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
            yield SinkComparison(connection, stream, table)
        except psycopg.Error as error:
            raise SinkFailure.of(settings, error, "compare rows").error() from error
