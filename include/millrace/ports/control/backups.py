"""Acknowledgements and expiries that backups are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.expiry import Done, Expiry
from millrace.domain.archive.names import Incarnation


class Backups(Protocol):
    """Acknowledgements and expiries that apps have to write into their chains."""

    def acknowledge(self, asked: Sequence[Acknowledgement], about: str) -> list[int]:
        """Ask for these, and say so in the action log, both or neither; the numbers of their rows."""
        ...

    def known(self, here: Incarnation) -> tuple[Acknowledgement, ...]:
        """All that was ever asked of one incarnation, done or not."""
        ...

    def waiting(self, app: str) -> tuple[Acknowledgement, ...]:
        """Return what was asked of an app and is not done, the oldest first; at most a thousand at a time."""
        ...

    def taken(self, identity: int) -> None:
        """It was done. Said twice, the first time counts."""
        ...

    def expire(self, asked: Expiry) -> int | None:
        """Ask for this, and say so in the action log, both or neither; the number of its row."""
        ...

    def expired(self, identity: int, done: Done) -> None:
        """It was done, as far as it was. Said twice, the first time counts."""
        ...

    def last_fault(self, app: str, here: Incarnation) -> str:
        """Why the last expiry that an app did of a chain was not done whole; empty where it was, or there was none."""
        ...
