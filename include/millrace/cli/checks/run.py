"""What `./millrace test` runs: linter, formatter, type checker and tests, side by side, with one summary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from millrace import ROOT_VARIABLE
from millrace.cli.checks.lanes import EVERYTHING, PYTEST, SHOWN, Step, fast_lanes, lanes, write_durations
from millrace.cli.checks.repeat import REPEAT, busy_loops, repeated
from millrace.cli.checks.second_try import REPORT_VARIABLE, Duration, Report, circumstances, told, worth_a_second_try
from millrace.cli.checks.turn import VARIABLE as TURN_VARIABLE
from millrace.cli.checks.turn import Turn, runs_folder

AIM = timedelta(minutes=12)
"""What a change may take to be judged; longer is told, and fails nothing."""

FAST = "--fast"
"""Runs what needs no server."""

NOT_RUN = 127
"""The exit code of a check that could not be run, as a shell has it."""

_WIDTH = 28
"""Characters of a name in the summary."""
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS = timedelta(seconds=10)
_CRASHED = "Fatal Python error"
"""Python writes this, and then its stacks, when native code crashes."""
_FRAMES_OF_PYTEST = ("/_pytest/", "/pluggy/", "<frozen ")
"""Stack frames that are left out: each test has dozens of them."""
_LINES = 30
"""The most lines of output that the summary repeats for a check without a report of failures."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended.

    Attributes:
        name: the step's.
        exit_code: the process's; negative is the signal that ended it.
        seconds: how long it took.
        interrupted: whether the run was told to end meanwhile.
        report: what a pytest leaves; one that crashed or was killed leaves none.
        words: the last lines of its output, or the first lines of its crash; empty for a check outside a lane.
    """

    name: str
    exit_code: int
    seconds: float
    interrupted: bool
    report: Report | None = None
    words: Sequence[str] = ()


def run_checks(root: Path, arguments: Sequence[str]) -> int:
    """Run all checks. Other arguments than `--all`, `--fast` and `--repeat` go to pytest, which then runs alone.

    On SIGTERM, Ctrl-C or a closed terminal it lets the running checks clean up, and starts no other.

    Args:
        root: the project.
        arguments: nothing for the first tier; `--all` for both tiers, which stores the durations when all is well;
            `--fast` for what needs no server; `--repeat N PATH...` for these tests N times beside busy loops; else
            pytest's arguments.

    Returns:
        0 when all are fine, what pytest ended with when it was pytest alone, else 1.

    Raises:
        RefusedError: the machine has too little memory for a whole run.
        UsageError: `--repeat` has no number or no path.
    """
    chosen = list(arguments)
    if chosen == [FAST]:
        return _run_lanes(Run(root), fast_lanes(root))
    if chosen and chosen[0] == REPEAT:
        return _repeat(root, repeated(root, chosen[1:]))
    if chosen and chosen != [EVERYTHING]:
        with Run(root).begun() as run:
            first = run.step(Step("pytest", [*PYTEST, *arguments]))
            return run.exit_code_after_second_try([first])
    turn = Turn.take(runs_folder(), "./millrace test", lambda line: print(line, flush=True))
    try:
        return _run_lanes(Run(root, turn), lanes(root, everything=bool(chosen)), keep_durations=bool(chosen))
    finally:
        turn.give_back()


def _repeat(root: Path, step: Step) -> int:
    """Run a pytest beside busy loops, without a second try: a repeat finds what fails now and then."""
    with Run(root).begun() as run, busy_loops() as loops:
        outcome = run.step(step)
        if any(loop.poll() is not None for loop in loops):
            _say("", "a busy loop ended before the tests did: repeat fewer tests, or fewer times")
    return outcome.exit_code or int(outcome.interrupted)


def _run_lanes(made: Run, steps: Mapping[str, Sequence[Step]], *, keep_durations: bool = False) -> int:
    began = time.monotonic()
    with made.begun() as run:
        outcomes = run.lanes(steps)
        exit_code = run.exit_code_after_second_try(outcomes)
    print_summary(outcomes, timedelta(seconds=time.monotonic() - began), fine=exit_code == 0)
    if exit_code == 0 and keep_durations:
        write_durations(made.root, _durations(outcomes) | _of_steps(outcomes))
    return 0 if exit_code == 0 else 1


def _durations(outcomes: Sequence[Outcome]) -> dict[str, Duration]:
    """Return how long each test file took, by its path."""
    return {file: took for outcome in outcomes if outcome.report for file, took in outcome.report.files.items()}


def _of_steps(outcomes: Sequence[Outcome]) -> dict[str, Duration]:
    """Return how long each step took beyond its tests, by its name: pytest imports, collects and ends its servers."""
    return {outcome.name: Duration(max(0.0, outcome.seconds - _seconds_of_tests(outcome))) for outcome in outcomes}


def _seconds_of_tests(outcome: Outcome) -> float:
    files = outcome.report.files.values() if outcome.report else ()
    return sum(took.seconds(everything=True) for took in files)


def print_summary(outcomes: Sequence[Outcome], took: timedelta, *, fine: bool) -> None:
    """Print how each check ended, its failures by name, and of each folder of tests how many ran for how long."""
    print("\nsummary")
    for outcome in outcomes:
        failed = "ok at the second try" if fine else "FAILED"
        word = failed if outcome.exit_code or outcome.interrupted else "ok"
        print(f"  {word:<6}  {outcome.name:<{_WIDTH}} {outcome.seconds:6.1f} s")
        for failure in outcome.report.failures if outcome.report and not fine else ():
            print(f"          {failure.test}\n            {circumstances(failure)}  {failure.error}")
    folders: dict[str, Duration] = {}
    for file, duration in _durations(outcomes).items():
        folder = file.rpartition("/")[0]
        folders[folder] = folders.get(folder, Duration()) + duration
    for name, spent in sorted(folders.items()):
        print(f"          {name:<{_WIDTH}} {spent.seconds(everything=True):6.1f} s  {spent.tests} tests")
    print(f"          {'all together':<{_WIDTH}} {took.total_seconds():6.1f} s")
    for outcome in outcomes:
        if outcome.exit_code and not (outcome.report and outcome.report.failures):
            print(f"{outcome.name} {_end(outcome.exit_code)} and named no test. Its last words:")
            for line in outcome.words:
                _say("", f"  {line}")
    if took > AIM:
        print(f"it took longer than the {AIM.total_seconds() / 60:.0f} minutes that a change may take to be judged")


def _end(exit_code: int) -> str:
    if exit_code > 0:
        return f"ended with exit code {exit_code}"
    return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"


@dataclass
class Run:
    """The checks at work, and the signals that tell all of them to end."""

    root: Path
    turn: Turn | None = None
    _received: list[int] = field(default_factory=list)
    _at_work: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _reports: Path = field(default_factory=Path)

    @contextmanager
    def begun(self) -> Iterator[Run]:
        """Note signals instead of dying of them: checks may have servers to stop.

        A terminal sends Ctrl-C, and its own end, to all, so only SIGTERM is passed on: a second signal would cut the
        tidying short.
        """
        heeded = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
        former = {number: signal.signal(number, self._note) for number in heeded}
        try:
            with tempfile.TemporaryDirectory(prefix="millrace-reports-") as reports:
                self._reports = Path(reports)
                yield self
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self._received.append(number)
        if number == signal.SIGTERM:
            for process in tuple(self._at_work):
                process.send_signal(number)

    def lanes(self, lanes: Mapping[str, Sequence[Step]]) -> list[Outcome]:
        """Run lanes side by side, each line of theirs with its lane's name; a lane ends with the first interruption."""
        outcomes: dict[str, list[Outcome]] = {name: [] for name in lanes}

        def go(name: str) -> None:
            for step in lanes[name]:
                began = time.monotonic()
                try:
                    outcome = self.step(step, lane=name)
                except Exception as error:  # a check that could not be run is a check that failed
                    _say(name, f"{step.name} could not be run: {error!r}")
                    outcome = Outcome(step.name, NOT_RUN, time.monotonic() - began, bool(self._received))
                outcomes[name].append(outcome)
                if self._received:
                    break

        threads = [threading.Thread(target=go, args=(name,), name=name) for name in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [outcome for ended in outcomes.values() for outcome in ended]

    def step(self, step: Step, *, lane: str = "") -> Outcome:
        """Run one check to its end."""
        _say(lane, f"--- {step.name}")
        began = time.monotonic()
        report = self._reports / f"{time.monotonic_ns()}.json"
        variables = _environment() | {REPORT_VARIABLE: str(report)}
        passed: tuple[int, ...] = ()
        if self.turn:
            variables[TURN_VARIABLE] = str(self.turn.descriptor)
            passed = (self.turn.descriptor,)
        output = subprocess.PIPE if lane else None
        process = subprocess.Popen(
            step.command,
            cwd=self.root,
            env=variables,
            pass_fds=passed,
            stdout=output,
            stderr=subprocess.STDOUT if lane else None,
        )
        self._at_work.add(process)
        try:
            if signal.SIGTERM in self._received:  # it came while the check was being started
                process.send_signal(signal.SIGTERM)
            words = _Words()
            reading = _read_aloud(process, lane, words) if lane else None
            code = process.wait()
            if reading:  # what a process that was left behind still writes is not waited for
                reading.join(_LAST_WORDS.total_seconds())
        finally:
            self._at_work.discard(process)
        seconds, interrupted = time.monotonic() - began, bool(self._received)
        return Outcome(step.name, code, seconds, interrupted, Report.read(report), words.kept())

    def exit_code_after_second_try(self, outcomes: Sequence[Outcome]) -> int:
        """0 when all ended well, at the second try too; else the exit code of the first that did not."""
        ends = [outcome.exit_code for outcome in outcomes]
        if self._received:
            return next((code for code in ends if code), 1)
        tests = [(outcome.exit_code, outcome.report) for outcome in outcomes if outcome.report or not outcome.exit_code]
        others = [code for code, outcome in zip(ends, outcomes, strict=True) if code and outcome.report is None]
        failures = [] if others else worth_a_second_try(tests)
        if not failures:
            return next((code for code in ends if code), 0)
        names = [failure.test for failure in failures]
        second = self.step(Step("second try", [*PYTEST, *SHOWN, *names]))
        for line in told(failures, second.report):
            _say("", line)
        passed = second.report is not None and set(names) <= set(second.report.passed)
        return second.exit_code or int(second.interrupted or not passed)


class _Words:
    """Keeps the last lines of an output, or the first lines of a crash in it."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=_LINES)
        self._crash: list[str] = []

    def add(self, line: str) -> None:
        self._last.append(line)
        crashed = bool(self._crash) or _CRASHED in line
        if crashed and len(self._crash) < _LINES and not any(part in line for part in _FRAMES_OF_PYTEST):
            self._crash.append(line)

    def kept(self) -> Sequence[str]:
        return list(self._crash or self._last)


def _read_aloud(process: subprocess.Popen[bytes], lane: str, words: _Words) -> threading.Thread:
    def read() -> None:
        assert process.stdout is not None
        for raw in process.stdout:  # to the end in any case: a check that nobody reads stands still
            line = raw.decode("utf-8", "replace").rstrip()
            words.add(line)
            _say(lane, line)

    thread = threading.Thread(target=read, name=f"{lane} output", daemon=True)
    thread.start()
    return thread


def _say(lane: str, line: str) -> None:
    """One line in one write: lanes write at the same time. Where nobody listens any more, the exit code still tells."""
    text = f"{lane:<7} | {line}\n" if lane else f"{line}\n"
    encoding = sys.stdout.encoding or "utf-8"
    with suppress(OSError, ValueError):
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()


def _environment() -> dict[str, str]:
    """The caller's environment without what would point tests at a real stack, or make them compile what they import.

    Tests start hundreds of Python processes. Without bytecode on disk each of them compiles its imports again: 10 s for
    Great Expectations, 3 s for Airflow.
    """
    away = (
        "AIRFLOW_",
        ROOT_VARIABLE,
        "MILLRACE_LAUNCH",
        "MILLRACE_ENVIRONMENT",
        "PYTHONPATH",
        "PYTHONDONTWRITEBYTECODE",
        TURN_VARIABLE,
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(away)}
    return kept | {"PYTHONUNBUFFERED": "1"}
