"""Whether a reader gains on its topics or falls behind them, and how fast both go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from millrace.domain.groups.rhythm import Track, spacing

_SNAPSHOTS = 10
_INTERVALS = 4
_LEAST_KNOWN = 4  # values in each half
_RATE_OVER = timedelta(minutes=10)


def slope(times: Sequence[datetime], tracks: Sequence[Track], interval: timedelta | None) -> float | None:
    """Records a second by which a group falls behind (above zero) or catches up; None where it does neither.

    It falls behind where the least it was behind in the later half of a time is more than the most in the earlier
    half, and that half still rises: a reader that commits now and then goes up and down, but not so. It catches up
    where the later half falls. The time is that of ten snapshots, or of four of its commits where that is longer.

    Args:
        times: of the snapshots, oldest first.
        tracks: of the group's partitions.
        interval: how long it usually takes from commit to commit, if that is known.
    """
    over = max(spacing(times) * _SNAPSHOTS, (interval or timedelta(0)) * _INTERVALS)
    sums = [(at, lag) for i, at in enumerate(times) if times[-1] - at <= over and (lag := _lag(tracks, i)) is not None]
    half = len(sums) // 2
    early, late = sums[:half], sums[half:]
    if min(len(early), len(late)) < _LEAST_KNOWN:
        return None
    seconds = (late[-1][0] - late[0][0]).total_seconds()
    found = (late[-1][1] - late[0][1]) / seconds if seconds > 0 else 0.0
    before, after = ([lag for _, lag in part] for part in (early, late))
    step = median(last - first for first, last in pairwise(after))  # one jump up, worked off since, is no trend
    rises = min(after) > max(before) and found > 0 and step > 0
    return found if rises or (found < 0 and step < 0) else None


def _lag(tracks: Sequence[Track], index: int) -> int | None:
    """Records behind at one snapshot, over the partitions known then; None where not all that are known now were."""
    total = 0
    for one in tracks:
        commit, end = one.commits[index], one.ends[index]
        if commit is not None and end is not None:
            total += max(0, end - commit)
        elif one.commits[-1] is not None and one.ends[-1] is not None:
            return None
    return total


def rates(times: Sequence[datetime], tracks: Sequence[Track]) -> tuple[float | None, float | None]:
    """Offsets a second that came into a group's partitions, and that it committed, over the last ten minutes.

    None where fewer than two snapshots know them. A move back is not counted.
    """
    first = _recent(times)
    came = [_advance(times, one.ends, first) for one in tracks]
    gone = [_advance(times, one.commits, first) for one in tracks]
    return _sum(came), _sum(gone)


def grew(times: Sequence[datetime], one: Track) -> bool:
    """Whether a log grew in the last ten minutes."""
    known = [end for end in one.ends[_recent(times) :] if end is not None]
    return bool(known) and known[-1] > known[0]


def _recent(times: Sequence[datetime]) -> int:
    """The last snapshot that is ten minutes old, or the first there is."""
    return max((index for index, at in enumerate(times) if times[-1] - at >= _RATE_OVER), default=0)


def _advance(times: Sequence[datetime], values: Sequence[int | None], first: int) -> float | None:
    known = [(at, value) for at, value in zip(times[first:], values[first:], strict=True) if value is not None]
    seconds = (known[-1][0] - known[0][0]).total_seconds() if known else 0.0
    if seconds <= 0:
        return None
    return sum(max(0, after - before) for (_, before), (_, after) in pairwise(known)) / seconds


def _sum(found: Sequence[float | None]) -> float | None:
    known = [rate for rate in found if rate is not None]
    return sum(known) if known else None
