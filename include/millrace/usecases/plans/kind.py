"""A kind of plan: what each kind says of itself, and the rules that hold for a plan of any kind.

The kinds import this module; `kinds` imports the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import Plan, PlanKind, PlanStatus, StoredPlan
from millrace.errors import BusyPlanError, StalePlanError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

Tell = Callable[[str], object]


def silent(text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Runner:
    """The one who runs a plan or takes it back.

    Attributes:
        actor: who it is.
        reason: why; may be empty for a run.
        now: the present.
        tell: receives a line for each thing that is done.
        patience: how long a run may wait for its end; None: as long as it takes.
    """

    actor: str
    reason: str
    now: datetime
    tell: Tell = silent
    patience: timedelta | None = None

    def because(self, plan: Plan) -> str:
        """Return the reason for the action log: the runner's, or else the plan's, with the plan's id."""
        return plan.because(self.reason)


@dataclass(frozen=True, slots=True)
class Kind:
    """All that the rest of Millrace knows of a kind of plan.

    Attributes:
        name: the word in the plan's id and in the control database.
        make: the command that makes such a plan; `{target}` stands for the plan's target.
        place: the words before the place that the plan is for, such as "on cluster".
        run: runs an open plan, or resumes a running one. It checks first that the plan is still true. It writes the
            plan's end and the action log itself. A plan that needs longer than the runner's patience stays running.
        abort: takes an open or a running plan back, and writes its end and the action log; refuses where it cannot.
    """

    name: PlanKind
    make: str
    place: str
    run: Callable[[Platform, StoredPlan, Runner], None]
    abort: Callable[[Platform, StoredPlan, Runner], None]

    def describe(self, plan: Plan) -> str:
        """Return a plan's title: its target, its kind and its place."""
        return f"{plan.target}: {plan.kind} {self.place} {plan.cluster_id}"

    def advice(self, plan: Plan) -> str:
        """Return the next step for who needs a new plan."""
        return f"make a new plan with `{self.make.format(target=plan.target)}`"

    def untrue(self, plan: Plan, why: str) -> StalePlanError:
        """Return the error of a plan that no longer fits the world."""
        return StalePlanError(f"this plan is stale: {why}", where=plan.id, next_step=self.advice(plan))

    def must_not_have_ended(self, stored: StoredPlan) -> None:
        """Check that a plan can still be run or taken back.

        Raises:
            StalePlanError: it has ended.
        """
        if stored.status not in {PlanStatus.OPEN, PlanStatus.RUNNING}:
            ended = f" at {stored.finished_at:%Y-%m-%d %H:%M} UTC" if stored.finished_at else ""
            raise StalePlanError(
                f"this plan ended{ended}: {stored.status.value}",
                where=stored.plan.id,
                next_step=self.advice(stored.plan),
            )


def run_alone(
    platform: Platform, plan_id: str, kind_of: Callable[[Plan], Kind], begin: Callable[[], Runner]
) -> StoredPlan:
    """Run a plan, with every other runner kept out.

    Args:
        platform: the adapters.
        plan_id: the plan.
        kind_of: gives the kind of the plan.
        begin: gives the one who runs it, once the plan is read and nobody else runs it: waiting for that may take
            long, and the plan may expire meanwhile.

    Raises:
        StalePlanError: it has ended, or is no longer true.
        BusyPlanError: somebody is running it right now.
        MillraceError: what its kind raises.
    """
    with alone(platform, plan_id, kind_of) as (kind, stored):
        kind.run(platform, stored, begin())
        return platform.control.plans.get(plan_id)


@contextmanager
def alone(platform: Platform, plan_id: str, kind_of: Callable[[Plan], Kind]) -> Iterator[tuple[Kind, StoredPlan]]:
    """Keep every other runner out, and give the plan with its kind.

    Raises:
        StalePlanError: it has ended.
        BusyPlanError: somebody is running it right now.
    """
    store = platform.control.plans
    with store.running(plan_id) as mine:
        if not mine:
            raise busy(plan_id)
        stored = store.get(plan_id)
        kind = kind_of(stored.plan)
        kind.must_not_have_ended(stored)
        yield kind, stored


def busy(plan_id: str) -> BusyPlanError:
    """Return the error of a plan that somebody else is running."""
    return BusyPlanError(
        "this plan is running now",
        where=plan_id,
        next_step=f"see its outcome with `millrace plans show {plan_id}`",
    )
