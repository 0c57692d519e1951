"""The books of a stream's sink: every offset of its record of work is a row, in quarantine, dropped, or held no record.

The ledger says which; what lies in the table and in quarantine is held against it, offset by offset. That an absent
offset held no record is believed of an archive that has it as a hole, or of a log that has nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from millrace.domain.offsets import OffsetRange, TopicPartition
from millrace.domain.quality.ranges import Mark, Work

Span = tuple[int, int]
"""Offsets `first <= offset < next`."""

MOST_NAMED = 10_000
"""So many ranges of a run are named at most; all are counted."""


class Fault(StrEnum):
    """One way in which books do not balance."""

    MISSING = "missing"  # the ledger says it became a row or went to quarantine, and it is in neither
    DOUBLED = "doubled"  # a row twice, or a row and in quarantine
    ORDINALS = "ordinals"  # the rows of one record are not numbered from 0 on without a gap
    ROWS = "rows"  # of a record with several rows, there are not as many as were written
    UNEXPECTED = "unexpected"  # there, and the ledger says that nothing came of it
    CONTRADICTED = "contradicted"  # the ledger's own numbers do not add up
    UNREAD = "unread"  # the archive or the log has a record there that the stream was never given
    SKIPPED = "skipped"  # no timeline has read it
    OUTSIDE = "outside"  # a row that the record of work does not reach
    STRANGE = "strange"  # rows of partitions that no stream has on record
    UNBOOKED = "unbooked"  # in neither, and no ledger says why: it was written by an older Millrace
    UNWITNESSED = "unwitnessed"  # nothing can tell any more whether a record was there
    UNKEYED = "unkeyed"  # nothing keeps a row of the table from being there twice


OPEN = frozenset({Fault.UNBOOKED, Fault.UNWITNESSED})
"""What is not known, rather than known to be wrong."""


class Balance(StrEnum):
    """What came of a run."""

    BALANCED = "balanced"
    OPEN = "open"  # nothing is known to be wrong, and not everything is known
    BROKEN = "broken"
    EMPTY = "empty"  # there is no record of work: that is no success


@dataclass(frozen=True, slots=True)
class Finding:
    """What does not balance in one partition.

    Attributes:
        fault: how.
        partition: where; None: it is about the table.
        spans: the offsets, as ranges in order: the first so many.
        offsets: how many offsets there are, with those that are not named.
        ranges: how many ranges.
        detail: what was found, where the offsets do not say it.
    """

    fault: Fault
    partition: TopicPartition | None
    spans: tuple[Span, ...] = ()
    offsets: int = 0
    ranges: int = 0
    detail: str = ""

    def __str__(self) -> str:
        """In a line, with five ranges at most."""
        named = ", ".join(f"[{first}, {next_})" for first, next_ in self.spans[:5])
        more = f" and {self.ranges - 5} more ranges" if self.ranges > 5 else ""
        where = "" if self.partition is None else f" {self.partition}"
        offsets = "offset" if self.offsets == 1 else "offsets"
        text = (
            f"{self.fault}:{where} {named}{more}, {self.offsets:,} {offsets}" if self.spans else f"{self.fault}{where}"
        )
        return text + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the ledger, `first <= offset < next`; what is None was cut away by a rewind, or never known.

    Attributes:
        records: how many records were read.
        sources: how many of them became rows.
        rows: how many rows.
        quarantined: how many are in quarantine.
        dropped: how many the transform left out.
        absent: how many offsets are neither rows nor in quarantine, as booked.
        rows_there: how many rows the table has of it now.
    """

    first: int
    next: int
    records: int | None
    sources: int | None
    rows: int | None
    quarantined: int | None
    dropped: int | None
    absent: int
    rows_there: int

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def gaps(self) -> int | None:
        """How many of its offsets held no record."""
        return None if self.records is None else len(self) - self.records

    @property
    def contradiction(self) -> str:
        """What of its numbers cannot be true together; empty where they can."""
        if self.gaps is not None and not 0 <= self.gaps <= self.absent:
            return (
                f"it says that {self.records:,} records were read of {len(self):,} offsets, and that "
                f"{self.absent:,} of them came to nothing"
            )
        if self.sources is None or self.quarantined is None:
            return ""
        if self.sources + self.quarantined + self.absent != len(self):
            return (
                f"{self.sources:,} with rows, {self.quarantined:,} in quarantine and {self.absent:,} of which nothing "
                f"came are not {len(self):,} offsets"
            )
        if self.records is None or self.dropped is None:
            return ""
        if (dropped := self.records - self.sources - self.quarantined) != self.dropped:
            return (
                f"it says that {self.dropped:,} were dropped, and {self.records:,} read less {self.sources:,} with "
                f"rows and {self.quarantined:,} in quarantine are {dropped:,}"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An entry of which some absent offsets held no record, as the count of what was read says.

    Attributes:
        range: the entry's.
        absent: its offsets that are neither rows nor in quarantine, as ranges in order, merged.
        gaps: how many of them held no record; None: that is not known.
    """

    range: OffsetRange
    absent: tuple[Span, ...]
    gaps: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """What was found of a run of offsets of one partition, in one snapshot of the sink.

    Attributes:
        range: whole entries of the ledger, and what of it is booked nowhere.
        findings: of the offsets themselves.
        entries: what the ledger says.
        doubts: what a witness has to say.
    """

    range: OffsetRange
    findings: tuple[Finding, ...]
    entries: tuple[Entry, ...]
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """What the offsets of a run came to. Offsets of entries that were cut by a rewind count as absent only."""

    offsets: int = 0
    rows: int = 0
    quarantined: int = 0
    dropped: int = 0
    gaps: int = 0
    absent: int = 0

    def __add__(self, more: Sums) -> Sums:
        return Sums(
            self.offsets + more.offsets,
            self.rows + more.rows,
            self.quarantined + more.quarantined,
            self.dropped + more.dropped,
            self.gaps + more.gaps,
            self.absent + more.absent,
        )


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One run over a stream's books.

    Attributes:
        stream: PIPELINE.STREAM.
        began: when.
        ended: when.
        reached: where the record of work stood.
        upto: up to where the books are proven now.
        ends: up to where they were looked at.
        sums: what was looked at comes to.
        findings: what does not balance.
        deep: whether it began at the first offset.
        actor: who had it done.
        identity: in the control database; None: not stored.
    """

    stream: str
    began: datetime
    ended: datetime
    reached: Mark
    upto: Mark
    ends: Mark
    sums: Sums = field(default_factory=Sums)
    findings: tuple[Finding, ...] = ()
    deep: bool = False
    actor: str = ""
    identity: int | None = None

    @property
    def balance(self) -> Balance:
        """What came of it."""
        if not self.reached.offsets:
            return Balance.EMPTY
        faults = {finding.fault for finding in self.findings}
        if not faults:
            return Balance.BALANCED
        return Balance.OPEN if faults <= OPEN else Balance.BROKEN

    @property
    def left(self) -> int:
        """How many offsets wait for the next run."""
        return sum(at - self.ends.offsets.get(partition, at) for partition, at in self.reached.offsets.items())

    def __str__(self) -> str:
        """What came of it, in a line."""
        sums = self.sums
        if self.balance is Balance.EMPTY:
            return "nothing was ever written"
        text = (
            f"{sums.offsets:,} offsets: {sums.rows:,} rows, {sums.quarantined:,} in quarantine, {sums.dropped:,} "
            f"dropped, {sums.gaps:,} without a record: {self.balance}"
        )
        counts: dict[Fault, int] = {}
        for finding in self.findings:
            counts[finding.fault] = counts.get(finding.fault, 0) + finding.offsets
        told = ", ".join(f"{fault} {count:,}" if count else str(fault) for fault, count in counts.items())
        left = f"; {self.left:,} offsets wait for the next run" if self.left else ""
        return text + (f" ({told})" if told else "") + left


def covered(work: Iterable[Work], partition: TopicPartition) -> tuple[Span, ...]:
    """The offsets of a partition that some timeline has done, as ranges in order, merged."""
    return merged((row.first, row.next) for row in work if row.partition == partition)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same offsets as ranges in order that neither meet nor touch; none is empty."""
    found: list[Span] = []
    for first, next_ in sorted(spans):
        if first >= next_:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], next_))
        else:
            found.append((first, next_))
    return tuple(found)


def common(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...]:
    """The offsets that are in both; both, and what comes of them, are ranges in order, merged."""
    found: list[Span] = []
    here = there = 0
    while here < len(left) and there < len(right):
        first, next_ = max(left[here][0], right[there][0]), min(left[here][1], right[there][1])
        if first < next_:
            found.append((first, next_))
        if left[here][1] < right[there][1]:
            here += 1
        else:
            there += 1
    return tuple(found)


def without(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...]:
    """The offsets that are in the first only; both, and what comes of them, are ranges in order, merged."""
    if not left:
        return ()
    ends = (left[0][0], left[-1][1])
    holes: list[Span] = []
    at = ends[0]
    for first, next_ in right:
        holes.append((at, first))
        at = max(at, next_)
    holes.append((at, ends[1]))
    return common(left, tuple((first, next_) for first, next_ in holes if first < next_))


def size(spans: Iterable[Span]) -> int:
    """How many offsets they are."""
    return sum(next_ - first for first, next_ in spans)


def skipped(work: Sequence[Work], range_: OffsetRange) -> tuple[Span, ...]:
    """The offsets of a range that no timeline has read."""
    return without(((range_.first, range_.next),), covered(work, range_.partition)) if len(range_) else ()


@dataclass(frozen=True, slots=True)
class Witness:
    """What an archive or a log knows of a partition.

    Attributes:
        knows: the offsets that it can speak of, as ranges in order, merged.
        holes: those of them where it has no record.
    """

    knows: tuple[Span, ...] = ()
    holes: tuple[Span, ...] = ()

    def __add__(self, more: Witness) -> Witness:
        """Both together: an offset is a hole where one of them says so."""
        return Witness(merged([*self.knows, *more.knows]), merged([*self.holes, *more.holes]))

    def is_enough_for(self, doubt: Doubt) -> bool:
        """Whether nobody else has to be asked."""
        holes = size(common(doubt.absent, self.holes))
        if doubt.gaps is not None and holes >= doubt.gaps:
            return True
        return doubt.gaps is None and not without(doubt.absent, self.knows)

    def judge(self, doubt: Doubt) -> Finding | None:
        """What of a doubt is left."""
        if self.is_enough_for(doubt):
            return None
        holes, unknown = common(doubt.absent, self.holes), without(doubt.absent, self.knows)
        span = ((doubt.range.first, doubt.range.next),)
        if unknown:
            named = unknown[:MOST_NAMED]
            missing = size(unknown) if doubt.gaps is None else doubt.gaps - size(holes)
            what = "some of them" if doubt.gaps is None else f"{missing:,} of them"
            detail = f"{what} held no record as it was read, and neither archive nor log can tell"
            return Finding(Fault.UNWITNESSED, doubt.range.partition, named, size(unknown), len(unknown), detail)
        lost = (doubt.gaps or 0) - size(holes)
        detail = (
            f"{doubt.gaps:,} offsets gave no record when they were read, and only {size(holes):,} of them hold none"
        )
        return Finding(Fault.UNREAD, doubt.range.partition, span, lost, 1, detail)


def judged(part: Part) -> tuple[Finding, ...]:
    """What does not balance in a part, but for its doubts."""
    found = list(part.findings)
    partition = part.range.partition
    for entry in part.entries:
        here = (entry.first, entry.next)
        if entry.contradiction:
            found.append(Finding(Fault.CONTRADICTED, partition, (here,), len(entry), 1, entry.contradiction))
        elif entry.rows is not None and entry.rows != entry.rows_there:
            explained = any(common((here,), finding.spans) or finding.ranges > len(finding.spans) for finding in found)
            if not explained:
                detail = f"{entry.rows:,} rows were written, {entry.rows_there:,} are there"
                found.append(Finding(Fault.ROWS, partition, (here,), len(entry), 1, detail))
    return tuple(found)


def sums_of(part: Part) -> Sums:
    """What the offsets of a part came to."""
    found = Sums(offsets=len(part.range))
    for entry in part.entries:
        found += Sums(
            rows=entry.rows_there,
            quarantined=entry.quarantined or 0,
            dropped=entry.dropped or 0,
            gaps=entry.gaps or 0,
            absent=entry.absent,
        )
    return found


def together(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, those of one kind and partition without words of their own as one, and not too many named."""
    alone: list[Finding] = []
    joint: dict[tuple[Fault, TopicPartition | None], Finding] = {}
    for one in findings:
        if one.detail:
            alone.append(one)
            continue
        key = (one.fault, one.partition)
        held = joint.get(key, Finding(*key))
        joint[key] = Finding(*key, (*held.spans, *one.spans), held.offsets + one.offsets, held.ranges + one.ranges)
    room = MOST_NAMED
    cut: list[Finding] = []
    for one in (*joint.values(), *alone):
        spans = one.spans[:room]
        room -= len(spans)
        if spans or not one.spans:
            cut.append(Finding(one.fault, one.partition, spans, one.offsets, one.ranges, one.detail))
        else:
            cut.append(Finding(one.fault, one.partition, (), one.offsets, one.ranges, one.detail))
    return tuple(sorted(cut, key=lambda one: (list(Fault).index(one.fault), str(one.partition))))
