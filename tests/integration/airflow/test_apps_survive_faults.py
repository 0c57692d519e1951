"""What people and faults may do to Airflow without reaching a stream, and what reaches it: an app that dies.

The first tier kills an app, too: see ui/test_pages.py. The measured times are printed:
`./millrace test tests/integration/airflow/test_apps_survive_faults.py -s`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from millrace.domain.streams.supervision import ExitReason
from millrace.wiring import open_platform
from support.ui.airflow_pipeline import AirflowPipeline, Driver
from support.ui.airflow_ui import AirflowUser, kill_group, leader_of
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.full

RECORDS = 2_000
_numbers = count()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> AirflowUser:
    return AirflowUser(stack)


@pytest.fixture(scope="module")
def deployed(stack: Stack, admin: AirflowUser) -> Iterator[AirflowPipeline]:
    """The pipeline, started through Airflow, its 2,000 records in the sink."""
    made = AirflowPipeline(stack, admin, "faults")
    made.deploy()
    # what is tried here is each stream's own DAG; the net below it would mend in minutes what that DAG does not
    pause(admin, "millrace.supervise", True)
    produce(made, RECORDS)
    made.operate("start")
    made.wait_until_watched()
    made.wait_for_books()
    yield made
    pause(admin, "millrace.supervise", False)
    made.withdraw()


def pause(admin: AirflowUser, dag: str, paused: bool) -> None:
    admin.call("PATCH", f"/dags/{dag}", {"is_paused": paused})


@pytest.fixture
def pipeline(deployed: AirflowPipeline) -> AirflowPipeline:
    """The pipeline with its stream running and watched, whatever the test before did."""
    if not deployed.drivers():
        deployed.operate("start")
    deployed.wait_until_watched()
    deployed.wait_for_books()
    return deployed


def produce(pipeline: AirflowPipeline, records: int) -> None:
    pipeline.produce(next(_numbers) for _ in range(records))


def only_driver(pipeline: AirflowPipeline) -> Driver:
    (driver,) = pipeline.drivers()
    return driver


def tell(what: str, seconds: float) -> None:
    print(f"\n{what}: {seconds:.1f} s", flush=True)


def present_run(pipeline: AirflowPipeline) -> str:
    return str(next(run["dag_run_id"] for run in pipeline.admin.runs(pipeline.dag) if run["state"] == "running"))


def clear(pipeline: AirflowPipeline, run: str, task: str) -> None:
    body = {"dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": False, "include_downstream": True}
    pipeline.admin.call("POST", f"/dags/{pipeline.dag}/clearTaskInstances", body)


def mark(pipeline: AirflowPipeline, run: str, task: str, state: str) -> None:
    path = f"/dags/{pipeline.dag}/dagRuns/{quote(run)}/taskInstances/{task}"
    pipeline.admin.call("PATCH", path, {"new_state": state})


def mark_run(pipeline: AirflowPipeline, run: str, state: str) -> None:
    pipeline.admin.call("PATCH", f"/dags/{pipeline.dag}/dagRuns/{quote(run)}", {"state": state})


def delete_run(pipeline: AirflowPipeline, run: str) -> None:
    mark_run(pipeline, run, "failed")  # Airflow deletes none that runs
    pipeline.admin.call("DELETE", f"/dags/{pipeline.dag}/dagRuns/{quote(run)}")


FAULTS: dict[str, Callable[[AirflowPipeline, str], None]] = {
    "clear running": lambda pipeline, run: clear(pipeline, run, "running"),
    "clear stopped and running": lambda pipeline, run: clear(pipeline, run, "stopped"),
    "fail running": lambda pipeline, run: mark(pipeline, run, "running", "failed"),
    "mark running success": lambda pipeline, run: mark(pipeline, run, "running", "success"),
    "fail the run": lambda pipeline, run: mark_run(pipeline, run, "failed"),
    "mark the run success": lambda pipeline, run: mark_run(pipeline, run, "success"),
    "delete the run": delete_run,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_people_do_to_tasks_and_runs_neither_stops_nor_doubles_the_app(
    pipeline: AirflowPipeline, fault: str
) -> None:
    driver, epochs, run = only_driver(pipeline), pipeline.epochs(), present_run(pipeline)
    began = time.monotonic()
    FAULTS[fault](pipeline, run)
    produce(pipeline, 100)
    eventually(lambda: is_watched_anew(pipeline, began), within=Deadline.AIRFLOW, what=f"a watch after: {fault}")
    tell(f"{fault}: watched again after", time.monotonic() - began)
    pipeline.wait_for_books()
    assert pipeline.drivers() == [driver]
    assert pipeline.epochs() == epochs


def is_watched_anew(pipeline: AirflowPipeline, began: float) -> bool:
    """Whether the present watch's task was parked after this moment of `time.monotonic`."""
    task = pipeline.admin.watching(pipeline.dag)
    if task is None:
        return False
    parked = datetime.fromisoformat(task["trigger"]["created_date"])
    return (datetime.now(UTC) - parked).total_seconds() < time.monotonic() - began


def test_pausing_the_dag_neither_stops_nor_doubles_the_app(pipeline: AirflowPipeline) -> None:
    driver, epochs, run = only_driver(pipeline), pipeline.epochs(), present_run(pipeline)
    pause(pipeline.admin, pipeline.dag, True)
    pause(pipeline.admin, "millrace.supervise", False)
    try:
        mark_run(pipeline, run, "failed")
        produce(pipeline, 100)
        pipeline.wait_for_books()
        # also the supervision of all streams leaves it alone
        assert pipeline.admin.run("millrace.supervise", {})["state"] == "success"
        assert pipeline.drivers() == [driver]
        assert pipeline.epochs() == epochs
    finally:
        pause(pipeline.admin, "millrace.supervise", True)
        pause(pipeline.admin, pipeline.dag, False)
    pipeline.wait_until_watched(not_run=run)
    assert pipeline.drivers() == [driver]


def test_killing_the_triggerer_leaves_the_app_alone_and_its_watch_comes_back(
    pipeline: AirflowPipeline, stack: Stack
) -> None:
    driver, epochs, run = only_driver(pipeline), pipeline.epochs(), present_run(pipeline)
    former: Any = pipeline.wait_until_watched()
    began = time.monotonic()
    killed = kill_group(stack, "airflow-triggerer")
    produce(pipeline, 100)

    def another_has_it() -> bool:
        task = pipeline.admin.watching(pipeline.dag)
        return bool(task) and task["triggerer_job"]["id"] != former["triggerer_job"]["id"]  # type: ignore[index]

    eventually(another_has_it, within=Deadline.AIRFLOW, what="another triggerer to watch the app")
    tell("triggerer killed: watched again after", time.monotonic() - began)
    assert leader_of(stack, "airflow-triggerer") != killed
    assert present_run(pipeline) == run
    pipeline.wait_for_books()
    assert pipeline.drivers() == [driver]
    assert pipeline.epochs() == epochs


def test_killing_the_schedulers_group_leaves_the_app_alone_and_runs_come_back(
    pipeline: AirflowPipeline, stack: Stack
) -> None:
    driver, epochs, run = only_driver(pipeline), pipeline.epochs(), present_run(pipeline)
    began = time.monotonic()
    kill_group(stack, "airflow-scheduler")
    mark_run(pipeline, run, "failed")  # so that the next watch needs a scheduler
    produce(pipeline, 100)
    pipeline.wait_until_watched(not_run=run)
    tell("scheduler killed: watched by a new run after", time.monotonic() - began)
    pipeline.wait_for_books()
    assert pipeline.drivers() == [driver]
    assert pipeline.epochs() == epochs


def test_a_stream_is_stopped_although_the_triggerer_is_dead(pipeline: AirflowPipeline, stack: Stack) -> None:
    produce(pipeline, 100)
    kill_group(stack, "airflow-triggerer")
    stack.supervisor.stop_programs(["airflow-triggerer"])
    try:
        code, text, seconds = pipeline.command("stop", pipeline.stream, "--reason", "the triggerer is dead")
        assert pipeline.app_processes() == []
    finally:
        stack.supervisor.start_program("airflow-triggerer")
    tell("stopped without a triggerer in", seconds)
    assert code == 0, text
    epoch = pipeline.epochs()[-1]
    assert json.loads((pipeline.folder / str(epoch) / "exit.json").read_text())["exit_code"] == ExitReason.STOPPED
    assert "stopped" in text


def test_a_killed_app_is_one_red_run_and_is_started_again_by_airflow(pipeline: AirflowPipeline) -> None:
    with pipeline.killed_app() as killed:
        began = time.monotonic()
        produce(pipeline, 100)
    tell("app killed: another app is watched after", time.monotonic() - began)
    assert f"epoch {killed.epoch}" in row_of(pipeline)["former_error"]
    pipeline.wait_for_books()
    tell("app killed: all records in the sink after", time.monotonic() - began)


def row_of(pipeline: AirflowPipeline) -> dict[str, Any]:
    """The stream as `millrace streams list --json` shows it."""
    code, text, _ = pipeline.command("list", "--json")
    assert code == 0, text
    return next(row for row in json.loads(text)["streams"] if row["stream"] == pipeline.stream)


@pytest.fixture
def broken(stack: Stack, admin: AirflowUser) -> Iterator[AirflowPipeline]:
    """A pipeline whose app loses `_source`: no start of it can ever help."""
    transform = (
        'def transform(inputs, tables):\n    (numbers,) = inputs.values()\n    return numbers.select("number")\n'
    )
    made = AirflowPipeline(stack, admin, "hopeless", transform)
    made.deploy()
    yield made
    made.command("stop", made.stream, "--reason", "the test is over")
    made.withdraw()


def test_a_driver_that_cannot_be_helped_is_given_up_at_once_and_told(broken: AirflowPipeline, stack: Stack) -> None:
    red_before = {run["dag_run_id"] for run in broken.admin.runs("millrace.alarms") if run["state"] == "failed"}
    broken.operate("start")
    ended = broken.folder / "1" / "exit.json"
    eventually(ended.exists, within=Deadline.STREAM, what="the driver's end")
    began = time.monotonic()
    assert json.loads(ended.read_text())["exit_code"] == ExitReason.DECLARATION

    def told() -> list[dict[str, Any]]:
        file = stack.layout.state / "alarms.log"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line["subject"] == broken.stream and line["kind"] == "stream.gave_up"]

    eventually(told, within=Deadline.AIRFLOW, what="the alarm in .millrace/alarms.log")
    tell("given up: told after", time.monotonic() - began)

    def recorded() -> list[str]:
        rows = open_platform(stack.settings()).control.alarms.list(only_open=True, only_untold=False)
        return [row.kind for row in rows if row.subject == broken.stream and row.told_at]

    # written down after it was told: an alarm is rather told twice than never
    assert eventually(recorded, within=Deadline.AIRFLOW, what="the alarm to be on record as told") == ["stream.gave_up"]

    def red_run() -> bool:
        runs = broken.admin.runs("millrace.alarms")
        return any(run["state"] == "failed" and run["dag_run_id"] not in red_before for run in runs)

    eventually(red_run, within=Deadline.AIRFLOW, what="a red run of millrace.alarms")
    eventually(lambda: time.monotonic() - began >= 60, within=Deadline.AIRFLOW, what="a minute for a hot loop to show")
    states = [run["state"] for run in broken.admin.runs(broken.dag)]
    assert broken.epochs() == [1]
    assert states in (["running", "failed"], ["running"]), states
    row = row_of(broken)
    assert (row["state"], row["wanted"]) == ("given up", "running")
    assert "lost `_source`" in row["last_error"]
    (newest, *_) = broken.admin.runs(broken.dag)
    tasks = {
        task: broken.admin.task(broken.dag, newest["dag_run_id"], task)["state"]
        for task in ("stopped", "backing_off", "given_up", "running", "stuck")
    }
    waits = {"stopped": "skipped", "backing_off": "skipped", "given_up": "deferred", "running": None, "stuck": None}
    assert tasks == waits
    assert "lost `_source`" in broken.admin.log(broken.dag, newest["dag_run_id"], "given_up")
