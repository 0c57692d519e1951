"""A stream rewound from Airflow's form, by a person in chromium: plan, confirm, run, verify, books.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from millrace.domain.plans.plan import PlanStatus
from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser
from support.ui.plan_ui import Form, query, started
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.full

BEFORE, AFTER = 10, 1000
TASKS = ("plan", "confirm", "run", "verify", "books")
REASON = "the numbers `since` **noon** | are wrong"


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[AirflowPipeline]:
    with started(AirflowPipeline(stack, AirflowUser(stack), "form")) as made:
        yield made


def test_a_rewind_from_the_form_is_confirmed_run_and_verified_once(operator: Page, pipeline: AirflowPipeline) -> None:
    form, table = Form(operator, pipeline, "rewind", TASKS), pipeline.stream
    pipeline.produce(range(BEFORE))
    since = datetime.now(UTC) + timedelta(milliseconds=5)
    eventually(lambda: datetime.now(UTC) > since, within=Deadline.METADATA, what="a later millisecond")
    pipeline.produce(range(BEFORE, BEFORE + AFTER))
    pipeline.wait_for_books()
    query(pipeline, f"UPDATE {table} SET twice = -1")

    rejected = form.ask(to="earliest", reason=REASON)
    form.answer(rejected, "Reject")
    form.wait_for(rejected, plan="success", confirm="success", run="skipped")
    assert form.plan_of(rejected).status is PlanStatus.REFUSED
    assert query(pipeline, f"SELECT count(*) FROM {table} WHERE twice = -1") == [(BEFORE + AFTER,)]

    run = form.ask(to=since.isoformat(), reason=REASON)
    form.wait_for(run, confirm="awaiting_input")
    other = AirflowUser(pipeline.stack, "admin")
    path = f"/dags/{form.dag}/dagRuns/{quote(run)}/taskInstances/confirm/-1/hitlDetails"
    refused = other.request("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})
    assert refused.status_code == 403, refused.text
    form.answer(run, "Approve")
    form.see_all_green(run)
    assert form.books() == ["success"]

    done = form.plan_of(run)
    assert (done.status, done.confirmed) == (PlanStatus.DONE, True)
    assert done.asked
    assert done.asked.by == "operator"
    assert done.plan.reason == REASON
    pipeline.wait_for_books()
    everything = f"SELECT number, twice, _timeline, _partition, _offset, xmin::text FROM {table} ORDER BY number"
    left = query(pipeline, everything)
    assert [row[:3] for row in left] == [
        (number, -1, 1) if number < BEFORE else (number, 2 * number, 2) for number in range(BEFORE + AFTER)
    ]

    form.clear(run, *TASKS)
    assert form.end_of(run) == "success"
    assert form.plan_of(run) == done
    assert query(pipeline, everything) == left

    form.clear(rejected, "plan")
    eventually(
        lambda: "is refused, and this run has no other plan" in pipeline.admin.log(form.dag, rejected, "plan", 2),
        within=Deadline.AIRFLOW,
        what="the log of the task that failed",
    )
    assert form.plan_of(rejected).status is PlanStatus.REFUSED
