"""The end of a chain of manifests, and the epoch that may write behind it. Archives and datasets share this rule."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_EPOCH = 1 << 53
"""A manifest of a larger one was made by hand. A start above it would use up the room for the starts to come."""


@dataclass(frozen=True, slots=True)
class Writer:
    """An epoch of the app that writes a chain, and the instance that claimed it."""

    epoch: int
    instance: str


@dataclass(frozen=True, slots=True)
class Head:
    """The last manifest of a chain: the next one follows it.

    Attributes:
        sequence: its place, from 0; -1 where the chain has no manifest yet.
        sha256: of its bytes, 64 hexadecimal digits; empty where it is missing.
        epoch: the newest that has taken over; 0 where none has.
        instance: of the process that wrote it.
        says_nothing: why no manifest can follow it; empty where one can.
    """

    sequence: int = -1
    sha256: str = ""
    epoch: int = 0
    instance: str = ""
    says_nothing: str = ""

    @property
    def writer(self) -> Writer:
        """The only one that may write the next manifest without a takeover."""
        return Writer(self.epoch, self.instance)
