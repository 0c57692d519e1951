"""The form of a DAG that makes a plan, used by a person in chromium: fill it in, look at the plan, answer.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote

import psycopg
from playwright.sync_api import Page, expect

from millrace.domain.plans.plan import StoredPlan
from millrace.wiring import open_platform
from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.browser import keep_picture
from support.waiting import Deadline, eventually


@contextmanager
def started(pipeline: AirflowPipeline) -> Iterator[AirflowPipeline]:
    """A pipeline that is deployed, with its stream started; withdrawn at the end of the block."""
    pipeline.deploy()
    pipeline.operate("start")
    yield pipeline
    pipeline.withdraw()


def query(pipeline: AirflowPipeline, text: str) -> list[tuple[Any, ...]]:
    """The rows that a statement gives in the sink database; none where it is no query."""
    settings = pipeline.stack.settings().postgres("millrace_sink")
    with psycopg.connect(**settings.keywords(), autocommit=True) as connection:
        cursor = connection.execute(text)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


class Form:
    """The form of a pipeline's plans of one kind, as its user meets it.

    Args:
        page: of who is logged in.
        pipeline: whose form it is.
        kind: what the plans do, as the DAG's id ends: `rewind` or `redrive`.
        tasks: the DAG's, in their order.
    """

    def __init__(self, page: Page, pipeline: AirflowPipeline, kind: str, tasks: Sequence[str]) -> None:
        self.page, self.pipeline, self.kind, self.tasks = page, pipeline, kind, tuple(tasks)
        self.dag = f"{pipeline.name}.{kind}"
        self.plans = open_platform(pipeline.stack.settings()).control.plans

    def ask(self, *, chosen: Mapping[str, str] | None = None, **written: str) -> str:
        """Trigger a run; its id.

        Args:
            chosen: the fields with a list, and what is chosen there; what is not named stays as it is preset.
            written: the fields with text, and what is written there.
        """
        before = {run["dag_run_id"] for run in self.pipeline.admin.runs(self.dag)}
        self.page.goto(f"/dags/{self.dag}")
        self.page.get_by_test_id("trigger-dag-button").click()
        dialog = self.page.get_by_role("dialog")
        for field, text in written.items():
            dialog.locator(f"input[name=element_{field}]").fill(text)
        for field, choice in (chosen or {}).items():
            select = dialog.locator(f"#element_{field}")
            select.get_by_role("combobox").fill(choice)
            self.page.get_by_role("option", name=choice, exact=True).click()
            expect(select).to_contain_text(choice)
        trigger = dialog.get_by_role("button", name="Trigger", exact=True)
        expect(trigger).to_be_enabled()
        self.look("form")
        trigger.click()
        expect(dialog).to_be_hidden()

        def new() -> str | None:
            found = {run["dag_run_id"] for run in self.pipeline.admin.runs(self.dag)} - before
            return found.pop() if found else None

        return str(eventually(new, within=Deadline.AIRFLOW, what="the run of the form"))

    def answer(self, run: str, choice: str, *, shown: Sequence[str] = ()) -> None:
        """Wait until the run asks, look at the page that shows the plan, and press a button there.

        Args:
            run: the run's id.
            choice: `Approve` or `Reject`.
            shown: what the page has to say beside the plan's id.
        """
        self.wait_for(run, confirm="awaiting_input")
        self.page.goto(f"/dags/{self.dag}/runs/{run}/tasks/confirm/required_actions")
        for text in (self.plan_of(run).plan.id, *shown):
            expect(self.page.get_by_text(text).first).to_be_visible()
        self.look(f"confirm-{choice}")
        self.page.get_by_role("button", name=choice).click()

    def wait_for(self, run: str, /, **states: str) -> None:
        """Wait until tasks of a run are in these states; not if one has failed that should not."""

        def there() -> bool:
            found = {task: self.pipeline.admin.task(self.dag, run, task)["state"] for task in states}
            wrong = {"failed", "upstream_failed"} & set(found.values()) - set(states.values())
            assert not wrong, self.logs(run)
            return found == states

        eventually(there, within=Deadline.STREAM, what=f"{states}")

    def logs(self, run: str) -> str:
        """The end of the log of each task."""
        return "\n".join(self.pipeline.admin.log(self.dag, run, task)[-1500:] for task in self.tasks)

    def plan_of(self, run: str) -> StoredPlan:
        """The plan that a run is bound to."""
        after = datetime.fromisoformat(self._run(run)["run_after"])
        stored = self.plans.of_run(f"{self.dag}/{run}@{after.isoformat()}")
        assert stored
        return stored

    def _run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pipeline.admin.call("GET", f"/dags/{self.dag}/dagRuns/{quote(run)}")
        return found

    def see_all_green(self, run: str) -> None:
        """Wait until every task has succeeded, and until the page of the run shows it."""
        self.wait_for(run, **dict.fromkeys(self.tasks, "success"))
        self.page.goto(f"/dags/{self.dag}/runs/{run}")
        for task in self.tasks:
            row = self.page.get_by_role("row").filter(has=self.page.get_by_role("link", name=task, exact=True))
            expect(row).to_contain_text("Success")
        self.look("all-green")

    def books(self) -> list[str]:
        """How the looks at the stream's books that runs of this form have triggered have ended; waits for the first."""
        dag = f"{self.pipeline.name}.books"

        def ended() -> list[str]:
            runs = [run for run in self.pipeline.admin.runs(dag) if run["end_date"]]
            return [str(run["state"]) for run in runs if run["dag_run_id"].startswith(f"after_{self.kind}")]

        return eventually(ended, within=Deadline.AIRFLOW, what="the books of the stream to be looked at")

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
        """Keep a picture of the page, where pictures are asked for."""
        self.page.wait_for_load_state("networkidle")
        keep_picture(self.page, f"{self.kind}-{name}")
