"""The five states of a stream, side by side in Airflow's grid, and why it is so in the log of the task.

With MILLRACE_SCREENSHOTS naming a folder, the grid is kept there as a picture in each state.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from playwright.sync_api import Page, expect

from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser
from support.ui.browser import keep_picture
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.full

TASKS = ("stopped", "backing_off", "given_up", "running", "stuck")
CRASHING = """
    import os

    print("cannot reach the price list", flush=True)
    os._exit(1)
"""
NO_PYTHON = "def transform(inputs, tables:\n"


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[AirflowPipeline]:
    made = AirflowPipeline(stack, AirflowUser(stack), "states", stuck_after="45s")
    made.deploy()
    yield made
    made.withdraw()


class Grid:
    """The grid of the stream's DAG, looked at in each state."""

    def __init__(self, page: Page, pipeline: AirflowPipeline) -> None:
        self.page = page
        self.pipeline = pipeline
        self._taken = 0

    def stands_in(self, task: str) -> str:
        """Wait until the newest run waits in this task and in no other; the run's id."""
        pipeline = self.pipeline

        def parked() -> str | None:
            runs = pipeline.admin.runs(pipeline.dag)
            if not runs:
                return None
            run: str = runs[0]["dag_run_id"]
            found = [name for name in TASKS if pipeline.admin.task(pipeline.dag, run, name)["state"] == "deferred"]
            return run if found == [task] else None

        run = eventually(parked, within=Deadline.AIRFLOW, what=f"the stream to stand in `{task}`")
        self.look(task)
        return str(run)

    def look(self, name: str) -> None:
        self.page.goto(f"/dags/{self.pipeline.dag}")
        for task in TASKS:
            expect(self.page.get_by_role("link", name=task, exact=True).first).to_be_visible()
        self.page.wait_for_load_state("networkidle")
        self._taken += 1
        keep_picture(self.page, f"grid-{self._taken}-{name}")

    def overview_says(self, *words: str) -> None:
        """Wait until the stream's line on Millrace's overview holds these words: its state, and the cause."""
        row = re.compile(rf'<tr class="\w+" data-stream="{re.escape(self.pipeline.stream)}">.*?</tr>', re.DOTALL)

        def said() -> bool:
            found = row.search(self.pipeline.admin.page("/millrace/").text)
            return found is not None and all(word in html.unescape(found[0]) for word in words)

        eventually(said, within=Deadline.AIRFLOW, what=f"the overview to say {words}")

    def task_of(self, run: str, task: str, state: str) -> str:
        """Wait until a task of a run is over in this state; its log."""
        admin, dag = self.pipeline.admin, self.pipeline.dag
        eventually(
            lambda: admin.task(dag, run, task)["state"] == state, within=Deadline.AIRFLOW, what=f"{task} to be {state}"
        )
        return admin.log(dag, run, task)


def test_the_grid_tells_the_five_states_of_a_stream_apart(
    operator: Page, pipeline: AirflowPipeline, stack: Stack
) -> None:
    grid = Grid(operator, pipeline)
    grid.stands_in("stopped")
    grid.overview_says("stopped", "never started")

    pipeline.operate("start")
    pipeline.produce(range(10))
    pipeline.wait_for_books()
    watched = grid.stands_in("running")

    with psycopg.connect(**stack.settings().postgres("millrace_sink").keywords()) as report:
        report.execute(f"LOCK TABLE {pipeline.stream}")
        pipeline.produce(range(10, 20))
        assert grid.stands_in("stuck") == watched
        told = grid.task_of(watched, "running", "success")
        assert f"waits for a lock of pid {report.info.backend_pid} (user {report.info.user}" in told
        grid.overview_says("stuck", f"waits for a lock of pid {report.info.backend_pid} (user {report.info.user}")
        epochs = pipeline.epochs()
    pipeline.wait_for_books()
    grid.task_of(watched, "stuck", "success")
    again = grid.stands_in("running")
    assert again != watched
    assert pipeline.epochs() == epochs, "the next run watches the same app"

    pipeline.program(CRASHING)
    for process in pipeline.app_processes():
        process.kill()
    told = grid.task_of(again, "running", "failed")
    assert "died" in told
    for _ in range(3):  # the pauses grow until there is time for a look
        waiting = grid.stands_in("backing_off")
        grid.task_of(waiting, "backing_off", "success")
    waiting = grid.stands_in("backing_off")
    told = pipeline.admin.log(pipeline.dag, waiting, "backing_off")
    assert "cannot reach the price list" in told
    grid.overview_says("backing off", "times in a row, last with failed (1)")

    pipeline.program(NO_PYTHON)
    waiting = grid.stands_in("given_up")
    eventually(
        lambda: "declaration or app is wrong" in pipeline.admin.log(pipeline.dag, waiting, "given_up"),
        within=Deadline.AIRFLOW,
        what="the log of `given_up` to say why",
    )
    grid.overview_says("given up", "its declaration or app is wrong")

    pipeline.program(pipeline.transform)
    pipeline.operate("start")
    pipeline.produce(range(20, 30))
    pipeline.wait_for_books()
    assert grid.stands_in("running") == waiting, "an operator's start ends `given_up` in the same run"
    pipeline.operate("stop")
    grid.task_of(waiting, "running", "success")
    grid.stands_in("stopped")
    grid.overview_says("stopped", "stopped by airflow:admin: a test of the supervision")
