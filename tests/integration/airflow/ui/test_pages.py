"""The pages of Airflow as an operator and a viewer see them, in chromium after logging in by the form.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from millrace.domain.streams.supervision import StreamState
from millrace.usecases.streams.listing import show_stream
from millrace.wiring import open_platform
from support.checks.budget import Kind, spend
from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser, put
from support.ui.browser import Complaints, keep_picture
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.usefixtures("example")  # its stream runs before anybody logs in

STREAM, STREAM_DAG, OPERATE_DAG = "shop.purchases", "shop.stream.purchases", "shop.operate"
PAGES = {
    "shop.topics": (
        "Keep the topics of shop as declared.",
        "commerce-data",
        "topics",
        "each change that loses nothing",
    ),
    STREAM_DAG: ("Keep stream shop.purchases in its desired state", "commerce-data", "stream", "watches one start"),
    "shop.backup": ("Keep backup shop.backup in its desired state", "commerce-data", "backup", "watches one start"),
    OPERATE_DAG: ("Start, stop, accept or adopt a stream of shop", "commerce-data", "operate", "Press Trigger."),
    "shop.rewind": ("Rewind a stream of shop", "commerce-data", "rewind", "belongs to one plan for ever"),
    "shop.source.cdnow": ("Load cdnow into shop.purchases.", "commerce-data", "source", "sources/cdnow.py"),
    "millrace.supervise": ("Bring every stream to its desired state", "millrace", "supervise", "calls the notifiers"),
    "millrace.alarms": ("Turn one run red for each breach", "millrace", "alarms", "A red run reports a breach"),
    "millrace.snapshots": ("Take a snapshot of the logs", "millrace", "groups", "needs no worker"),
    "millrace.groups": ("Check every five minutes", "millrace", "groups", "has a new risk"),
}
NOT_NEEDED = {"backing_off": "Skipped", "given_up": "Skipped"}
"""States of tasks that a healthy stream skips."""
BARE_DAG = """\
from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, Param

with DAG("bare", start_date=datetime(2026, 1, 1), params={"word": Param("x", type="string")}, doc_md="A plain DAG."):
    EmptyOperator(task_id="first", outlets=[Asset("bare")]) >> EmptyOperator(task_id="second")
"""
BROKEN = """\
pipeline: garden
owner: tests
topics:
  garden.seeds: {partitions: many}
"""
BROKEN_DAGS = 'from millrace.airflow.pipeline import pipeline_dags\n\nglobals().update(pipeline_dags("garden"))\n'


class ExampleStream(AirflowPipeline):
    """The example's stream, which is deployed already."""

    stream = STREAM  # type: ignore[assignment]
    dag = STREAM_DAG  # type: ignore[assignment]


@pytest.fixture
def example(stack: Stack, stopping_the_example: None) -> Stack:
    """The stack with the example's topic made and its stream running."""
    if state_of(stack) is not StreamState.RUNNING:
        admin = AirflowUser(stack)
        for dag_id, conf in (
            ("shop.topics", {}),
            (OPERATE_DAG, {"stream": "purchases", "action": "start", "reason": "to have a look at it"}),
        ):
            admin.wait_for_dag(dag_id)
            assert admin.run(dag_id, conf)["state"] == "success"
        wait_for_state(stack, StreamState.RUNNING)
    return stack


@pytest.mark.parametrize("dag_id", PAGES)
@pytest.mark.full
def test_every_dag_shows_what_it_is_whose_and_its_tags(operator: Page, dag_id: str) -> None:
    description, owner, tag, documentation = PAGES[dag_id]
    operator.goto(f"/dags/{dag_id}/details")
    expect(operator.get_by_text(description)).to_be_visible()
    expect(operator.get_by_role("link", name=owner, exact=True).first).to_be_visible()
    for name in ("millrace", "embedded", dag_id.partition(".")[0], tag):
        expect(operator.get_by_role("link", name=name, exact=True).first).to_be_visible()
    operator.get_by_label("Dag Docs", exact=True).click()
    expect(operator.get_by_role("dialog")).to_contain_text(documentation)
    keep_picture(operator, f"{dag_id}.documentation")


def test_a_killed_app_is_one_red_run_and_is_started_again_by_airflow(example: Stack) -> None:
    with ExampleStream(example, AirflowUser(example), "example").killed_app():
        pass
    wait_for_state(example, StreamState.RUNNING)  # which comes later than the watch


def test_the_form_stops_the_stream_and_its_page_tells_so(operator: Page, example: Stack) -> None:
    user = AirflowUser(example)
    # Whether this run has backed off is left open: its app may have been killed before.
    wait_for_watch(operator, user, "running", {"given_up": "Skipped", "stuck": "No Status"})
    keep_picture(operator, "stream-running")
    use_form(operator, "stop", "a look at the stopped page")
    wait_for_state(example, StreamState.STOPPED)
    wait_for_watch(operator, user, "stopped", {**NOT_NEEDED, "running": "No Status", "stuck": "No Status"})
    keep_picture(operator, "stream-stopped")
    assert "a look at the stopped page" in reasons_of_the_operator(example)


@pytest.mark.full
def test_the_form_starts_a_stopped_stream_and_its_page_tells_so(operator: Page, example: Stack) -> None:
    user = AirflowUser(example)
    stop = {"stream": "purchases", "action": "stop", "reason": "to start it by the form"}
    assert user.run(OPERATE_DAG, stop)["state"] == "success"
    wait_for_state(example, StreamState.STOPPED)
    wait_for_watch(operator, user, "stopped", NOT_NEEDED)
    use_form(operator, "start", "a look at the running page")
    wait_for_state(example, StreamState.RUNNING)
    wait_for_watch(operator, user, "running", {**NOT_NEEDED, "stopped": "Success"})
    assert "a look at the running page" in reasons_of_the_operator(example)


def reasons_of_the_operator(stack: Stack) -> set[str]:
    """The reasons that the user `operator` gave, of the stream's entries in the action log."""
    entries = open_platform(stack.settings()).control.log.list(limit=50)
    return {entry.reason for entry in entries if (entry.subject, entry.actor) == (STREAM, "airflow:operator")}


def use_form(page: Page, action: str, reason: str) -> None:
    """Press Trigger on the operate DAG, fill in the form as a person does, and wait until it is closed."""
    dialog, trigger = fill_in(page, action, reason)
    keep_picture(page, f"form-{action}")
    expect(trigger).to_be_enabled()
    spend(Kind.DAG_RUNS)
    trigger.click()
    expect(dialog).to_be_hidden()
    page.goto("about:blank")  # an open page of a DAG takes half a processor, with what it asks Airflow for


def fill_in(page: Page, action: str, reason: str) -> tuple[Locator, Locator]:
    """Open the form and fill it in; the dialog and its button."""
    page.goto(f"/dags/{OPERATE_DAG}")
    page.get_by_test_id("trigger-dag-button").click()
    dialog = page.get_by_role("dialog")
    trigger = dialog.get_by_role("button", name="Trigger", exact=True)
    dialog.locator("input[name=element_reason]").fill(reason)
    for place, choice in enumerate(("purchases", action)):
        expect(trigger).to_be_disabled()  # nothing is preset: no stream or no action, no run
        dialog.get_by_role("combobox").nth(place).fill(choice)
        page.get_by_role("option", name=choice, exact=True).click()
    return dialog, trigger


def state_of(stack: Stack) -> StreamState:
    return show_stream(open_platform(stack.settings()), STREAM).report.state


def wait_for_state(stack: Stack, state: StreamState) -> None:
    eventually(lambda: state_of(stack) is state, within=Deadline.STREAM, what=f"the stream to be {state.value}")


def wait_for_watch(page: Page, user: AirflowUser, task: str, others: dict[str, str]) -> None:
    """Wait until the newest run is in a task, and look at that run's page."""

    def parked() -> str | None:
        (run, *_) = user.runs(STREAM_DAG)
        return run["dag_run_id"] if user.task(STREAM_DAG, run["dag_run_id"], task)["state"] == "deferred" else None

    run_id = eventually(parked, within=Deadline.AIRFLOW, what=f"the newest watch to be in `{task}`")
    page.goto(f"/dags/{STREAM_DAG}/runs/{run_id}")
    for name, state in {task: "Deferred", **others}.items():
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        expect(row).to_contain_text(state)


@pytest.mark.full
def test_the_supervisions_page_shows_its_runs(operator: Page) -> None:
    operator.goto("/dags/millrace.supervise")
    expect(operator.get_by_text("*/5 * * * *")).to_be_visible()
    expect(operator.get_by_role("link", name="supervise", exact=True).first).to_be_visible()
    expect(operator.get_by_role("link", name="overdue_alarms", exact=True)).to_be_visible()
    keep_picture(operator, "supervise")


@pytest.mark.full
def test_the_asset_graph_shows_the_pipeline(operator: Page) -> None:
    operator.goto("/assets")
    expect(operator.get_by_role("link", name="topic shop.purchases", exact=True)).to_be_visible()
    keep_picture(operator, "assets")
    operator.get_by_role("link", name="topic shop.purchases", exact=True).click()
    graph = operator.locator(".react-flow")
    for name in ("shop.topics", "shop.source.cdnow", "topic shop.purchases"):
        expect(graph.get_by_text(name, exact=True)).to_be_visible()
    operator.get_by_text("Task Dependencies", exact=True).click()
    operator.get_by_role("button", name="Fit View").click()  # a task outside of what is shown is not in the page
    for name in ("source.cdnow.load", "topics.provision", "stream.purchases.running"):
        expect(graph.get_by_text(name, exact=True)).to_be_attached()
    keep_picture(operator, "asset-graph")


@pytest.fixture
def broken_declaration(example: Stack) -> Iterator[AirflowUser]:
    """A third pipeline whose declaration is wrong; Airflow has read it."""
    admin = AirflowUser(example)
    declaration = example.root / "include" / "pipelines" / "garden.yaml"
    dags = example.root / "dags" / "garden.py"
    put(declaration, BROKEN)
    put(dags, BROKEN_DAGS)
    eventually(lambda: import_errors(admin), within=Deadline.AIRFLOW, what="the import error")
    yield admin
    dags.unlink()
    declaration.unlink()
    eventually(lambda: not import_errors(admin), within=Deadline.AIRFLOW, what="the import error to go")


def import_errors(user: AirflowUser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = user.call("GET", "/importErrors")["import_errors"]
    return found


@pytest.mark.full
def test_a_broken_declaration_is_one_import_error_that_names_it_and_takes_nothing_else_down(
    broken_declaration: AirflowUser, operator: Page
) -> None:
    operator.goto("/")
    operator.get_by_role("button", name=re.compile("Import Error")).click()
    dialog = operator.get_by_role("dialog")
    expect(dialog).to_contain_text("garden.py")
    dialog.get_by_text("garden.py").click()
    for word in ("include/pipelines/garden.yaml", "4", "topics.garden.seeds.partitions", "many"):
        expect(dialog).to_contain_text(word)
    keep_picture(operator, "import-error")
    (error,) = import_errors(broken_declaration)
    assert error["filename"] == "garden.py"
    last_line = error["stack_trace"].strip().splitlines()[-1]
    assert "include/pipelines/garden.yaml:4" in error["stack_trace"], last_line
    known = {dag["dag_id"]: dag for dag in broken_declaration.call("GET", "/dags?limit=100")["dags"]}
    assert set(PAGES) <= set(known)
    assert not [dag_id for dag_id in PAGES if known[dag_id]["is_stale"]]


@pytest.mark.full
def test_no_page_complains_of_what_a_bare_dag_does_not(operator: Page, complaints: Complaints, example: Stack) -> None:
    admin = AirflowUser(example)
    bare = example.root / "dags" / "bare.py"
    put(bare, BARE_DAG)
    try:
        admin.wait_for_dag("bare")
        admin.run("bare", {})
        walk(operator, ["bare"])
        baseline = set(complaints.found)
        complaints.found.clear()
        walk(operator, [STREAM_DAG, *(dag_id for dag_id in PAGES if dag_id != STREAM_DAG)])
        assert complaints.found - baseline == set()
        operator.evaluate("console.error('a complaint')")
        eventually(lambda: complaints.found - baseline, within=Deadline.PAGE, what="a complaint to be noticed at all")
    finally:
        bare.unlink()


def walk(page: Page, dag_ids: list[str]) -> None:
    """Look at the pages all DAGs share, at each DAG's own, and at every tab of the first."""
    paths = ["/", "/dags", "/assets", *(f"/dags/{dag_id}" for dag_id in dag_ids)]
    paths += [f"/dags/{dag_ids[0]}/{tab}" for tab in ("runs", "tasks", "details", "code")]
    for path in paths:
        page.goto(path)
        expect(page.get_by_test_id("main-content")).to_be_visible()
        page.wait_for_load_state("networkidle")


@pytest.mark.full
def test_a_viewer_sees_the_pages_and_may_not_operate(viewer: Page, example: Stack) -> None:
    user = AirflowUser(example, "viewer")
    runs = len(user.runs(OPERATE_DAG))
    conf = {"stream": "purchases", "action": "stop", "reason": "a viewer tries"}
    body = {"logical_date": None, "conf": conf}
    assert user.request("POST", f"/dags/{OPERATE_DAG}/dagRuns", body).status_code == 403
    assert user.request("PATCH", f"/dags/{STREAM_DAG}", {"is_paused": True}).status_code == 403
    viewer.goto(f"/dags/{STREAM_DAG}")
    expect(viewer.get_by_role("link", name="commerce-data", exact=True)).to_be_visible()
    _, trigger = fill_in(viewer, "stop", "a viewer tries")  # Airflow shows the button to everybody and refuses the run
    trigger.click()
    expect(viewer.get_by_text(re.compile("forbidden|403|not authorized", re.IGNORECASE)).first).to_be_visible()
    keep_picture(viewer, "viewer-refused")
    assert len(user.runs(OPERATE_DAG)) == runs
    assert state_of(example) is StreamState.RUNNING
