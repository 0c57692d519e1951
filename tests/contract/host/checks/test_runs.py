"""A test run and what it leaves: nothing, however it ends, but its logs when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from millrace.cli.checks.turn import VARIABLE as TURN_VARIABLE
from millrace.embedded.processes import Identity
from support.checks import runs
from support.checks.kept_logs import FOLDER_VARIABLE
from support.waiting import Deadline, eventually, exit_code_of, line_of, output_of

CHECKOUT = Path(__file__).resolve().parents[4]
CONFTEST = f"""
import sys
sys.path[:0] = [{str(CHECKOUT / "include")!r}, {str(CHECKOUT / "tests")!r}]
from millrace.cli.checks import turn
turn.available_gb = lambda: 99.0  # the run these are part of has waited for memory
pytest_plugins = ["support.checks.run_plugin"]
"""
HELD = """
import os, subprocess, sys, time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]

@pytest.fixture
def tidy():
    yield
    (HERE / "tidied").touch()

def test_held(tidy, tmp_path):
    environment = {**os.environ, "MILLRACE_ROOT": str(tmp_path)}
    environment.pop("MILLRACE_TEST_RUN")
    marked = subprocess.Popen(SLEEP, start_new_session=True)
    app = subprocess.Popen(SLEEP, start_new_session=True, env=environment)
    (HERE / "draft").write_text(f"{os.environ['MILLRACE_TEST_RUN']} {marked.pid} {app.pid} {os.getpid()}")
    (HERE / "draft").rename(HERE / "held")
    time.sleep(300)
"""
FAILING = """
def test_that_fails(tmp_path):
    log = tmp_path / "project" / ".millrace" / "streams" / "shop.purchases" / "7" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number} of the driver\\n" for number in range(100)))
    assert not log
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


@pytest.fixture
def held(project: Path) -> Iterator[subprocess.Popen[str]]:
    """`millrace test` in the middle of a test that has started two processes."""
    (project / "test_held.py").write_text(textwrap.dedent(HELD))
    process = run(project)
    eventually((project / "held").exists, within=Deadline.COMMAND, what="the test to be in the middle")
    yield process
    if process.poll() is None:
        process.kill()
        exit_code_of(process, what="the run's death")


def run(project: Path) -> subprocess.Popen[str]:
    code = "import sys; from pathlib import Path; from millrace.cli.checks.run import run_checks; "
    code += "sys.exit(run_checks(Path(sys.argv[1]), ['-p', 'no:cacheprovider', sys.argv[1]]))"
    own = {name: value for name, value in os.environ.items() if name != TURN_VARIABLE}
    own |= {"PYTHONPATH": str(CHECKOUT / "include"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(project)],
        env={**own, FOLDER_VARIABLE: str(project / "kept")},
        process_group=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_of(project: Path) -> tuple[Path, list[Identity], int]:
    """The run's folder, the living ones of the two processes its test has started, pytest's process id."""
    folder, *pids = (project / "held").read_text().split()
    alive = [identity for pid in pids[:2] if (identity := Identity.of(int(pid)))]
    return Path(folder), alive, int(pids[2])


@pytest.mark.parametrize("whole_group", [False, True], ids=["to the runner", "to its group"])
def test_a_run_that_is_told_to_end_tidies_up(project: Path, held: subprocess.Popen[str], whole_group: bool) -> None:
    folder, started, _ = left_of(project)
    assert len(started) == 2
    (os.killpg if whole_group else os.kill)(held.pid, signal.SIGTERM)
    output = output_of(held, within=Deadline.COMMAND, what="the end of a run that was told to end")
    assert held.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "ended 2 processes that tests had left" in output
    assert (project / "tidied").exists()
    assert not [process for process in started if process.is_alive()]
    assert not folder.exists()


def test_what_a_killed_run_left_is_ended_by_its_keeper(project: Path, held: subprocess.Popen[str]) -> None:
    folder, started, pytest_id = left_of(project)
    assert len(started) == 2
    os.kill(pytest_id, signal.SIGKILL)
    output_of(held, what="the end of a run whose pytest was killed")
    eventually(lambda: not folder.exists(), within=Deadline.KILLED, what="the run's folder to be gone")
    assert not [process for process in started if process.is_alive()]
    eventually(lambda: not keepers_of(folder), within=Deadline.KILLED, what="the keeper's own end")


def test_what_was_killed_with_its_keeper_is_ended_by_the_next_run(project: Path, held: subprocess.Popen[str]) -> None:
    folder, started, pytest_id = left_of(project)
    (keeper,) = keepers_of(folder)
    keeper.kill()
    os.kill(pytest_id, signal.SIGKILL)
    output_of(held, what="the end of a run whose pytest was killed")
    assert len([process for process in started if process.is_alive()]) == 2
    assert folder in list(runs.forgotten_runs())
    (project / "test_held.py").write_text("def test_nothing():\n    pass\n")
    output = output_of(run(project), within=Deadline.COMMAND, what="the next run")
    assert f"{folder}: a run that was killed" in output
    assert not [process for process in started if process.is_alive()]
    assert not folder.exists()


def keepers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[-2:] == ["support.checks.keeper", str(folder)]:
                found.append(process)
    return found


NEEDS_SERVERS = """
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

@pytest.fixture(scope="session")
def turn():
    pass

def test_that_starts_a_server(turn):
    with (HERE / "times").open("a") as times:
        times.write("begins\\n")
        times.flush()
        while not (HERE / "go").exists():
            time.sleep(0.05)
        times.write("ends\\n")
"""


def test_of_two_runs_that_start_servers_the_second_waits_and_says_for_whom(project: Path) -> None:
    (project / "test_needing.py").write_text(NEEDS_SERVERS)
    first = run(project)
    eventually((project / "times").exists, within=Deadline.COMMAND, what="the first run to be at work")
    second = run(project)
    while "waiting for another test run" not in (line := line_of(second.stdout, within=Deadline.COMMAND, what="why")):
        assert line, "the second run has ended"
    assert f"{project} (process " in line
    assert (project / "times").read_text().split() == ["begins"]
    (project / "go").touch()
    for process in (first, second):
        output = output_of(process, within=Deadline.COMMAND, what="the end of a run")
        assert process.returncode == 0, output
    assert (project / "times").read_text().split() == ["begins", "ends"] * 2


def test_a_failed_test_shows_its_apps_log_and_the_run_keeps_it(project: Path) -> None:
    (project / "test_failing.py").write_text(FAILING)
    process = run(project)
    output = output_of(process, within=Deadline.COMMAND, what="a run that fails")
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert "line 39 of the driver" not in output
    assert "line 40 of the driver" in output
    assert "line 99 of the driver" in output
    (log,) = (project / "kept").rglob("driver.log")
    assert len(log.read_text().splitlines()) == 100
    assert str(log.relative_to(project).parents[-3]) in output
    assert (project / "kept").stat().st_mode & 0o077 == 0
