"""Put records in quarantine through again: plan it by trying, then do it, and look at what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Stream
from millrace.domain.plans.plan import LIFETIME, ChangeResult, Outcome, Plan, PlanKind, PlanStatus, StoredPlan, facts
from millrace.domain.quality.books import OPEN, Finding, judged
from millrace.domain.quarantine.redrive import (
    REDRIVE,
    Redrive,
    Redriven,
    Selection,
    WrongSelectionError,
    about,
    changes_of,
    parse_selection,
    redrive_of,
    stayed,
    taken,
)
from millrace.domain.sinks.capabilities import Capability
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import Code, MillraceError, RefusedError, UsageError
from millrace.usecases.declaration.lookup import DeclaredStream
from millrace.usecases.plans.kind import Kind, Runner, Tell, silent
from millrace.usecases.quarantine.listing import stream_with_quarantine
from millrace.usecases.sinks.required import require, table_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_STEP = "redrive"
_VERIFY = "books"
_MOST_FINDINGS = 20


def selection_of(*, rule: str, since: str, offsets: Sequence[str], now: datetime) -> Selection:
    """What a person selects; what is empty selects nothing out.

    Args:
        rule: a rule's name.
        since: a time with its zone.
        offsets: TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@FIRST-LAST each.
        now: the present.

    Raises:
        UsageError: one of them is none.
    """
    try:
        return parse_selection(rule, since, offsets, now)
    except WrongSelectionError as error:
        raise UsageError(str(error), where="the selection", next_step="see `millrace quarantine list`") from error


def make_plan(
    platform: Platform,
    stream: str,
    selection: Selection,
    *,
    by: str,
    reason: str,
    asked_in: str = "",
    now: datetime | None = None,
    tell: Tell = silent,
) -> Plan:
    """Store a plan that puts records through again, after each was tried with the app as it is now.

    Trying writes rows and takes them back in one transaction a part, so the table's own constraints have their say.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        selection: which records.
        by: who asks.
        reason: why.
        asked_in: the run of a DAG, as DAG/RUN@TIME, that the plan shall be bound to; none by default.
        now: the present; default the clock.
        tell: told how it gets on.

    Raises:
        UsageError: there is no such stream.
        RefusedError: its sink lacks the capability; nothing is selected, or nothing of it would leave
            quarantine; it says why it would stay.
        DeclarationError: the app or its table is not what it has to be.
        UnreachableError: the sink or the control database does not answer.
        PartFailedError: Spark ended without an answer.
    """
    given = stream_with_quarantine(platform.settings.root, stream)
    require(given.stream, Capability.REDRIVE)
    code = platform.apps.digest_of(given.pipeline, given.stream)
    tried = platform.apps.redriving().attempt(
        stream, selection, _connections(given.stream), lambda done: tell(f"{stream}: {done:,} records tried")
    )
    if platform.apps.digest_of(given.pipeline, given.stream) != code:
        raise RefusedError(
            "the apps' code changed during the trial of the records",
            where=stream,
            next_step="run the command again",
            code=Code.CONCURRENT_CHANGE,
        )
    changes, at = changes_of(tried.sums), now or datetime.now(UTC)
    if not changes:
        raise _nothing(stream, tried)
    redrive = Redrive(stream, selection, code, tried.upto)
    plan = Plan(
        kind=PlanKind.REDRIVE,
        target=stream,
        cluster_id=platform.sinks.tables(given.stream.sink.connection).address,
        connection=given.stream.sink.connection,
        changes=changes,
        refusals=(),
        created=at,
        expires=at + LIFETIME,
        by=by,
        reason=reason,
        about=about(redrive, tried),
    )
    return platform.control.plans.add(plan, asked_in=asked_in)


def _nothing(stream: str, tried: Redriven) -> RefusedError:
    if not tried.sums:
        return RefusedError(
            "quarantine has no such record",
            where=stream,
            next_step=f"see `millrace quarantine list --stream {stream}`",
            code=Code.NOTHING_TO_DO,
        )
    why = ", ".join(f"{one.records:,} {one.now or one.fate} (as {one.first})" for one in tried.sums)
    return RefusedError(
        f"none of {tried.records():,} records would leave quarantine: {why}",
        where=stream,
        next_step="repair the schema, the app or the sink first; see a record's bytes with `millrace quarantine show`",
        code=Code.NOTHING_TO_DO,
    )


def run(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """Put through what a plan selects, and hold the books of what was touched.

    A run that was killed is gone on with: what it has done stays done, and is logged with the rest.

    Args:
        platform: the adapters.
        stored: the plan, open or running.
        runner: who runs it. It goes to the end, whatever the runner's patience.

    Raises:
        StalePlanError: it expired, or the app, its schemas or the sink are not those that it was tried with. Of one
            that was begun, what was done is settled.
        DeclarationError, PartFailedError: as `make_plan`; run it again.
        UnreachableError: a server does not answer; run it again.
    """
    plan, plans = stored.plan, platform.control.plans
    redrive, given = redrive_of(plan), _with_books(platform, plan.target)
    work = _Work(platform, stored, redrive, runner)
    work.must_hold(given, runner.now)
    plans.begin(plan.id)
    if not work.is_put_through:
        plans.begin_step(plan.id, _STEP)
        told = platform.apps.redriving().run(
            plan.target,
            redrive.selection,
            _connections(given.stream),
            lambda done: runner.tell(f"{plan.target}: {done:,} records put through"),
            upto=redrive.upto,
            plan=plan.id,
        )
        work.note(stayed(told.sums) | {"others_were_at": taken(told.sums)})
    work.settle(given.stream, PlanStatus.DONE)


def abort(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """End a plan: what it was begun with stays done, and is settled.

    Raises:
        UnreachableError: a server does not answer; try again.
    """
    work = _Work(platform, stored, redrive_of(stored.plan), runner)
    if stored.status is PlanStatus.RUNNING:
        if not work.is_put_through:
            platform.control.plans.begin_step(stored.plan.id, _STEP)
            work.note({})
        try:
            stream = _with_books(platform, stored.plan.target).stream
        except MillraceError as error:  # the books of a stream that is declared no more cannot be looked at
            runner.tell(f"its books were not compared: {error}")
            stream = None
        work.settle(stream, PlanStatus.ABORTED)
    else:
        platform.control.plans.finish(stored.plan.id, PlanStatus.ABORTED)
    platform.control.log.append(
        actor=runner.actor, action="plan.abort", subject=stored.plan.target, reason=runner.because(stored.plan)
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """One runner at one plan."""

    platform: Platform
    stored: StoredPlan
    redrive: Redrive
    runner: Runner

    @property
    def is_put_through(self) -> bool:
        """Whether an earlier runner has put everything through and written it down."""
        return any(step.name == _STEP and step.done_at is not None for step in self.stored.steps)

    def must_hold(self, given: DeclaredStream, now: datetime) -> None:
        """Raise, and write down, why the plan is no longer true."""
        plan, stream = self.stored.plan, given.stream
        address = self.platform.sinks.tables(stream.sink.connection).address
        why, is_same_sink = "", (stream.sink.connection, address) == (plan.connection, plan.cluster_id)
        if not is_same_sink:
            why = f"it was made for the sink {plan.cluster_id}, but the stream now writes to {address}"
        elif self.stored.status is PlanStatus.OPEN and now >= plan.expires:
            why = f"it expired at {plan.expires:%Y-%m-%d %H:%M} UTC"
        elif not self.is_put_through and self.platform.apps.digest_of(given.pipeline, stream) != self.redrive.code:
            why = "the apps' code, or the declaration of the stream or its topics, changed since the trial"
        if not why:
            return
        if self.stored.status is PlanStatus.OPEN:
            self.platform.control.plans.finish(plan.id, PlanStatus.STALE)
        else:
            self.platform.control.plans.begin_step(plan.id, _STEP)
            self.note({})
            self.settle(stream if is_same_sink else None, PlanStatus.STALE)
        raise REDRIVE_KIND.untrue(plan, why)

    def note(self, staying: Mapping[str, int]) -> None:
        """Write down what has left quarantine, by what the sink says, and what stays, by what the job says."""
        plan, control = self.stored.plan, self.platform.control
        left = self.platform.sinks.tables(plan.connection).redriven(plan.target, plan.id)
        done = {
            "became_rows": left.records,
            "rows": left.rows,
            "dropped_by_the_transform": left.dropped,
            **staying,
        }
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in done.items() if count)
        self.runner.tell(f"{plan.target}: {told or 'nothing has left quarantine'}")
        control.log.append(
            actor=self.runner.actor,
            action=REDRIVE,
            subject=plan.target,
            reason=self.runner.because(plan),
            before={},
            after={name: str(count) for name, count in done.items()},
        )
        control.plans.end_step(plan.id, _STEP, facts(done))

    def settle(self, stream: Stream | None, status: PlanStatus) -> None:
        """Hold the books of what was touched, hold what came of it against what was planned, and end the plan.

        Args:
            stream: whose books; None: they are not looked at.
            status: how it ends where nothing is wrong.
        """
        plan, plans = self.stored.plan, self.platform.control.plans
        wrong = self._unlike() if status is PlanStatus.DONE else []
        if stream is not None:
            plans.begin_step(plan.id, _VERIFY)
            self.runner.tell(f"{plan.target}: comparing the books of the touched offsets")
            findings = _unbalanced(self.platform, stream, plan)
            plans.end_step(plan.id, _VERIFY, facts({"findings": len(findings)}))
            wrong += [f"{one}" for one in findings[:_MOST_FINDINGS]]
            if (more := len(findings) - _MOST_FINDINGS) > 0:
                wrong.append(f"and {more:,} more: `millrace quality reconcile {plan.target} --deep`")
        failed = status is PlanStatus.DONE and wrong
        results = [ChangeResult(change.action, change.subject, Outcome.DONE) for change in plan.changes]
        results += [ChangeResult(_VERIFY, plan.target, Outcome.FAILED, one) for one in wrong]
        plans.finish(plan.id, PlanStatus.FAILED if failed else status, results)

    def _unlike(self) -> list[str]:
        """What came of it that is not what was planned; what somebody else took out meanwhile is no difference."""
        stored = self.platform.control.plans.get(self.stored.plan.id)
        done = {name: int(count) for step in stored.steps if step.name == _STEP for name, count in step.detail}
        staying = {name.removeprefix("stay_"): count for name, count in done.items() if name.startswith("stay_")}
        if (more := sum(staying.values()) - self.redrive.staying) <= 0:
            return []
        why = ", ".join(f"{count:,} {name}" for name, count in sorted(staying.items()))
        return [f"{more:,} records more than planned stay in quarantine: {why}"]


def _unbalanced(platform: Platform, stream: Stream, plan: Plan) -> list[Finding]:
    """What does not balance in the entries of the ledger that records have left quarantine in."""
    found: list[Finding] = []
    touched = platform.sinks.tables(plan.connection).touched(plan.target, plan.id)
    books_of, sink = platform.sinks.books(plan.connection), table_of(stream)
    with books_of.opened(stream.qualified_name, sink.table, sink.key) as books:
        for entry in touched:
            part = books.part(OffsetRange(entry.partition, entry.first, entry.first + 1))
            found += [finding for finding in judged(part) if finding.fault not in OPEN]
    return found


def _connections(stream: Stream) -> tuple[str, ...]:
    """Return the Connections that its app may see, and its sink's."""
    return tuple(dict.fromkeys((stream.sink.connection, *stream.connections)))


def _with_books(platform: Platform, stream: str) -> DeclaredStream:
    """Return a stream of a stored plan. Its sink may be another one now, and needs books to end the plan.

    Raises:
        RefusedError: the sink has no books; the error is that of a redrive, with its way out.
    """
    given = stream_with_quarantine(platform.settings.root, stream)
    if not given.stream.able(Capability.BOOKS):
        require(given.stream, Capability.REDRIVE)
    return given


REDRIVE_KIND = Kind(
    PlanKind.REDRIVE,
    make="millrace quarantine redrive {target} --reason ...",
    place="in",  # the sink's database
    run=run,
    abort=abort,
)
