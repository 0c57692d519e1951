"""A life that is disturbed from outside: something happens to its servers just before or after one of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.stack.faults import Life


class DisturbedLife(Life):
    """Lives to its end; once, around the first call of a name, something else happens.

    Args:
        call: the call's name, `ADAPTER.METHOD`.
        disturb: what happens.
        after: whether it happens when the call has returned.

    Attributes:
        disturbed: whether it happened.
    """

    def __init__(self, call: str, disturb: Callable[[], object], *, after: bool = False) -> None:
        super().__init__()
        self._call, self._disturb, self._after = call, disturb, after
        self.disturbed = False

    def call(self, name: str, act: Callable[[], Any], **named: Any) -> Any:
        if name != self._call or self.disturbed:
            return super().call(name, act, **named)
        self.disturbed = True
        if not self._after:
            self._disturb()
        answer = super().call(name, act, **named)
        if self._after:
            self._disturb()
        return answer
