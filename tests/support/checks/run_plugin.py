"""What makes pytest's run a run with a folder: nothing stays when it ends, its logs stay when it fails.

Everything a run makes lies in its folder, pytest's temporary folders too. A run that is told to end tidies up; what one
that was killed has left is ended by its keeper, or else by the next run. Runs that start servers wait for each other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.checks.turn import VARIABLE as TURN_VARIABLE
from millrace.cli.checks.turn import Turn
from millrace.errors import RefusedError
from support.checks import runs
from support.checks.kept_logs import Logs
from support.stack.embedded import failed_starts
from support.waiting import longest_waits

LOGS = pytest.StashKey[Logs]()
TURN = pytest.StashKey[Turn]()
TURN_FIXTURE = "turn"
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


def take_turn(config: pytest.Config) -> None:
    """Wait until this run may start servers, unless it may already, or its caller has waited for it."""
    if TURN in config.stash or TURN_VARIABLE in os.environ:
        return
    who = f"pytest {' '.join(config.invocation_params.args)}"
    capturing = config.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        with capturing.global_and_fixture_disabled():
            print(line, flush=True)

    try:
        config.stash[TURN] = Turn.take(config.stash[LOGS].run.parent, who, tell)
    except RefusedError as error:
        pytest.exit(str(error), returncode=RefusedError.exit_code)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first test, so that no test's own deadline runs meanwhile."""
    if session.config.option.collectonly:
        return
    if any(TURN_FIXTURE in getattr(item, "fixturenames", ()) for item in session.items):
        take_turn(session.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOGS in config.stash and (left := runs.close_run(config.stash[LOGS].run)):
        print(f"ended {left} processes that tests had left", flush=True)
    if turn := config.stash.get(TURN, None):
        turn.give_back()


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
    if failed_starts:
        terminalreporter.section("parts that did not start at the first try")
        for reason in failed_starts:
            terminalreporter.write_line(reason)
    if longest_waits:
        terminalreporter.section("longest waits")
        for deadline, longest in sorted(longest_waits.items(), key=lambda entry: entry[0].name):
            line = f"{deadline.name:<10} {longest.seconds:6.1f} s of {deadline.seconds:4.0f}  {longest.what}"
            terminalreporter.write_line(line)
