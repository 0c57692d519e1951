"""Waits that begin before the test that needs their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")


class Begun(Generic[Waiting]):
    """A slow wait that begins with a module, while other tests run; no two tests get the same one.

    Args:
        begin: begins a wait, and returns what leads to its end.
    """

    def __init__(self, begin: Callable[[], Waiting]) -> None:
        self._begin = begin
        self.untaken = [begin()]

    def take(self) -> Waiting:
        """Return the wait that began with the module, or a new one where a test took that one."""
        return self.untaken.pop() if self.untaken else self._begin()
