"""Where the tasks of a batch put what its transaction then merges: two unlogged tables for each running epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg
import structlog
from psycopg import sql

from millrace.adapters.postgres.locks import BOUNDS, is_locked
from millrace.adapters.sinks.fence import FencedConnection
from millrace.adapters.sinks.postgres.copy import BadRecordsCopy, RowsCopy
from millrace.adapters.sinks.postgres.tables import (
    METADATA_COLUMNS,
    QUARANTINE_COLUMNS,
    SOURCE_COLUMNS,
    STAGING_SCHEMA,
    Cursor,
    TargetColumn,
)
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import SinkFailedError
from millrace.settings import PostgresSettings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Staging:
    """The two unlogged tables one epoch copies into before its transaction: rows, and bad records.

    They are named by the epoch, so that a writer of an older epoch can only fill its own, which nobody merges. An
    epoch that cannot empty them, because somebody reads them for long, goes on with those of the next turn.
    """

    application_name: str
    turn: int = 0

    @property
    def name(self) -> str:
        """Of the rows' table."""
        return f"{self.application_name}~{self.turn}" if self.turn else self.application_name

    @property
    def rows(self) -> sql.Identifier:
        """Where tasks copy output rows."""
        return sql.Identifier(STAGING_SCHEMA, self.name)

    @property
    def bad_records(self) -> sql.Identifier:
        """Where tasks copy records for quarantine."""
        return sql.Identifier(STAGING_SCHEMA, f"{self.name}!")

    def create(self, cursor: Cursor, columns: Sequence[TargetColumn], *, indexed: bool = False) -> None:
        """Make both tables, empty; that of rows with an index by their source, where it is asked for."""
        source = [("_attempt", "bigint"), *SOURCE_COLUMNS]
        rows = [*source, *((column.name, column.type) for column in columns)]
        bad = [*source, *QUARANTINE_COLUMNS]
        for name, body in ((self.rows, rows), (self.bad_records, bad)):
            fields = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in body]
            cursor.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
                    name, sql.SQL(", ").join(fields)
                )
            )
        if indexed:
            cursor.execute(sql.SQL("CREATE INDEX ON {} (_topic_id, _partition, _offset)").format(self.rows))

    def truncate(self, cursor: Cursor) -> None:
        """Empty both tables."""
        cursor.execute(sql.SQL("TRUNCATE {}, {}").format(self.rows, self.bad_records))

    def drop(self, cursor: Cursor) -> None:
        """Drop both tables."""
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}, {}").format(self.rows, self.bad_records))

    def delete_quarantine(self, cursor: Cursor, stream: str, entry: OffsetRange) -> None:
        """Remove a stream's quarantine of a range."""
        source = (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next)
        cursor.execute(
            "DELETE FROM millrace.quarantine WHERE stream = %s "
            'AND topic_id = %s AND partition = %s AND "offset" >= %s AND "offset" < %s',
            (stream, *source),
        )

    def delete_quarantine_of_staged(self, cursor: Cursor, stream: str, attempts: Sequence[int]) -> None:
        """Remove a stream's quarantine of the sources that these attempts staged."""
        cursor.execute(
            sql.SQL(
                "DELETE FROM millrace.quarantine AS held USING {} AS staged WHERE held.stream = %s "
                "AND held.topic_id = staged._topic_id AND held.partition = staged._partition "
                'AND held."offset" = staged._offset AND staged._attempt = ANY(%s)'
            ).format(self.bad_records),
            (stream, list(attempts)),
        )

    def insert_quarantine(self, cursor: Cursor, stream: str, timeline: int, epoch: int, attempts: Sequence[int]) -> int:
        """Insert the bad records these attempts staged into a stream's quarantine; how many they were."""
        fields = sql.SQL(", ").join(sql.Identifier(name) for name, _ in QUARANTINE_COLUMNS)
        cursor.execute(
            sql.SQL(
                'INSERT INTO millrace.quarantine (stream, timeline, epoch, topic_id, partition, "offset", {}) '
                "SELECT %s, %s, %s, _topic_id, _partition, _offset, {} FROM {} WHERE _attempt = ANY(%s)"
            ).format(fields, fields, self.bad_records),
            (stream, timeline, epoch, list(attempts)),
        )
        return cursor.rowcount

    def left_by_others(self, cursor: Cursor, stream: str) -> list[sql.Identifier]:
        """The staging tables of a stream that are not these: left behind by other epochs, or by other turns."""
        cursor.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND split_part(tablename, '#', 1) = %s "
            "AND rtrim(tablename, '!') <> %s ORDER BY 1",
            (STAGING_SCHEMA, stream, self.name),
        )
        return [sql.Identifier(STAGING_SCHEMA, str(name)) for (name,) in cursor.fetchall()]


class StagedConnection(FencedConnection):
    """A fenced connection with the staging of its epoch.

    Attributes:
        metadata: which of `METADATA_COLUMNS` are staged with a row.

    Args:
        settings: the sink's database.
        identity: who writes.
    """

    metadata: tuple[str, ...] = ()

    def __init__(self, settings: PostgresSettings, identity: Identity) -> None:
        super().__init__(settings, identity)
        self.staging = Staging(identity.application_name)
        self.columns: tuple[TargetColumn, ...] = ()
        """The transform's columns, as prepared."""

    @property
    def staged_columns(self) -> tuple[TargetColumn, ...]:
        """What is staged of a row beside its source."""
        own = (TargetColumn(name, type_) for name, type_ in METADATA_COLUMNS if name in self.metadata)
        return (*own, *self.columns)

    def _is_indexed(self) -> bool:
        """Whether staged rows need an index by their source."""
        return False

    def prepare_staging(self) -> None:
        """Make this epoch's staging tables afresh, and drop those of others."""
        indexed = self._is_indexed()

        def make(cursor: Cursor) -> None:
            self._hold_fence(cursor)
            self.staging.drop(cursor)
            self.staging.create(cursor, self.staged_columns, indexed=indexed)

        self._bounded("prepare the staging tables", make)
        self._drop_others()

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> RowsCopy:
        """What a task of the present batch writes rows with; where they belong, its commit says."""
        return RowsCopy(self.settings, self.identity.application_name, self.staging.rows)

    def bad_records_writer(self) -> BadRecordsCopy:
        """What a task of the present batch writes bad records with."""
        return BadRecordsCopy(self.settings, self.identity.application_name, self.staging.bad_records)

    def discard(self) -> None:
        """Drop this epoch's staging tables; what somebody reads, a backup say, is left to the next epoch."""
        self._drop_others()
        self._drop_free([self.staging.rows, self.staging.bad_records])

    def _drop_others(self) -> None:
        """Drop the staging tables of the stream that are not the present ones, where they are free."""
        others = self._bounded(
            "look for other staging tables", lambda cursor: self.staging.left_by_others(cursor, self.identity.stream)
        )
        self._drop_free(others)

    def _drop_free(self, tables: Sequence[sql.Identifier]) -> None:
        """Drop staging tables, each by itself, that nobody holds and this role may drop.

        An older epoch drops none of a newer one.
        """
        for table in tables:
            try:
                with self._transaction("drop a staging table") as cursor:
                    cursor.execute(BOUNDS)
                    self._hold_fence(cursor)
                    cursor.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(table))
                    cursor.execute(sql.SQL("DROP TABLE {}").format(table))
            except SinkFailedError as error:
                if isinstance(error.__cause__, psycopg.errors.UndefinedTable):
                    continue
                if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                    why = "it belongs to another role, which may drop it"
                elif is_locked(error):
                    why = "somebody holds it; the next start looks again"
                else:
                    raise
                log.warning("staging_left", table=table.as_string(), why=why)

    def begin_batch(self) -> None:
        """Remove what the former batch, or a failed try of this one, left in the staging tables.

        To be called while no task of this instance copies: one that does, of a try that was given up, is ended. Where
        somebody reads the tables, a backup say, the stream goes on with two others, so that nobody waits for anybody.
        """
        try:
            with self._transaction("empty the staging tables") as cursor:
                self.end_left_behind(cursor)
                cursor.execute(BOUNDS)
                self.staging.truncate(cursor)
        except SinkFailedError as error:
            if not is_locked(error):
                raise
            self._change_staging()

    def _change_staging(self) -> None:
        """Go on with new staging tables, and drop those of former times that are free by now."""
        another, indexed = replace(self.staging, turn=self.staging.turn + 1), self._is_indexed()

        def make(cursor: Cursor) -> None:
            self._hold_fence(cursor)
            another.drop(cursor)
            another.create(cursor, self.staged_columns, indexed=indexed)

        self._bounded("make other staging tables", make)
        log.warning("staging_changed", turn=another.turn, why="somebody reads the former tables")
        self.staging = another
        self._drop_others()
