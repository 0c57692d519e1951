"""What the first tier of tests may spend: counted, not timed, because a count is the same on every machine.

A capability is a name with the test files that belong to it, in `tests/budget.toml`; a file that no entry names is a
capability of its own with the default. Whatever spends something says so by `spend`, and it is put down to the test
that runs now, its fixtures' setup and teardown included: what a module shares is spent by the test that first asks for
it. Nothing is put down for tests of the second tier.

Each pytest counts for itself: where a run is spread over several, all files of a capability belong into the same.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

FILE = "budget.toml"
_OTHER_KEYS = ("tests", "reason")


class Kind(Enum):
    """What costs a test run its time."""

    DRIVER_STARTS = "driver_starts"
    SPARK_SESSIONS = "spark_sessions"
    """Uses of the run's one session in pytest's own process, a module each."""
    DAG_RUNS = "dag_runs"
    """Those that a test asks Airflow for; what Airflow schedules by itself does not count."""
    BROWSER_JOURNEYS = "browser_journeys"
    SERVER_RESTARTS = "server_restarts"
    """Servers and components of Airflow that have to start once more: killed, or stopped and started."""


class BudgetError(Exception):
    """The file does not say what may be spent; names the file and the entry."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"tests/{FILE}: {where}: {what}")


@dataclass(frozen=True)
class Capability:
    """A name with what the tests of its files may spend together."""

    name: str
    allowed: Mapping[Kind, int] = field(hash=False)


@dataclass(frozen=True)
class Budget:
    """What each capability may spend; its files are relative to `tests/`."""

    default: Mapping[Kind, int]
    by_file: Mapping[str, Capability]

    def of(self, file: str) -> Capability:
        """The capability of a test file, by its path relative to `tests/`."""
        return self.by_file.get(file) or Capability(file, self.default)


def read_budget(tests: Path) -> Budget:
    """Read `budget.toml` of a folder of tests.

    Raises:
        BudgetError: it is not there, or something in it is wrong.
    """
    try:
        document = tomllib.loads((tests / FILE).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BudgetError("the file", str(error)) from None
    _refuse_unknown(document, ("default", "capability"), "the file")
    default = _default(_table(document.get("default"), "default"))
    by_file: dict[str, Capability] = {}
    for name, content in _table(document.get("capability", {}), "capability").items():
        where = f"capability.{name}"
        entry = _table(content, where)
        capability = Capability(name, default | _raised(entry, default, where))
        for file in _files(entry.get("tests"), tests, where):
            if file in by_file:
                raise BudgetError(f"{where}.tests", f"{file} belongs to {by_file[file].name} already")
            by_file[file] = capability
    return Budget(default, by_file)


def _default(entry: Mapping[str, Any]) -> dict[Kind, int]:
    _refuse_unknown(entry, [kind.value for kind in Kind], "default")
    for kind in Kind:
        if kind.value not in entry:
            raise BudgetError("default", f"{kind.value} is missing")
    return {Kind(key): _number(value, f"default.{key}") for key, value in entry.items()}


def _raised(entry: Mapping[str, Any], default: Mapping[Kind, int], where: str) -> dict[Kind, int]:
    kinds = [kind.value for kind in Kind]
    _refuse_unknown(entry, [*kinds, *_OTHER_KEYS], where)
    numbers = {Kind(key): _number(value, f"{where}.{key}") for key, value in entry.items() if key in kinds}
    reason = entry.get("reason", "")
    if not isinstance(reason, str) or ("reason" in entry and not reason.strip()):
        raise BudgetError(f"{where}.reason", "must be a text that says why")
    for kind, number in numbers.items():
        if number > default[kind] and not reason:
            raise BudgetError(f"{where}.{kind.value}", f"{number} is above the default {default[kind]}: give a reason")
    return numbers


def _files(names: Any, tests: Path, where: str) -> Sequence[str]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BudgetError(f"{where}.tests", "must list the test files of the capability")
    for name in names:
        if PurePosixPath(name).as_posix() != name or ".." in PurePosixPath(name).parts or not (tests / name).is_file():
            raise BudgetError(f"{where}.tests", f"there is no file tests/{name}")
    return names


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BudgetError(where, "must be a table")
    return value


def _number(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BudgetError(where, f"{value!r} is no whole number from 0")
    return value


def _refuse_unknown(entry: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise BudgetError(f"{where}.{key}", f"is not known here; there are {', '.join(known)}")


@dataclass
class Ledger:
    """What the tests of one pytest have spent so far."""

    budget: Budget
    spent: dict[Capability, dict[Kind, Counter[str]]] = field(default_factory=dict, init=False)
    _test: str = field(default="", init=False)
    _capability: Capability | None = field(default=None, init=False)

    def begin(self, test: str, file: str, *, exempt: bool) -> None:
        """From now on this test is the one that spends; what an exempt one spends is put down for nobody."""
        self._test = test
        self._capability = None if exempt else self.budget.of(file)

    def end(self) -> None:
        """Nobody spends from now on."""
        self._capability = None

    def spend(self, kind: Kind, times: int = 1) -> None:
        """Put something down to the test that runs now."""
        if self._capability and times:
            kinds = self.spent.setdefault(self._capability, {})
            kinds.setdefault(kind, Counter())[self._test] += times

    @property
    def has_spent(self) -> bool:
        """Whether the test that runs now has spent anything so far."""
        kinds = self.spent.get(self._capability, {}) if self._capability else {}
        return any(tests[self._test] for tests in kinds.values())

    def complaint(self) -> str:
        """What the test that runs now has spent that its capability has not; empty where all is well."""
        if not self._capability:
            return ""
        kinds = self.spent.get(self._capability, {})
        over = [
            _told(self._capability, kind, tests)
            for kind, tests in kinds.items()
            if tests[self._test] and tests.total() > self._capability.allowed[kind]
        ]
        if over:
            over.append(
                "Make it spend less, take it into the second tier with `@pytest.mark.full`, or raise the number in "
                f"tests/{FILE} and give the reason there."
            )
        return "\n".join([f"{self._test} is over the budget.", *over]) if over else ""


def _told(capability: Capability, kind: Kind, tests: Counter[str]) -> str:
    lines = [f"{capability.name}: {kind.value}: spent {tests.total()}, allowed {capability.allowed[kind]}:"]
    return "\n".join([*lines, *(f"  {times}  {test}" for test, times in tests.items())])


_open: list[Ledger] = []


def open_ledger(ledger: Ledger) -> None:
    """Make `spend` put down into this ledger."""
    _open.append(ledger)


def close_ledger(ledger: Ledger) -> None:
    """Make it put down no more."""
    _open.remove(ledger)


def spend(kind: Kind, times: int = 1) -> None:
    """Put something down to the test that runs now; nothing happens in a run that counts nothing."""
    for ledger in _open[-1:]:
        ledger.spend(kind, times)
