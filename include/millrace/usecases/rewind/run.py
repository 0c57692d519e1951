"""Run the plan of a rewind in steps that are written down, so that anybody can go on where a runner died; take it back.

The one step that cannot be taken back is the driver's: it opens the next timeline. Everything before it only stops the
stream and moves its consumer group, everything after it only looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from millrace.domain.groups.commits import PlannedMove
from millrace.domain.plans.plan import ChangeResult, Facts, Outcome, PlanKind, PlanStatus, StepDone, StoredPlan, facts
from millrace.domain.rewind.plan import Rewind, rewind_of, stale, wrong_positions
from millrace.domain.streams.position import LogBounds, WorkRecord
from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, MillraceError, PartFailedError, RefusedError
from millrace.usecases.plans.kind import Kind, Runner
from millrace.usecases.rewind.plan import rewindable
from millrace.usecases.streams import supervise
from millrace.usecases.streams.look import Supervised

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

STOPPED_WITHIN = timedelta(minutes=2)
FREE_WITHIN = timedelta(seconds=30)  # the member's session is 10 s
STARTED_WITHIN = timedelta(minutes=3)
LOOK_EVERY = timedelta(seconds=0.5)
PROGRESS_EVERY = timedelta(seconds=2)
_FOR_EVER = timedelta(days=365)
_LOGGED = 50
_NEVER = frozenset(
    {
        StreamState.STOPPED,
        StreamState.GIVEN_UP,
        StreamState.RECREATED,
        StreamState.UNDECLARED,
        StreamState.HOST_LOST,
    }
)
_WANTED = "wanted"


class Step(StrEnum):
    """The steps of a rewind, in their order; `abort` is that of taking it back."""

    DRAIN = "drain"
    SESSION = "session"
    LOOK = "look"
    RESET = "reset"
    START = "start"
    POSITIONS = "positions"
    PROGRESS = "progress"
    ABORT = "abort"


def run(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """Run a rewind, or go on with one whose runner died, to its verified end.

    Args:
        platform: the adapters.
        stored: its plan, open or running.
        runner: who runs it. Patience begins once the stream runs where it should: it is for what is read again. Then
            the plan is left running, and the next runner looks again.

    Guarantees: the group never points behind the work on record; a plan that is found stale after the stream was
    stopped leaves group and stream as they were.

    Raises:
        StalePlanError: what was planned is no longer so.
        RefusedError: another rewind of the stream is under way, or this one is being taken back.
        PartFailedError: the stream did not stop, start or get on; run it again. Where what came of it is not what was
            planned, the plan has failed.
        UnreachableError: a server does not answer; run it again.
    """
    rewind = rewind_of(stored.plan)
    with _alone(platform, stored, rewind):
        at_work = _Work(platform, stored, rewind, runner)
        if stored.status is PlanStatus.OPEN:
            at_work.must_hold(runner.now, resumed=False)
            platform.control.plans.begin(stored.plan.id)
        elif at_work.is_taken_back:
            raise RefusedError(
                "the rewind is being aborted",
                where=stored.plan.id,
                next_step=f"run `millrace plans abort {stored.plan.id}`",
                code=Code.BUSY_PLAN,
            )
        at_work.go_on(runner.now, runner.patience)


def abort(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """Take a rewind back that has read nothing yet: group and stream are as they were before it was run.

    Raises:
        RefusedError: the stream has begun to read again; or another rewind of it is under way.
        PartFailedError: the stream did not stop; try again.
        UnreachableError: a server does not answer; try again.
    """
    rewind = rewind_of(stored.plan)
    with _alone(platform, stored, rewind):
        _Work(platform, stored, rewind, runner).take_back()


@contextmanager
def _alone(platform: Platform, stored: StoredPlan, rewind: Rewind) -> Iterator[None]:
    plans = platform.control.plans
    with plans.running(f"rewind of {rewind.stream}") as mine:
        others = [
            each.plan.id
            for each in plans.list(status=PlanStatus.RUNNING, target=rewind.stream)
            if each.plan.kind is PlanKind.REWIND and each.plan.id != stored.plan.id
        ]
        if not mine or others:
            raise RefusedError(
                f"another rewind of {rewind.stream} is under way" + (f": {', '.join(others)}" if others else ""),
                where=stored.plan.id,
                next_step="run that plan to its end, or abort it with `millrace plans abort ID`",
                code=Code.CONCURRENT_CHANGE,
            )
        yield


@dataclass
class _Work:
    """One runner at one plan."""

    platform: Platform
    stored: StoredPlan
    rewind: Rewind
    runner: Runner

    @property
    def actor(self) -> str:
        """Return who does it."""
        return self.runner.actor

    @property
    def reason(self) -> str:
        """Return why, for the action log."""
        return self.runner.because(self.stored.plan)

    @property
    def _id(self) -> str:
        return self.stored.plan.id

    def go_on(self, now: datetime, patience: timedelta | None) -> None:
        if not self._is_done(Step.POSITIONS):  # what an operator does to the stream after that is his to do
            if not self._has_opened():
                self._drain()
                self._wait_for_session()
                self._look(now)
                self._reset()
            self._start()
            self._verify_positions(self._ends())
        if results := self._verify_progress(self._ends(), patience):
            self.platform.control.plans.finish(self._id, PlanStatus.DONE, results)

    def take_back(self) -> None:
        control = self.platform.control
        if self.stored.status is PlanStatus.OPEN:
            control.plans.finish(self._id, PlanStatus.ABORTED)
        else:
            self._must_not_have_opened()
            self._begin(Step.ABORT)
            self._drain()
            if self._moved_back():
                self._wait_for_session()
            try:
                self._must_not_have_opened()
            except RefusedError:
                self._end(Step.ABORT, refused="true")
                self._want_again()
                raise
            self._put_back()
            self._want_again()
            self._end(Step.ABORT)
            control.plans.finish(self._id, PlanStatus.ABORTED)
        control.log.append(actor=self.actor, action="plan.abort", subject=self.rewind.stream, reason=self.reason)

    # What is there

    @property
    def is_taken_back(self) -> bool:
        """Whether somebody has begun to take it back."""
        return any(s.name == Step.ABORT and not dict(s.detail).get("refused") for s in self.stored.steps)

    def _record(self) -> WorkRecord:
        connection = rewindable(self.platform, self.rewind.stream).stream.sink.connection
        return self.platform.sinks.tables(connection).record_of_work(self.rewind.stream)

    def _bounds(self) -> Mapping[TopicPartition, LogBounds]:
        log = self.platform.kafka.logs(self.stored.plan.connection)
        return log.bounds(log.partitions(rewindable(self.platform, self.rewind.stream).stream.reads))

    def _has_opened(self) -> bool:
        return self._record().timeline > self.rewind.timeline

    def _must_not_have_opened(self) -> None:
        if self._has_opened():
            raise RefusedError(
                f"{self.rewind.stream} already reads on the next timeline: the replaced rows are gone",
                where=self._id,
                next_step=f"run `millrace plans run {self._id}` to finish the rewind",
            )

    def must_hold(self, now: datetime, *, resumed: bool) -> None:
        """Raise, and write down, why the plan is no longer true; where it was begun, put all back first."""
        plan = self.stored.plan
        cluster = self.platform.kafka.topics(plan.connection).cluster_id()
        why = ""
        if cluster != plan.cluster_id:
            why = f"it was made for cluster {plan.cluster_id}, but connection {plan.connection} leads to {cluster}"
        elif not resumed and now >= plan.expires:
            why = f"it expired at {plan.expires:%Y-%m-%d %H:%M} UTC"
        else:
            log, record, bounds = self.platform.kafka.logs(plan.connection), self._record(), self._bounds()
            group = log.committed(self.rewind.group, [*bounds, *record.next_offsets])
            why = stale(self.rewind, self._id, record, group, bounds)
        if not why:
            return
        if resumed:
            self._put_back()
            self._want_again()
        self.platform.control.plans.finish(self._id, PlanStatus.STALE)
        raise REWIND_KIND.untrue(plan, why)

    # The steps

    def _drain(self) -> None:
        """Stop the stream; remember what was wanted of it before."""
        control, stream = self.platform.control, self.rewind.stream
        desired = control.streams.desired(stream)
        wanted = self._was_wanted() or (desired.state if desired else DesiredState.STOPPED)
        self._begin(Step.DRAIN, facts({_WANTED: wanted.value}))
        if desired is not None and desired.state is DesiredState.RUNNING:
            supervise.stop(self.platform, stream, self.actor, self.reason)
        report = self._until(lambda now: now.state is StreamState.STOPPED, STOPPED_WITHIN)
        if report.state is not StreamState.STOPPED:
            raise self._failed(report, "has not stopped", "end it with `millrace streams stop --now`")
        self._end(Step.DRAIN)

    def _wait_for_session(self) -> None:
        """Wait until the broker no longer counts the driver as the group's member."""
        self._begin(Step.SESSION)
        groups = self.platform.kafka.groups(self.stored.plan.connection)
        deadline = time.monotonic() + FREE_WITHIN.total_seconds()
        while (members := groups.members(self.rewind.group)) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY.total_seconds())
        if members:
            raise RefusedError(
                f"group {self.rewind.group} still has {members} members, with the stream stopped",
                where=self._id,
                next_step="list them with `kafka-consumer-groups --describe --members`, stop them, and run the plan "
                f"again; or run `millrace plans abort {self._id}` to start the stream again",
                code=Code.GROUP_IN_USE,
            )
        self._end(Step.SESSION)

    def _look(self, now: datetime) -> None:
        """Whether all is still as planned, now that the stream stands still; and where it stands."""
        self._begin(Step.LOOK)
        self.must_hold(now, resumed=True)
        ends = {str(partition): offset for partition, offset in self._record().next_offsets.items()}
        self._end(Step.LOOK, **{f"end {partition}": str(offset) for partition, offset in ends.items()})

    def _reset(self) -> None:
        self._begin(Step.RESET)
        commits = self.rewind.commits(self._id, self._bounds())
        moves = {partition: (move.offset, move.encode()) for partition, move in commits.items()}
        self.platform.kafka.groups(self.stored.plan.connection).move(self.rewind.group, moves)
        self.platform.control.log.append(
            actor=self.actor,
            action="stream.rewind",
            subject=self.rewind.stream,
            reason=self.reason,
            before=_shortened({str(p): str(end) for p, end in self._ends().items() if p in commits}),
            after=_shortened({str(p): str(move.offset) for p, move in commits.items()}),
        )
        self._end(Step.RESET)

    def _start(self) -> None:
        """Start the stream, if its group still lies where the plan put it, and wait until it runs."""
        stream = self.rewind.stream
        self._begin(Step.START)
        if not self._has_opened():
            self._must_be_moved()
        desired = self.platform.control.streams.desired(stream)
        if desired is None or desired.state is not DesiredState.RUNNING or not self._is_done(Step.START):
            supervise.start(self.platform, stream, self.actor, self.reason)
        doomed = _NEVER - {StreamState.STOPPED}
        report = self._until(lambda now: now.state is StreamState.RUNNING or now.state in doomed, STARTED_WITHIN)
        if report.state is not StreamState.RUNNING:
            raise self._failed(
                report,
                "does not run",
                f"repair it, then resume with `millrace plans run {self._id}`, or abort the plan",
            )
        self._end(Step.START)

    def _must_be_moved(self) -> None:
        moved = [move.partition for move in self.rewind.moved]
        log = self.platform.kafka.logs(self.stored.plan.connection)
        group = log.committed(self.rewind.group, moved)
        elsewhere = []
        for partition in moved:
            committed = group.get((partition.topic, partition.partition))
            move = PlannedMove.decode(committed.metadata) if committed else None
            if committed is None or move is None or (move.plan, move.offset) != (self._id, committed.offset):
                elsewhere.append(str(partition))
        if elsewhere and not self._has_opened():  # its driver may have been quicker than we
            raise RefusedError(
                f"group {self.rewind.group} was moved by someone else after this plan moved it: "
                f"{', '.join(elsewhere[:_LOGGED])}",
                where=self._id,
                next_step=f"find the cause, then run `millrace plans abort {self._id}`: it resets the group to the "
                "work on record",
                code=Code.CONCURRENT_CHANGE,
            )

    def _verify_positions(self, ends: Mapping[TopicPartition, int]) -> None:
        self._begin(Step.POSITIONS)
        if wrong := wrong_positions(self.rewind, self._record(), ends):
            raise self._unlike(wrong)
        self._end(Step.POSITIONS)

    def _verify_progress(
        self, ends: Mapping[TopicPartition, int], patience: timedelta | None
    ) -> list[ChangeResult] | None:
        """Wait until all is read again, then look at what lies in the sink; None where that takes longer."""
        if all(step.name != Step.PROGRESS for step in self._steps()):
            self._begin(Step.PROGRESS)
        todo = sum(ends[move.partition] - move.target for move in self.rewind.moved)

        def reached(report: Supervised) -> bool:
            record = self._record()
            if record.timeline != self.rewind.timeline + 1:
                raise self._unlike(f"the stream is on timeline {record.timeline}: it was rewound again")
            left = sum(max(0, ends[move.partition] - record.next_offsets[move.partition]) for move in self.rewind.moved)
            self.runner.tell(f"{self.rewind.stream}: {todo - left:,} of {todo:,} records read again")
            return not left

        report = self._until(
            lambda now: reached(now) or now.state in _NEVER, _FOR_EVER if patience is None else patience
        )
        if not reached(report):
            if report.state not in _NEVER:
                return None
            raise self._failed(
                report, "makes no progress", f"start it, then resume with `millrace plans run {self._id}`"
            )
        sink = rewindable(self.platform, self.rewind.stream).stream.sink
        timeline = self.rewind.timeline + 1
        found = self.platform.sinks.tables(sink.connection).count_in(
            self.rewind.stream, sink.appended, self.rewind.ranges(ends), timeline=timeline
        )
        if found.older:
            raise self._unlike(f"{found.older} rows of an older timeline remain in the range of the rewind")
        rows = {"rows": str(found.rows)} if sink.appended else {}
        self._end(Step.PROGRESS, **rows, quarantined=str(found.quarantined), records=str(todo))
        return [ChangeResult(c.action, c.subject, Outcome.DONE) for c in self.stored.plan.changes]

    # Putting back

    def _put_back(self) -> None:
        """Have the group point at the end of the work on record again, where this plan moved it."""
        if back := self._moved_back():
            self.platform.kafka.groups(self.stored.plan.connection).move(self.rewind.group, back)

    def _moved_back(self) -> dict[TopicPartition, tuple[int, str]]:
        """Where the work on record ends on each partition that this plan has moved; none where it has moved none."""
        record, log = self._record(), self.platform.kafka.logs(self.stored.plan.connection)
        moved = [move.partition for move in self.rewind.moved if move.partition in record.next_offsets]
        there = set(log.partitions(sorted({partition.topic for partition in moved})))
        back = {}
        committed = log.committed(self.rewind.group, moved)
        for partition in moved:
            commit = committed.get((partition.topic, partition.partition))
            move = PlannedMove.decode(commit.metadata) if commit else None
            if partition in there and move is not None and move.plan == self._id:
                back[partition] = (record.next_offsets[partition], "")
        return back

    def _want_again(self) -> None:
        if self._was_wanted() is DesiredState.RUNNING:
            supervise.start(self.platform, self.rewind.stream, self.actor, self.reason)

    # Words

    def _was_wanted(self) -> DesiredState | None:
        found = self._detail(Step.DRAIN).get(_WANTED)
        return DesiredState(found) if found else None

    def _ends(self) -> dict[TopicPartition, int]:
        """Where the work on record ended when the stream stood still."""
        found = self._detail(Step.LOOK)
        return {move.partition: int(found.get(f"end {move.partition}", move.now)) for move in self.rewind.moves}

    def _detail(self, step: Step) -> dict[str, str]:
        return dict(next((each.detail for each in self._steps() if each.name == step), ()))

    def _is_done(self, step: Step) -> bool:
        return any(each.name == step and each.done_at is not None for each in self._steps())

    def _steps(self) -> tuple[StepDone, ...]:
        return self.platform.control.plans.get(self._id).steps

    def _begin(self, step: Step, detail: Facts = ()) -> None:
        self.platform.control.plans.begin_step(self._id, step.value, detail)
        self.runner.tell(f"{self.rewind.stream}: {step.value}")

    def _end(self, step: Step, **detail: str) -> None:
        self.platform.control.plans.end_step(self._id, step.value, facts(detail))

    def _until(self, done: Callable[[Supervised], bool], within: timedelta) -> Supervised:
        return supervise.supervise_until(
            self.platform,
            self.rewind.stream,
            self.actor,
            done=lambda report: not report.busy and done(report),
            tell=lambda report: None,
            pause=lambda: time.sleep((PROGRESS_EVERY if within is _FOR_EVER else LOOK_EVERY).total_seconds()),
            within=within,
        )

    def _failed(self, report: Supervised, what: str, next_step: str) -> MillraceError:
        why = f", {report.why}" if report.why else ""
        return PartFailedError(
            f"the stream {what}: it is {report.state.value}{why}", where=self._id, next_step=next_step
        )

    def _unlike(self, what: str) -> MillraceError:
        results = [ChangeResult(c.action, c.subject, Outcome.FAILED, what) for c in self.stored.plan.changes[:1]]
        self.platform.control.plans.finish(self._id, PlanStatus.FAILED, results)
        return PartFailedError(
            f"the outcome differs from the plan: {what}",
            where=self._id,
            next_step=f"see `millrace log --subject {self.rewind.stream}`, then make a new plan",
        )


def _shortened(values: Mapping[str, str]) -> dict[str, str]:
    """The first of many positions, for the log; the plan has them all."""
    return dict(sorted(values.items())[:_LOGGED])


REWIND_KIND = Kind(
    PlanKind.REWIND,
    make="millrace streams rewind {target} --to ... --reason ...",
    place="on cluster",
    run=run,
    abort=abort,
)
