"""Write down the answer to a plan that a form of Airflow has shown."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import Plan, PlanStatus, StoredPlan
from millrace.errors import StalePlanError
from millrace.usecases.plans.kind import busy
from millrace.usecases.plans.kinds import kind_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def confirm(platform: Platform, plan: Plan, *, by: str, at: datetime) -> None:
    """Write down that who asked for a plan has confirmed what was shown. Confirming twice is confirming once.

    Raises:
        StalePlanError: it is no longer open, or another plan was shown.
        UnreachableError: the control database does not answer; say it again.
    """
    control = platform.control
    if not control.plans.confirm(plan, by, at):
        _must_be_open(control.plans.get(plan.id))
        raise StalePlanError("this plan is not the plan that was shown", where=plan.id, next_step="make a new plan")
    control.log.append(actor=f"airflow:{by}", action="plan.confirm", subject=plan.target, reason=plan.because())


def refuse(platform: Platform, plan: Plan, *, actor: str, why: str) -> PlanStatus:
    """End a plan that who asked for it did not confirm. One that has ended, or is run, stays as it is: its status."""
    control = platform.control
    if control.plans.refuse(plan):
        control.log.append(actor=actor, action="plan.refuse", subject=plan.target, reason=plan.because(why))
    return control.plans.get(plan.id).status


def _must_be_open(stored: StoredPlan) -> None:
    kind_of(stored.plan).must_not_have_ended(stored)
    if stored.status is PlanStatus.RUNNING:
        raise busy(stored.plan.id)
