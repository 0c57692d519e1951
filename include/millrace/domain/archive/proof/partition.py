"""What a chain says of one partition, offset by offset, folded into as little as the proof needs.

Every offset gets exactly one label. Which one where several could be: what was never archived stays LOST, whatever came
later; of the rest DIVERGED goes before EXPIRED, and that before DATA and HOLE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.archive.manifest import Manifest, ObjectEntry, PartitionSpan, Seen
from millrace.domain.archive.proof.spans import Span, Spans


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
    CUT = "seen in the log, and cut off it by an unclean election before it was read"


@dataclass(frozen=True, slots=True)
class Tile:
    """Offsets `first <= offset < next` of one partition that share a label."""

    partition: int
    first: int
    next: int
    label: Label
    cause: Cause = Cause.NONE

    def __str__(self) -> str:
        cause = f": {self.cause}" if self.cause else ""
        return f"partition {self.partition} [{self.first}, {self.next}) is {self.label}{cause}"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a log, with what decides whether tombstones may have gone unseen before it.

    `start` is the greatest log start that was seen until then: a new leader's may be lower than the former one's, and
    nobody knows whose log was read in between.
    """

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
        cut: what was seen, and cut off before it was read, and nobody has said that they know. The offsets are filled
            anew, so this is no label of theirs.
        seemed_gone: somebody acknowledged what was not read because the topic was gone.
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
    cut: Spans = field(default_factory=Spans)
    seemed_gone: bool = False

    def is_there(self) -> None:
        """The topic is there: what somebody acknowledged because it seemed gone was not lost then."""
        if self.seemed_gone:
            self.acknowledged = self.acknowledged.below(self.next)
            self.seemed_gone = False

    def bring(self, entry: ObjectEntry, manifest: Manifest, seen: Seen) -> Iterator[Tile]:
        """Count an object in that begins at or beyond the chain's end."""
        log_start = max(self.look.start, seen.start)
        if any(self.acknowledged.within(entry.first, entry.next)):  # of another loss: it was there after all, or may be
            self.acknowledged = self.acknowledged.minus(Spans([(entry.first, entry.next)]))
        if entry.first > self.next:
            yield from self._gap(entry.first, log_start)
        late_below = self._late_below(entry, manifest)
        self.late.add(entry.first, min(entry.next, late_below))
        at = entry.first
        for first, next_ in entry.holes:
            yield from self._tile(at, first, Label.DATA)
            yield from self._lose(first, min(next_, max(first, log_start)), Cause.TRIMMED)
            held = max(first, min(next_, log_start))
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
        passed_ms = (manifest.at - self.look.at) // timedelta(milliseconds=1)
        if 0 <= passed_ms <= min(retentions):
            return self.look.end
        return entry.next  # also where a clock went back: nobody knows how long it was

    def see(self, seen: Seen, manifest: Manifest) -> Iterator[Tile]:
        """Take in a look at the log, made after the objects of the same manifest were read."""
        self.cut.add(max(seen.end, self.next), self.look.end)
        start = max(self.look.start, seen.start)
        self.look = Look(manifest.at, start, seen.end, manifest.delete_retention_ms)
        if seen.end < self.next:
            for first, next_ in list(self.diverged.outside(max(seen.end, self.begin), self.next)):
                self.diverged.add(first, next_)
                yield from self._unless(self.lost.values(), first, next_, Label.DIVERGED)

    def expire(self, entry: ObjectEntry) -> Iterator[Tile]:
        """An object is no longer kept."""
        lost = sum(next_ - first for spans in self.lost.values() for first, next_ in spans.within(*_range(entry)))
        self.records -= entry.count
        self.holes -= entry.next - entry.first - entry.count - lost
        self.expired.add(entry.first, entry.next)
        yield from self._unless([*self.lost.values(), self.diverged], entry.first, entry.next, Label.EXPIRED)

    def acknowledge(self, acknowledged: Iterable[PartitionSpan], log_start: int) -> None:
        """Somebody knows that offsets are lost or diverged; what else the ranges cover stays unknown.

        Args:
            acknowledged: what was acknowledged.
            log_start: what lay below it is gone, whether it was read or not.
        """
        spans = Spans((span.first, span.next) for span in acknowledged)
        for known in (*self.lost.values(), self.diverged, Spans([(self.next, max(self.next, log_start))])):
            for span in spans:
                for rest in known.within(*span):
                    self.acknowledged.add(*rest)
        self.cut = self.cut.minus(spans)

    def unacknowledged(self) -> bool:
        """Whether something of the chain is lost or diverged and nobody has said that they know."""
        lost = any(spans.minus(self.acknowledged) for spans in self.lost.values())
        return lost or bool(self.cut) or self.has_diverged()

    def has_archived(self, first: int, next_: int) -> bool:
        """Whether every one of these offsets was archived, or absent for good; none was lost, or has diverged."""
        if first < self.begin or next_ > self.next:
            return False
        return not any(any(spans.within(first, next_)) for spans in (*self.lost.values(), self.diverged, self.cut))

    def has_diverged(self) -> bool:
        """Whether something archived has diverged, by the chain's own looks, and nobody has said that they know."""
        return bool(self.diverged_unknown())

    def diverged_unknown(self) -> Spans:
        """What was archived and has diverged, by the chain's own looks, and nobody has said that they know."""
        rest = self.diverged.minus(self.acknowledged)
        for spans in self.lost.values():
            rest = rest.minus(spans)
        return rest

    def _lose(self, first: int, next_: int, cause: Cause) -> Iterator[Tile]:
        if first < next_:
            self.lost.setdefault(cause, Spans()).add(first, next_)
            yield from self._tile(first, next_, Label.LOST, cause)

    def _unless(self, others: Iterable[Spans], first: int, next_: int, label: Label) -> Iterator[Tile]:
        left_alone = Spans(span for spans in others for span in spans.within(first, next_))
        for rest in list(left_alone.outside(first, next_)):
            yield from self._tile(*rest, label)

    def _tile(self, first: int, next_: int, label: Label, cause: Cause = Cause.NONE) -> Iterator[Tile]:
        if first < next_:
            yield Tile(self.number, first, next_, label, cause)


def _range(entry: ObjectEntry) -> Span:
    return entry.first, entry.next
