"""The first task of the form that redrives a stream's quarantine; `airflow.plans.operators` has the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millrace.airflow.plans.operators import MakePlan

if TYPE_CHECKING:
    from millrace.domain.plans.plan import Plan
    from millrace.ports.platform import Platform


class PlanRedrive(MakePlan):
    """Plans to put the records in quarantine that the form selects through the stream's app once more."""

    def make(self, platform: Platform, params: Mapping[str, Any], *, by: str, asked_in: str) -> Plan:
        """Try each of them with the app as it is now, which may take minutes; changes nothing."""
        from millrace.usecases.quarantine.redrive import make_plan, selection_of

        selection = selection_of(
            rule=params["rule"] or "",
            since=params["since"] or "",
            offsets=(params["offsets"] or "").replace(",", " ").split(),
            now=datetime.now(UTC),
        )
        return make_plan(
            platform,
            f"{self.pipeline}.{params['stream']}",
            selection,
            by=by,
            reason=params["reason"],
            asked_in=asked_in,
            tell=lambda text: self.log.info("%s", text),
        )
