"""What a failed run leaves to read: the logs of its servers and apps, and the ends of those that matter.

A run's folder goes with the run, so the logs are copied to `.millrace/test-logs` of the checkout. What was wrong at the
moment of a failure is looked up then: a test's servers and apps are stopped right after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.adapters.apps.runners.guard import last_lines
from millrace.embedded.stack import PARTS, Stack
from support.checks.runs import PYTEST, STACKS
from support.stack.embedded import CHECKOUT
from support.waiting import Deadline, in_time

FOLDER_VARIABLE = "MILLRACE_TEST_LOGS"
KEPT_RUNS = 5
MOST_BYTES = 8 * 1024**2
MOST_LOOKS = 10
LINES = 60
STREAM_LOGS = ".millrace/streams/*/*/driver.log"
KINDS = (
    f"{STACKS}/*/.millrace/logs/*.log*",
    f"{STACKS}/*/.millrace/airflow/logs/**/*.log",
    f"{STACKS}/*/{STREAM_LOGS}",
    f"{STACKS}/*/*.log",
    f"{PYTEST}/**/{STREAM_LOGS}",
    f"{PYTEST}/**/.millrace/logs/*.log*",
)
APP_KINDS = KINDS[2:5]


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
    _looks: int = 0

    def test_begins(self) -> None:
        """Apps that write from now on are the next test's."""
        self._began = time.time()

    def test_failed(self, test: str) -> None:
        """Look at each server that is not healthy and at each app that wrote during the test; a log is shown once."""
        try:
            shown = {tail.log for tail in self.tails}
            self._looks += 1
            servers = self._sick_servers() if self._looks <= MOST_LOOKS else ()  # each is asked anew, and may be away
            for of, log in (*servers, *self._apps_of_test()):
                if log not in shown:
                    self.tails.append(Tail(test, of, log, last_lines(log, LINES)))
        except Exception:  # it must not end the run that it reports on
            self.tails.append(Tail(test, "the look at its logs failed", self.run, traceback.format_exc().splitlines()))

    def _sick_servers(self) -> Iterator[tuple[str, Path]]:
        for root in sorted((self.run / STACKS).glob("*")):
            stack = Stack(root)
            for status in in_time(stack.status, within=Deadline.SERVER, what=f"the state of {root}"):
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
        try:
            return self._keep()
        except Exception:  # what failed must still be told
            traceback.print_exc()
            return None

    def _keep(self) -> Path | None:
        kept = kept_folder()
        folder = kept / self.run.name
        for log in self._all():
            parts = [part for part in log.relative_to(self.run).parts if part != ".millrace"]
            copy = folder.joinpath(*parts)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError), log.open("rb") as source:  # rotated or removed meanwhile
                source.seek(max(0, log.stat().st_size - MOST_BYTES))
                copy.write_bytes(source.read(MOST_BYTES))
        if not folder.exists():
            return None
        kept.chmod(0o700)
        runs = sorted(kept.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in runs[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def _all(self) -> Iterator[Path]:
        for kind in KINDS:
            with contextlib.suppress(FileNotFoundError):  # what still runs removes folders while we look
                yield from self.run.glob(kind)


def kept_folder() -> Path:
    """Where the logs of failed runs are kept; another place for the runs that a test makes."""
    return Path(os.environ.get(FOLDER_VARIABLE) or CHECKOUT / ".millrace" / "test-logs")
