"""The books of streams' sinks, held against the record of work: what they prove, and what does not balance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration import Pipeline, Stream
from millrace.domain.offsets import OffsetRange, TopicPartition
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
from millrace.domain.quality.ranges import Mark, Work, bounded, gained, proven, reached
from millrace.errors import RefusedError, UsageError
from millrace.ports import Books
from millrace.usecases.books_witness import Witnesses

if TYPE_CHECKING:
    from millrace.wiring import Platform

MOST_OFFSETS = 100_000_000
"""A run that goes on where the last one ended looks at so many offsets at most."""
LONGEST_RUN = timedelta(hours=1)
"""After so long no other run follows one that left something."""
UNBALANCED = "books.unbalanced"
_HELD = 1_000_000  # ranges in doubt that wait in memory until their witnesses are asked, all at once

Progress = Callable[[str], object]


def declared(pipelines: Sequence[Pipeline], name: str | None = None) -> list[tuple[Pipeline, Stream]]:
    """The streams whose sinks keep books, or the one of this name, PIPELINE.STREAM.

    Raises:
        UsageError: there is no stream of this name.
    """
    streams = [(pipeline, stream) for pipeline in pipelines for stream in pipeline.streams]
    found = [one for one in streams if name in (None, one[1].qualified_name)]
    if name is not None and not found:
        raise UsageError(f"there is no stream `{name}`", next_step="see `millrace streams list`")
    return found


def reconcile(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    *,
    actor: str,
    deep: bool = False,
    now: datetime | None = None,
    progress: Progress = lambda _: None,
) -> Reconciliation:
    """Hold what a stream's sink has against its ledger, from where the books are proven to the record of work.

    What is found is stored, and an alarm is open while the newest run found something. The mark of a partition moves up
    to the first thing that does not balance, so the next run finds that again; a deep run may move it back.

    Args:
        platform: the adapters.
        pipeline: whose stream it is.
        stream: whose sink it is.
        actor: who has it done.
        deep: from the first offset on, all of them.
        now: the present.
        progress: told what is looked at.

    Raises:
        UnreachableError: the sink or the control database does not answer; or, where offsets that held no record have
            to be witnessed, the bucket or a broker.
        DeclarationError: the sink has no ledger, or its table lacks a column.
    """
    began = now or datetime.now(UTC)
    name = stream.qualified_name
    quality = stream.quality
    sink = platform.sink_books(quality.connection if quality and quality.connection else stream.sink.connection)
    mark = platform.control().books.mark(name)
    work, _ = sink.work(name)
    back = receded(mark, work)
    from_ = Mark() if deep or reached(work).timeline < mark.timeline else mark
    unproven = gained(from_, work)
    ranges = unproven if deep else bounded(unproven, MOST_OFFSETS)
    run = Reconciliation(name, began, began, reached(work), from_, from_, deep=deep, actor=actor)
    if work:
        with sink.opened(name, stream.sink.table) as books:
            look = _Look(books, work, Witnesses(platform, pipeline, progress), progress, findings=list(back))
            look.at(ranges)
        findings = together(look.findings)
        upto = proven(reached(work), unproven, [look.proven(one) for one in ranges])
        run = replace(run, upto=upto, ends=proven(reached(work), unproven, ranges), sums=look.sums, findings=findings)
    elif mark.offsets:
        lost = Finding(Fault.MISSING, None, detail="its record of work, which an earlier run has seen, is not there")
        run = replace(run, reached=mark, upto=mark, ends=Mark(), findings=(lost,))
    run = replace(run, ended=max(began, datetime.now(UTC)))
    stored = platform.control().books.store(run, seen=mark, mark=run.upto)
    newest = platform.control().books.latest(name)
    if newest is not None and newest.identity == stored.identity:  # else a later look is done already, and knows better
        _hold_alarm(platform, stored)
        platform.control().books.tidy(began)
    return stored


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
        UnreachableError, DeclarationError: as `reconcile`.
    """
    began = datetime.now(UTC)
    done = [reconcile(platform, pipeline, stream, actor=actor, deep=deep, progress=progress)]
    while done[-1].left and done[-1].balance is Balance.BALANCED and datetime.now(UTC) - began < LONGEST_RUN:
        done.append(reconcile(platform, pipeline, stream, actor=actor, progress=progress))
    return tuple(done)


def _hold_alarm(platform: Platform, run: Reconciliation) -> None:
    """One alarm a stream: open while its books do not balance."""
    alarms = platform.control().alarms
    if run.balance is Balance.BALANCED:
        alarms.close(UNBALANCED, run.stream, opened_before=run.began)
    elif run.balance is not Balance.EMPTY:
        alarms.open(UNBALANCED, run.stream, f"{run}; {run.findings[0]}")


def accept(platform: Platform, stream: Stream, *, actor: str, reason: str) -> Reconciliation:
    """Say that what the last run over a stream's books found stays as it is: the next run begins after it.

    Raises:
        RefusedError: there was no run, the last one found nothing, or a newer one came meanwhile.
        UnreachableError: the control database does not answer.
    """
    store = platform.control().books
    last = store.latest(stream.qualified_name)
    if last is None or not last.findings:
        what = "nobody has looked at its books" if last is None else f"its books are {last.balance}"
        raise RefusedError(
            f"there is nothing to accept: {what}",
            where=stream.qualified_name,
            next_step=f"run `millrace quality reconcile {stream.qualified_name}`",
        )
    if not store.accept(last, actor=actor, reason=reason):
        raise RefusedError(
            "a newer run came meanwhile", where=stream.qualified_name, next_step="look at it, and accept that one"
        )
    platform.control().alarms.close(UNBALANCED, stream.qualified_name, opened_before=datetime.now(UTC))
    return last


@dataclass(slots=True)
class _Look:
    """One look at a stream's books."""

    books: Books
    work: Sequence[Work]
    witnesses: Witnesses
    progress: Progress
    sums: Sums = field(default_factory=Sums)
    findings: list[Finding] = field(default_factory=list)
    _stops: dict[TopicPartition, int] = field(default_factory=dict)
    _doubts: list[Doubt] = field(default_factory=list)
    _held: int = 0
    _named: int = 0

    def at(self, ranges: Iterable[OffsetRange]) -> None:
        """Look at these ranges, at what lies outside of the record of work, and at the table."""
        self.findings += self.books.about_the_table()
        if any(one.fault is Fault.MISSING for one in self.findings):
            self._stops = {range_.partition: range_.first for range_ in ranges}
            return
        for partition in sorted({row.partition for row in self.work}):
            outside = self.books.outside(partition)
            self.findings += [outside] if outside else []
        for range_ in ranges:
            holes = skipped(self.work, range_)
            if holes:
                named = tuple(holes)
                self._add(named[0][0], Finding(Fault.SKIPPED, range_.partition, named, holes.offsets, len(named)))
            for first, next_ in holes.outside(range_.first, range_.next):
                self._piece(OffsetRange(range_.partition, first, next_))
        self._ask()

    def proven(self, range_: OffsetRange) -> OffsetRange:
        """The beginning of a range that was looked at, up to where something does not balance."""
        stop = self._stops.get(range_.partition, range_.next)
        return OffsetRange(range_.partition, range_.first, max(range_.first, min(stop, range_.next)))

    def _piece(self, piece: OffsetRange) -> None:
        at = piece.first
        while at < piece.next:
            part = self.books.part(OffsetRange(piece.partition, at, piece.next))
            for finding in judged(part):
                self._add(part.range.first, finding)
            self.sums += sums_of(part)
            doubts = doubts_of(part)
            self._doubts += doubts
            self._held += sum(len(doubt.absent) for doubt in doubts)
            at = part.range.next
            self.progress(f"{piece.partition} up to offset {at:,}")
            if self._held > _HELD:
                self._ask()

    def _ask(self) -> None:
        for finding in self.witnesses.judge(self._doubts):
            self._add(finding.spans[0][0], finding)
        self._doubts, self._held = [], 0

    def _add(self, first: int, finding: Finding) -> None:
        partition = finding.partition
        assert partition is not None
        self.findings.append(finding)
        self._named += 1 + len(finding.spans)
        if self._named > 2 * MOST_NAMED:
            self.findings = list(together(self.findings))
            self._named = 0
        self._stops[partition] = min(first, self._stops.get(partition, first))
