"""How long ago what a reader has not read was appended, from where the log ended at each snapshot.

Records carry timestamps of their own, which may be of any year; what counts here is when the broker had them. Between
two snapshots records are taken to have come evenly, so every answer but zero is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class TimeLag:
    """How long a reader is behind, estimated; zero where it has read all there is.

    `at_least`: the record came before the first snapshot that is looked at, so it may be longer.
    """

    behind: timedelta
    at_least: bool = False


NOTHING_UNREAD = TimeLag(timedelta(0))


def time_lag(times: Sequence[datetime], ends: Sequence[int | None], position: int) -> TimeLag | None:
    """How long before the last snapshot the record at a position was appended.

    Args:
        times: of the snapshots, oldest first.
        ends: where the log ended at each; None where nobody knew.
        position: the next offset to read, at least the log's start: what has expired is behind nobody.

    Returns:
        None where no snapshot knew the log, or the last one did not.
    """
    if not times or ends[-1] is None:
        return None
    if ends[-1] <= position:
        return NOTHING_UNREAD
    later, later_end = len(times) - 1, ends[-1]
    for index in range(len(times) - 2, -1, -1):
        end = ends[index]
        if end is None:
            continue
        if end <= position:
            share = (position - end) / (later_end - end)
            appended = times[index] + (times[later] - times[index]) * share
            return TimeLag(times[-1] - appended)
        later, later_end = index, end
    return TimeLag(times[-1] - times[later], at_least=True)


def furthest(lags: Sequence[TimeLag | None]) -> TimeLag | None:
    """The greatest of those that are known; None where none is."""
    known = [lag for lag in lags if lag is not None]
    return max(known, key=lambda lag: (lag.behind, lag.at_least), default=None)
