"""What people and programs are told about a stored plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from millrace.cli.plans.text import print_stored, stored_document
from millrace.domain.plans.plan import Asked, Change, Plan, PlanKind, PlanStatus, StoredPlan, facts

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
CHANGE = Change("rewind.move", "shop.purchases/0", facts({"offset": 9}), facts({"offset": 4}))
PLAN = Plan(
    PlanKind.REWIND, "shop.purchases", "c", "k", (CHANGE,), (), NOW, NOW + timedelta(days=1), "airflow:anna", "wrong"
)
RUN = "shop.rewind/manual__1"


@pytest.mark.parametrize(
    ("asked", "text", "document"),
    [
        (None, "", None),
        (
            Asked(RUN, PLAN.hash),
            f"asked for in {RUN}: not confirmed",
            {"run": RUN, "shown": PLAN.hash, "confirmed_by": "", "confirmed_at": None},
        ),
        (
            Asked(RUN, PLAN.hash, "anna", NOW),
            f"asked for in {RUN}: confirmed by anna at 2026-05-01 12:00:00 UTC",
            {"run": RUN, "shown": PLAN.hash, "confirmed_by": "anna", "confirmed_at": NOW},
        ),
    ],
)
def test_it_is_told_where_a_plan_was_asked_for_and_who_confirmed_it(
    asked: Asked | None, text: str, document: dict[str, object] | None
) -> None:
    stored, console = StoredPlan(PLAN, PlanStatus.OPEN, asked=asked), Console(record=True, width=200, quiet=False)
    print_stored(console, stored)
    told = console.export_text()
    assert text in told
    assert ("asked for in" in told) is (asked is not None)
    assert stored_document(stored)["asked"] == document
