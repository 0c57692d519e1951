"""What `./millrace test` runs: linter, formatter, type checker and all tests, with one summary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TEST_FOLDERS = ("unit", "contract", "dags", "spark", "integration", "drills")
"""In this order; benchmarks run on demand only."""

NO_TESTS_FOUND = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended."""

    name: str
    exit_code: int
    seconds: float


def run_checks(root: Path, pytest_arguments: Sequence[str]) -> int:
    """Run all checks, or pytest alone when it is given arguments; returns 0 when all are fine, else 1."""
    if pytest_arguments:
        return _run(root, "pytest", [sys.executable, "-m", "pytest", *pytest_arguments]).exit_code
    folders = [f"tests/{name}" for name in TEST_FOLDERS if (root / "tests" / name).is_dir()]
    commands = {
        "ruff check": [sys.executable, "-m", "ruff", "check", "."],
        "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
        "mypy": [sys.executable, "-m", "mypy"],
        "pytest": [sys.executable, "-m", "pytest", "-ra", "--durations=10", *folders],
    }
    outcomes = [_run(root, name, command) for name, command in commands.items()]
    print("\nsummary")
    for outcome in outcomes:
        print(f"  {'ok    ' if outcome.exit_code == 0 else 'FAILED'}  {outcome.name:<12} {outcome.seconds:6.1f} s")
    return 0 if all(outcome.exit_code == 0 for outcome in outcomes) else 1


def _run(root: Path, name: str, command: Sequence[str]) -> Outcome:
    print(f"--- {name}", flush=True)
    began = time.monotonic()
    done = subprocess.run(command, cwd=root, env=_environment(), check=False)
    return Outcome(name, done.returncode, time.monotonic() - began)


def _environment() -> dict[str, str]:
    """The caller's environment without what would point tests at a real stack."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "MILLRACE_ROOT", "MILLRACE_LAUNCH", "MILLRACE_ENVIRONMENT", "PYTHONPATH"))
    }
