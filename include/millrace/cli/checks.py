"""What `./millrace test` runs: linter, formatter, type checker and all tests, with one summary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TEST_FOLDERS = ("unit", "contract", "dags", "spark", "integration", "drills")
"""In this order; benchmarks run on demand only."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended."""

    name: str
    exit_code: int
    seconds: float
    interrupted: bool


def run_checks(root: Path, pytest_arguments: Sequence[str]) -> int:
    """Run all checks, or pytest alone when it is given arguments; returns 0 when all are fine, else 1.

    Told to end by SIGTERM, Ctrl-C or a closed terminal, it lets the check at hand tidy up and begins no other.
    """
    if pytest_arguments:
        return _run(root, "pytest", [sys.executable, "-m", "pytest", *pytest_arguments]).exit_code
    folders = [f"tests/{name}" for name in TEST_FOLDERS if (root / "tests" / name).is_dir()]
    commands = {
        "ruff check": [sys.executable, "-m", "ruff", "check", "."],
        "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
        "mypy": [sys.executable, "-m", "mypy"],
        "pytest": [sys.executable, "-m", "pytest", "-ra", "--durations=10", *folders],
    }
    outcomes = []
    for name, command in commands.items():
        outcomes.append(_run(root, name, command))
        if outcomes[-1].interrupted:
            break
    print("\nsummary")
    for outcome in outcomes:
        print(f"  {'ok    ' if outcome.exit_code == 0 else 'FAILED'}  {outcome.name:<12} {outcome.seconds:6.1f} s")
    fine = len(outcomes) == len(commands) and all(one.exit_code == 0 and not one.interrupted for one in outcomes)
    return 0 if fine else 1


def _run(root: Path, name: str, command: Sequence[str]) -> Outcome:
    """Run one check to its end, which a signal leaves to the check: it may have servers to stop.

    A terminal sends Ctrl-C, and its own end, to both, so only SIGTERM is passed on: a second signal would cut the
    tidying short.
    """
    print(f"--- {name}", flush=True)
    began = time.monotonic()
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def note(number: int, _frame: object) -> None:
        received.append(number)
        if process is not None and number == signal.SIGTERM:
            process.send_signal(number)

    heeded = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, note) for number in heeded}
    try:
        process = subprocess.Popen(command, cwd=root, env=_environment())
        if signal.SIGTERM in received:  # it came while the check was being started
            process.send_signal(signal.SIGTERM)
        code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return Outcome(name, code, time.monotonic() - began, bool(received))


def _environment() -> dict[str, str]:
    """The caller's environment without what would point tests at a real stack."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "MILLRACE_ROOT", "MILLRACE_LAUNCH", "MILLRACE_ENVIRONMENT", "PYTHONPATH"))
    }
