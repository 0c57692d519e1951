"""The books of streams' sinks, held against the record of work: what they prove, and what does not balance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.books import (
    MOST_NAMED,
    Balance,
    Doubt,
    Fault,
    Finding,
    Reconciliation,
    Sums,
    doubts_of,
    judged,
    receded,
    skipped,
    sums_of,
    together,
)
from millrace.domain.quality.ranges import Mark, Work, bounded, covers_any, gained, proven, reached
from millrace.domain.sinks.capabilities import Capability
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, MillraceError, RefusedError
from millrace.ports.sinks import Books
from millrace.usecases.declaration.lookup import DeclaredStream, all_pipelines
from millrace.usecases.quality.witness import MOST_READ, Witnesses
from millrace.usecases.sinks.required import table_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

MOST_OFFSETS = 100_000_000
"""A run that goes on where the last one ended looks at so many offsets at most."""
LONGEST_RUN = timedelta(hours=1)
"""After so long no other run follows one that left something."""
_HELD = 1_000_000  # ranges in doubt that wait in memory until their witnesses are asked, all at once

Progress = Callable[[str], object]


def kept_books(root: Path) -> list[DeclaredStream]:
    """Return the streams whose sinks keep books.

    Raises:
        InvalidDeclarationError: a declaration has errors.
    """
    pipelines = all_pipelines(root)
    return [DeclaredStream(pipeline, stream) for pipeline in pipelines for stream in pipeline.able(Capability.BOOKS)]


def reconcile(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    *,
    actor: str,
    deep: bool = False,
    kept: bool = True,
    now: datetime | None = None,
    progress: Progress = lambda _: None,
) -> Reconciliation:
    """Hold what a stream's sink has against its ledger, from where the books are proven to the record of work.

    What is found is stored, and an alarm is open while the newest run found something. The mark of a partition moves up
    to the first thing that does not balance, so the next run finds that again; a deep run may move it back. Witnesses
    are asked once: a deep run asks none again below the mark.

    Args:
        platform: the adapters.
        pipeline: whose stream it is.
        stream: whose sink it is.
        actor: who has it done.
        deep: from the first offset on, all of them.
        kept: whether it counts: else nothing is stored, no mark moves and no alarm changes.
        now: the present.
        progress: told what is looked at.

    Raises:
        UnreachableError: the sink or the control database does not answer. What kept witnesses from being asked is the
            run's `problem`.
        DeclarationError: the sink has no ledger, or its table lacks a column.
        RefusedError: its sink lacks the capability.
    """
    written = table_of(stream, Capability.BOOKS)
    began = now or datetime.now(UTC)
    name = stream.qualified_name
    quality = stream.quality
    sink = platform.sinks.books(quality.connection if quality and quality.connection else written.connection)
    mark = platform.control.books.mark(name)
    work, _ = sink.work(name)
    back = receded(mark, work)
    from_ = Mark() if deep or reached(work).timeline < mark.timeline else mark
    unproven = gained(from_, work)
    ranges = unproven if deep else bounded(unproven, MOST_OFFSETS)
    run = Reconciliation(name, began, began, reached(work), from_, from_, deep=deep, actor=actor)
    stops: Mapping[TopicPartition, int] = {}
    if work:
        with sink.opened(name, written.table, written.key) as books:
            settled = _settled(mark, work) if deep and not back else {}
            look = _Look(books, work, settled, Witnesses(platform, pipeline, progress), progress, findings=list(back))
            look.at(ranges)
        run = replace(
            run,
            upto=_with_gone(mark, proven(reached(work), unproven, [look.proven(one) for one in ranges])),
            ends=proven(reached(work), unproven, [look.looked(one) for one in ranges]),
            sums=look.sums,
            findings=together(look.findings),
            problem="" if look.problem is None else look.problem.what,
        )
        stops = look.stops
    elif mark.offsets:
        lost = Finding(Fault.MISSING, None, detail="its record of work is missing; an earlier run has seen it")
        run = replace(run, reached=mark, upto=mark, ends=Mark(), findings=(lost,))
    run = replace(run, ended=max(began, datetime.now(UTC)))
    if not kept:
        return run
    stored = platform.control.books.store(run, seen=mark, stops=stops)
    _hold_alarm(platform, stored)
    platform.control.books.tidy(began)
    return stored


def _settled(mark: Mark, work: Sequence[Work]) -> dict[TopicPartition, int]:
    """Up to where doubts were judged when a mark moved over them; what they were judged by may be gone by now."""
    begins = {range_.partition: range_.first for range_ in gained(mark, work)}
    return {partition: begins.get(partition, at) for partition, at in reached(work).offsets.items()}


def _with_gone(mark: Mark, upto: Mark) -> Mark:
    """With the partitions that are on record no more: that is found again, until they are or somebody accepts it."""
    gone = {partition: at for partition, at in mark.offsets.items() if partition not in upto.offsets}
    older = {partition: mark.timeline_of(partition) for partition in gone}
    return Mark(upto.timeline, {**upto.offsets, **gone}, {**upto.older, **older})


def reconcile_on(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    *,
    actor: str,
    deep: bool = False,
    progress: Progress = lambda _: None,
) -> tuple[Reconciliation, ...]:
    """Run over a stream's books as often as it takes to reach the record of work; one that is red, or time, ends it.

    Raises:
        UnreachableError, DeclarationError, RefusedError: as `reconcile`.
    """
    began = datetime.now(UTC)
    done = [reconcile(platform, pipeline, stream, actor=actor, deep=deep, progress=progress)]
    while done[-1].left and done[-1].balance is Balance.BALANCED and datetime.now(UTC) - began < LONGEST_RUN:
        done.append(reconcile(platform, pipeline, stream, actor=actor, progress=progress))
    return tuple(done)


def _hold_alarm(platform: Platform, run: Reconciliation) -> None:
    """One alarm a stream: open while its books do not balance."""
    alarms = platform.control.alarms
    if run.findings:
        extent = Extent(sum(run.faults.values()), ", ".join(sorted(fault.value for fault in run.faults)))
        alarms.open(AlarmKind.BOOKS_UNBALANCED, run.stream, f"{run}; {run.findings[0]}", extent)
    elif run.balance is Balance.BALANCED and not run.left:
        newest = platform.control.books.latest(run.stream)
        if newest is not None and newest.identity == run.identity:  # one that was stored since knows more
            alarms.close(AlarmKind.BOOKS_UNBALANCED, run.stream, opened_before=run.began)


def accept(platform: Platform, stream: Stream, *, actor: str, reason: str) -> Reconciliation:
    """Say that what the last run over a stream's books found stays as it is: the next run begins after it.

    Raises:
        RefusedError: there was no run, the last one found nothing, or a newer one came meanwhile.
        UnreachableError: the control database does not answer.
    """
    store, now = platform.control.books, datetime.now(UTC)
    last = store.latest(stream.qualified_name)
    if last is None or not last.findings:
        what = "its books were never compared" if last is None else f"its books are {last.balance}"
        raise RefusedError(
            f"nothing to accept: {what}",
            where=stream.qualified_name,
            next_step=f"run `millrace quality reconcile {stream.qualified_name}`",
            code=Code.NOTHING_TO_DO,
        )
    if not store.accept(last, actor=actor, reason=reason):
        raise RefusedError(
            "a newer run has ended meanwhile",
            where=stream.qualified_name,
            next_step="look at the newer one, and accept that",
            code=Code.CONCURRENT_CHANGE,
        )
    platform.control.alarms.close(AlarmKind.BOOKS_UNBALANCED, stream.qualified_name, opened_before=now)
    return last


@dataclass(slots=True)
class _Look:
    """One look at a stream's books."""

    books: Books
    work: Sequence[Work]
    settled: Mapping[TopicPartition, int]
    witnesses: Witnesses
    progress: Progress
    sums: Sums = field(default_factory=Sums)
    findings: list[Finding] = field(default_factory=list)
    stops: dict[TopicPartition, int] = field(default_factory=dict)
    problem: MillraceError | None = None
    _ends: dict[TopicPartition, int] = field(default_factory=dict)
    _doubts: list[Doubt] = field(default_factory=list)
    _held: int = 0
    _doubted: int = 0
    _named: int = 0

    def at(self, ranges: Iterable[OffsetRange]) -> None:
        """Look at these ranges, at what lies outside of the record of work, and at the table."""
        about = self.books.about_the_table()
        gone = any(one.fault is Fault.MISSING for one in about)
        self.findings += about if covers_any(self.work) or not gone else ()
        if gone:
            self._ends = {range_.partition: range_.first for range_ in ranges}
            return
        of_each: dict[TopicPartition, list[Work]] = {}
        for row in self.work:
            of_each.setdefault(row.partition, []).append(row)
        for partition in sorted(of_each):
            outside = self.books.outside(partition)
            self.findings += [outside] if outside else []
        for range_ in ranges:
            holes = skipped(of_each[range_.partition], range_)
            if holes:
                named = tuple(holes)
                self._add(named[0][0], Finding(Fault.SKIPPED, range_.partition, named, holes.offsets, len(named)))
            for first, next_ in holes.outside(range_.first, range_.next):
                self._piece(OffsetRange(range_.partition, first, next_))
        self._ask()

    def looked(self, range_: OffsetRange) -> OffsetRange:
        """The beginning of a range that was looked at, and of whose doubts the witnesses were asked."""
        return _below(range_, self._ends)

    def proven(self, range_: OffsetRange) -> OffsetRange:
        """The same, up to where something does not balance."""
        return _below(self.looked(range_), self.stops)

    def _piece(self, piece: OffsetRange) -> None:
        at = piece.first
        while at < min(piece.next, self._ends.get(piece.partition, piece.next)):
            part = self.books.part(OffsetRange(piece.partition, at, piece.next))
            for finding in judged(part):
                self._add(part.range.first, finding)
            self.sums += sums_of(part)
            judged_before = self.settled.get(piece.partition, 0)
            doubts = [doubt for doubt in doubts_of(part) if doubt.range.next > judged_before]
            self._doubts += doubts
            self._held += sum(len(doubt.absent) for doubt in doubts)
            self._doubted += sum(len(doubt.range) for doubt in doubts)
            at = part.range.next
            self.progress(f"{piece.partition} up to offset {at:,}")
            if self._held > _HELD or self._doubted > MOST_READ:
                self._ask()

    def _ask(self) -> None:
        """Have the doubts judged; where that cannot be, the look ends before them."""
        if self.problem is None:
            judged_ = self.witnesses.judge(self._doubts)
            unasked, self.problem = judged_.unasked, judged_.problem
            for finding in judged_.findings:
                self._add(finding.spans[0][0], finding)
        else:
            unasked = [doubt.range for doubt in self._doubts]
        for range_ in unasked:
            self._ends[range_.partition] = min(range_.first, self._ends.get(range_.partition, range_.first))
        self._doubts, self._held, self._doubted = [], 0, 0

    def _add(self, first: int, finding: Finding) -> None:
        partition = finding.partition
        assert partition is not None
        self.findings.append(finding)
        self._named += 1 + len(finding.spans)
        if self._named > 2 * MOST_NAMED:
            self.findings = list(together(self.findings))
            self._named = 0
        self.stops[partition] = min(first, self.stops.get(partition, first))


def _below(range_: OffsetRange, bounds: Mapping[TopicPartition, int]) -> OffsetRange:
    stop = bounds.get(range_.partition, range_.next)
    return OffsetRange(range_.partition, range_.first, max(range_.first, min(stop, range_.next)))
