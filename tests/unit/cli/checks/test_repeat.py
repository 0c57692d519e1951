"""`millrace test --repeat N PATH...`: what it runs, and the busy loops beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from millrace.cli.checks import repeat
from millrace.cli.checks.repeat import LOOPS, MOST, busy_loops, repeated
from millrace.cli.checks.run import run_checks
from millrace.errors import UsageError
from support.waiting import Deadline, eventually, exit_code_of

FILE = "tests/test_a.py"
STAND_IN = """
import os, pathlib, psutil, signal, sys, time
beside = [child for child in psutil.Process(os.getppid()).children() if child.pid != os.getpid()]
loops = [child for child in beside if any("os.getppid() == caller" in word for word in child.cmdline())]
end = time.monotonic() + 60
while any(loop.cpu_times().user == 0 for loop in loops):
    assert time.monotonic() < end
    time.sleep(0.01)
pathlib.Path("draft").write_text(" ".join(str(loop.pid) for loop in loops))
pathlib.Path("draft").rename("loops")
"""
"""Stands in for pytest: writes the processes beside it once each has computed."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).touch()
    return tmp_path


def loops_of(project: Path) -> list[int]:
    return [int(word) for word in (project / "loops").read_text().split()]


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [("sys.exit(0)", 0), ("sys.exit(1)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["passes", "fails", "is killed"],
)
def test_busy_loops_compute_while_pytest_runs_and_end_with_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, ending: str, exit_code: int
) -> None:
    monkeypatch.setattr(repeat, "PYTEST", (sys.executable, "-c", STAND_IN + ending))
    assert run_checks(project, ["--repeat", "2", FILE]) == exit_code
    assert len(loops_of(project)) == LOOPS
    assert not any(psutil.pid_exists(pid) for pid in loops_of(project))


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C is heeded: a job that a shell starts in the background ignores it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_busy_loops_end_after_a_signal_and_the_repeat_is_red(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    waits = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\npathlib.Path('waits').touch()\n"
    waits += "while not pathlib.Path('told').exists() and time.monotonic() < end: time.sleep(0.01)"
    monkeypatch.setattr(repeat, "PYTEST", (sys.executable, "-c", STAND_IN + waits))

    def tell() -> None:
        eventually((project / "waits").exists, within=Deadline.PROCESS, what="the stand-in to wait")
        os.kill(os.getpid(), number)
        if number == signal.SIGINT:  # a terminal tells pytest by itself
            (project / "told").touch()

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    assert run_checks(project, ["--repeat", "2", FILE]) == 1
    telling.join()
    assert not any(psutil.pid_exists(pid) for pid in loops_of(project))


def test_a_busy_loop_ends_when_its_parent_is_killed() -> None:
    code = "import os\nfrom millrace.cli.checks.repeat import busy_loops\nwith busy_loops() as loops:\n"
    code += "    print(*(loop.pid for loop in loops), flush=True)\n    os.kill(os.getpid(), 9)"
    died = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=Deadline.COMMAND.seconds
    )
    pids = [int(word) for word in died.stdout.split()]
    assert len(pids) == LOOPS, died.stderr
    eventually(
        lambda: not any(map(psutil.pid_exists, pids)), within=Deadline.KILLED, what="the end of loops without a parent"
    )


def test_a_busy_loop_ends_after_its_bound() -> None:
    with busy_loops(timedelta()) as loops:
        assert [exit_code_of(loop, what="the end of a busy loop") for loop in loops] == [0] * LOOPS


def test_a_repeat_that_outlives_its_busy_loops_says_so(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kills = "\nfor loop in loops:\n    loop.kill()\n    while loop.status() != 'zombie': time.sleep(0.01)\n"
    monkeypatch.setattr(repeat, "PYTEST", (sys.executable, "-c", STAND_IN + kills))
    assert run_checks(project, ["--repeat", "2", FILE]) == 0
    assert "a busy loop ended before the tests did" in capfd.readouterr().out


def test_each_parameter_of_a_named_test_is_repeated(project: Path) -> None:
    def names(count: str) -> list[str]:
        command = list(repeated(project, [count, FILE, f"{FILE}::test_one", f"{FILE}::test_two[a-b]"]).command)
        return command[command.index("--count") :]

    assert names("1") == ["--count", "1", FILE, f"{FILE}::test_one", f"{FILE}::test_two[a-b]"]
    two = [f"{FILE}::test_two[a-b-1-2]", f"{FILE}::test_two[a-b-2-2]"]
    assert names("2") == ["--count", "2", FILE, f"{FILE}::test_one", *two]


@pytest.mark.parametrize("options", [["-k", "tests"], ["-x"], ["--deselect", f"{FILE}::test_two[a]"]], ids=" ".join)
def test_options_go_to_pytest_as_they_are(project: Path, options: list[str]) -> None:
    for arguments in ([*options, FILE], [FILE, *options]):
        command = list(repeated(project, ["2", *arguments]).command)
        assert command[command.index("--count") :] == ["--count", "2", *arguments]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "the number is missing"),
        ([FILE], f"`{FILE}` is not a whole number"),
        (["0", FILE], "`0` is not"),
        (["-1", FILE], "`-1` is not"),
        (["1.5", FILE], r"`1\.5` is not"),
        (["\u0663", FILE], "is not a whole number"),
        ([str(MOST + 1), FILE], f"from 1 to {MOST}"),
        (["9" * 5000, FILE], f"from 1 to {MOST}"),
        (["2"], "no test file or folder is named"),
        (["2", "-k", "lanes"], "no test file or folder is named"),
        (["2", "-k", "tests"], "no test file or folder is named"),
        (["2", "-x", "--deselect", FILE], "no test file or folder is named"),
        (["2", "--ignore=tests"], "no test file or folder is named"),
        (["2", "tests/absent.py"], "no test file or folder is named"),
    ],
    ids=[
        "nothing",
        "no number",
        "zero",
        "negative",
        "fraction",
        "another script",
        "many",
        "long",
        "no path",
        "-k",
        "-k and a folder's name",
        "--deselect and a path",
        "--ignore=path",
        "absent",
    ],
)
def test_wrong_arguments_are_refused(project: Path, arguments: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        run_checks(project, ["--repeat", *arguments])
    assert "--repeat 20 tests/" in (refused.value.next_step or "")
