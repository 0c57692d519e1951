"""The first and the last task of the form that rewinds a stream; `airflow.plans.operators` has those between."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from millrace.airflow.plans.operators import MakePlan, bound_plan, go_on
from millrace.airflow.shared.tasks import failing_at_once
from millrace.errors import BusyPlanError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.plans.plan import Plan
    from millrace.ports.platform import Platform


class PlanRewind(MakePlan):
    """Plans to read a stream again from the time that the form names."""

    def make(self, platform: Platform, params: Mapping[str, Any], *, by: str, asked_in: str) -> Plan:
        """Find where the time lies on each partition; changes nothing."""
        from millrace.domain.rewind.time_travel import Policy
        from millrace.usecases.rewind.plan import make_plan, target_of

        return make_plan(
            platform,
            f"{self.pipeline}.{params['stream']}",
            target_of(params["to"], datetime.now(UTC), lambda name: None),
            policy=Policy(params["policy"]),
            by=by,
            reason=params["reason"],
            asked_in=asked_in,
        )


class VerifyPlan(BaseSensorOperator):
    """Holds, without a slot between two looks, until all is read again and what lies in the sink was looked at."""

    ui_color = "#a7c957"

    def poke(self, context: Context) -> bool:
        """Whether the plan is done. One who runs it meanwhile, as from a command line, looks for us."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.domain.plans.plan import PlanStatus

        platform = airflow_platform()
        with failing_at_once(but_for=BusyPlanError):
            bound = bound_plan(platform, context)
            if bound.status is PlanStatus.OPEN:
                raise AirflowFailException(f"plan {bound.plan.id} was never run: clear task `run`")
            try:
                stored = go_on(platform, bound, self.log.info)
            except BusyPlanError as busy:
                self.log.info("%s", busy)
                return False
        if stored.status is not PlanStatus.DONE:
            return False
        for step in stored.steps:
            self.log.info("%s, done at %s: %s", step.name, step.done_at, dict(step.detail))
        return True
