"""The PostgreSQL side of a stream: fence, record of work, and the one short transaction of a batch.

Everything Millrace keeps in a sink database stands in the schemas `millrace` (fence, progress, quarantine) and
`millrace_staging` (two unlogged tables for each running epoch).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from millrace.adapters.postgres_connection import connect, unreachable
from millrace.adapters.postgres_merge import Merge, Source
from millrace.adapters.postgres_tables import (
    Cursor,
    Staging,
    TargetColumn,
    TargetTable,
    ensure_schema,
)
from millrace.domain.offsets import Meeting, OffsetRange, TopicPartition, classify
from millrace.domain.position import WorkRecord
from millrace.errors import DataLossError, DeclarationError, FencedError, MillraceError, UnreachableError
from millrace.settings import PostgresSettings

_TAKE_OVER_WITHIN = timedelta(seconds=25)
_SHARD = 0  # an unsharded sink is one shard


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: one instance of one epoch of a stream."""

    stream: str
    epoch: int
    instance: str

    @property
    def application_name(self) -> str:
        """How PostgreSQL lists this instance's backends; under 63 bytes by the rules for names."""
        return f"{self.stream}#{self.epoch}"


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What a batch's transaction did. All zero where the batch was on record already."""

    rows_out: int = 0
    quarantined: int = 0


class RowsRefusedError(MillraceError):
    """The target's own constraints refuse some rows; nothing of the batch was written.

    Attributes:
        sources: the refused rows' sources, with the database's reason.
    """

    def __init__(self, sources: Mapping[Source, str], *, where: str) -> None:
        self.sources = dict(sources)
        super().__init__(f"the table refuses the rows of {len(sources)} records", where=where)


class PostgresSink:
    """One stream's hold on its sink database.

    Guarantees: exactly once by offset range. A batch's rows, its quarantine and the record of work are written in one
    transaction that holds the fence row FOR SHARE; an older epoch writes nothing after `take_over` has returned.
    Does not guarantee: anything about the consumer group, which is committed afterwards and may lag behind.
    """

    def __init__(self, settings: PostgresSettings, identity: Identity, table: str) -> None:
        self.settings = settings
        self.identity = identity
        self.target = TargetTable.parse(table)
        self.staging = Staging(identity.application_name)
        self._statements = Merge(self.target, self.staging, ())
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The transform's columns, as prepared."""
        return self._statements.columns

    def take_over(self) -> None:
        """End older epochs' backends and raise the fence to this epoch.

        A stopped writer may hold the fence row, and no timeout of the server ends it; ending its backend does. A
        writer that is alive may connect again at once, so this is tried until the fence is raised.

        Raises:
            FencedError: a newer epoch holds the fence.
            UnreachableError: the server does not answer, or the fence could not be raised in time.
        """
        with self._transaction() as cursor:
            ensure_schema(cursor)
        deadline = time.monotonic() + _TAKE_OVER_WITHIN.total_seconds()
        while not self._try_raise_fence():
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"an older instance kept the fence row locked for {_TAKE_OVER_WITHIN.total_seconds():.0f} s",
                    where=f"millrace.fence, stream {self.identity.stream}",
                    next_step="look at pg_stat_activity for backends named after the stream, and end them",
                )

    def read_record(self) -> WorkRecord:
        """The record of work on the newest timeline."""
        with self._transaction() as cursor:
            cursor.execute(
                "SELECT timeline, topic, topic_id, partition, next_offset FROM millrace.progress "
                "WHERE stream = %(stream)s AND shard = %(shard)s "
                "AND timeline = (SELECT max(timeline) FROM millrace.progress WHERE stream = %(stream)s)",
                {"stream": self.identity.stream, "shard": _SHARD},
            )
            rows = cursor.fetchall()
        timeline = rows[0][0] if rows else 0
        return WorkRecord(timeline, {TopicPartition(row[1], row[2], row[3]): row[4] for row in rows})

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Write where each of these partitions begins on a timeline, under the fence.

        Raises:
            FencedError: a newer epoch has taken over.
        """
        stream, epoch = self.identity.stream, self.identity.epoch
        with self._transaction() as cursor:
            self._hold_fence(cursor)
            cursor.executemany(
                "INSERT INTO millrace.progress "
                "(stream, timeline, shard, topic, topic_id, partition, first_offset, next_offset, epoch) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                [
                    (stream, timeline, _SHARD, p.topic, p.topic_id, p.partition, offset, offset, epoch)
                    for p, offset in positions.items()
                ],
            )

    def prepare(self, columns: Sequence[TargetColumn]) -> None:
        """Make the target table or add its missing columns, and make this epoch's staging tables afresh.

        Raises:
            DeclarationError: the table that is there cannot take these columns.
            FencedError: a newer epoch has taken over.
        """
        self._statements = Merge(self.target, self.staging, tuple(columns))
        with self._transaction() as cursor:
            self._hold_fence(cursor)
            self.target.ensure(cursor, columns)
            Staging.drop_of_stream(cursor, self.identity.stream)
            self.staging.create(cursor, columns)

    def discard_staging(self) -> None:
        """Drop this epoch's staging tables."""
        with self._transaction() as cursor:
            self.staging.drop(cursor)

    def empty_staging(self) -> None:
        """Remove what the former batch, or a failed try of this one, left in the staging tables."""
        with self._transaction() as cursor:
            self.staging.truncate(cursor)

    def check_fence(self) -> None:
        """Learn whether this instance may still write.

        Raises:
            FencedError: a newer epoch has taken over.
            UnreachableError: the server does not answer.
        """
        with self._transaction() as cursor:
            self._hold_fence(cursor)

    def commit_batch(
        self, timeline: int, ranges: Sequence[OffsetRange], attempts: Sequence[int], refused: Mapping[Source, str]
    ) -> BatchCounts:
        """Merge one staged batch: rows, quarantine and record of work, in one transaction.

        Args:
            timeline: the timeline the batch belongs to.
            ranges: every range of the batch, also those without rows.
            attempts: ids of the writing tasks whose staged rows count; what others left is ignored.
            refused: sources whose rows are left out, because they are staged for quarantine instead.

        Raises:
            RowsRefusedError: the table refuses some rows.
            DeclarationError: the transform makes several rows of one record without telling them apart.
            FencedError: a newer epoch has taken over.
            DataLossError: the batch begins behind the end of the record.
        """
        try:
            with self._transaction() as cursor:
                self._hold_fence(cursor)
                todo = self._ranges_to_do(cursor, timeline, ranges)
                if not todo:
                    return BatchCounts()
                counts = self._merge(cursor, timeline, ranges, todo, attempts, refused)
                self._advance(cursor, timeline, todo)
                return counts
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == self.target.primary_key:
                raise self._several_rows(error) from error
            raise RowsRefusedError(self._refused_rows(ranges, attempts), where=str(self.target)) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise RowsRefusedError(self._refused_rows(ranges, attempts), where=str(self.target)) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Fence

    def _try_raise_fence(self) -> bool:
        try:
            with self._transaction() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND usename = current_user AND split_part(application_name, '#', 1) = %s "
                    "AND split_part(application_name, '#', 2) ~ '^[0-9]+$' "
                    "AND split_part(application_name, '#', 2)::bigint < %s",
                    (self.identity.stream, self.identity.epoch),
                )
            with self._transaction() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
                cursor.execute(
                    "INSERT INTO millrace.fence AS held (stream, epoch, instance) VALUES (%s, %s, %s) "
                    "ON CONFLICT (stream) DO UPDATE SET epoch = excluded.epoch, instance = excluded.instance, "
                    "raised_at = now() WHERE held.epoch < excluded.epoch "
                    "OR (held.epoch = excluded.epoch AND held.instance = excluded.instance)",
                    (self.identity.stream, self.identity.epoch, self.identity.instance),
                )
                if cursor.rowcount == 0:
                    raise self._fenced("a newer instance holds the fence")
            return True
        except psycopg.errors.LockNotAvailable:
            return False

    def _hold_fence(self, cursor: Cursor) -> None:
        """Keep the fence where it is until this transaction ends, or learn that it was raised."""
        cursor.execute(
            "SELECT epoch, instance FROM millrace.fence WHERE stream = %s FOR SHARE", (self.identity.stream,)
        )
        if cursor.fetchone() != (self.identity.epoch, self.identity.instance):
            raise self._fenced("a newer instance has raised the fence")

    def _fenced(self, what: str) -> FencedError:
        return FencedError(
            what,
            where=f"stream {self.identity.stream}, epoch {self.identity.epoch}",
            next_step=f"`streams show {self.identity.stream}` shows the instance that runs",
        )

    # The batch's transaction

    def _ranges_to_do(self, cursor: Cursor, timeline: int, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        cursor.execute(
            "SELECT topic_id, partition, next_offset FROM millrace.progress "
            "WHERE stream = %s AND timeline = %s AND shard = %s FOR UPDATE",
            (self.identity.stream, timeline, _SHARD),
        )
        stored = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
        todo = []
        for batch in ranges:
            key = (batch.partition.topic_id, batch.partition.partition)
            if key not in stored:
                raise DataLossError(f"{batch}: the record of work does not know this partition", where=str(self.target))
            meeting = classify(batch, stored[key])
            if meeting is Meeting.GAP:
                raise DataLossError(
                    f"{batch} begins behind the record of work, which ends at {stored[key]}: "
                    "the offsets between them would be lost",
                    where=str(self.target),
                    next_step=f"start the stream again: it begins where the record ends ({self.identity.stream})",
                )
            if meeting is not Meeting.SKIP:
                todo.append(OffsetRange(batch.partition, stored[key], batch.next))
        return todo

    def _merge(
        self,
        cursor: Cursor,
        timeline: int,
        ranges: Sequence[OffsetRange],
        todo: Sequence[OffsetRange],
        attempts: Sequence[int],
        refused: Mapping[Source, str],
    ) -> BatchCounts:
        stream, merge = self.identity.stream, self._statements
        first = {entry.partition: entry.first for entry in todo}
        for batch in ranges:
            keep_from = first.get(batch.partition, batch.next)
            if keep_from != batch.first:
                merge.unstage_below(cursor, batch, keep_from)
        if refused:
            merge.unstage(cursor, list(refused))
        # A young table has no statistics yet; the ranges are always found by the primary key.
        cursor.execute("SET LOCAL enable_seqscan = off")
        for entry in todo:
            merge.replace_range(cursor, stream, entry)
        return BatchCounts(
            rows_out=merge.insert_rows(cursor, timeline, attempts),
            quarantined=merge.insert_quarantine(cursor, stream, timeline, self.identity.epoch, attempts),
        )

    def _advance(self, cursor: Cursor, timeline: int, todo: Sequence[OffsetRange]) -> None:
        """Move the record of work, each partition only from where it was seen to be."""
        for entry in todo:
            cursor.execute(
                "UPDATE millrace.progress SET next_offset = %s, epoch = %s, updated_at = now() WHERE stream = %s "
                "AND timeline = %s AND shard = %s AND topic_id = %s AND partition = %s AND next_offset = %s",
                (
                    entry.next,
                    self.identity.epoch,
                    self.identity.stream,
                    timeline,
                    _SHARD,
                    entry.partition.topic_id,
                    entry.partition.partition,
                    entry.first,
                ),
            )
            if cursor.rowcount != 1:
                raise self._fenced(f"the record of work of {entry.partition} was moved by somebody else")

    # Rows the target does not take

    def _several_rows(self, error: psycopg.Error) -> DeclarationError:
        return DeclarationError(
            f"the transform makes several rows of one record: {(error.diag.message_detail or str(error)).strip()}",
            where=f"stream {self.identity.stream}, table {self.target}",
            next_step="add an integer column `_ordinal` that tells the rows of one record apart",
        )

    def _refused_rows(self, ranges: Sequence[OffsetRange], attempts: Sequence[int]) -> dict[Source, str]:
        refused: dict[Source, str] = {}
        with self._transaction() as cursor:
            self._hold_fence(cursor)
            refused = self._statements.find_refused(cursor, ranges, attempts)
            raise psycopg.Rollback
        return refused

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.settings, self.identity.application_name)
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except psycopg.errors.LockNotAvailable:
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self.close()
            raise self._why_gone(error) from error

    def _why_gone(self, error: psycopg.Error) -> MillraceError:
        """A connection that broke: a newer epoch ended it, or the server is away."""
        try:
            with connect(self.settings, self.identity.application_name) as connection:
                row = connection.execute(
                    "SELECT epoch FROM millrace.fence WHERE stream = %s", (self.identity.stream,)
                ).fetchone()
        except (UnreachableError, psycopg.Error):
            return unreachable(self.settings, error)
        if row is not None and row[0] > self.identity.epoch:
            return self._fenced(f"epoch {row[0]} has taken over and ended this instance's connection")
        return unreachable(self.settings, error)
