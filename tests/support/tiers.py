"""How much a test tries: all of it with `--all`, a third in the first tier."""

from __future__ import annotations

from datetime import UTC, datetime

SHARE = 3
"""The first tier tries one of so many examples and calls."""

everything = False
"""Whether the second tier runs too; `tiers_plugin` sets it before any test file is imported."""

_day = datetime.now(UTC).toordinal()


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
