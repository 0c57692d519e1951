"""The books of a stream's sink: every offset of its record of work is a row, in quarantine, dropped, or held no record.

The ledger says which; what lies in the table and in quarantine is held against it, offset by offset. That an absent
offset held no record is believed of an archive that has it as a hole, or of a log that has nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.quality.ranges import Mark, Work, reached
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

MOST_NAMED = 10_000
"""So many ranges of a run are named at most; all are counted."""


class Fault(StrEnum):
    """One way in which books do not balance."""

    MISSING = "missing"  # the ledger says it became a row or went to quarantine, and it is in neither
    DOUBLED = "doubled"  # a row twice, or a row and in quarantine
    ORDINALS = "ordinals"  # rows of a record are missing: its ordinals have a gap
    ROWS = "rows"  # of a record with several rows, there are not as many as were written
    UNEXPECTED = "unexpected"  # there, and the ledger says that nothing came of it
    CONTRADICTED = "contradicted"  # the ledger's own numbers do not add up
    UNREAD = "unread"  # the archive or the log has a record there that the stream was never given
    RECEDED = "receded"  # the record of work ends before what an earlier run has proven
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
        if self.partition is None:
            return f"{self.fault}: {self.detail}"
        told = [f"[{first}, {next_})" for first, next_ in self.spans[:5]]
        if (more := self.ranges - len(told)) > 0:
            told.append(f"and {more:,} more ranges" if told else f"{more:,} ranges")
        count = f"{self.offsets:,} offset" + ("" if self.offsets == 1 else "s")
        text = f"{self.fault}: {self.partition} {' '.join(told)}, {count}"
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
                f"its ledger entry has {self.records:,} records of {len(self):,} offsets, but {self.absent:,} offsets "
                "without a record"
            )
        if self.sources is None or self.rows is None or self.quarantined is None:
            return ""
        if self.rows < self.sources:
            return f"its ledger entry says that {self.sources:,} records became {self.rows:,} rows"
        if self.sources + self.quarantined + self.absent != len(self):
            return (
                f"{self.sources:,} with rows, {self.quarantined:,} in quarantine and {self.absent:,} without a result "
                f"are not {len(self):,} offsets"
            )
        if self.records is None or self.dropped is None:
            return ""
        if (dropped := self.records - self.sources - self.quarantined) != self.dropped:
            return (
                f"its ledger entry says that {self.dropped:,} were dropped, but {self.records:,} read minus "
                f"{self.sources:,} with rows and {self.quarantined:,} in quarantine are {dropped:,}"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An entry of which some absent offsets held no record, as the count of what was read says.

    Attributes:
        range: the entry's.
        absent: its offsets that are neither rows nor in quarantine.
        gaps: how many of them held no record; None: that is not known.
    """

    range: OffsetRange
    absent: Spans
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
    """What the offsets of a run came to, as far as it is known: a rewind that cuts an entry takes some of its numbers.

    Attributes:
        offsets: how many were looked at.
        rows: how many rows the table has of them.
        quarantined: how many went to quarantine.
        dropped: how many the transform left out.
        gaps: how many held no record.
        absent: how many are neither rows nor in quarantine.
    """

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
        problem: why witnesses could not be asked, so that the look ended before `reached`; empty: nothing kept them.
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
    problem: str = ""
    identity: int | None = None

    @property
    def balance(self) -> Balance:
        """What came of it."""
        if not self.reached.offsets:
            return Balance.EMPTY
        faults = {finding.fault for finding in self.findings}
        if not faults:
            return Balance.OPEN if self.problem else Balance.BALANCED
        return Balance.OPEN if faults <= OPEN else Balance.BROKEN

    @property
    def only_waits(self) -> bool:
        """Whether nothing is wrong but that witnesses could not be asked."""
        return bool(self.problem) and not self.findings

    @property
    def faults(self) -> Mapping[Fault, int]:
        """How many offsets do not balance, by how."""
        counts: dict[Fault, int] = {}
        for finding in self.findings:
            counts[finding.fault] = counts.get(finding.fault, 0) + finding.offsets
        return counts

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
        told = ", ".join(f"{fault} {count:,}" if count else str(fault) for fault, count in self.faults.items())
        left = f"; {self.left:,} offsets wait for the next run" if self.left else ""
        problem = f"; witnesses did not answer: {self.problem}" if self.problem else ""
        return text + (f" ({told})" if told else "") + left + problem


def skipped(work: Sequence[Work], range_: OffsetRange) -> Spans:
    """The offsets of a range that no timeline has read."""
    done = Spans((row.first, row.next) for row in work if row.partition == range_.partition)
    return Spans(done.outside(range_.first, range_.next))


def receded(mark: Mark, work: Sequence[Work]) -> tuple[Finding, ...]:
    """Where the record of work ends before what is proven, though nothing was rewound: the sink lost transactions."""
    now = reached(work)
    found = []
    for partition, at in sorted(mark.offsets.items()):
        known, timeline = now.offsets.get(partition), mark.timeline_of(partition)
        if known is not None and (now.timeline_of(partition) > timeline or at <= known):
            continue
        first = 0 if known is None else known
        if first < at:
            what = "its record of work is gone" if known is None else f"its record of work ends at {known}"
            detail = f"{what}, but an earlier run has proven it up to {at}"
            found.append(Finding(Fault.RECEDED, partition, ((first, at),), at - first, 1, detail))
    return tuple(found)


def judged(part: Part) -> tuple[Finding, ...]:
    """What does not balance in a part, but for its doubts.

    A transform may leave out some of the rows of a record, so a gap in its ordinals counts only where rows are missing.
    """
    partition = part.range.partition
    found = [one for one in part.findings if one.fault is not Fault.ORDINALS]
    ordinals = Spans(span for one in part.findings if one.fault is Fault.ORDINALS for span in one.spans)
    named = Spans(sorted(span for one in found for span in one.spans))
    all_named = all(one.ranges == len(one.spans) for one in found)
    for entry in part.entries:
        here = (entry.first, entry.next)
        if entry.contradiction:
            found.append(Finding(Fault.CONTRADICTED, partition, (here,), len(entry), 1, entry.contradiction))
        elif entry.rows is not None and entry.rows != entry.rows_there:
            if gaps := tuple(ordinals.within(*here)):
                found.append(Finding(Fault.ORDINALS, partition, gaps, Spans(gaps).offsets, len(gaps)))
            elif all_named and not any(named.within(*here)):
                detail = f"{entry.rows:,} rows were written, {entry.rows_there:,} exist"
                found.append(Finding(Fault.ROWS, partition, (here,), len(entry), 1, detail))
    return tuple(found)


def doubts_of(part: Part) -> tuple[Doubt, ...]:
    """What witnesses are to be asked: of an entry that contradicts itself they are not."""
    false = {entry.first for entry in part.entries if entry.contradiction}
    return tuple(doubt for doubt in part.doubts if doubt.range.first not in false)


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
    """The same findings, those of one kind and partition as one, in order, and not too many ranges of them named.

    What was found together may be found together with more.
    """
    joint: dict[tuple[Fault, TopicPartition | None], list[Finding]] = {}
    for one in findings:
        joint.setdefault((one.fault, one.partition), []).append(one)
    order = list(Fault)
    room, found = MOST_NAMED, []
    for key in sorted(joint, key=lambda key: (order.index(key[0]), _place(key[1]))):
        one = _joined(joint[key])
        found.append(replace(one, spans=one.spans[:room]))
        room -= len(found[-1].spans)
    return tuple(found)


def _joined(parts: Sequence[Finding]) -> Finding:
    named = [span for one in parts for span in one.spans]
    spans = tuple(Spans(sorted(named)))  # what goes on in the next part is one range
    details = list(dict.fromkeys(one.detail for one in parts if one.detail))
    detail = "; ".join(details[:1]) + (_OTHERS if len(details) > 1 and not details[0].endswith(_OTHERS) else "")
    ranges = sum(one.ranges for one in parts) - len(named) + len(spans)
    return Finding(parts[0].fault, parts[0].partition, spans, sum(one.offsets for one in parts), ranges, detail)


_OTHERS = "; more are like it"


def _place(partition: TopicPartition | None) -> tuple[str | int, ...]:
    """For sorting: what is about the table comes first."""
    return () if partition is None else (partition.topic, partition.topic_id, partition.partition)
