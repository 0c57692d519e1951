from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.adapters.alarms.outage import OutageFiles
from millrace.adapters.control.store import ControlStore
from millrace.domain.streams.hosts import Host
from millrace.domain.streams.supervision import DesiredState
from millrace.embedded.stack import Stack
from millrace.settings import PostgresSettings, Settings
from millrace.usecases.alarms.watchdog import Watchdog, Watched, look_at
from millrace.wiring import open_platform
from support.alarms.webhooks import Webhook, webhook
from support.stack.control_databases import Databases
from support.stack.cut_wire import Wire, wire
from support.stack.embedded import start
from support.waiting import Deadline, eventually, exit_code_of

MAIN = """\
import os, sys
from datetime import UTC, datetime, timedelta
from millrace.embedded import watchdog
watchdog.LOOK_EVERY = timedelta(seconds=0.2)
looked = watchdog.Watchdog.look
def look(self):
    looked(self)
    heavy = {"airflow", "pyspark", "pandas", "boto3", "confluent_kafka", "great_expectations"} & set(sys.modules)
    print("heavy:", sorted(heavy), flush=True)
watchdog.Watchdog.look = look
sys.exit(watchdog.main(os.environ))
"""


def connection(settings: PostgresSettings) -> str:
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": settings.host,
            "port": settings.port,
            "login": settings.user,
            "password": settings.password,
            "schema": settings.database,
        }
    )


@pytest.fixture
def control(control_databases: Databases) -> PostgresSettings:
    """A control database with one stream wanted running, another one stopped, and one alarm."""
    settings = control_databases.create_upgraded().working
    store = ControlStore(settings)
    try:
        for stream, state in (("shop.purchases", DesiredState.RUNNING), ("shop.refunds", DesiredState.STOPPED)):
            store.streams.set_desired(stream, actor="anna", reason="wanted", state=state)
        here = Host("a1", "alpha", "boot 1")
        store.hosts.take("shop.purchases", here, was=None)
        store.hosts.give_sign(here)
        store.hosts.beat("shop.purchases", 1, "i1", here, phase="running", step="")
        store.alarms.open("backup.late", "shop.backup", "2 partitions are late")
    finally:
        store.close()
    return settings


def test_what_supervision_knows_is_read_in_one_look(control: PostgresSettings) -> None:
    known = look_at(open_platform(Settings(Path(), {"millrace_control": connection(control)}.get)))
    [seen] = known.streams
    assert (seen.stream, seen.host, seen.state, seen.look_age) == ("shop.purchases", "alpha", "", None)
    assert seen.heartbeat_age is not None
    assert known.stream_count == known.alarm_count == 1
    assert [(each.kind, each.subject) for each in known.alarms] == [("backup.late", "shop.backup")]


class Program:
    """A watchdog as a process, over a project folder, behind a wire to the control database."""

    def __init__(self, root: Path, through: Wire, pager: Webhook) -> None:
        self.root = root
        self.through = through
        self.pager = pager

    @property
    def state(self) -> Path:
        return self.root / ".millrace"

    def lines(self) -> list[dict[str, Any]]:
        file = self.state / "alarms.log"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def said(self) -> str:
        return (self.root / "said").read_text()

    @contextmanager
    def running(self, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        with (self.root / "said").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN], env=os.environ | variables, stdout=said, stderr=said, cwd=self.root
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(Deadline.PROCESS.seconds)


@pytest.fixture
def program(control: PostgresSettings, tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    (tmp_path / "include" / "environments").mkdir()
    (tmp_path / "include" / "environments" / "embedded.yaml").write_text(
        "notifiers: [{kind: webhook, connection: millrace_pager}, {kind: my.Pager}, {kind: log}]\n"
    )
    with wire(control.host, control.port) as through, webhook() as pager:
        yield Program(tmp_path, through, pager)


def variables_of(program: Program, control: PostgresSettings) -> dict[str, str]:
    reached = json.loads(connection(control)) | {"port": program.through.port}
    pager = {"conn_type": "http", "host": program.pager.address, "password": "secret"}
    return {
        "MILLRACE_ROOT": str(program.root),
        "MILLRACE_ENVIRONMENT": "embedded",
        "MILLRACE_OUTAGE_AFTER_SECONDS": "1",
        "AIRFLOW_CONN_MILLRACE_CONTROL": json.dumps(reached),
        "AIRFLOW_CONN_MILLRACE_PAGER": json.dumps(pager),
    }


def test_the_program_pages_while_the_control_database_cannot_be_reached(
    program: Program, control: PostgresSettings
) -> None:
    variables = variables_of(program, control)
    files = OutageFiles(program.state)
    with program.running(variables):
        known = eventually(files.last_known, within=Deadline.SERVER, what="the file of what is known")
        assert [seen.stream for seen in known.streams] == ["shop.purchases"]
        assert stat.S_IMODE((program.state / "last-known.json").stat().st_mode) == 0o600
        program.through.cut()
        eventually(program.lines, within=Deadline.SERVER, what="the outage in alarms.log")
        second = subprocess.run(
            [sys.executable, "-m", "millrace.embedded.watchdog"],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=Deadline.COMMAND.seconds,
        )
        assert (second.returncode, "another watchdog" in second.stderr) == (4, True)
    with program.running(variables):  # killed, and started again while the database is away
        program.through.mend()
        eventually(lambda: len(program.lines()) >= 2, within=Deadline.SERVER, what="the end of the outage")
    outage, over = program.lines()
    assert (outage["kind"], outage["closed_at"]) == ("control.down", None)
    assert "shop.purchases not checked yet on alpha" in outage["detail"]
    assert "backup.late of shop.backup" in outage["detail"]
    assert over["closed_at"]
    assert [document["detail"] for _, _, document in program.pager.posts] == [outage["detail"], over["detail"]]
    assert program.pager.posts[0][0] == "/secret"
    said = program.said()
    assert "heavy: []" in said
    assert "heavy: ['" not in said
    assert "secret" not in said


def test_a_server_that_stops_answering_is_an_outage(program: Program, control: PostgresSettings) -> None:
    found: list[str] = []
    reached = json.loads(connection(control)) | {"port": program.through.port}
    platform = open_platform(Settings(program.root, {"millrace_control": json.dumps(reached)}.get))
    program.state.mkdir()
    looks = Watchdog(
        Watched(
            subject="control",
            host="beta",
            look=lambda: look_at(platform),
            notifiers=lambda: [("pager", lambda alarm: found.append(alarm.detail))],
            say=lambda _: None,
            outage_after=timedelta(),
            look_within=timedelta(seconds=0.5),
        ),
        OutageFiles(program.state),
    )
    looks.look()
    assert not found
    program.through.silence()
    looks.look()
    assert "no answer within 0.5 s" in found[0]
    program.through.mend()

    def answers() -> bool:
        looks.look()
        return len(found) == 2

    eventually(answers, within=Deadline.SERVER, what="an answer after the silence")
    assert "answers beta again" in found[1]


def test_the_stack_runs_a_watchdog_that_answers_by_its_looks(idle_stack: Stack) -> None:
    stack = start(idle_stack, "watchdog")
    [status] = stack.status(["watchdog"])
    assert (status.healthy, status.detail, status.ports) == (True, "the control database answers", {})
    known = OutageFiles(stack.layout.state).last_known()
    assert known is not None
    assert known.at <= datetime.now(UTC)


def test_a_program_without_a_connection_says_so_and_ends(tmp_path: Path) -> None:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace.embedded.watchdog"],
        env=environment | {"MILLRACE_ROOT": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    assert exit_code_of(process, what="the watchdog without a connection") == 3
    assert process.stderr is not None
    assert b"connection millrace_control is not defined" in process.stderr.read()
    process.stderr.close()
