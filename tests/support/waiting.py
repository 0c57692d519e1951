"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(condition: Callable[[], Value | None], *, within: float = 10.0, every: float = 0.05) -> Value:
    """What `condition` returns once that is true.

    Raises:
        AssertionError: it was not true `within` seconds.
    """
    deadline = time.monotonic() + within
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within} s: {condition}")
        time.sleep(every)
