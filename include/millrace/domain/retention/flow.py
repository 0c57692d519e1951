"""How fast a partition's log grows, from where it ended at some moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

Point = tuple[datetime, int | None]
"""A moment, and where the log ended then; None where nobody knew."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Offsets a second that come into a partition.

    Attributes:
        mean: over all that is known.
        peak: the most over a time as long as it was asked for, or over all where less is known.
        least: the least over such a time.
        burst: the most between two moments one after the other.
        over: how long it was measured for.
    """

    mean: float
    peak: float
    least: float
    burst: float
    over: timedelta

    def in_bytes(self, of_offset: float) -> Flow:
        """The same in bytes a second.

        Args:
            of_offset: bytes that an offset takes in the log, about.
        """
        mean, peak, least, burst = (each * of_offset for each in (self.mean, self.peak, self.least, self.burst))
        return Flow(mean, peak, least, burst, self.over)


def flow(points: Sequence[Point], over: timedelta | None) -> Flow | None:
    """How fast a log has grown; None where fewer than two moments are known.

    An end that goes back, as after an unclean election, counts as no growth.

    Args:
        points: oldest first.
        over: how long the time is whose most and least are looked for; None: all.
    """
    known = [(at, end) for at, end in points if end is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    whole = known[-1][0] - known[0][0]
    window = whole if over is None else min(over, whole)
    found = []
    first = 0
    for at, end in known:  # the shortest stretches that are as long as the window
        while first + 1 < len(known) and at - known[first + 1][0] >= window:
            first += 1
        if at - known[first][0] >= window:
            found.append(_rate(known[first], (at, end)))
    steps = [_rate(one, other) for one, other in pairwise(known) if other[0] > one[0]]
    return Flow(_rate(known[0], known[-1]), max(found), min(found), max(steps), whole)


def _rate(one: tuple[datetime, int], other: tuple[datetime, int]) -> float:
    seconds = (other[0] - one[0]).total_seconds()
    return max(0, other[1] - one[1]) / seconds if seconds > 0 else 0.0
