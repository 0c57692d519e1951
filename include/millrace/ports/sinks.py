"""Sinks of streams: what one epoch writes to, and the books of what it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from millrace.domain.quality.books import Finding, Part
from millrace.domain.sinks.batch import BatchCounts, TaskResult, Written
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class TaskWriter(Protocol):
    """Writes what one task of a batch is given. It travels to the task, with all that it needs there."""

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Write all blocks; what an attempt wrote that does not report back does not count.

        Args:
            blocks: of the columns that `SinkStore` says.
            attempt: the id of this attempt of the task, no other's in this life of the app.

        Raises:
            SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: the batch's try is over.
            DeclarationError: it is, and every other would end in the same way.
        """
        ...


class Quarantine(Protocol):
    """Where a sink keeps bad records whose rows are seen as soon as they are written: before any of them is."""

    def keep(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> int:
        """Keep the bad records of a batch, in the place of what a former run of these ranges left; how many.

        Twice is once. Arguments and errors are those of `SinkStore.commit_batch`; of `written` the rows say nothing.
        """
        ...


class SinkStore(Protocol):
    """What one epoch of a stream writes to. Each adapter says in its docstring what it guarantees, and what not.

    The order of its calls: `take_over`; `read_record`; `open_positions` where something is new; `prepare`; then for
    each try of a batch `begin_batch`, the tasks' writers, `commit_batch`; at last `discard` and `close`. Where there
    is a `quarantine`, bad records are written and kept before the rows are written. The calls come one at a time, but
    for `waits_for`, and from more than one thread: Spark hands a batch over in another than began the life. A life may
    end between any two of them, and in them.

    Any call may raise
        FencedError: a newer epoch has taken over, where the sink can tell.
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError: the same call, or the same batch from its
            beginning, may be tried again.
        SinkFailedError: it may not; the next epoch begins where the record of work ends.

    Attributes:
        where: what is written to, for people.
        metadata: what it wants of a row beside its source: `_timestamp` (the record's), `_deleted` (whether the row
            says that its key is gone), in this order.
        quarantine: where bad records are kept before rows are written; None: they count together, with the commit.
    """

    where: str
    metadata: tuple[str, ...]
    quarantine: Quarantine | None

    def take_over(self) -> None:
        """Keep older epochs from writing, as far as the sink can. Comes before its record of work is read.

        Raises:
            UnreachableError: the sink does not answer, or an older instance could not be kept out in time.
        """
        ...

    def check_fence(self) -> None:
        """Learn whether this instance may still write."""
        ...

    def read_record(self) -> WorkRecord:
        """The record of work on the newest timeline."""
        ...

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Put on record where each of these partitions begins on a timeline; twice is once."""
        ...

    def prepare(self, columns: pa.Schema) -> None:
        """Make ready for rows of these columns, beside their source.

        Raises:
            DeclarationError: the sink cannot take them.
        """
        ...

    def begin_batch(self) -> None:
        """Make ready for a batch, or for another try of one; nothing that was written before counts any more.

        To be called while no task of this instance writes.
        """
        ...

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> TaskWriter:
        """Writes rows: `_topic_id`, `_partition`, `_offset`, `_ordinal`, `metadata`, then the columns as prepared.

        Args:
            timeline: the timeline the batch belongs to.
            ranges: every range of the batch.
            in_order: whether the rows of each source partition come to one task, by offset and ordinal.
        """
        ...

    def bad_records_writer(self) -> TaskWriter:
        """Writes bad records, as they came.

        The columns are the same four, then `topic`, `timestamp` (null where the year is not one of 1 to 9999),
        `timestamp_ms` (there), `key`, `value`, `headers` (lists of `key` and `value`), `rule` and `error`.
        """
        ...

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """Let what was written of a batch count, its quarantine with it, and move the record of work.

        What of the ranges is on record already is left as it is. What a former timeline has of the rest is replaced.

        Args:
            timeline: the timeline the batch belongs to.
            ranges: every range of the batch, also those without rows.
            written: what the tasks say they wrote.

        Raises:
            RowsRefusedError: the sink refuses some rows, and nothing was written; they are to be among the bad
                records, and in `written.refused`.
            DeclarationError: the app gives rows that this sink cannot keep apart, or of other sources.
            SinkFailedError: not all that was written has arrived, or the batch begins behind the record of work.
        """
        ...

    def waits_for(self) -> str:
        """Whom a call of this instance waits for now, for people; empty where for nobody. For another thread."""
        ...

    def discard(self) -> None:
        """Leave nothing behind but what was committed."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Books(Protocol):
    """The books of one stream's sink, open to be read; each method sees one state of it.

    Of a table that has the last row of each key, rows are not held by their source: quarantine and ledger are.
    """

    def part(self, range_: OffsetRange) -> Part:
        """Hold the beginning of a range, not empty, against the ledger: whole entries of it, not all too many.

        Returns:
            What was looked at begins where an entry does, at or before the range, and ends where one does.
        """
        ...

    def outside(self, partition: TopicPartition) -> Finding | None:
        """Rows, and records in quarantine, that no timeline of the record of work reaches."""
        ...

    def about_the_table(self) -> Sequence[Finding]:
        """What is wrong with the table as a whole."""
        ...
