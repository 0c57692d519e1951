"""The interfaces that have more than one adapter: a real one and, for faults and scale, a fake one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from millrace.domain.quality.books import Finding, Part
from millrace.domain.quality.recompute import Recomputed
from millrace.domain.quarantine.redrive import Redriven, Selection
from millrace.domain.sinks.batch import BatchCounts, TaskResult, Written
from millrace.domain.streams.position import WorkRecord
from millrace.domain.streams.vitals import STUCK_AFTER, Vitals
from millrace.domain.topics.changes import NewTopic, ObservedTopic
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class RunState(StrEnum):
    """What a runner knows of one submitted app."""

    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  # it is gone and left no exit code


@dataclass(frozen=True, slots=True)
class Submission:
    """What a runner is asked to start: one instance of one epoch of a stream."""

    stream: str  # PIPELINE.STREAM
    epoch: int
    instance: str
    arguments: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()  # names of the only Connections the app may see
    stuck_after: timedelta = STUCK_AFTER  # how long it may take to start


@dataclass(frozen=True, slots=True)
class RunningApp:
    """One app as its runner sees it.

    `handle` is the runner's own name for it, stable over restarts of Millrace; `phase` is what the driver last said
    of itself (`starting`, `running`, `draining`, `ended`), empty where that is not known. `vitals` of a living app
    say how it gets on; None where that is not known either.
    """

    stream: str
    epoch: int
    instance: str
    handle: str
    state: RunState
    started_at: datetime | None = None
    stopping_since: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    detail: str = ""
    phase: str = ""
    vitals: Vitals | None = None


class StreamRunner(Protocol):
    """Starts stream apps somewhere and finds them again by name, also after a lost answer."""

    kind: str

    def submit(self, submission: Submission) -> RunningApp:
        """Start an app. May raise after the app was started: `find` settles it, never trust.

        Raises:
            UnreachableError: the runner does not answer.
            PartFailedError: the app could not be started.
        """
        ...

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        """Every app of this stream that is alive, newest epoch first, whoever started it.

        Args:
            stream: PIPELINE.STREAM.
            fresh: look anew. Else a look of up to a second ago may do, though not from before an own submit or kill.
        """
        ...

    def find_all(self) -> Mapping[str, Sequence[RunningApp]]:
        """Every living app by stream, also of streams that no declaration names any more."""
        ...

    def status(self, stream: str, epoch: int) -> RunningApp | None:
        """The app of this epoch, living or ended; None where it was never submitted here."""
        ...

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """What the driver of this epoch said last, at most so many lines; none where it left no log."""
        ...

    def stop(self, app: RunningApp) -> None:
        """Ask the app to finish its batch, commit and exit 0. Returns at once."""
        ...

    def kill(self, app: RunningApp) -> None:
        """End the app and all its processes now. Returns when none is left."""
        ...


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


class TopicAdmin(Protocol):
    """Topics of one Kafka cluster. Calls are batched: their number does not grow with the number of topics."""

    def cluster_id(self) -> str:
        """The cluster's own id."""
        ...

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        """The topics that exist among `names`.

        Raises:
            TopicAccessError: some may not be described, so that nobody can tell whether they exist.
            UnreachableError: the cluster does not answer.
        """
        ...

    def names(self) -> Collection[str]:
        """Return the names of all topics that this user may see, in one request.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        ...

    def create(self, topics: Sequence[NewTopic]) -> Mapping[str, str | None]:
        """Create topics; per topic None, or why it failed. One that exists already is a failure.

        So is one whose name differs from an existing one in `.` and `_` only.
        """
        ...

    def add_partitions(self, totals: Mapping[str, int]) -> Mapping[str, str | None]:
        """Grow topics to these partition counts; per topic None, or why it failed."""
        ...

    def set_config(self, changes: Mapping[str, Mapping[str, str | None]]) -> Mapping[str, str | None]:
        """Set these keys of these topics and leave every other key alone; per topic None, or why it failed.

        A key without a value follows the broker's default again.
        """
        ...


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object; `modified_at`: when it was written, by the store's clock, if it tells."""

    key: str
    size_bytes: int
    modified_at: datetime | None = field(default=None, compare=False)


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


class Recomputation(Protocol):
    """What makes rows again from their records and holds them against the stored ones."""

    def run(
        self,
        stream: str,
        ranges: Sequence[OffsetRange],
        connections: Sequence[str],
        progress: Callable[[int], object],
    ) -> Recomputed:
        """Do so for offsets of a stream's topics as they are now.

        Args:
            stream: PIPELINE.NAME.
            ranges: in the order of partition and offset.
            connections: the Connections that the app's code may see.
            progress: told how many offsets are done.
        """
        ...


class Redriving(Protocol):
    """What puts records in quarantine through again, or tries it."""

    def attempt(
        self, stream: str, selection: Selection, connections: Sequence[str], progress: Callable[[int], object]
    ) -> Redriven:
        """What would become of them, with the app as it is now; nothing stays changed."""
        ...

    def run(
        self,
        stream: str,
        selection: Selection,
        connections: Sequence[str],
        progress: Callable[[int], object],
        *,
        upto: datetime,
        plan: str,
    ) -> Redriven:
        """Put them through; what of this a former run has done is not told again.

        Args:
            stream: PIPELINE.NAME.
            selection: which records.
            connections: the Connections that the app's code may see.
            progress: told how many records are done.
            upto: what came to quarantine later is left out.
            plan: in whose name.
        """
        ...


class Creation(StrEnum):
    """What came of writing an object that must not exist yet."""

    CREATED = "created"
    WAS_THERE = "was there"  # with the same bytes: written before, or by a try whose answer was lost


class ObjectStore(Protocol):
    """One bucket of an object store. An object is whole or not there; what is written is seen by every later call.

    Does not guarantee that of listings: while others write beside them, a store may leave out objects that are there,
    or list files of its own (s3proxy over a folder, tried). What a listing does not show is to be asked for by its key.

    Every call may raise UnreachableError: the store did not answer, let nobody in, or asked to slow down for too long.
    A write may have happened then; writing the same again is safe.
    """

    def create(self, key: str, data: bytes) -> Creation:
        """Write an object where none is, in parts where it is large; never over another one.

        Raises:
            ObjectExistsError: there is one, with other bytes. It was left alone.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        ...

    def get_range(self, key: str, first: int, next: int) -> bytes | None:
        """The bytes `first <= position < next` of an object, fewer where it ends earlier; None where there is none."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """An object's size in bytes; None where there is none."""
        ...

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix` and lies beyond `after`, in the order of the keys' UTF-8 bytes.

        Pages of `page_size` (1 to 1000) are asked for as they are needed, so memory does not grow with the number of
        objects.
        """
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows `prefix` up to and without the next slash, in order, once each: `archive/` gives the topics."""
        ...

    def delete(self, keys: Collection[str]) -> Mapping[str, str]:
        """Delete objects, also many; one that is not there counts as deleted. Returns why, by key, others remain."""
        ...

    def prove_create_only(self) -> None:
        """Try on objects of its own, which are deleted again, that nothing is written over what is there.

        Raises:
            RefusedError: the store ignores the condition; a chain of manifests would have two heads.
        """
        ...
