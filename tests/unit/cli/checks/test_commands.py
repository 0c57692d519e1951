"""`millrace test`: what runs side by side, what a signal does to it, and the second try."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.checks import run as checks
from millrace.cli.checks.lanes import DURATIONS, Step, read_durations
from millrace.cli.checks.run import Run, run_checks
from millrace.cli.checks.second_try import REPORT_VARIABLE, Duration
from millrace.cli.checks.turn import VARIABLE as TURN_VARIABLE

CHECKOUT = Path(__file__).resolve().parents[4]
OK = [sys.executable, "-c", ""]
FILE = "tests/integration/test_a.py"
FILES = {FILE: {"first": 1.5, "second": 0.5, "tests": 3}}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def failing(*tests: str, passing: bool = True, exit_code: int = 1) -> list[str]:
    """A stand-in for a pytest whose tests fail, all of them for the same kind of reason."""
    failures = [{"test": test, "error": "waited", "passing": passing, "load": 3.5, "free_gb": 9.0} for test in tests]
    document = json.dumps({"failures": failures, "passed": [], "files": FILES})
    return python(
        f"import os, sys; open(os.environ[{REPORT_VARIABLE!r}], 'w').write({document!r}); sys.exit({exit_code})"
    )


def passing_again(*tests: str) -> list[str]:
    """A stand-in for a pytest whose tests pass: those it is given, or these."""
    chosen = f"{list(tests)!r} or [name for name in sys.argv[1:] if '::' in name]"
    report = f"{{'failures': [], 'passed': {chosen}, 'files': {FILES}}}"
    code = "import json, os, sys; print('again', sys.argv[1:]); "
    return python(code + f"json.dump({report}, open(os.environ[{REPORT_VARIABLE!r}], 'w'))")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path).begun() as begun:
        yield begun


def test_lanes_go_on_at_the_same_time_and_the_steps_of_one_after_each_other(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    meet = (
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
        "end = time.monotonic() + 60\n"
        "while not pathlib.Path(sys.argv[2]).exists():\n    assert time.monotonic() < end\n    time.sleep(0.01)\n"
        "print('met', flush=True)"
    )
    first = Step("first", [*python(meet), "a", "b"])
    outcomes = run.lanes(
        {"one": [first, Step("after", python("import pathlib; assert pathlib.Path('b').exists()"))],
         "two": [Step("second", [*python(meet), "b", "a"])]}
    )  # fmt: skip
    assert [(one.name, one.exit_code) for one in outcomes] == [("first", 0), ("after", 0), ("second", 0)]
    lines = capfd.readouterr().out.splitlines()
    assert "one     | met" in lines
    assert "two     | met" in lines


def test_a_run_that_is_told_to_end_passes_it_on_begins_nothing_more_and_is_not_fine(run: Run, tmp_path: Path) -> None:
    wait = "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    wait += "pathlib.Path('waits').touch()\ntime.sleep(60)"

    def tell() -> None:
        while not (tmp_path / "waits").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    outcomes = run.lanes({"one": [Step("waits", python(wait)), Step("never", OK)]})
    telling.join()
    assert [(one.name, one.exit_code, one.interrupted) for one in outcomes] == [("waits", 0, True)]
    assert run.exit_code_after_second_try(outcomes) == 1


def test_a_failure_that_may_pass_is_tried_again_and_both_outcomes_are_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "PYTEST", (*passing_again(),))
    outcomes = [run.step(Step("tests", failing("tests/integration/test_a.py::b"))), run.step(Step("ruff", OK))]
    assert run.exit_code_after_second_try(outcomes) == 0
    output = capfd.readouterr().out
    assert "'tests/integration/test_a.py::b'" in output
    assert "first   FAILED  load  3.5,  9.0 GB free  waited" in output
    assert "second  passed" in output


def test_what_was_not_run_at_the_second_try_is_red(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "PYTEST", (*passing_again("another"),))
    assert run.exit_code_after_second_try([run.step(Step("tests", failing("tests/integration/test_a.py::b")))]) == 1
    assert "second  FAILED  it was not run to its end" in capfd.readouterr().out


def test_a_check_that_cannot_be_run_has_failed_and_holds_up_no_other(run: Run) -> None:
    outcomes = run.lanes({"one": [Step("absent", ["no-such-program"]), Step("after", OK)], "two": [Step("fine", OK)]})
    assert [(one.name, one.exit_code) for one in outcomes] == [("absent", 127), ("after", 0), ("fine", 0)]
    assert run.exit_code_after_second_try(outcomes) == 127


class ClosedPipe(io.StringIO):
    """Standard output whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(
    "out", [io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), ClosedPipe()], ids=["latin-1", "a closed pipe"]
)
def test_output_that_cannot_be_shown_holds_up_no_check(
    run: Run, monkeypatch: pytest.MonkeyPatch, out: io.TextIOBase
) -> None:
    more_than_a_pipe_holds = "import sys; sys.stdout.buffer.write(('\\u2192' * 50 + '\\n').encode() * 2000)"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        outcomes = run.lanes({"one": [Step("loud", python(more_than_a_pipe_holds))]})
    assert [one.exit_code for one in outcomes] == [0]


def test_a_second_failure_is_red(run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checks, "PYTEST", (*failing("tests/integration/test_a.py::b"),))
    assert run.exit_code_after_second_try([run.step(Step("tests", failing("tests/integration/test_a.py::b")))]) == 1
    assert capfd.readouterr().out.count("FAILED  load") == 2


@pytest.mark.parametrize(
    ("steps", "exit_code"),
    [
        ([failing("a", passing=False)], 1),
        ([failing("a"), failing("b", passing=False)], 1),
        ([failing("a", "b"), failing("c", "d")], 1),
        ([failing("a", exit_code=3)], 3),
        ([failing("a"), python("import sys; sys.exit(4)")], 4),
        ([failing()], 1),
        ([python("import sys; sys.exit(1)")], 1),
    ],
    ids=["an assertion", "one of two", "too many", "ended early", "mypy too", "no test", "no report"],
)
def test_what_is_not_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, steps: list[list[str]], exit_code: int
) -> None:
    monkeypatch.setattr(checks, "PYTEST", (*passing_again(),))
    outcomes = [run.step(Step(str(number), command)) for number, command in enumerate(steps)]
    assert run.exit_code_after_second_try(outcomes) in (exit_code, outcomes[0].exit_code)
    assert run.exit_code_after_second_try(outcomes) != 0


def test_a_whole_run_takes_the_turn_hands_it_on_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "runs_folder", lambda: tmp_path / "runs")
    monkeypatch.setattr(
        checks.Turn, "take", lambda *arguments, take=checks.Turn.take: take(*arguments, available=lambda: 8.0)
    )
    holds = python(f"import fcntl, os; fcntl.flock(int(os.environ[{TURN_VARIABLE!r}]), fcntl.LOCK_EX | fcntl.LOCK_NB)")
    monkeypatch.setattr(checks, "lanes", lambda root, everything: {"one": [Step("turn", holds)]})
    assert run_checks(tmp_path, []) == 0
    failed = {"one": [Step("tests", failing("tests/unit/test_a.py::b", passing=False)), Step("after", OK)]}
    monkeypatch.setattr(checks, "lanes", lambda root, everything: failed)
    assert run_checks(tmp_path, ["--all"]) == 1
    output = capfd.readouterr().out
    summary = output[output.rindex("summary") :]
    assert "  FAILED  tests " in summary
    assert "          tests/unit/test_a.py::b\n            load  3.5,  9.0 GB free  waited\n" in summary
    assert "  ok      after " in summary
    assert "tests/integration 2.0 s 3 tests" in " ".join(output.split())


CRASH = """
import faulthandler, os
faulthandler.enable()
print("tests/contract/test_a.py::test_b ", end="", flush=True)
print("a word of native code", *["x"] * 5000, sep="\\n", flush=True)
deep = "def runs(depth): return runs(depth - 1) if depth else os.abort()"
exec(compile(deep, "/packages/_pytest/runner.py", "exec"))
runs(40)
"""


@pytest.mark.parametrize(
    ("code", "end", "first", "lines"),
    [
        (CRASH, "was ended by signal 6 (Aborted)", "Fatal Python error: Aborted", 4),
        ("print(*range(1000), sep='\\n'); raise SystemExit(3)", "ended with exit code 3", "970", 30),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9 (Killed)", None, 0),
    ],
    ids=["native code crashed", "it ended itself", "it was killed"],
)
def test_the_summary_ends_with_the_last_words_of_a_pytest_that_left_no_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: str,
    end: str,
    first: str | None,
    lines: int,
) -> None:
    steps = {"one": [Step("tests with servers", python(code)), Step("after", OK)]}
    monkeypatch.setattr(checks, "fast_lanes", lambda root: steps)
    assert run_checks(tmp_path, ["--fast"]) == 1
    _before, found, words = capfd.readouterr().out.partition(f"\ntests with servers {end} and named no test. ")
    assert found
    told = [line.strip() for line in words.splitlines()[1:]]
    assert told[0] == first if first else not told
    assert len(told) == lines, told


@pytest.mark.parametrize(
    ("arguments", "command", "kept"),
    [
        (["--all"], passing_again("a"), {FILE: Duration(1.5, 0.5), "tests": Duration(0.0)}),
        (["--all"], failing(f"{FILE}::b", passing=False), {}),
        ([], passing_again("a"), {}),
    ],
    ids=["both tiers", "a red run", "the first tier alone"],
)
def test_a_green_run_of_both_tiers_stores_the_durations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: list[str], kept: dict[str, Duration]
) -> None:
    (tmp_path / DURATIONS).parent.mkdir()
    monkeypatch.setattr(checks, "runs_folder", lambda: tmp_path / "runs")
    monkeypatch.setattr(checks.Turn, "take", lambda *arguments: checks.Turn(os.open(os.devnull, os.O_RDONLY)))
    monkeypatch.setattr(checks, "lanes", lambda root, everything: {"one": [Step("tests", command)]})
    run_checks(tmp_path, arguments)
    assert read_durations(tmp_path) == kept


def test_a_fast_run_takes_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "fast_lanes", lambda root: {"one": [Step("unit", OK)]})
    monkeypatch.setattr(checks.Turn, "take", lambda *arguments: pytest.fail("it starts no server"))
    assert run_checks(tmp_path, ["--fast"]) == 0


def test_pytest_alone_ends_with_its_own_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PYTEST", (*python("import sys; sys.exit(int(sys.argv[1]))"),))
    assert run_checks(tmp_path, ["5"]) == 5
