"""Moving staged rows into their table, and finding those that the table refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millrace.adapters.postgres_tables import (
    QUARANTINE_COLUMNS,
    SOURCE_COLUMNS,
    Cursor,
    Staging,
    TargetColumn,
    TargetTable,
)
from millrace.domain.offsets import OffsetRange

# A row's source, as a key: topic id, partition, offset.
Source = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Merge:
    """The statements of one epoch's batches; every method works inside the caller's transaction."""

    target: TargetTable
    staging: Staging
    columns: tuple[TargetColumn, ...]

    def replace_range(self, cursor: Cursor, stream: str, entry: OffsetRange) -> None:
        """Remove the rows and the quarantine that a former run of this range left."""
        source = (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next)
        self._delete_rows(cursor, entry)
        cursor.execute(
            "DELETE FROM millrace.quarantine WHERE stream = %s "
            'AND topic_id = %s AND partition = %s AND "offset" >= %s AND "offset" < %s',
            (stream, *source),
        )

    def insert_rows(
        self, cursor: Cursor, timeline: int, attempts: Sequence[int], *, between: tuple[Source, Source] | None = None
    ) -> int:
        """Insert what these attempts staged, or only the rows of sources `between` two (both included)."""
        names = [name for name, _ in SOURCE_COLUMNS] + [column.name for column in self.columns]
        fields = sql.SQL(", ").join(sql.Identifier(name) for name in names)
        statement = sql.SQL("INSERT INTO {} ({}, _timeline) SELECT {}, %s FROM {} WHERE _attempt = ANY(%s)").format(
            self.target.identifier, fields, fields, self.staging.rows
        )
        arguments: tuple[object, ...] = (timeline, list(attempts))
        if between:
            statement += sql.SQL(" AND (_topic_id, _partition, _offset) BETWEEN (%s, %s, %s) AND (%s, %s, %s)")
            arguments += (*between[0], *between[1])
        cursor.execute(statement, arguments)
        return cursor.rowcount

    def insert_quarantine(self, cursor: Cursor, stream: str, timeline: int, epoch: int, attempts: Sequence[int]) -> int:
        """Insert the bad records these attempts staged."""
        fields = sql.SQL(", ").join(sql.Identifier(name) for name, _ in QUARANTINE_COLUMNS)
        cursor.execute(
            sql.SQL(
                'INSERT INTO millrace.quarantine (stream, timeline, epoch, topic_id, partition, "offset", {}) '
                "SELECT %s, %s, %s, _topic_id, _partition, _offset, {} FROM {} WHERE _attempt = ANY(%s)"
            ).format(fields, fields, self.staging.bad_records),
            (stream, timeline, epoch, list(attempts)),
        )
        return cursor.rowcount

    def unstage_below(self, cursor: Cursor, batch: OffsetRange, keep_from: int) -> None:
        """Take out of staging what is on record already."""
        for table in (self.staging.rows, self.staging.bad_records):
            cursor.execute(
                sql.SQL("DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset < %s").format(table),
                (batch.partition.topic_id, batch.partition.partition, keep_from),
            )

    def unstage(self, cursor: Cursor, sources: Sequence[Source]) -> None:
        """Take the rows of these sources out of staging."""
        cursor.executemany(
            sql.SQL("DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset = %s").format(
                self.staging.rows
            ),
            sources,
        )

    def find_refused(self, cursor: Cursor, ranges: Sequence[OffsetRange], attempts: Sequence[int]) -> dict[Source, str]:
        """The staged sources whose rows the table refuses, with its reasons. The caller must roll back."""
        for entry in ranges:
            self._delete_rows(cursor, entry)
        cursor.execute(
            sql.SQL(
                "SELECT DISTINCT _topic_id, _partition, _offset FROM {} WHERE _attempt = ANY(%s) ORDER BY 1, 2, 3"
            ).format(self.staging.rows),
            (list(attempts),),
        )
        sources: list[Source] = [(row[0], row[1], row[2]) for row in cursor.fetchall()]
        refused: dict[Source, str] = {}
        pending = [sources] if sources else []
        while pending:
            part = pending.pop()
            try:
                with cursor.connection.transaction():
                    self.insert_rows(cursor, 0, attempts, between=(part[0], part[-1]))
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                if len(part) == 1:
                    refused[part[0]] = str(error.diag.message_primary or error)
                    continue
                middle = len(part) // 2
                pending += [part[middle:], part[:middle]]
        return refused

    def _delete_rows(self, cursor: Cursor, entry: OffsetRange) -> None:
        cursor.execute(
            sql.SQL(
                "DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset >= %s AND _offset < %s"
            ).format(self.target.identifier),
            (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next),
        )
