"""The second try of tests that failed because something did not come in time: both outcomes are told, one is judged.

What may be tried again the test run itself says, in the report it leaves: it alone knows the kind of each failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPORT_VARIABLE = "MILLRACE_TEST_REPORT"
"""Names the file into which a pytest writes its report at its end."""

MOST_TESTS = 3
TESTS_FAILED = 1
"""How pytest ends when tests failed and nothing else was wrong."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, and the machine at that moment.

    Attributes:
        test: its pytest node id.
        error: the first error's first line.
        passing: whether it failed because a wait ran out or a server could not be reached, in a test of which this may
            be tried again.
        load: processes at work or waiting for a processor, the last minute's average.
        free_gb: available memory, 10^9 bytes.
    """

    test: str
    error: str
    passing: bool
    load: float
    free_gb: float


@dataclass(frozen=True, slots=True)
class Duration:
    """The seconds of a test file, fixtures included.

    Attributes:
        first: seconds of its tests of the first tier.
        second: seconds of its tests of the second tier.
        tests: how many tests ran.
    """

    first: float = 0.0
    second: float = 0.0
    tests: int = 0

    def seconds(self, *, everything: bool) -> float:
        """Return the seconds of a run, with or without the second tier."""
        return self.first + self.second if everything else self.first

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.first + other.first, self.second + other.second, self.tests + other.tests)


@dataclass(frozen=True, slots=True)
class Report:
    """What one pytest says of its run.

    Attributes:
        failures: tests that failed, and files that could not be collected.
        passed: tests that ran and passed; one that was skipped, or never ran, is not among them.
        files: how long each file's tests ran, by its path relative to the project.
    """

    failures: Sequence[Failure] = ()
    passed: Sequence[str] = ()
    files: Mapping[str, Duration] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Report | None:
        """The report at a path; None where pytest came to no end that it could report."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        failures = [Failure(**entry) for entry in document["failures"]]
        files = {name: Duration(**entry) for name, entry in document["files"].items()}
        return cls(failures, document["passed"], files)

    def write(self, path: Path) -> None:
        """Store the report, whole or not at all."""
        failures = [asdict(one) for one in self.failures]
        files = {name: asdict(duration) for name, duration in self.files.items()}
        draft = path.with_name(f"{path.name}.draft")
        document = {"failures": failures, "passed": list(self.passed), "files": files}
        draft.write_text(json.dumps(document), encoding="utf-8")
        draft.replace(path)


def worth_a_second_try(ends: Sequence[tuple[int, Report | None]]) -> list[Failure]:
    """The failures to try again: all there are, if each may be and they are few; else none.

    Args:
        ends: exit code and report of each pytest of a run.
    """
    failures: list[Failure] = []
    for exit_code, report in ends:
        if exit_code == 0:
            continue
        if exit_code != TESTS_FAILED or report is None or not report.failures:
            return []
        failures += report.failures
    if len(failures) > MOST_TESTS or not all(failure.passing for failure in failures):
        return []
    return failures


def told(failures: Sequence[Failure], report: Report | None) -> list[str]:
    """The lines that tell both tries of each test."""
    again = {failure.test: failure for failure in report.failures} if report else {}
    passed = set(report.passed) if report else set()
    lines = ["", "second try of tests whose wait ran out or whose server could not be reached"]
    for first in failures:
        lines.append(f"  {first.test}")
        lines.append(f"    first   FAILED  {circumstances(first)}  {first.error}")
        if second := again.get(first.test):
            lines.append(f"    second  FAILED  {circumstances(second)}  {second.error}")
        else:
            lines.append(
                "    second  passed" if first.test in passed else "    second  FAILED  it was not run to its end"
            )
    return lines


def circumstances(failure: Failure) -> str:
    """The machine when a test failed, in a few words."""
    return f"load {failure.load:4.1f}, {failure.free_gb:4.1f} GB free"
