"""Plans: look at them, and run one that is still true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import (
    Change,
    ChangeResult,
    Outcome,
    Plan,
    PlanKind,
    PlanStatus,
    Standing,
    StoredPlan,
    still_true,
)
from millrace.errors import RefusedError, StalePlanError
from millrace.usecases.quarantine import redrive
from millrace.usecases.rewind import run as rewinds
from millrace.usecases.topics import plan as topics

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


@dataclass(frozen=True, slots=True)
class _Kind:
    """How plans whose changes stand by themselves are compared with what is there, guarded, and run.

    `guard` refuses what may not be done now, before anything of the plan is done: the plan stays as it is.
    """

    look: Callable[[Platform, Plan], tuple[str, tuple[Standing, ...]]]
    guard: Callable[[Platform, Plan, Sequence[Standing]], None]
    run: Callable[[Platform, Plan, Sequence[Standing]], Iterator[tuple[Change, ChangeResult]]]


class BusyPlanError(RefusedError):
    """Somebody is running the plan, or was a moment ago: the same may be asked again."""


_KINDS = {PlanKind.TOPICS: _Kind(topics.look, topics.guard, topics.run_changes)}
_AGAIN = {
    PlanKind.TOPICS: "millrace topics plan {target}",
    PlanKind.REWIND: "millrace streams rewind {target} --to ... --reason ...",
    PlanKind.REDRIVE: "millrace quarantine redrive {target} --reason ...",
}


def list_plans(platform: Platform, *, status: PlanStatus | None = None, limit: int = 50) -> tuple[StoredPlan, ...]:
    """The latest plans, newest first."""
    return platform.control.plans.list(status=status, limit=limit)


def show(platform: Platform, plan_id: str) -> StoredPlan:
    """A plan and what came of it.

    Raises:
        UsageError: there is no plan of this id.
    """
    return platform.control.plans.get(plan_id)


def run(
    platform: Platform,
    plan_id: str,
    *,
    actor: str,
    reason: str = "",
    now: datetime | None = None,
    tell: Callable[[str], None] = lambda text: None,
    patience: timedelta | None = None,
) -> StoredPlan:
    """Run a plan, once.

    Args:
        platform: the adapters.
        plan_id: which.
        actor: who runs it.
        reason: why; the plan's own where it is empty.
        now: the present; default the clock.
        tell: told what it does.
        patience: how long to wait for what a rewind reads again; then the plan is given back as running, and the next
            run of it looks again. None: to the end.

    Each change that was made, or failed, is one entry of the action log. A plan whose runner died in the middle
    can be run again: what is done already is found done, and what nobody else touched since is done now.

    Guarantees: of two runners at once, one is refused; a plan that ended is never run again.

    Raises:
        StalePlanError: it was run before, expired, is for another cluster, or what it saw has changed.
        BusyPlanError: somebody is running it right now.
        RefusedError: it would take from a declared reader what it has not read yet, or a topic is held; run it again
            once that is over.
        UsageError: there is no plan of this id.
        UnreachableError: the cluster or the control database does not answer; run it again then.
    """
    store = platform.control.plans
    with store.running(plan_id) as mine:
        if not mine:
            raise _busy(plan_id)
        stored = store.get(plan_id)
        at = now or datetime.now(UTC)
        if stored.plan.kind is PlanKind.REWIND:
            _must_not_have_ended(stored)
            rewinds.run(platform, stored, actor=actor, reason=reason, now=at, tell=tell, patience=patience)
            return store.get(plan_id)
        if stored.plan.kind is PlanKind.REDRIVE:
            _must_not_have_ended(stored)
            redrive.run(platform, stored, actor=actor, reason=reason, now=at, tell=tell)
            return store.get(plan_id)
        standings = _checked(platform, stored, at)
        _KINDS[stored.plan.kind].guard(platform, stored.plan, standings)
        store.begin(plan_id)
        results = []
        for change, result in _KINDS[stored.plan.kind].run(platform, stored.plan, standings):
            results.append(result)
            _log(platform, stored.plan, change, result, actor, reason)
        failed = any(result.outcome is Outcome.FAILED for result in results)
        store.finish(plan_id, PlanStatus.FAILED if failed else PlanStatus.DONE, results)
        return store.get(plan_id)


def abort(
    platform: Platform, plan_id: str, *, actor: str, reason: str, tell: Callable[[str], None] = lambda text: None
) -> StoredPlan:
    """Take a plan back: one that was never run, or a rewind that has read nothing yet; or end a redrive where it is.

    Raises:
        StalePlanError: it has ended.
        RefusedError: it cannot be taken back any more, or somebody is at it right now.
        UsageError: there is no plan of this id.
        UnreachableError: a server does not answer; try again.
    """
    store = platform.control.plans
    with store.running(plan_id) as mine:
        if not mine:
            raise _busy(plan_id)
        stored = store.get(plan_id)
        _must_not_have_ended(stored)
        if stored.plan.kind is PlanKind.REWIND:
            rewinds.abort(platform, stored, actor=actor, reason=reason, tell=tell)
        elif stored.plan.kind is PlanKind.REDRIVE:
            redrive.abort(platform, stored, actor=actor, reason=reason, tell=tell)
        elif stored.status is PlanStatus.OPEN:
            store.finish(plan_id, PlanStatus.ABORTED)
            platform.control.log.append(
                actor=actor, action="plan.abort", subject=stored.plan.target, reason=f"{reason} (plan {plan_id})"
            )
        else:
            raise RefusedError(
                "changes of topics are not taken back",
                where=plan_id,
                next_step=f"`millrace plans run {plan_id}`",
            )
        return store.get(plan_id)


def asked_in(platform: Platform, run_of_dag: str) -> StoredPlan | None:
    """The plan that a run of a DAG, as DAG/RUN@TIME, is bound to."""
    return platform.control.plans.of_run(run_of_dag)


def confirm(platform: Platform, plan: Plan, *, by: str, at: datetime) -> None:
    """Write down that who asked for a plan has confirmed what was shown. Confirming twice is confirming once.

    Raises:
        StalePlanError: it is no longer open, or another plan was shown.
        UnreachableError: the control database does not answer; say it again.
    """
    control = platform.control
    if not control.plans.confirm(plan, by, at):
        _must_be_open(control.plans.get(plan.id))
        raise StalePlanError("it is not this plan that was shown", where=plan.id, next_step="ask for a new one")
    control.log.append(actor=f"airflow:{by}", action="plan.confirm", subject=plan.target, reason=_why(plan))


def refuse(platform: Platform, plan: Plan, *, actor: str, why: str) -> PlanStatus:
    """End a plan that who asked for it did not confirm. One that has ended, or is run, stays as it is: its status."""
    control = platform.control
    if control.plans.refuse(plan):
        control.log.append(actor=actor, action="plan.refuse", subject=plan.target, reason=f"{why} (plan {plan.id})")
    return control.plans.get(plan.id).status


def _why(plan: Plan) -> str:
    return f"{plan.reason} (plan {plan.id})"


def _must_be_open(stored: StoredPlan) -> None:
    _must_not_have_ended(stored)
    if stored.status is PlanStatus.RUNNING:
        raise _busy(stored.plan.id)


def _busy(plan_id: str) -> BusyPlanError:
    return BusyPlanError(
        "somebody is running this plan right now",
        where=plan_id,
        next_step=f"see with `millrace plans show {plan_id}` what comes of it",
    )


def _must_not_have_ended(stored: StoredPlan) -> None:
    plan = stored.plan
    if stored.status not in {PlanStatus.OPEN, PlanStatus.RUNNING}:
        ended = f" at {stored.finished_at:%Y-%m-%d %H:%M} UTC" if stored.finished_at else ""
        advice = f"make a new plan with `{_AGAIN[plan.kind].format(target=plan.target)}`"
        raise StalePlanError(f"this plan ended{ended}: {stored.status.value}", where=plan.id, next_step=advice)


def _checked(platform: Platform, stored: StoredPlan, now: datetime) -> tuple[Standing, ...]:
    _must_not_have_ended(stored)
    plan = stored.plan
    kind = _KINDS[plan.kind]
    advice = f"make a new plan with `{_AGAIN[plan.kind].format(target=plan.target)}`"
    cluster_id, standings = kind.look(platform, plan)
    resumed = stored.status is PlanStatus.RUNNING
    if reason := still_true(plan, standings, cluster_id=cluster_id, now=now, resumed=resumed):
        platform.control.plans.finish(plan.id, PlanStatus.STALE)
        raise StalePlanError(f"this plan is no longer true: {reason}", where=plan.id, next_step=advice)
    return standings


def _log(platform: Platform, plan: Plan, change: Change, result: ChangeResult, actor: str, reason: str) -> None:
    platform.control.log.append(
        actor=actor,
        action=change.action,
        subject=change.subject,
        reason=f"{reason} (plan {plan.id})" if reason else f"plan {plan.id}",
        before=dict(change.before),
        after=dict(change.before if result.outcome is Outcome.FAILED else change.after),
        outcome=f"failed: {result.error}" if result.outcome is Outcome.FAILED else result.outcome.value,
    )
