"""Stored plans in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from millrace.domain.plan import ChangeResult, Plan, PlanStatus, StoredPlan


class FakePlans:
    """Plans by their id; nobody else runs one."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredPlan] = {}

    def add(self, plan: Plan) -> Plan:
        self.stored[plan.id] = StoredPlan(plan, PlanStatus.OPEN, None, ())
        return plan

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
