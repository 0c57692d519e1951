"""Holds the first tier of tests to `tests/budget.toml`: the test that goes over its capability's budget fails.

A test marked `full` is of the second tier, and what it spends is counted for nobody. The same holds for a benchmark and
for a repeat, `./millrace test --repeat N`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checks.budget import BudgetError, Kind, Ledger, close_ledger, open_ledger, read_budget
from support.checks.driver_starts import DriverStarts
from support.checks.run_plugin import TURN_FIXTURE
from support.checks.runs import RUN_VARIABLE
from support.checks.tiers_plugin import SECOND_TIER
from support.drills.plain_table import table

BENCHMARKS = "bench"

LEDGER = pytest.StashKey[Ledger]()
STARTS = pytest.StashKey[DriverStarts]()


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[LEDGER] = Ledger(read_budget(config.rootpath / "tests"))
    except BudgetError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[STARTS] = DriverStarts(Path(os.environ[RUN_VARIABLE]))
    open_ledger(config.stash[LEDGER])


def pytest_unconfigure(config: pytest.Config) -> None:
    if LEDGER in config.stash:
        close_ledger(config.stash[LEDGER])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    ledger = item.config.stash[LEDGER]
    file = os.path.relpath(item.path, item.config.rootpath / "tests")
    repeated = item.config.getoption("count", 1) > 1  # by pytest-repeat
    exempt = repeated or item.get_closest_marker(SECOND_TIER) is not None or Path(file).parts[0] == BENCHMARKS
    ledger.begin(item.nodeid, file, exempt=exempt)
    try:
        return (yield)
    finally:
        ledger.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After everything that the test's fixtures do at their end."""
    ledger = item.config.stash[LEDGER]
    try:
        answer = yield
    finally:
        everywhere = TURN_FIXTURE in getattr(item, "fixturenames", ()) or ledger.has_spent
        ledger.spend(Kind.DRIVER_STARTS, item.config.stash[STARTS].new_ones(everywhere=everywhere))
    if complaint := ledger.complaint():
        pytest.fail(complaint, pytrace=False)
    return answer


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    spent = config.stash[LEDGER].spent
    if spent:
        rows = [
            [capability.name]
            + [f"{kinds[kind].total()}/{capability.allowed[kind]}" if kind in kinds else "" for kind in Kind]
            for capability, kinds in spent.items()
        ]
        terminalreporter.section("budget")
        title = "spent and allowed, by capability; only the first tier's tests count"
        columns = ["capability", *(kind.value for kind in Kind)]
        terminalreporter.write_line(table(title, columns, rows).lstrip("\n"))
