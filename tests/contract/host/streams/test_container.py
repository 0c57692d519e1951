"""The first process of the container `streams`, with real supervision of small programs in place of Airflow's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest

from millrace.embedded.layout import Layout
from millrace.embedded.processes import Identity
from millrace.embedded.supervisor import Supervisor
from support.waiting import Deadline, eventually, exit_code_of

BOUND_SECONDS = 300
SCRIPT = """\
import sys
from pathlib import Path
from millrace.embedded.compose import container
from millrace.embedded.layout import Layout
from millrace.embedded.servers.program import Program
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

    def wait_running(self, besides: Collection[int] = ()) -> dict[str, int]:
        """The ids of both programs, none of them one of these."""
        return eventually(lambda: self._all_running(besides), within=Deadline.SERVER, what="both programs to run")

    def _all_running(self, besides: Collection[int]) -> dict[str, int]:
        states = Supervisor(Layout(self.root)).states()
        pids = {name: state.pid for name, state in states.items() if state.state == "RUNNING"}
        return pids if len(pids) == 2 and not set(pids.values()) & set(besides) else {}

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def end(self) -> int:
        psutil.Process(self.process.pid).children()[0].send_signal(signal.SIGTERM)
        return exit_code_of(self.process, within=Deadline.STREAM, what="the container to end")


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[[], FirstProcess]]:
    """One more container on the test's state each time it is called; those that still run are ended with the test."""
    opened: list[FirstProcess] = []

    def one_more() -> FirstProcess:
        opened.append(FirstProcess(tmp_path))
        return opened[-1]

    (tmp_path / "database").touch()
    yield one_more
    for each in opened:
        if each.process.poll() is None:
            each.process.terminate()  # `timeout` passes it on
            exit_code_of(each.process, within=Deadline.STREAM, what="a container to end")


@pytest.fixture
def first(another: Callable[[], FirstProcess]) -> FirstProcess:
    return another()


def test_what_dies_is_started_again_the_supervisor_too_and_a_stop_leaves_nothing(first: FirstProcess) -> None:
    pids = first.wait_running()
    os.kill(pids["airflow-scheduler"], signal.SIGKILL)
    second = first.wait_running(besides=[pids["airflow-scheduler"]])
    triggerer = Identity.of(second["airflow-triggerer"])
    assert triggerer is not None
    supervisor = psutil.Process(second["airflow-triggerer"]).parent()
    assert supervisor is not None
    supervisor.kill()
    last = first.wait_running(besides=second.values())
    assert not triggerer.is_alive(), "two of a component ran at once"
    alive = [identity for pid in last.values() if (identity := Identity.of(pid))]
    assert len(alive) == 2
    assert first.end() == 0
    assert [identity for identity in alive if identity.is_alive()] == []
    assert "at work" in first.said()  # what a component says is the container's log
    assert "0 apps ended" in first.said()


def test_a_second_container_on_the_same_state_waits_for_the_first(
    first: FirstProcess, another: Callable[[], FirstProcess]
) -> None:
    before = first.wait_running()
    second = another()
    eventually(lambda: "waiting: `streams`" in second.said(), within=Deadline.SERVER, what="the second one to wait")
    assert first.wait_running() == before
    assert first.end() == 0
    second.wait_running(besides=before.values())
    assert second.end() == 0


@pytest.mark.full
def test_components_that_gave_up_while_their_database_was_away_come_back_with_it(first: FirstProcess) -> None:
    pids = first.wait_running()
    (first.root / "database").unlink()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: "streams: starting airflow-scheduler (fatal)" in first.said(),
        within=Deadline.SERVER,
        what="the supervisor to give one up",
    )
    (first.root / "database").touch()
    first.wait_running()
