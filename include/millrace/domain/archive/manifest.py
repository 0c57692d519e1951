"""What a manifest says: one entry of a topic's chain, and of each object it brings what the object holds.

A manifest names its predecessor's SHA-256, so a chain can be neither cut in the middle nor changed without a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from millrace.domain.archive.names import Incarnation, ObjectName
from millrace.domain.archive.proof.spans import Span
from millrace.domain.archive.records import Digest, is_sha256

VERSION = 1
MOST_PARTITIONS = 1_000_000
MOST = (1 << 63) - 1
"""The greatest number that Kafka has for an offset; also of what else is counted here."""


class Kind(StrEnum):
    """What a manifest is for."""

    DATA = "data"  # brings objects
    TAKEOVER = "takeover"  # a new epoch begins: from here on no older one may write
    ACKNOWLEDGEMENT = "acknowledgement"  # somebody knows of what is lost
    LOOK = "look"  # what the log was like, where that must not be forgotten
    EXPIRY = "expiry"  # objects that are no longer kept: by `keep`, or by an erasure


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object: a partition's offsets `first <= offset < next`, all of them read, and what of them it holds.

    Attributes:
        count: the records it holds.
        holes: the offsets in between that no reader of committed records is given, as ranges in order, merged.
        min_timestamp_ms: the least timestamp of its records as it lies in the log; None where it holds none.
        size_bytes: the object's size.
        sha256: of the object's bytes, 64 hexadecimal digits.
        digest: of its records.
    """

    partition: int
    first: int
    next: int
    count: int
    holes: tuple[Span, ...]
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    size_bytes: int
    sha256: str
    digest: Digest

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.first < self.next <= MOST:
            raise ValueError(f"not a range of offsets of a partition: {self}")
        last = self.first - 1
        absent = 0
        for first, next_ in self.holes:
            if not last < first < next_ <= self.next:
                raise ValueError(f"holes that are not in order, not merged, or outside the range: {self}")
            last, absent = next_, absent + next_ - first
        if self.count < 0 or self.count + absent != self.next - self.first:
            raise ValueError(f"{self.count} records and {absent} absent offsets are not the range: {self}")
        if (self.count == 0) != (self.min_timestamp_ms is None) or (self.count == 0) != (self.max_timestamp_ms is None):
            raise ValueError(f"timestamps of no records, or records without: {self}")
        if not 0 < self.size_bytes <= MOST or not is_sha256(self.sha256):
            raise ValueError(f"no size or no SHA-256: {self}")

    def __str__(self) -> str:
        return f"partition {self.partition} [{self.first}, {self.next})"

    @property
    def name(self) -> ObjectName:
        """What the object's key says."""
        return ObjectName(self.partition, self.first, self.next, self.sha256)


@dataclass(frozen=True, slots=True)
class Seen:
    """A partition's log as it was looked at: committed records lie in `start <= offset < end`."""

    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.start <= self.end <= MOST:
            raise ValueError(f"not the bounds of a log: {self}")


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """Offsets `first <= offset < next` of one partition that an acknowledgement is about."""

    partition: int
    first: int
    next: int

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.first < self.next <= MOST:
            raise ValueError(f"not a range of offsets of a partition: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry of a chain.

    Attributes:
        sequence: its place in the chain, from 0.
        previous: SHA-256 of the bytes of the manifest before it; empty for the first.
        epoch: of the app that wrote it, and `instance`: of its processes the one that had claimed the epoch. With it no
            two processes ever write the same bytes, so that whoever finds its own knows that it was it.
        at: after the last read, and before the log was looked at for `seen`.
        partitions: how many the topic had then.
        seen: the log's bounds then, of every partition with an object here, and of others that were looked at.
        delete_retention_ms: for how long the log's cleaner leaves tombstones; None where the topic is not compacted.
        objects: what is new, in order; of an expiry: what is no longer kept.
        acknowledged: what somebody knows to be lost.
        gone: the topic had been deleted, so what was not read of it is lost.
        by: who asked for an acknowledgement or an expiry, and `reason` why.
    """

    version: int = VERSION
    sequence: int
    previous: str
    epoch: int
    instance: str
    kind: Kind
    topic: str
    topic_id: str
    at: datetime
    partitions: int
    seen: tuple[Seen, ...] = ()
    delete_retention_ms: int | None = None
    objects: tuple[ObjectEntry, ...] = ()
    acknowledged: tuple[PartitionSpan, ...] = ()
    gone: bool = False
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"a manifest of version {self.version}; this Millrace knows version {VERSION}")
        if (
            not 0 <= self.sequence <= MOST
            or not 1 <= self.epoch <= MOST
            or not self.instance
            or not 1 <= self.partitions <= MOST_PARTITIONS
        ):
            raise ValueError(f"manifest {self.sequence} of epoch {self.epoch}, {self.partitions} partitions")
        if self.at.tzinfo is not UTC and self.at.utcoffset() != UTC.utcoffset(None):
            raise ValueError(f"not a moment in UTC: {self.at}")
        if not 0 <= (self.delete_retention_ms or 0) <= MOST:
            raise ValueError(f"tombstones are kept for {self.delete_retention_ms} ms")
        if bool(self.previous) != bool(self.sequence) or (self.previous and not is_sha256(self.previous)):
            raise ValueError(f"manifest {self.sequence} cannot follow {self.previous!r}")
        self._hold_what_its_kind_may()
        _in_order("objects", ((entry.partition, entry.first, entry.next) for entry in self.objects), self.partitions)
        _in_order("acknowledged", ((a.partition, a.first, a.next) for a in self.acknowledged), self.partitions)
        numbers = [seen.partition for seen in self.seen]
        if numbers != sorted(set(numbers)) or any(number >= self.partitions for number in numbers):
            raise ValueError("seen: not in the order of the partitions, or of one that the topic has not")

    def _hold_what_its_kind_may(self) -> None:
        data, expiry = self.kind is Kind.DATA, self.kind is Kind.EXPIRY
        if bool(self.objects) != (data or expiry):
            raise ValueError(f"{len(self.objects)} objects in a manifest of kind {self.kind}")
        if bool(self.acknowledged) != (self.kind is Kind.ACKNOWLEDGEMENT):
            raise ValueError(f"{len(self.acknowledged)} acknowledged ranges in a manifest of kind {self.kind}")
        if bool(self.by) != (expiry or self.kind is Kind.ACKNOWLEDGEMENT):
            raise ValueError(f"a manifest of kind {self.kind} by {self.by!r}")
        seen = {seen.partition for seen in self.seen}
        if self.gone and (data or seen):
            raise ValueError("records, or a log, of a topic that is gone")
        if data and any(entry.partition not in seen for entry in self.objects):
            raise ValueError("an object of a partition whose log was not looked at afterwards")

    @property
    def incarnation(self) -> Incarnation:
        """The topic whose chain it is of."""
        return Incarnation(self.topic, self.topic_id)


def _in_order(name: str, spans: Iterable[tuple[int, int, int]], partitions: int) -> None:
    last = (-1, 0)
    for partition, first, next_ in spans:
        if partition >= partitions or (partition, first) < last:
            raise ValueError(f"{name}: [{first}, {next_}) of partition {partition} is out of order or of none")
        last = (partition, next_)
