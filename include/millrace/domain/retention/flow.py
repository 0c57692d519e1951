"""How fast a partition's log grows, from where it ended at some moments.

Between two moments it is taken to have grown evenly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from millrace.domain.groups.snapshots import LogSample

_LONG = timedelta(days=3_650)


@dataclass(frozen=True, slots=True)
class Flow:
    """What came into a partition, in units that `weight` has: offsets, or the bytes that they take.

    Attributes:
        points: where the log ended at some moments, oldest first; two at least, and never going back.
        weight: of an offset.
    """

    points: Sequence[tuple[datetime, float]]
    weight: float = 1.0

    @property
    def over(self) -> timedelta:
        """How long it was measured for."""
        return self.points[-1][0] - self.points[0][0]

    @property
    def mean(self) -> float:
        """A second, over all that is known."""
        return self._rate(0, len(self.points) - 1)

    @property
    def burst(self) -> float:
        """A second, the most between two moments one after the other."""
        return max(self._rate(index, index + 1) for index in range(len(self.points) - 1))

    def peak(self, window: timedelta) -> float:
        """A second, the most over a time that is so long, or over all where less is known."""
        window = min(window, self.over)
        times = [at for at, _ in self.points]
        found = [0.0]
        for index, at in enumerate(times):
            first = bisect_right(times, at - window) - 1
            if first >= 0 and first < index:  # the shortest stretch to here that is as long
                found.append(self._rate(first, index))
        return max(found)

    def longest(self, amount: float) -> timedelta | None:
        """The longest time in which no more than this came; None where no more than that is known to have come at all.

        What came before all that is known, or will come, may make it longer.
        """
        times, ends = [at for at, _ in self.points], [end * self.weight for _, end in self.points]
        if ends[-1] - ends[0] <= amount:
            return None
        found = timedelta(0)
        for at, end in zip(times, ends, strict=True):
            found = max(found, _last(times, ends, end + amount) - at, at - _first(times, ends, end - amount))
        return found

    def _rate(self, first: int, last: int) -> float:
        (begun, start), (at, end) = self.points[first], self.points[last]
        return (end - start) * self.weight / (at - begun).total_seconds()


def flow(points: Sequence[tuple[datetime, int | None]], weight: float = 1.0) -> Flow | None:
    """What came into a log; None where fewer than two moments are known.

    An end that goes back, as after an unclean election, counts as no growth.

    Args:
        points: moments, oldest first, and where the log ended; None where nobody knew.
        weight: of an offset.
    """
    made: list[tuple[datetime, float]] = []
    grown, before = 0, None
    for at, end in points:
        if end is None or (made and at <= made[-1][0]):
            continue
        grown += max(0, end - before) if before is not None else 0
        before = end
        made.append((at, grown))
    return Flow(made, weight) if len(made) > 1 else None


def steady(per_second: float) -> Flow:
    """What comes evenly, as it is expected to."""
    began = datetime(2000, 1, 1, tzinfo=UTC)
    return Flow([(began, 0.0), (began + _LONG, per_second * _LONG.total_seconds())])


def weight_of(samples: Sequence[LogSample]) -> float | None:
    """The bytes that an offset took: the most between two samples in which nothing was deleted; None: nobody knows."""
    found = None
    for one, other in pairwise(samples):
        if one.size_bytes is None or other.size_bytes is None or one.start != other.start or other.end <= one.end:
            continue
        found = max(found or 0.0, (other.size_bytes - one.size_bytes) / (other.end - one.end))
    return found


def _last(times: Sequence[datetime], ends: Sequence[float], amount: float) -> datetime:
    """The last moment at which no more than this had come."""
    index = bisect_right(ends, amount)
    if index == len(ends):
        return times[-1]
    return _between(times, ends, index, amount)


def _first(times: Sequence[datetime], ends: Sequence[float], amount: float) -> datetime:
    """The first moment at which this had come."""
    index = bisect_left(ends, amount)
    return times[0] if index == 0 else _between(times, ends, index, amount)


def _between(times: Sequence[datetime], ends: Sequence[float], index: int, amount: float) -> datetime:
    share = (amount - ends[index - 1]) / (ends[index] - ends[index - 1])
    return times[index - 1] + (times[index] - times[index - 1]) * share
