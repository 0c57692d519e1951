"""Repeat tests on a busy machine: `./millrace test --repeat N PATH...` shows which of them depend on time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from millrace.cli.checks.lanes import PYTEST, SHOWN, Step
from millrace.errors import UsageError

REPEAT = "--repeat"
LOOPS = 2
"""Busy loops beside the tests: as many as the reference machine has processors."""
MOST = 1000
"""How often a test is repeated at most."""
BOUND = timedelta(minutes=30)
"""A busy loop ends after this time in any case."""

_USAGE = (
    "write `./millrace test --repeat N PATH...`, as `./millrace test --repeat 20 tests/unit/cli/checks/test_lanes.py`"
)
_OPTIONS_WITH_VALUE = frozenset(
    {
        *("-k", "-m", "-o", "-p", "-c", "-n", "-r", "-W"),
        *("--basetemp", "--confcutdir", "--deselect", "--ignore", "--ignore-glob", "--junitxml", "--rootdir"),
    }
)
"""The options of pytest that take the next word, which may be the name of a folder. `--option=value` is one word."""
_LOOP = """
import os, sys, time
caller, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while os.getppid() == caller and time.monotonic() < end:
    sum(range(100_000))
"""


def repeated(root: Path, arguments: Sequence[str]) -> Step:
    """Return the one pytest that runs each named test N times.

    Args:
        root: the project; paths are relative to it.
        arguments: what follows `--repeat`: N, then paths and other arguments of pytest.

    Raises:
        UsageError: N is missing or is not a whole number from 1 to 1000, or no path exists.
    """
    text, *others = arguments or [""]
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) else 0
    if not 1 <= count <= MOST:
        found = f"`{text}` is not a whole number from 1 to {MOST}" if text else "the number is missing"
        raise UsageError(f"{REPEAT}: {found}", next_step=_USAGE)
    values = [option in _OPTIONS_WITH_VALUE for option, _ in pairwise(["", *others])]
    words = list(zip(others, values, strict=True))
    if not any(_is_path(root, word) for word, is_value in words if not is_value):
        raise UsageError(f"{REPEAT}: no test file or folder is named", where=str(root), next_step=_USAGE)
    named = [name for word, is_value in words for name in ([word] if is_value else _names(word, count))]
    return Step(f"pytest, {count} times", [*PYTEST, *SHOWN, "--count", str(count), *named])


def _is_path(root: Path, argument: str) -> bool:
    file = argument.partition("::")[0]
    return bool(file) and not file.startswith("-") and (root / file).exists()


def _names(argument: str, count: int) -> list[str]:
    """Return the names that pytest-repeat gives to a test: it appends `1-N` to the parameters in brackets."""
    if count == 1 or "::" not in argument or not argument.endswith("]"):
        return [argument]
    return [f"{argument[:-1]}-{number}-{count}]" for number in range(1, count + 1)]


@contextmanager
def busy_loops(bound: timedelta = BOUND) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that only compute, until the block ends.

    Args:
        bound: a loop ends by itself after this time.

    Guarantees: no loop outlives the block, this process or the bound. A terminal's Ctrl-C does not reach a loop.
    """
    command = [sys.executable, "-I", "-c", _LOOP, str(os.getpid()), str(bound.total_seconds())]
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(LOOPS):
            loops.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        yield loops
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
