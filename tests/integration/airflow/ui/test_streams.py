"""Millrace's pages in Airflow's frame, as an operator and a viewer meet them in chromium.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest
from playwright.sync_api import FrameLocator, Page, expect

from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.embedded import ports
from millrace.embedded.credentials import Credentials
from millrace.usecases.streams.listing import show_stream
from millrace.wiring import open_platform
from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser, kill_group, put
from support.ui.browser import Complaints, keep_picture
from support.waiting import Deadline, at_once, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

EXAMPLE = "shop.purchases"
FRAME = 'iframe[title="Streams"]'
PATHS = ("/", "/static/pages.css", "/static/pages.js", f"/streams/{EXAMPLE}", f"/streams/{EXAMPLE}/sink")


@pytest.fixture
def known(stack: Stack) -> str:
    """The example's stream, whatever it does now, once somebody has looked at it."""
    admin = AirflowUser(stack)
    admin.wait_for_dag("shop.stream.purchases")
    streams = open_platform(stack.settings()).control.streams
    eventually(lambda: streams.look(EXAMPLE), within=Deadline.AIRFLOW, what=f"a look at {EXAMPLE}")
    return EXAMPLE


def frame_of(page: Page) -> FrameLocator:
    return page.frame_locator(FRAME)


def open_stream(page: Page, stream: str) -> FrameLocator:
    """Open the pages by Airflow's own navigation, from the page after the log-in, and a stream's page from there."""
    page.get_by_role("link", name="Streams", exact=True).click()
    frame = frame_of(page)
    frame.get_by_role("link", name=stream, exact=True).click()
    expect(frame.locator("h1")).to_have_text(stream)
    return frame


def listed(stack: Stack, stream: str) -> dict[str, Any]:
    """The stream in `streams list --json`."""
    command = [sys.executable, "-m", "millrace.cli.main", "streams", "list", "--json"]
    variables = {**os.environ, "MILLRACE_ROOT": str(stack.root)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=Deadline.COMMAND.seconds)
    [found] = [row for row in json.loads(done.stdout)["streams"] if row["stream"] == stream]
    assert isinstance(found, dict)
    return found


def test_the_pages_stand_in_airflows_frame_and_a_link_leaves_it(
    operator: Page, known: str, complaints: Complaints, stack: Stack
) -> None:
    expect(operator.get_by_role("link", name="Streams", exact=True)).to_be_visible()
    operator.wait_for_load_state("networkidle")
    complaints.found.clear()  # those of Airflow's own first page
    frame = open_stream(operator, known)
    expect(frame.locator("#state")).to_contain_text("checked")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")
    operator.evaluate("document.documentElement.classList.replace('light', 'dark')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    keep_picture(operator, "streams-stream-in-frame")
    told = listed(stack, known)
    expect(frame.locator("#state dl")).to_contain_text(f"{told['wanted']}")
    assert complaints.found == set()
    frame.get_by_role("link", name="start and stop", exact=True).click()
    operator.wait_for_url("**/dags/shop.operate")
    expect(operator.get_by_test_id("trigger-dag-button")).to_be_visible()


@pytest.mark.full
def test_a_viewer_sees_all_and_is_told_that_airflow_refuses_him(viewer: Page, known: str, stack: Stack) -> None:
    user = AirflowUser(stack, "viewer")
    runs = len(user.runs("shop.operate"))
    wanted = open_platform(stack.settings()).control.streams.desired(known)
    frame = open_stream(viewer, known)
    form = frame.locator('form[data-dag="shop.operate"]')
    form.get_by_label("Reason, for the action log").fill("a viewer tries it")
    form.get_by_role("button", name="Stop", exact=True).click()
    expect(form.locator("output")).to_contain_text("Airflow refused (403)")
    keep_picture(viewer, "streams-viewer-refused")
    assert len(user.runs("shop.operate")) == runs
    assert open_platform(stack.settings()).control.streams.desired(known) == wanted


def test_a_stranger_gets_nothing_and_a_token_of_airflow_opens_the_pages(known: str, stack: Stack) -> None:
    user = AirflowUser(stack, "viewer")
    stranger = httpx.Client(base_url=user.url, timeout=Deadline.AIRFLOW.seconds, trust_env=False)
    for path in (*PATHS, "/docs", "/openapi.json", "/nothing"):
        assert stranger.get(f"/millrace{path}").status_code == 401, path
    for path in PATHS:
        assert user.page(f"/millrace{path}").status_code == 200, path


def test_a_secret_in_a_drivers_log_is_masked_on_its_page(known: str, stack: Stack) -> None:
    settings = stack.settings()
    secrets = {settings.postgres(name).password for name in ("millrace_control", "millrace_sink")}
    folder = stack.layout.state / "streams" / known / "999999"
    folder.mkdir(parents=True)
    try:
        (folder / "driver.log").write_text("".join(f"connects with {secret}\n" for secret in secrets) + "the end\n")
        text = AirflowUser(stack, "viewer").page(f"/millrace/streams/{known}/log/999999").text
    finally:
        shutil.rmtree(folder)
    assert text.count("connects with ***") == 2
    assert "the end" in text
    assert not [secret for secret in secrets if secret in text]


@pytest.mark.full
def test_a_task_of_a_stream_leads_to_its_page(operator: Page, known: str, stack: Stack) -> None:
    user = AirflowUser(stack)
    (run, *_) = user.runs("shop.stream.purchases")
    links = user.call("GET", f"/dags/shop.stream.purchases/dagRuns/{run['dag_run_id']}/taskInstances/running/links")
    address = links["extra_links"]["Stream in Millrace"]
    operator.goto(address)
    expect(frame_of(operator).locator("h1")).to_have_text(known)


LONG_TASK = """\
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("beats", start_date=datetime(2026, 1, 1), schedule=None, is_paused_upon_creation=False):
    BashOperator(task_id="wait", bash_command="until [ -e {done} ]; do sleep 1; done")
"""


@pytest.fixture
def hung_control(stack: Stack) -> Iterator[None]:
    """Airflow's connection to the control database leads to a server that takes connections and never answers."""
    file = stack.layout.environment_file
    before = file.read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0), backlog=200) as silent:
        [line] = [line for line in before.splitlines() if line.startswith("AIRFLOW_CONN_MILLRACE_CONTROL=")]
        port = open_platform(stack.settings()).settings.postgres("millrace_control").port
        put(file, before.replace(line, line.replace(str(port), str(silent.getsockname()[1]))))
        kill_group(stack, "airflow-api-server")
        eventually(lambda: answers(stack), within=Deadline.AIRFLOW, what="the API server to be there again")
        yield
    put(file, before)
    kill_group(stack, "airflow-api-server")
    eventually(lambda: answers(stack), within=Deadline.AIRFLOW, what="the API server to be there again")


def answers(stack: Stack) -> bool:
    """Whether a log-in works."""
    try:
        AirflowUser(stack)
    except httpx.HTTPError:
        return False
    return True


@pytest.mark.full
def test_with_the_control_database_hung_pages_are_a_sentence_and_tasks_go_on_beating(
    stack: Stack, hung_control: None, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    dag = stack.root / "dags" / "beats.py"
    put(dag, LONG_TASK.format(done=done))
    admin = AirflowUser(stack)
    admin.wait_for_dag("beats")
    body = {"logical_date": None, "conf": {}}
    run = admin.call("POST", "/dags/beats/dagRuns", body)["dag_run_id"]

    def beat() -> object:
        query = "select last_heartbeat_at from task_instance where run_id = %s and state = 'running'"
        with psycopg.connect(**airflow_database(stack)) as connection:
            row = connection.execute(query, (run,)).fetchone()
        return row and row[0]

    try:
        beats = [eventually(beat, within=Deadline.AIRFLOW, what="the first heartbeat")]
        asked = []

        def next_beat() -> bool:
            asked.extend(at_once([page] * 6, within=Deadline.AIRFLOW, what="pages to be refused"))
            return beat() != beats[-1]

        def page() -> httpx.Response:
            return AirflowUser(stack).page("/millrace/")

        for number in range(3):
            eventually(next_beat, within=Deadline.AIRFLOW, what=f"heartbeat {number + 2}")
            beats.append(beat())
        assert len(asked) >= 6
        assert {answer.status_code for answer in asked} == {503}
        assert all("the control database does not answer" in a.text or "did not answer within" in a.text for a in asked)
    finally:
        done.touch()
        path = f"/dags/beats/dagRuns/{run}"
        eventually(
            lambda: admin.call("GET", path)["state"] in ("success", "failed"),
            within=Deadline.AIRFLOW,
            what="the long task to end",
        )
        dag.unlink()
    assert admin.call("GET", path)["state"] == "success"


def airflow_database(stack: Stack) -> dict[str, Any]:
    """Keywords of a connection to Airflow's own database."""
    return {
        "host": "127.0.0.1",
        "port": ports.read(stack.layout)["postgres"],
        "dbname": "airflow",
        "user": "airflow",
        "password": Credentials.of(stack.layout).database_passwords["airflow"],
    }


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[AirflowPipeline]:
    made = AirflowPipeline(stack, AirflowUser(stack), "paged")
    made.deploy()
    made.operate("start")
    yield made
    made.withdraw()


@pytest.mark.full
def test_an_operator_stops_starts_and_plans_a_rewind_from_the_page(
    operator: Page, pipeline: AirflowPipeline, stack: Stack
) -> None:
    stream = f"{pipeline.name}.numbers"
    control = open_platform(stack.settings()).control

    def state() -> StreamState:
        return show_stream(open_platform(stack.settings()), stream).report.state

    pipeline.produce(range(100))
    eventually(lambda: control.streams.progress(stream), within=Deadline.STREAM, what="the first batch")
    frame = open_stream(operator, stream)
    expect(frame.locator("#state")).to_contain_text("rows in", timeout=Deadline.STREAM.seconds * 1000)
    expect(frame.locator("table.narrow tbody tr")).to_have_count(2)
    keep_picture(operator, "streams-running")
    told = listed(stack, stream)
    assert told["progress"]["lag"] == 0
    expect(frame.locator("#state")).to_contain_text(f"{told['progress']['rows_in']:,} rows in")
    form = frame.locator(f'form[data-dag="{pipeline.name}.operate"]')
    for action, wanted, comes in (
        ("Stop", DesiredState.STOPPED, StreamState.STOPPED),
        ("Start", DesiredState.RUNNING, StreamState.RUNNING),
    ):
        reason = f"{action} it from <b>its page</b>"
        form.get_by_label("Reason, for the action log").fill(reason)
        form.get_by_role("button", name=action, exact=True).click()
        expect(form.locator("output")).to_contain_text("Done, see", timeout=Deadline.AIRFLOW.seconds * 1000)
        expect(frame.locator("#actions")).to_contain_text(reason)
        found = control.streams.desired(stream)
        assert found
        assert (found.state, found.changed_by, found.reason) == (wanted, "airflow:operator", reason)
        eventually(lambda comes=comes: state() is comes, within=Deadline.STREAM, what=f"it to be {comes.value}")
    keep_picture(operator, "streams-started")
    rewind = frame.locator(f'form[data-dag="{pipeline.name}.rewind"]')
    rewind.get_by_label("To: a time with its zone, or earliest").fill("earliest")
    rewind.get_by_label("Reason, for the action log").fill("the numbers are wrong")
    rewind.get_by_role("button", name="Plan a rewind", exact=True).click()
    expect(rewind.locator("output")).to_contain_text("Confirm it under Required Actions")
    rewind.get_by_role("link", name="its run in Airflow").click()
    operator.wait_for_url(f"**/dags/{pipeline.name}.rewind/runs/**")
