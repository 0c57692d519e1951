"""What a manifest of a dataset says: one step of its stream's work, and the objects that it brings.

A manifest names its predecessor's SHA-256, as those of the archive do: the chain can be neither cut in the middle nor
changed without a trace. Rows of an object that no manifest names do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum

from millrace.domain.archive.manifest import MOST
from millrace.domain.archive.records import is_sha256
from millrace.domain.sinks.dataset.names import NO_DATE
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

VERSION = 1


class Kind(StrEnum):
    """What a manifest is for."""

    TAKEOVER = "takeover"  # a new epoch begins: from here on no older one may write
    TIMELINE = "timeline"  # partitions begin on a timeline
    COLUMNS = "columns"  # what rows have from here on
    DATA = "data"  # a batch: the ranges that it did, and its rows


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """What an object holds of one source partition: `rows` of the offsets `first <= offset < next`."""

    topic_id: str
    partition: int
    first: int
    next: int
    rows: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.first < self.next <= MOST or self.rows < 1:
            raise ValueError(f"not the rows of a partition: {self}")


@dataclass(frozen=True, slots=True, order=True)
class DataObject:
    """One object.

    Attributes:
        date: the event date of its rows, as YYYY-MM-DD, or `NO_DATE`.
        sha256: of its bytes.
        size_bytes: how many they are.
        held: what it holds, by source partition, in order.
    """

    date: str
    sha256: str
    size_bytes: int
    held: tuple[Held, ...]

    def __post_init__(self) -> None:
        if self.date != NO_DATE and date.fromisoformat(self.date).isoformat() != self.date:
            raise ValueError(f"not a date: {self.date}")
        if not 0 < self.size_bytes <= MOST or not is_sha256(self.sha256):
            raise ValueError(f"no size or no SHA-256: {self}")
        places = [(one.topic_id, one.partition) for one in self.held]
        if not places or places != sorted(set(places)):
            raise ValueError(f"an object without rows, or partitions out of order: {self}")

    @property
    def rows(self) -> int:
        """How many it has."""
        return sum(one.rows for one in self.held)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Offsets `first <= offset < next` of one partition that a manifest is about."""

    topic: str
    topic_id: str
    partition: int
    first: int
    next: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.first <= self.next <= MOST:
            raise ValueError(f"not a range of offsets of a partition: {self}")

    @classmethod
    def of(cls, range: OffsetRange) -> Span:
        """The same range."""
        at = range.partition
        return cls(at.topic, at.topic_id, at.partition, range.first, range.next)

    @property
    def of_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """A column of the rows: its name and its Arrow type, as Arrow spells it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry of a chain.

    Attributes:
        sequence: its place in the chain, from 0.
        previous: SHA-256 of the bytes of the manifest before it; empty for the first.
        stream: whose dataset it is, PIPELINE.STREAM.
        epoch: of the stream, and `instance`: which of its processes. With it no two processes ever write the same
            bytes.
        at: when it was made.
        timeline: of a timeline or a batch; 0 else.
        spans: where partitions begin on the timeline, each range empty; or what a batch did, each range of some length.
        objects: what a batch brings, in order.
        columns: all columns that rows have from here on.
        event_date: the column whose date names the folders; empty where it is the record's own timestamp.
    """

    version: int = VERSION
    sequence: int
    previous: str
    stream: str
    epoch: int
    instance: str
    kind: Kind
    at: datetime
    timeline: int = 0
    spans: tuple[Span, ...] = ()
    objects: tuple[DataObject, ...] = ()
    columns: tuple[ColumnEntry, ...] = ()
    event_date: str = ""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"a manifest of version {self.version}; this Millrace knows version {VERSION}")
        if not 0 <= self.sequence <= MOST or not 1 <= self.epoch <= MOST or not self.instance or not self.stream:
            raise ValueError(f"manifest {self.sequence} of epoch {self.epoch} of stream {self.stream!r}")
        if self.at.tzinfo is not UTC and self.at.utcoffset() != UTC.utcoffset(None):
            raise ValueError(f"not a moment in UTC: {self.at}")
        if bool(self.previous) != bool(self.sequence) or (self.previous and not is_sha256(self.previous)):
            raise ValueError(f"manifest {self.sequence} cannot follow {self.previous!r}")
        self._hold_what_its_kind_may()
        _in_order("spans", ((span.topic_id, span.partition) for span in self.spans))
        _in_order("objects", ((one.date, one.sha256) for one in self.objects))
        _in_order("columns", ((name,) for name in sorted(column.name.casefold() for column in self.columns)))

    def _hold_what_its_kind_may(self) -> None:
        moves, data = self.kind in (Kind.TIMELINE, Kind.DATA), self.kind is Kind.DATA
        if bool(self.spans) != moves or (self.timeline > 0) != moves or self.timeline < 0:
            raise ValueError(f"{len(self.spans)} ranges of timeline {self.timeline} in a manifest of kind {self.kind}")
        if any((span.first < span.next) != data for span in self.spans):
            raise ValueError(f"ranges that are empty or are not, in a manifest of kind {self.kind}")
        if self.objects and not data:
            raise ValueError(f"{len(self.objects)} objects in a manifest of kind {self.kind}")
        if bool(self.columns) != (self.kind is Kind.COLUMNS) or (self.event_date and not self.columns):
            raise ValueError(f"{len(self.columns)} columns in a manifest of kind {self.kind}")
        within = {(span.topic_id, span.partition): span for span in self.spans}
        for one in self.objects:
            for held in one.held:
                span = within.get((held.topic_id, held.partition))
                if span is None or not span.first <= held.first < held.next <= span.next:
                    raise ValueError(f"an object with rows that are not of the batch: {one}")


def _in_order(name: str, places: Iterable[tuple[object, ...]]) -> None:
    listed: list[tuple[object, ...]] = [*places]
    if listed != sorted(set(listed)):
        raise ValueError(f"{name}: out of order, or one twice")
