"""Topics, plans, the action log and the control database from the command line, on the real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.declarations import load_pipeline
from millrace.embedded.stack import Stack
from millrace.usecases.topics import plan as topics
from millrace.wiring import open_platform
from support.begun import Begun
from support.stack.control_databases import on
from support.stack.embedded import start
from support.topics.declared import declare, make_project
from support.waiting import Deadline, eventually

MILLRACE = (sys.executable, "-m", "millrace.cli.main")


@pytest.fixture(scope="module")
def stack(idle_stack: Stack) -> Stack:
    return start(idle_stack, "kafka", "postgres")


@pytest.fixture
def pipeline() -> str:
    """The name of a pipeline nobody else uses."""
    return f"plan_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def project(tmp_path: Path, stack: Stack, pipeline: str) -> Path:
    return make_project(tmp_path, stack, pipeline)


@pytest.fixture(scope="module", autouse=True)
def unanswered(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unanswered]:
    made = Unanswered(make_project(tmp_path_factory.mktemp("unanswered"), stack, "unanswered"))
    yield made
    made.end()


class Unanswered:
    """Commands that wait 15 s for a cluster which does not answer."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._running = Begun(self._begin)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Return how a command ended; no two tests get the same one."""
        process = self._running.take()
        with process:
            try:
                stdout, stderr = process.communicate(timeout=Deadline.COMMAND.seconds)
            finally:
                process.kill()  # where it has not ended by itself
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def end(self) -> None:
        for process in self._running.untaken:
            with process:
                process.kill()

    def _begin(self) -> subprocess.Popen[str]:
        gone = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
        environment = environment_of(self._project, AIRFLOW_CONN_MILLRACE_KAFKA=gone)
        command = [*MILLRACE, "topics", "plan"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def environment_of(project: Path, **variables: str) -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[3] / "include")
    return {**os.environ, "MILLRACE_ROOT": str(project), "PYTHONPATH": package, **variables}


def call(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MILLRACE, *arguments],
        env=environment_of(project, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=Deadline.COMMAND.seconds,
    )


def test_a_topic_is_planned_run_and_logged_from_the_command_line(project: Path, pipeline: str) -> None:
    planned = call(project, "topics", "plan", "--json")
    assert (planned.returncode, planned.stderr) == (0, "")
    (plan,) = json.loads(planned.stdout)["plans"]
    assert plan["changes"][0]["action"] == "topic.create"
    ran = call(project, "plans", "run", plan["id"], "--reason", "first")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"done: topic.create {pipeline}.a" in ran.stdout
    assert call(project, "plans", "run", plan["id"]).returncode == 4
    shown = json.loads(call(project, "plans", "show", plan["id"], "--json").stdout)
    assert (shown["schema"], shown["status"]) == ("millrace.plans.show/1", "done")
    (entry,) = json.loads(call(project, "log", "--subject", pipeline, "--json").stdout)["actions"]
    assert (entry["action"], entry["reason"]) == ("topic.create", f"first (plan {plan['id']})")
    assert entry["actor"].startswith("cli:")
    assert plan["id"] in call(project, "plans", "list", "--limit", "1000").stdout


def test_a_refusal_ends_with_one_and_says_the_way_out(project: Path, stack: Stack, pipeline: str) -> None:
    platform, declared = open_platform(stack.settings()), load_pipeline(project, pipeline)
    topics.provision(platform, declared, "test:me", "set up")
    eventually(
        lambda: not topics.propose(platform, declared, by="x").changes, within=Deadline.METADATA, what="the new topic"
    )
    declare(project, pipeline, partitions=1)
    planned = call(project, "topics", "plan", pipeline)
    assert planned.returncode == 1
    assert "Kafka cannot remove partitions" in planned.stdout
    assert "declare `partitions: 2`" in planned.stdout


def test_without_the_control_database_the_plan_is_shown_but_cannot_be_run(project: Path, pipeline: str) -> None:
    gone = json.dumps(
        {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "x", "password": "s3cret-word"}
    )
    planned = call(project, "topics", "plan", "--json", AIRFLOW_CONN_MILLRACE_CONTROL=gone)
    document = json.loads(planned.stdout)
    assert planned.returncode == 3
    assert document["plans"][0]["changes"][0]["subject"] == f"{pipeline}.a"
    assert document["plans"][0]["id"] is None
    assert "127.0.0.1:1" in planned.stderr
    assert "s3cret-word" not in planned.stdout + planned.stderr


def test_a_broken_declaration_is_named_and_holds_no_other_pipeline_back(project: Path, pipeline: str) -> None:
    (project / "include/pipelines/broken.yaml").write_text("pipeline: broken\nowner: me\ntopcis: {}\n")
    planned = call(project, "topics", "plan", "--json")
    assert planned.returncode == 1
    assert [plan["target"] for plan in json.loads(planned.stdout)["plans"]] == [pipeline]
    assert "broken.yaml" in planned.stderr


def test_the_control_database_is_upgraded_from_the_command_line(project: Path, idle_stack: Stack) -> None:
    databases = on(idle_stack)
    database = databases.create()
    variables = {
        f"AIRFLOW_CONN_{name}": json.dumps(
            {
                "conn_type": "postgres",
                "host": settings.host,
                "port": settings.port,
                "login": settings.user,
                "password": settings.password,
                "schema": settings.database,
            }
        )
        for name, settings in (("MILLRACE_CONTROL", database.working), ("MILLRACE_CONTROL_OWNER", database.owner))
    }
    missing = call(project, "log", **variables)
    assert (missing.returncode, "millrace control upgrade" in missing.stderr) == (3, True)
    first = call(project, "control", "upgrade", **variables)
    assert (first.returncode, "applied 0001" in first.stdout) == (0, True)
    assert "nothing to do" in call(project, "control", "upgrade", **variables).stdout
    alone = {**variables, "AIRFLOW_CONN_MILLRACE_CONTROL": variables["AIRFLOW_CONN_MILLRACE_CONTROL_OWNER"]}
    assert "trigger alone" in call(project, "control", "upgrade", **alone).stdout


def test_a_cluster_that_does_not_answer_ends_with_three(unanswered: Unanswered) -> None:
    planned = unanswered.run()
    assert planned.returncode == 3
    assert "the Kafka cluster does not answer" in planned.stderr
    assert "Traceback" not in planned.stderr
