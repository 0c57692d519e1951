"""What a chain says of one partition, offset by offset, folded into as little as the proof needs.

Every offset gets exactly one label. Which one where several could be: what was never archived stays LOST, whatever came
later; of the rest EXPIRED goes before DIVERGED, and that before DATA and HOLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.archive.manifest import Manifest, ObjectEntry, PartitionSpan, Seen
from millrace.domain.archive.spans import Span, Spans


class Label(StrEnum):
    """What an offset is to the archive."""

    DATA = "data"  # its record lies in exactly one object
    HOLE = "hole"  # read and seen to be absent, while the log, looked at afterwards, still covered it
    LOST = "lost"  # gone before it was read, or nobody can tell
    EXPIRED = "expired"  # was archived and is no longer kept
    PENDING = "pending"  # in the log, not archived yet
    DIVERGED = "diverged"  # the log once ended below it, though it was archived or seen: an unclean election


class Cause(StrEnum):
    """Why offsets have their label, where that is not said by the label."""

    NONE = ""
    LATE = "read so late that a tombstone may have been here"
    UNREAD = "deleted before it was read"
    TRIMMED = "absent when it was read, and deleted before the log was looked at"
    RECREATED = "the topic was deleted before it was read"
    UNEXPLAINED = "left out, and nothing in the chain says why"


@dataclass(frozen=True, slots=True)
class Tile:
    """Offsets `first <= offset < next` of one partition that share a label."""

    partition: int
    first: int
    next: int
    label: Label
    cause: Cause = Cause.NONE


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a log, with what decides whether tombstones may have gone unseen before it."""

    at: datetime
    start: int
    end: int
    delete_retention_ms: int | None


@dataclass(slots=True)
class PartitionState:
    """One partition after some manifests.

    Attributes:
        begin: where the account begins: the first log start that was seen.
        next: where the next object has to begin.
        look: the last look at the log.
        records: how many the kept objects hold; `holes`: how many offsets of their ranges they hold none of.
        lost: what is lost, by cause.
        late: ranges whose holes may hide a tombstone.
        expired: the ranges of objects that are no longer kept.
        diverged: what was archived and does not belong to the log as it is since an unclean election.
        acknowledged: what of all that somebody knows.
    """

    number: int
    begin: int
    next: int
    look: Look
    records: int = 0
    holes: int = 0
    lost: dict[Cause, Spans] = field(default_factory=dict)
    late: Spans = field(default_factory=Spans)
    expired: Spans = field(default_factory=Spans)
    diverged: Spans = field(default_factory=Spans)
    acknowledged: Spans = field(default_factory=Spans)

    def bring(self, entry: ObjectEntry, manifest: Manifest, seen: Seen) -> Iterator[Tile]:
        """Count an object in that begins at or beyond the chain's end."""
        if entry.first > self.next:
            yield from self._gap(entry.first, seen.start)
        late_below = self._late_below(entry, manifest)
        self.late.add(entry.first, min(entry.next, late_below))
        at = entry.first
        for first, next_ in entry.holes:
            yield from self._tile(at, first, Label.DATA)
            yield from self._lose(first, min(next_, max(first, seen.start)), Cause.TRIMMED)
            held = max(first, min(next_, seen.start))
            self.holes += next_ - held
            yield from self._tile(held, min(next_, max(held, late_below)), Label.HOLE, Cause.LATE)
            yield from self._tile(max(held, min(next_, late_below)), next_, Label.HOLE)
            at = next_
        yield from self._tile(at, entry.next, Label.DATA)
        self.records += entry.count
        self.next = entry.next

    def _gap(self, first: int, log_start: int) -> Iterator[Tile]:
        explained = max(self.next, min(first, log_start))
        yield from self._lose(self.next, explained, Cause.UNREAD)
        yield from self._lose(explained, first, Cause.UNEXPLAINED)

    def _late_below(self, entry: ObjectEntry, manifest: Manifest) -> int:
        """Below which offset a hole may have been a tombstone that the cleaner took out before the read.

        A tombstone stays for `delete.retention.ms` from the cleaning on that first meets it (KIP-534, Kafka 3.1), and
        the cleaner does not go beyond the last stable offset. So one at or beyond the log's end at the look before was
        met after that look.
        """
        retentions = [r for r in (self.look.delete_retention_ms, manifest.delete_retention_ms) if r is not None]
        if not retentions:
            return entry.first
        if manifest.at - self.look.at <= timedelta(milliseconds=min(retentions)):
            return self.look.end
        return entry.next

    def see(self, seen: Seen, manifest: Manifest) -> Iterator[Tile]:
        """Take in a look at the log, made after the objects of the same manifest were read."""
        self.look = Look(manifest.at, seen.start, seen.end, manifest.delete_retention_ms)
        if seen.end < self.next:
            for first, next_ in list(self.diverged.outside(max(seen.end, self.begin), self.next)):
                self.diverged.add(first, next_)
                yield from self._unless_lost(first, next_, Label.DIVERGED, self.expired)

    def expire(self, entry: ObjectEntry) -> Iterator[Tile]:
        """An object is no longer kept."""
        lost = sum(next_ - first for spans in self.lost.values() for first, next_ in spans.within(*_range(entry)))
        self.records -= entry.count
        self.holes -= entry.next - entry.first - entry.count - lost
        self.expired.add(entry.first, entry.next)
        yield from self._unless_lost(entry.first, entry.next, Label.EXPIRED, Spans())

    def acknowledge(self, span: PartitionSpan, seen: Seen | None) -> None:
        """Somebody knows that offsets are lost or diverged; what else the range covers stays unknown.

        Args:
            span: what was acknowledged.
            seen: the log at that moment; None where the topic was gone: then all that was not read is lost.
        """
        known = Spans([*self.diverged])
        for spans in self.lost.values():
            for lost in spans:
                known.add(*lost)
        known.add(self.next, max(self.next, seen.start if seen else self.look.end))
        for first, next_ in list(known.within(span.first, span.next)):
            self.acknowledged.add(first, next_)

    def unacknowledged(self) -> bool:
        """Whether something of the chain is lost or diverged and nobody has said that they know."""
        breaches = (*self.lost.values(), self.diverged.minus(self.expired))
        return any(spans.minus(self.acknowledged) for spans in breaches)

    def _lose(self, first: int, next_: int, cause: Cause) -> Iterator[Tile]:
        if first < next_:
            self.lost.setdefault(cause, Spans()).add(first, next_)
            yield from self._tile(first, next_, Label.LOST, cause)

    def _unless_lost(self, first: int, next_: int, label: Label, besides: Spans) -> Iterator[Tile]:
        left_alone = Spans([*besides])
        for spans in self.lost.values():
            for lost in spans.within(first, next_):
                left_alone.add(*lost)
        for rest in list(left_alone.outside(first, next_)):
            yield from self._tile(*rest, label)

    def _tile(self, first: int, next_: int, label: Label, cause: Cause = Cause.NONE) -> Iterator[Tile]:
        if first < next_:
            yield Tile(self.number, first, next_, label, cause)


def _range(entry: ObjectEntry) -> Span:
    return entry.first, entry.next
