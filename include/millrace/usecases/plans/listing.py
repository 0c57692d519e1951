"""Find stored plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.plans.plan import PlanStatus, StoredPlan

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def list_plans(platform: Platform, *, status: PlanStatus | None = None, limit: int = 50) -> tuple[StoredPlan, ...]:
    """Return the latest plans, newest first."""
    return platform.control.plans.list(status=status, limit=limit)


def show(platform: Platform, plan_id: str) -> StoredPlan:
    """Return a plan and what came of it.

    Raises:
        UsageError: there is no plan of this id.
    """
    return platform.control.plans.get(plan_id)


def asked_in(platform: Platform, run_of_dag: str) -> StoredPlan | None:
    """Return the plan that a run of a DAG, as DAG/RUN@TIME, is bound to."""
    return platform.control.plans.of_run(run_of_dag)
