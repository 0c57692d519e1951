"""Waiting for a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

Found = TypeVar("Found")


def eventually(
    condition: Callable[[], Found],
    *,
    within: timedelta | float,
    what: str = "a condition",
    every: timedelta = timedelta(milliseconds=100),
    ignoring: tuple[type[Exception], ...] = (),
) -> Found:
    """The first true value of `condition`, asked again and again until `within` (a number is seconds) has passed.

    Raises:
        AssertionError: it was not true in time; says what was waited for and what it met last.
    """
    limit = within if isinstance(within, timedelta) else timedelta(seconds=within)
    deadline = time.monotonic() + limit.total_seconds()
    while True:
        try:
            met: object = (found := condition())
            if found:
                return found
        except ignoring as error:
            met = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit.total_seconds():g} s for {what}; met last: {met!r}")
        time.sleep(every.total_seconds())
