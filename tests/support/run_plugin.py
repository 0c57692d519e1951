"""What makes pytest's run a run with a folder: nothing stays when it ends, its logs stay when it fails.

Everything a run makes lies in its folder, pytest's temporary folders too. A run that is told to end tidies up; what one
that was killed has left is ended by the next.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import runs
from support.kept_logs import Logs
from support.waiting import longest_waits

LOGS = pytest.StashKey[Logs]()
KEPT = pytest.StashKey[Path | None]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before pytest chooses its temporary folder."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt_once)
    for forgotten in runs.forgotten_runs():
        kept = Logs(forgotten).keep()
        left = runs.close_run(forgotten)
        print(f"{forgotten}: a run that was killed; ended {left} processes it had left, its logs: {kept}", flush=True)
    folder = runs.open_run()
    config.stash[LOGS] = Logs(folder)
    config.option.basetemp = config.option.basetemp or str(folder / runs.PYTEST)


def _interrupt_once(number: int, _frame: object) -> None:
    """Tidy up like after Ctrl-C; the same signal once more, as a process group gets it, does not cut that short."""
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOGS in config.stash and (left := runs.close_run(config.stash[LOGS].run)):
        print(f"ended {left} processes that tests had left", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.config.stash[LOGS].test_begins()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc,assignment]
    if report.failed:
        item.config.stash[LOGS].test_failed(item.nodeid)
    return report  # type: ignore[return-value]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    failed = exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    session.config.stash[KEPT] = session.config.stash[LOGS].keep() if failed else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for tail in config.stash[LOGS].tails:
        terminalreporter.section(f"{tail.test}: {tail.of}")
        terminalreporter.write_line(str(tail.log))
        for line in tail.lines:
            terminalreporter.write_line(f"  {line}")
    if kept := config.stash.get(KEPT, None):
        terminalreporter.section("logs of the failed run")
        terminalreporter.write_line(str(kept))
    if longest_waits:
        terminalreporter.section("longest waits")
        for deadline, longest in sorted(longest_waits.items(), key=lambda entry: entry[0].name):
            line = f"{deadline.name:<10} {longest.seconds:6.1f} s of {deadline.seconds:4.0f}  {longest.what}"
            terminalreporter.write_line(line)
