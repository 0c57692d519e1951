"""The pages of plans: the newest of them, and each one with what it saw and did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import PlanSummary, StoredPlan
from millrace.errors import Code, UsageError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

PLANS = 50

Readable = Callable[[set[str]], set[str]]
"""Those of some targets of plans, PIPELINE or PIPELINE.STREAM, that the user may see."""


def plans(platform: Platform, readable: Readable) -> Sequence[PlanSummary]:
    """The newest plans whose target the user may see."""
    with platform.control.pages.page() as page:
        found = page.plan_summaries(limit=PLANS)
    seen = readable({summary.target for summary in found})
    return [summary for summary in found if summary.target in seen]


def plan(platform: Platform, plan_id: str, readable: Readable) -> StoredPlan:
    """One plan with its steps.

    Raises:
        UsageError: there is none of this id, or none that the user may see.
        StalePlanError: its content is no longer what was hashed.
        UnreachableError: the control database does not answer, or not soon enough.
    """
    with platform.control.pages.page() as page:
        summaries = page.plan_summaries(limit=1, plan_id=plan_id)
        found = page.plan(plan_id) if summaries and readable({summaries[0].target}) else None
    if found is None:
        raise UsageError(f"plan {plan_id} does not exist", code=Code.UNKNOWN_NAME)
    return found
