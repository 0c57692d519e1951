"""A stream rewound from Airflow's form, by a person in chromium: plan, confirm, run, verify, books.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from playwright.sync_api import Page, expect

from millrace.domain.plan import PlanStatus, StoredPlan
from millrace.wiring import open_platform
from support.airflow_pipeline import AirflowPipeline
from support.airflow_ui import AirflowUser
from support.browser import Complaints, log_in, open_browser
from support.stack import start
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.full]

BEFORE, AFTER = 10, 1000
TASKS = ("plan", "confirm", "run", "verify", "books")
REASON = "the numbers `since` **noon** | are wrong"


@pytest.fixture(scope="module")
def stack(idle_stack: Stack) -> Stack:
    return start(idle_stack, "kafka", "postgres", "airflow")


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[AirflowPipeline]:
    made = AirflowPipeline(stack, AirflowUser(stack), "form")
    made.deploy()
    made.operate("start")
    yield made
    made.withdraw()


@pytest.fixture
def page(stack: Stack) -> Iterator[Page]:
    with open_browser() as browser:
        page = log_in(browser, AirflowUser(stack, "operator"), Complaints())
        yield page
        page.context.close()


class Form:
    """The form of a pipeline's rewinds, as its user meets it."""

    def __init__(self, page: Page, pipeline: AirflowPipeline) -> None:
        self.page, self.pipeline, self.dag = page, pipeline, f"{pipeline.name}.rewind"
        self.plans = open_platform(pipeline.stack.settings()).control().plans

    def ask(self, to: str, reason: str) -> str:
        """Trigger a rewind of the one stream; its run."""
        before = {run["dag_run_id"] for run in self.pipeline.admin.runs(self.dag)}
        self.page.goto(f"/dags/{self.dag}")
        self.page.get_by_test_id("trigger-dag-button").click()
        dialog = self.page.get_by_role("dialog")
        dialog.locator("input[name=element_to]").fill(to)
        dialog.locator("input[name=element_reason]").fill(reason)
        trigger = dialog.get_by_role("button", name="Trigger", exact=True)
        expect(trigger).to_be_enabled()
        self.look("form")
        trigger.click()
        expect(dialog).to_be_hidden()

        def new() -> str | None:
            found = {run["dag_run_id"] for run in self.pipeline.admin.runs(self.dag)} - before
            return found.pop() if found else None

        return str(eventually(new, within=Deadline.AIRFLOW, what="the run of the form"))

    def answer(self, run: str, choice: str) -> None:
        """Wait until the run asks, look at the page that shows the plan, and press a button there."""
        self.wait_for(run, confirm="awaiting_input")
        self.page.goto(f"/dags/{self.dag}/runs/{run}/tasks/confirm/required_actions")
        expect(self.page.get_by_text(self.plan_of(run).plan.id).first).to_be_visible()
        self.look(f"confirm-{choice}")
        self.page.get_by_role("button", name=choice).click()

    def wait_for(self, run: str, /, **states: str) -> None:
        def there() -> bool:
            found = {task: self.pipeline.admin.task(self.dag, run, task)["state"] for task in states}
            assert "failed" not in set(found.values()) - set(states.values()), self.logs(run)
            return found == states

        eventually(there, within=Deadline.STREAM, what=f"{states}")

    def logs(self, run: str) -> str:
        return "\n".join(self.pipeline.admin.log(self.dag, run, task)[-1500:] for task in TASKS)

    def plan_of(self, run: str) -> StoredPlan:
        after = datetime.fromisoformat(self._run(run)["run_after"])
        stored = self.plans.of_run(f"{self.dag}/{run}@{after.isoformat()}")
        assert stored
        return stored

    def _run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pipeline.admin.call("GET", f"/dags/{self.dag}/dagRuns/{quote(run)}")
        return found

    def clear(self, run: str, *tasks: str) -> None:
        """Clear tasks of a run, and wait until each has run again."""
        admin = self.pipeline.admin
        tries = {task: admin.task(self.dag, run, task)["try_number"] for task in tasks}
        body: dict[str, Any] = {"dag_run_id": run, "task_ids": list(tasks), "dry_run": False, "only_failed": False}
        admin.call("POST", f"/dags/{self.dag}/clearTaskInstances", body)

        def again() -> bool:
            found = [admin.task(self.dag, run, task) for task in tasks]
            return all(task["try_number"] > tries[task["task_id"]] and task["end_date"] for task in found)

        eventually(again, within=Deadline.STREAM, what=f"{tasks} to run again")

    def end_of(self, run: str) -> str:
        """How the run ended."""

        def ended() -> str | None:
            state = str(self._run(run)["state"])
            return state if state in {"success", "failed"} else None

        return str(eventually(ended, within=Deadline.AIRFLOW, what=f"the end of {run}"))

    def look(self, name: str) -> None:
        self.page.wait_for_load_state("networkidle")
        if folder := os.environ.get("MILLRACE_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"rewind-{name}.png")


def query(pipeline: AirflowPipeline, text: str) -> list[tuple[Any, ...]]:
    settings = pipeline.stack.settings().postgres("millrace_sink")
    with psycopg.connect(**settings.keywords(), autocommit=True) as connection:
        cursor = connection.execute(text)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def test_a_rewind_from_the_form_is_confirmed_run_and_verified_once(page: Page, pipeline: AirflowPipeline) -> None:
    form, table = Form(page, pipeline), pipeline.stream
    pipeline.produce(range(BEFORE))
    since = datetime.now(UTC) + timedelta(milliseconds=5)
    eventually(lambda: datetime.now(UTC) > since, within=Deadline.METADATA, what="a later millisecond")
    pipeline.produce(range(BEFORE, BEFORE + AFTER))
    pipeline.wait_for_books()
    query(pipeline, f"UPDATE {table} SET twice = -1")

    rejected = form.ask("earliest", REASON)
    form.answer(rejected, "Reject")
    form.wait_for(rejected, plan="success", confirm="success", run="skipped")
    assert form.plan_of(rejected).status is PlanStatus.REFUSED
    assert query(pipeline, f"SELECT count(*) FROM {table} WHERE twice = -1") == [(BEFORE + AFTER,)]

    run = form.ask(since.isoformat(), REASON)
    form.wait_for(run, confirm="awaiting_input")
    other = AirflowUser(pipeline.stack, "admin")
    path = f"/dags/{form.dag}/dagRuns/{quote(run)}/taskInstances/confirm/-1/hitlDetails"
    refused = other.request("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})
    assert refused.status_code == 403, refused.text
    form.answer(run, "Approve")
    form.wait_for(run, **dict.fromkeys(TASKS, "success"))
    page.goto(f"/dags/{form.dag}/runs/{run}")
    for task in TASKS:
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=task, exact=True))
        expect(row).to_contain_text("Success")
    form.look("all-green")
    books = f"{pipeline.name}.books"
    looked = eventually(
        lambda: [
            one
            for one in pipeline.admin.runs(books)
            if one["dag_run_id"].startswith("after_rewind") and one["end_date"]
        ],
        within=Deadline.AIRFLOW,
        what="the books of the stream to be looked at",
    )
    assert [one["state"] for one in looked] == ["success"]

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
        lambda: "is refused, and this run is bound to it" in pipeline.admin.log(form.dag, rejected, "plan", 2),
        within=Deadline.AIRFLOW,
        what="the log of the task that failed",
    )
    assert form.plan_of(rejected).status is PlanStatus.REFUSED
