"""The PostgreSQL side of a stream: fence, record of work, and the one short transaction of a batch.

Everything Millrace keeps in a sink database stands in the schemas `millrace` (fence, progress, quarantine, ledger) and
`millrace_staging` (two unlogged tables for each running epoch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from millrace.adapters.postgres.connection import Fault, fault_of
from millrace.adapters.postgres.schema import READ_RECORD, SHARD, work_record
from millrace.adapters.sinks.fence import COMMIT
from millrace.adapters.sinks.postgres.ledger import Ledger
from millrace.adapters.sinks.postgres.merge import Merge
from millrace.adapters.sinks.postgres.staging import StagedConnection
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, Cursor, TargetTable
from millrace.adapters.sinks.postgres.types import target_columns
from millrace.domain.sinks.batch import BatchCounts, Identity, Written
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import Meeting, OffsetRange, Source, TopicPartition, classify
from millrace.errors import Code, DeclarationError, MillraceError, RowsRefusedError, SinkFailedError
from millrace.ports.sinks import Quarantine
from millrace.settings import PostgresSettings

_INSERT_ROWS = "insert the rows"


@dataclass(frozen=True, slots=True)
class Views:
    """An app's own statements about its table, views as a rule, and the file they stand in."""

    statements: str
    where: str


class PostgresSink(StagedConnection):
    """A stream's table in PostgreSQL, whatever becomes of its rows there.

    Guarantees: exactly once by offset range. A batch's rows, its quarantine and the record of work are written in one
    transaction that holds the fence row FOR SHARE; an older epoch writes nothing after `take_over` has returned, also
    one that was stopped meanwhile.
    Does not guarantee: anything about the consumer group, which is committed afterwards and may lag behind; that what
    the server has acknowledged is still there once a standby without it was promoted (the next batch finds the gap,
    and is refused).

    Args:
        settings: its database.
        identity: who writes.
        target: the table.
        views: what the app says about the table beside it.
    """

    def __init__(
        self, settings: PostgresSettings, identity: Identity, target: TargetTable, views: Views | None = None
    ) -> None:
        super().__init__(settings, identity)
        self.target = target
        self.quarantine: Quarantine | None = None
        self.where = f"table {target}"
        self._views = views
        self._ledger = Ledger(identity.stream, self.target)
        self._key = self.target.primary_key

    @property
    def statements(self) -> Merge:
        """Those of its merge."""
        return Merge(self.target, self.staging, self.columns)

    def read_record(self) -> WorkRecord:
        """The record of work on the newest timeline."""
        return work_record(self._bounded("read the record of work", self._read_record))

    def _read_record(self, cursor: Cursor) -> list[tuple[Any, ...]]:
        cursor.execute(READ_RECORD, {"stream": self.identity.stream, "shard": SHARD})
        return cursor.fetchall()

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Write where each of these partitions begins on a timeline, under the fence.

        No job is in the midst of writing then: jobs write below the record of work, which may be moved back by this.

        Twice is once: a commit whose answer was lost may be tried again.

        Raises:
            FencedError: a newer epoch has taken over.
            SinkFailedError: one of them is on record already, and begins or ends elsewhere.
        """
        self._bounded("open positions", self._put_on_record("progress", timeline, positions, shard=SHARD))

    def prepare(self, columns: pa.Schema) -> None:
        """Make the target table or add its missing columns, this epoch's staging tables afresh, and the app's views.

        Raises:
            DeclarationError: PostgreSQL has no column for one of these, the table that is there cannot take them, or
                the database refuses one of the app's statements.
            FencedError: a newer epoch has taken over.
        """
        self.columns = target_columns(columns, f"the output of the app for {self.where}")

        indexed = self._is_indexed()

        def make(cursor: Cursor) -> str:
            self._hold_fence(cursor)
            key = self.target.ensure(cursor, self.columns)
            self.staging.drop(cursor)
            self.staging.create(cursor, self.staged_columns, indexed=indexed)
            return key

        self._key = self._bounded("prepare the table and its staging", make)
        self._drop_others()
        if self._views is not None:
            self._make_views(self._views)

    def _make_views(self, views: Views) -> None:
        """Run an app's own statements: all of them or none, bounded as every DDL here.

        They run at each start, so they must be such that twice is once (`CREATE OR REPLACE VIEW`).
        """

        def make(cursor: Cursor) -> None:
            self._hold_fence(cursor)
            cursor.execute(views.statements.encode())

        try:
            self._bounded("make the views", make)
        except SinkFailedError as error:
            raise DeclarationError(
                f"the database refuses the app's statements: {error.what}",
                where=views.where,
                next_step="correct the file; drop a view first if its columns change",
                code=Code.WRONG_TRANSFORM,
            ) from error

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """Merge one staged batch: rows, quarantine and record of work, in one transaction.

        Args:
            timeline: the timeline the batch belongs to.
            ranges: every range of the batch, also those without rows.
            written: what was staged for it.

        Raises:
            RowsRefusedError: the table refuses some rows; they are named, and `written.refused` does not hold them yet.
            DeclarationError: the transform makes several rows of one record without telling them apart, or changes
                their sources; or the table refuses the rows together and none of them alone.
            FencedError: a newer epoch has taken over.
            SinkFailedError: not every staged row arrived, the batch begins behind the end of the record (the next
                epoch begins where it ends), or the database refused a statement.
            SinkRolledBackError, SinkExhaustedError, SinkUnreachableError: the same batch may be tried again.
        """
        try:
            with self._transaction("read the record of work") as cursor:
                self._hold_fence(cursor)
                todo = self._ranges_to_do(cursor, timeline, ranges)
                if not todo:
                    return BatchCounts()
                counts = self._merge(cursor, timeline, ranges, todo, written)
                self._doing = "book the ranges"
                self._book(cursor, timeline, ranges, todo, written, counts.rows_out)
                self._doing = "move the record of work"
                self._advance(cursor, timeline, todo)
                return counts
        except SinkFailedError as error:
            cause, doing = error.__cause__, self._doing
            refusal = isinstance(cause, psycopg.Error) and fault_of(cause) is Fault.REFUSED
            if not refusal or doing not in (_INSERT_ROWS, COMMIT):
                raise
            raise self._refusal(cause, timeline, ranges, written, deferred=doing == COMMIT) from error

    # The batch's transaction

    def _ranges_to_do(self, cursor: Cursor, timeline: int, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        cursor.execute(
            "SELECT topic_id, partition, next_offset FROM millrace.progress "
            "WHERE stream = %s AND timeline = %s AND shard = %s FOR UPDATE",
            (self.identity.stream, timeline, SHARD),
        )
        stored = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
        todo = []
        for batch in ranges:
            key = (batch.partition.topic_id, batch.partition.partition)
            if key not in stored:
                raise self._gap(f"{batch}: the record of work does not know this partition")
            meeting = classify(batch, stored[key])
            if meeting is Meeting.GAP:
                raise self._gap(
                    f"{batch} begins after the record of work, which ends at {stored[key]}: "
                    "the offsets between them would be lost"
                )
            if meeting is not Meeting.SKIP:
                todo.append(OffsetRange(batch.partition, stored[key], batch.next))
        return todo

    def _gap(self, what: str) -> SinkFailedError:
        return SinkFailedError(
            f"{what}. A standby that was promoted may have lost the last transactions",
            where=f"stream {self.identity.stream}, table {self.target}",
            next_step="wait for the next start: it resumes from the record of work; nothing was written",
        )

    def _merge(
        self,
        cursor: Cursor,
        timeline: int,
        ranges: Sequence[OffsetRange],
        todo: Sequence[OffsetRange],
        written: Written,
    ) -> BatchCounts:
        stream, merge = self.identity.stream, self.statements
        first = {entry.partition: entry.first for entry in todo}
        left_rows = left_records = 0
        self._doing = "take out of staging what is on record"
        for batch in ranges:
            keep_from = first.get(batch.partition, batch.next)
            if keep_from != batch.first:
                rows, records = merge.unstage_below(cursor, batch, keep_from, written.attempts)
                left_rows, left_records = left_rows + rows, left_records + records
        self._doing = "take out of staging what is refused"
        left_rows += merge.unstage(cursor, written.refused, written.attempts)
        cursor.execute(BY_THE_KEY)
        self._doing = "remove what a former run of the range left"
        for entry in todo:
            merge.replace_range(cursor, stream, entry)
        self._doing = _INSERT_ROWS
        inserted = merge.insert_rows(cursor, timeline, written.attempts)
        self._doing = "insert the quarantine"
        quarantined = self.staging.insert_quarantine(cursor, stream, timeline, self.identity.epoch, written.attempts)
        self._balance("rows", written.rows, inserted, left_rows)
        self._balance("bad records", written.bad_records, quarantined, left_records)
        return BatchCounts(inserted, quarantined)

    def _balance(self, what: str, staged: int, arrived: int, left_out: int) -> None:
        """Nothing moves without its count: what was staged has arrived, or was left out for a reason."""
        if staged != arrived + left_out:
            raise SinkFailedError(
                f"{staged} {what} were staged, but {arrived} arrived and {left_out} were left out. The record of work "
                "does not change. Staging was emptied meanwhile (a TRUNCATE, a promoted standby, a pooler that "
                "changes connections), or a trigger or rule of the table drops rows",
                where=f"stream {self.identity.stream}, table {self.target}",
                next_step="wait for the next start: it processes the batch again; if it fails again, check the table's "
                "triggers and rules",
            )

    def _book(
        self,
        cursor: Cursor,
        timeline: int,
        ranges: Sequence[OffsetRange],
        todo: Sequence[OffsetRange],
        written: Written,
        inserted: int,
    ) -> None:
        """Write the ledger's entries: what became of these ranges.

        Raises:
            DeclarationError: rows of the batch lie elsewhere: what replaces a range later would not find them.
        """
        records, attempts = written.records, written.attempts
        full, whole = [entry for entry in todo if entry.first < entry.next], set(ranges)
        # Of a part of what was read nobody has counted the records.
        counts = [
            None
            if records is None or entry not in whole
            else records.get((entry.partition.topic, entry.partition.partition), 0)
            for entry in full
        ]
        rows = self.statements.rows_to_book(attempts)
        found = self._ledger.book(cursor, full, timeline=timeline, epoch=self.identity.epoch, records=counts, rows=rows)
        outside = self.statements.count_outside(cursor, ranges, attempts) if found < inserted else 0
        if outside:
            raise DeclarationError(
                f"{outside} of {inserted} rows have a `_source` that is not in their batch",
                where=f"stream {self.identity.stream}, table {self.target}",
                next_step="keep the column `_source` unchanged in the transform",
                code=Code.WRONG_TRANSFORM,
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
                    SHARD,
                    entry.partition.topic_id,
                    entry.partition.partition,
                    entry.first,
                ),
            )
            if cursor.rowcount != 1:
                raise self._fenced(f"the record of work of {entry.partition} was changed by another session")

    # Rows the target does not take

    def _refusal(
        self,
        cause: BaseException | None,
        timeline: int,
        ranges: Sequence[OffsetRange],
        written: Written,
        *,
        deferred: bool,
    ) -> MillraceError:
        """What the table's refusal of a batch comes from: its rows one by one, or what they are together."""
        assert isinstance(cause, psycopg.Error)
        where = f"stream {self.identity.stream}, table {self.target}"
        reason = (cause.diag.message_detail or cause.diag.message_primary or str(cause)).strip()
        if isinstance(cause, psycopg.errors.UniqueViolation) and cause.diag.constraint_name == self._key:
            return DeclarationError(
                f"the transform returns several rows of one record: {reason}",
                where=where,
                next_step="add an integer column `_ordinal` that numbers the rows of one record",
                code=Code.WRONG_TRANSFORM,
            )
        if refused := self._find_refused(timeline, ranges, written, deferred=deferred):
            return RowsRefusedError(refused, where=self.where)
        return DeclarationError(
            f"the table refuses the rows of this batch together, but accepts each of them alone: {reason}",
            where=where,
            next_step=f"check constraint {cause.diag.constraint_name or 'or trigger'} of the table. A row may need "
            "another row of a later batch. If a unique value moves from one row to another, make the "
            "constraint DEFERRABLE INITIALLY DEFERRED",
            code=Code.WRONG_TABLE,
        )

    def _find_refused(
        self, timeline: int, ranges: Sequence[OffsetRange], written: Written, *, deferred: bool
    ) -> Mapping[Source, str]:
        """The sources whose rows the table refuses; none where it refuses what comes before them."""
        try:
            with self._transaction("look for the refused rows") as cursor:
                self._hold_fence(cursor)
                merge, attempts = self.statements, written.attempts
                merge.unstage(cursor, written.refused, attempts)
                refused: dict[Source, str] = {}
                while True:
                    with cursor.connection.transaction(force_rollback=True):
                        found = merge.find_refused(cursor, ranges, timeline, attempts, deferred=deferred)
                    refused |= found
                    if not found or not merge.in_rounds:
                        raise psycopg.Rollback
                    merge.unstage(cursor, found, attempts)
        except SinkFailedError as error:
            if isinstance(error.__cause__, psycopg.Error) and fault_of(error.__cause__) is Fault.REFUSED:
                return {}
            raise
        return refused


class PostgresAppend(PostgresSink):
    """A table in PostgreSQL that a stream appends to (`SinkStore`): a row a source and ordinal.

    Guarantees: as `PostgresSink`; a range that is read again replaces its rows.
    Does not guarantee: an order among the rows.

    Args:
        settings: its database.
        identity: who writes.
        table: `schema.table`.
        views: what the app says about the table beside it.
    """

    def __init__(self, settings: PostgresSettings, identity: Identity, table: str, views: Views | None = None) -> None:
        super().__init__(settings, identity, TargetTable.parse(table), views)
