"""Stored plans, and the action log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from millrace.domain.plans.plan import ChangeResult, Facts, Plan, PlanStatus, StoredPlan
from millrace.domain.streams.control import Action


class Plans(Protocol):
    """Plans, and what came of them."""

    def add(self, plan: Plan, *, asked_in: str = "") -> Plan:
        """Store a plan as open. Where an open one that says the same has not expired yet, that one is returned."""
        ...

    def of_run(self, asked_in: str) -> StoredPlan | None:
        """The plan that is bound to this run of a DAG, without its steps; None where there is none.

        Raises:
            StalePlanError: its content is no longer what was hashed.
        """
        ...

    def note_shown(self, plan: Plan) -> bool:
        """Write down that this very plan is shown to who asked for it; False where it is no longer open."""
        ...

    def confirm(self, plan: Plan, by: str, at: datetime) -> bool:
        """Write down who confirmed the plan that was shown; False where it is no longer open, or was not shown."""
        ...

    def refuse(self, plan: Plan) -> bool:
        """End a plan that nobody confirmed; False where it is no longer open."""
        ...

    def get(self, plan_id: str) -> StoredPlan:
        """The plan of this id.

        Raises:
            UsageError: there is none.
            StalePlanError: its content is no longer what was hashed.
        """
        ...

    def list(
        self, *, status: PlanStatus | None = None, target: str | None = None, limit: int = 50
    ) -> tuple[StoredPlan, ...]:
        """The latest plans, newest first, without their steps."""
        ...

    def running(self, plan_id: str) -> AbstractContextManager[bool]:
        """Hold the right to run a plan; False where another runner holds it."""
        ...

    def begin(self, plan_id: str) -> PlanStatus:
        """Mark a plan as running; the status it had. Only an open or a running one is changed."""
        ...

    def begin_step(self, plan_id: str, step: str, detail: Facts = ()) -> None:
        """Write down that a step begins; one that was begun before begins anew."""
        ...

    def end_step(self, plan_id: str, step: str, detail: Facts = ()) -> None:
        """Write down that a step that was begun is done, and what is to be known of it."""
        ...

    def finish(self, plan_id: str, status: PlanStatus, results: Sequence[ChangeResult] = ()) -> None:
        """Write how a plan ended."""
        ...


class ActionLog(Protocol):
    """Who did what to what, when and why."""

    def append(
        self,
        *,
        actor: str,
        action: str,
        subject: str,
        reason: str,
        before: Mapping[str, str] | None = None,
        after: Mapping[str, str] | None = None,
        outcome: str = "done",
    ) -> None:
        """Append one entry."""
        ...

    def list(self, *, subject: str | None = None, limit: int = 50) -> tuple[Action, ...]:
        """The latest entries, newest first. `subject` also matches what is under it (`shop`: `shop.purchases` too)."""
        ...
