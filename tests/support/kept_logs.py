"""What a failed run leaves to read: the logs of its servers and apps, and the ends of those that matter.

A run's folder goes with the run, so the logs are copied to `.millrace/test-logs` of the checkout. What was wrong at the
moment of a failure is looked up then: a test's servers and apps are stopped right after it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.adapters.process_guard import last_lines
from millrace.embedded.stack import PARTS, Stack
from support.runs import PYTEST, STACKS
from support.stack import CHECKOUT

FOLDER = CHECKOUT / ".millrace" / "test-logs"
KEPT_RUNS = 5
LINES = 60
STREAM_LOGS = ".millrace/streams/*/*/driver.log"
KINDS = (
    f"{STACKS}/*/.millrace/logs/*.log*",
    f"{STACKS}/*/.millrace/airflow/logs/**/*.log",
    f"{STACKS}/*/{STREAM_LOGS}",
    f"{STACKS}/*/*.log",
    f"{PYTEST}/**/{STREAM_LOGS}",
)
APP_KINDS = KINDS[2:]


@dataclass
class Tail:
    """The end of one log at the moment a test failed."""

    test: str
    of: str
    log: Path
    lines: list[str]


@dataclass
class Logs:
    """The logs of one run."""

    run: Path
    tails: list[Tail] = field(default_factory=list)
    _began: float = 0.0

    def test_begins(self) -> None:
        """Apps that write from now on are the next test's."""
        self._began = time.time()

    def test_failed(self, test: str) -> None:
        """Look at each server that is not healthy and at each app that wrote during the test; a log is shown once."""
        try:
            shown = {tail.log for tail in self.tails}
            for of, log in (*self._sick_servers(), *self._apps_of_test()):
                if log not in shown:
                    self.tails.append(Tail(test, of, log, last_lines(log, LINES)))
        except Exception:  # it must not end the run that it reports on
            self.tails.append(Tail(test, "the look at its logs failed", self.run, traceback.format_exc().splitlines()))

    def _sick_servers(self) -> Iterator[tuple[str, Path]]:
        for root in sorted((self.run / STACKS).glob("*")):
            stack = Stack(root)
            for status in stack.status():
                if status.healthy or (status.programs and all(one.state == "STOPPED" for one in status.programs)):
                    continue  # the second is a part that no test has asked for
                for program in PARTS[status.name].program_names:
                    log = stack.layout.log_file(program)
                    # without a supervisor nothing tells a stack that a test stopped from one that fell
                    if log.exists() and (status.programs or log.stat().st_mtime >= self._began):
                        yield f"{program} ({status.detail})", log

    def _apps_of_test(self) -> Iterator[tuple[str, Path]]:
        for kind in APP_KINDS:
            for log in sorted(self.run.glob(kind)):
                if log.stat().st_mtime >= self._began:
                    yield "app", log

    def keep(self) -> Path | None:
        """Copy what the run has logged so far into the checkout; where it is, None where nothing was logged."""
        folder = FOLDER / self.run.name
        for kind in KINDS:
            for log in self.run.glob(kind):
                parts = [part for part in log.relative_to(self.run).parts if part != ".millrace"]
                copy = folder.joinpath(*parts)
                copy.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # rotated or removed meanwhile
                    shutil.copyfile(log, copy)
        if not folder.exists():
            return None
        runs = sorted(FOLDER.iterdir(), key=lambda kept: kept.stat().st_mtime)
        for old in runs[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        return folder
