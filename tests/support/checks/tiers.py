"""How much a test tries: all of it with `--all`, a third in the first tier."""

from __future__ import annotations

import os
from datetime import UTC, datetime

SHARE = 3
"""The first tier tries one of so many examples and calls."""

everything = False
"""True where all is tried; `tiers_plugin` sets it before any test file is imported."""

DAY_VARIABLE = "MILLRACE_TEST_DAY"
"""Names a day in place of today, by its number, to try the calls of that day again."""

_day = int(os.environ.get(DAY_VARIABLE) or datetime.now(UTC).toordinal())


def examples(count: int) -> int:
    """Return how many examples a property is tried with.

    Args:
        count: the examples of a run with `--all`.
    """
    return count if everything else -(-count // SHARE)


def every_call(number: int) -> bool:
    """Choose each call of a walk."""
    return True


def calls_of_today(number: int) -> bool:
    """Choose each call with `--all`, else every third: another third each day, so that three days choose all.

    Args:
        number: the place of the call, from 1.
    """
    return everything or number % SHARE == _day % SHARE


def told() -> str:
    """Return a line that says how to try the same again."""
    return "every call is tried" if everything else f"a third of the calls is tried, that of {DAY_VARIABLE}={_day}"
