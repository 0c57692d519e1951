"""What a dataset's chain comes to: who may write, how far the work is done, and what its rows are like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.domain.archive.manifest import MOST
from millrace.domain.archive.records import is_sha256
from millrace.domain.chain.head import Head, Writer
from millrace.domain.sinks.dataset.manifest import ColumnEntry, Kind, Manifest, Span
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

VERSION = 1


@dataclass(frozen=True, slots=True)
class LastBatch:
    """On what timeline, by which epoch, and what it did; of none where there was none."""

    timeline: int = 0
    epoch: int = 0
    spans: tuple[Span, ...] = ()


@dataclass(slots=True)
class History:
    """A chain up to its head.

    Attributes:
        stream: whose dataset it is.
        head: the last manifest.
        timelines: of each, the offsets `first <= offset < next` that it has done of each partition.
        columns: the Arrow type of each column that rows have had, by its name.
        event_date: the column whose date names the folders, empty for the record's timestamp; None: not said yet.
        last_batch: the last one.
    """

    stream: str
    head: Head = field(default_factory=Head)
    timelines: dict[int, dict[TopicPartition, tuple[int, int]]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    event_date: str | None = None
    last_batch: LastBatch = field(default_factory=lambda: LastBatch())

    @property
    def timeline(self) -> int:
        """The newest; 0: none was opened."""
        return max(self.timelines, default=0)

    def record(self) -> WorkRecord:
        """The record of work."""
        newest = self.timelines.get(self.timeline, {})
        return WorkRecord(
            self.timeline,
            {partition: next_ for partition, (_, next_) in newest.items()},
            {partition: first for partition, (first, _) in newest.items()},
        )

    def fault(self, manifest: Manifest) -> str:
        """Why a manifest cannot be the next one; empty where it can."""
        head = self.head
        if manifest.sequence != head.sequence + 1 or manifest.previous != head.sha256:
            return f"it does not follow manifest {head.sequence}"
        if manifest.stream != self.stream:
            return f"it is of the stream {manifest.stream}, not of {self.stream}"
        if manifest.kind is Kind.TAKEOVER:
            return "" if manifest.epoch > head.epoch else f"epoch {manifest.epoch} takes over from {head.epoch}"
        if Writer(manifest.epoch, manifest.instance) != head.writer:
            return f"epoch {manifest.epoch} of {manifest.instance} writes and has not taken over"
        return self._fault_of_kind(manifest)

    def _fault_of_kind(self, manifest: Manifest) -> str:
        done = self.timelines.get(manifest.timeline, {})
        if manifest.kind is Kind.COLUMNS:
            return next(self.misfits(manifest.columns, manifest.event_date), "")
        if manifest.timeline < self.timeline:
            return f"it is of timeline {manifest.timeline}, and {self.timeline} has begun"
        for span in manifest.spans:
            stands = done.get(span.of_partition)
            if manifest.kind is Kind.TIMELINE and stands is not None:
                return f"{span.of_partition} has begun on timeline {manifest.timeline} already"
            if manifest.kind is Kind.DATA and (stands is None or stands[1] != span.first):
                return f"{span.of_partition} begins at {span.first}, and its work ends at {stands and stands[1]}"
        return ""

    def misfits(self, columns: Sequence[ColumnEntry], event_date: str) -> Iterator[str]:
        """Why rows of these columns cannot stand beside those that are there."""
        if self.event_date is not None and self.event_date != event_date:
            was, would = (f"the column `{name}`" if name else "the record" for name in (self.event_date, event_date))
            yield f"its folders are named by the date of {was}, and would be by that of {would}"
        known = {name.casefold(): (name, type_) for name, type_ in self.columns.items()}
        for column in columns:
            name, type_ = known.get(column.name.casefold(), (column.name, column.type))
            if (name, type_) != (column.name, column.type):
                yield f"the column `{column.name}` would be {column.type}, and `{name}` there is {type_}"

    def add(self, manifest: Manifest, sha256: str) -> None:
        """Take in the next manifest, of which this is the SHA-256.

        Raises:
            ValueError: it cannot be the next one.
        """
        if fault := self.fault(manifest):
            raise ValueError(fault)
        self.head = Head(manifest.sequence, sha256, manifest.epoch, manifest.instance)
        if manifest.kind is Kind.COLUMNS:
            self.columns |= {column.name: column.type for column in manifest.columns}
            self.event_date = manifest.event_date
        if manifest.kind is Kind.DATA:
            self.last_batch = LastBatch(manifest.timeline, manifest.epoch, manifest.spans)
        if manifest.spans:
            done = self.timelines.setdefault(manifest.timeline, {})
            for span in manifest.spans:
                first, _ = done.get(span.of_partition, (span.first, 0))
                done[span.of_partition] = first, span.next


@dataclass(frozen=True, slots=True)
class Stand:
    """What a timeline has done of a partition."""

    timeline: int
    done: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A chain up to a manifest, for whoever goes on with it; its rows are not in it."""

    version: int = VERSION
    stream: str
    sequence: int
    sha256: str
    epoch: int
    instance: str
    stands: tuple[Stand, ...]
    columns: tuple[ColumnEntry, ...]
    event_date: str | None
    last_batch: LastBatch

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"a summary of version {self.version}; this Millrace knows version {VERSION}")
        if not 0 <= self.sequence <= MOST or not is_sha256(self.sha256) or self.epoch < 1:
            raise ValueError(f"no summary of a chain: manifest {self.sequence} of epoch {self.epoch}")

    @classmethod
    def of(cls, history: History) -> Summary:
        """That of a chain up to its head."""
        stands = [
            Stand(timeline, Span.of(OffsetRange(partition, *done)))
            for timeline, partitions in sorted(history.timelines.items())
            for partition, done in sorted(partitions.items())
        ]
        head = history.head
        return cls(
            stream=history.stream,
            sequence=head.sequence,
            sha256=head.sha256,
            epoch=head.epoch,
            instance=head.instance,
            stands=tuple(stands),
            columns=tuple(ColumnEntry(name, type_) for name, type_ in history.columns.items()),
            event_date=history.event_date,
            last_batch=history.last_batch,
        )

    def history(self) -> History:
        """The chain up to there."""
        found = History(self.stream, Head(self.sequence, self.sha256, self.epoch, self.instance))
        for stand in self.stands:
            done = found.timelines.setdefault(stand.timeline, {})
            done[stand.done.of_partition] = stand.done.first, stand.done.next
        found.columns = {column.name: column.type for column in self.columns}
        found.event_date = self.event_date
        found.last_batch = self.last_batch
        return found
