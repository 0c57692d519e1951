"""The first process of the container `streams`, with real supervision of small programs in place of Airflow's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millrace.embedded.layout import Layout
from millrace.embedded.supervisor import ProgramState, Supervisor
from support.waiting import Deadline, eventually, exit_code_of

BOUND_SECONDS = 300
SCRIPT = """\
import sys
from pathlib import Path
from millrace.embedded import container
from millrace.embedded.layout import Layout
from millrace.embedded.program import Program
from millrace.embedded.progress import Progress

root = Path(sys.argv[1])
command = ["sh", "-c", f"echo at work; test -e {root}/database && exec sleep BOUND"]
programs = [Program(name, command) for name in container.COMPONENTS]
container.LOOK_SECONDS = 0.2
container.Streams(Layout(root), programs, Progress()).run()
""".replace("BOUND", str(BOUND_SECONDS))


class FirstProcess:
    """A container's first process over a project's folder, which stands for its volume."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "include" / "pipelines").mkdir(parents=True, exist_ok=True)
        self.log = root / "said"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                ["timeout", "--kill-after=5", str(BOUND_SECONDS), sys.executable, "-c", SCRIPT, str(root)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def states(self) -> dict[str, ProgramState]:
        return Supervisor(Layout(self.root)).states()

    def pids(self) -> dict[str, int]:
        return {name: state.pid for name, state in self.states().items() if state.state == "RUNNING"}

    def wait_running(self) -> dict[str, int]:
        return eventually(lambda: self._all_run(), within=Deadline.SERVER, what="both programs to run")

    def _all_run(self) -> dict[str, int]:
        pids = self.pids()
        return pids if len(pids) == 2 else {}

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def end(self) -> int:
        psutil.Process(self.process.pid).children()[0].send_signal(signal.SIGTERM)
        return exit_code_of(self.process, within=Deadline.STREAM, what="the container to end")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[FirstProcess]:
    (tmp_path / "database").touch()
    opened = FirstProcess(tmp_path)
    yield opened
    if opened.process.poll() is None:
        opened.end()


def test_what_dies_is_started_again_the_supervisor_too_and_a_stop_leaves_nothing(first: FirstProcess) -> None:
    pids = first.wait_running()
    os.kill(pids["airflow-scheduler"], signal.SIGKILL)
    eventually(
        lambda: first.pids().get("airflow-scheduler", 0) not in (0, pids["airflow-scheduler"]),
        within=Deadline.SERVER,
        what="the scheduler to be another process",
    )
    supervisor = psutil.Process(first.pids()["airflow-triggerer"]).parent()
    assert supervisor is not None
    supervisor.kill()
    eventually(
        lambda: first._all_run() and first.pids()["airflow-triggerer"] != pids["airflow-triggerer"],
        within=Deadline.SERVER,
        what="another supervisor's programs to run",
    )
    assert not psutil.pid_exists(pids["airflow-triggerer"]), "two of a component ran at once"
    last = first.pids()
    assert first.end() == 0
    assert [pid for pid in last.values() if psutil.pid_exists(pid)] == []
    assert "at work" in first.said()  # what a component says is the container's log
    assert "0 apps ended" in first.said()


def test_a_second_container_on_the_same_state_waits_for_the_first(first: FirstProcess) -> None:
    before = first.wait_running()
    second = FirstProcess(first.root)
    eventually(lambda: "waiting: `streams`" in second.said(), within=Deadline.SERVER, what="the second one to wait")
    assert first.pids() == before
    assert first.end() == 0
    after = second.wait_running()
    assert not set(after.values()) & set(before.values())
    assert second.end() == 0


@pytest.mark.full
def test_components_that_gave_up_while_their_database_was_away_come_back_with_it(first: FirstProcess) -> None:
    first.wait_running()
    (first.root / "database").unlink()
    for pid in first.pids().values():
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: "streams: starting airflow-scheduler (fatal)" in first.said(),
        within=Deadline.SERVER,
        what="the supervisor to give one up",
    )
    (first.root / "database").touch()
    first.wait_running()
