"""The report of a pytest for `millrace test`: its failures, which of them may be tried again, the seconds by file.

May be: tests of `integration/` that failed because a wait ran out or a server could not be reached. Never: an
assertion, a count, an exit code, nor a wait for what a stream does, which is how tests count its rows; a drill, a
mutant, a contract, which are about exactly that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.checks.second_try import REPORT_VARIABLE, Duration, Failure, Report
from millrace.cli.checks.turn import available_gb
from millrace.errors import UnreachableError
from support.checks.tiers_plugin import SECOND_TIER
from support.waiting import Deadline, DeadlinePassedError

FOLDER_OF_SECOND_TRIES = "tests/integration/"
PASSING = (subprocess.TimeoutExpired, UnreachableError, ConnectionError, TimeoutError)
PASSING_OF_CLIENTS = {
    "httpx.TransportError": True,
    "playwright._impl._errors.TimeoutError": True,
    "psycopg.OperationalError": False,
    "urllib.error.URLError": False,
}
"""Of libraries that few tests import: the type's full name, and whether types below it count too."""
PASSING_KAFKA_CODES = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "REQUEST_TIMED_OUT")


class Reporter:
    """Collects while tests run, and writes at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: dict[str, Failure] = {}
        self._passed: set[str] = set()
        self._files: dict[str, Duration] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[misc,assignment]
        if report.failed:
            self._failed(item.nodeid, call.excinfo.value if call.excinfo else None)
        return report  # type: ignore[return-value]

    def _failed(self, test: str, error: BaseException | None) -> None:
        passing = test.startswith(FOLDER_OF_SECOND_TRIES) and error is not None and is_passing(error)
        former = self._failures.get(test)  # its teardown failed too
        first = former.error if former else _first_line(error)
        passing = passing and (former is None or former.passing)
        self._failures[test] = Failure(test, first, passing, round(os.getloadavg()[0], 1), round(available_gb(), 1))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed(report.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        tier = {"second" if SECOND_TIER in report.keywords else "first": report.duration}
        self._files[file] = self._files.get(file, Duration()) + Duration(**tier, tests=int(report.when == "setup"))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        failures = list(self._failures.values())
        if session.shouldfail or session.shouldstop:  # what was not run cannot be judged by what was
            failures = [Failure(one.test, one.error, False, one.load, one.free_gb) for one in failures]
        passed = sorted(self._passed - set(self._failures))
        Report(failures, passed, self._files).write(self._path)


def is_passing(error: BaseException) -> bool:
    """Whether an error says that something did not come in time, or that a server could not be reached."""
    if isinstance(error, DeadlinePassedError):
        return error.within not in (Deadline.STREAM, Deadline.LONG)
    if isinstance(error, PASSING):
        return True
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if names[0] == "cimpl.KafkaException":
        code = error.args[0]
        return code.name() in PASSING_KAFKA_CODES
    return names[0] in PASSING_OF_CLIENTS or any(PASSING_OF_CLIENTS.get(name, False) for name in names)


def _first_line(error: BaseException | None) -> str:
    text = f"{type(error).__name__}: {error}" if error else "no error is known"
    return text.strip().splitlines()[0][:300]


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.pop(REPORT_VARIABLE, None):  # what tests start are other runs
        config.pluginmanager.register(Reporter(Path(path)), "millrace-report")
