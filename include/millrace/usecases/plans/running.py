"""Run a stored plan, or take it back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import StoredPlan
from millrace.usecases.plans.kind import Runner, alone, run_alone, silent
from millrace.usecases.plans.kinds import kind_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def run(
    platform: Platform,
    plan_id: str,
    *,
    actor: str,
    reason: str = "",
    now: datetime | None = None,
    tell: Callable[[str], None] = silent,
    patience: timedelta | None = None,
) -> StoredPlan:
    """Run a plan, once.

    Args:
        platform: the adapters.
        plan_id: the plan.
        actor: who runs it.
        reason: why; the plan's own where it is empty.
        now: the present; default the clock.
        tell: receives a line for each thing that is done.
        patience: how long to wait for the plan's end. A plan that needs longer is returned as running; the next run
            of it looks again. None: as long as it takes.

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
    begin = lambda: Runner(actor, reason, now or datetime.now(UTC), tell, patience)  # noqa: E731
    return run_alone(platform, plan_id, kind_of, begin)


def abort(
    platform: Platform, plan_id: str, *, actor: str, reason: str, tell: Callable[[str], None] = silent
) -> StoredPlan:
    """Take a plan back, as far as its kind can be taken back.

    Raises:
        StalePlanError: it has ended.
        BusyPlanError: somebody is at it right now.
        RefusedError: it cannot be taken back any more.
        UsageError: there is no plan of this id.
        UnreachableError: a server does not answer; try again.
    """
    with alone(platform, plan_id, kind_of) as (kind, stored):
        kind.abort(platform, stored, Runner(actor, reason, datetime.now(UTC), tell))
        return platform.control.plans.get(plan_id)
