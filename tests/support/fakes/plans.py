"""Stored plans in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from millrace.domain.plans.plan import Asked, ChangeResult, Plan, PlanStatus, StoredPlan
from millrace.errors import UnreachableError


class FakePlans:
    """Plans by their id; nobody else runs one.

    Attributes:
        away: how many more calls that confirm or refuse find no server.
    """

    def __init__(self) -> None:
        self.stored: dict[str, StoredPlan] = {}
        self.away = 0

    def add(self, plan: Plan, *, asked_in: str = "") -> Plan:
        asked = Asked(asked_in) if asked_in else None
        self.stored[plan.id] = StoredPlan(plan, PlanStatus.OPEN, None, (), asked=asked)
        return plan

    def of_run(self, asked_in: str) -> StoredPlan | None:
        return next((s for s in self.stored.values() if s.asked and s.asked.run == asked_in), None)

    def note_shown(self, plan: Plan) -> bool:
        return self._change_open(plan, shown=plan.hash)

    def confirm(self, plan: Plan, by: str, at: datetime) -> bool:
        self._must_be_there()
        asked = self.stored[plan.id].asked
        return asked is not None and asked.shown == plan.hash and self._change_open(plan, by=by, at=at)

    def refuse(self, plan: Plan) -> bool:
        self._must_be_there()
        if not self._change_open(plan):
            return False
        self.finish(plan.id, PlanStatus.REFUSED)
        return True

    def _change_open(self, plan: Plan, **changes: Any) -> bool:
        stored = self.stored[plan.id]
        if stored.status is not PlanStatus.OPEN or stored.asked is None:
            return False
        self.stored[plan.id] = replace(stored, asked=replace(stored.asked, **changes))
        return True

    def _must_be_there(self) -> None:
        if self.away:
            self.away -= 1
            raise UnreachableError("the control database does not answer", where="control", next_step="wait")

    def get(self, plan_id: str) -> StoredPlan:
        return self.stored[plan_id]

    @contextmanager
    def running(self, plan_id: str) -> Iterator[bool]:
        yield True

    def begin(self, plan_id: str) -> PlanStatus:
        return self.stored[plan_id].status

    def finish(self, plan_id: str, status: PlanStatus, results: Sequence[ChangeResult] = ()) -> None:
        ended = datetime.now(UTC)
        self.stored[plan_id] = replace(self.stored[plan_id], status=status, finished_at=ended, results=tuple(results))
