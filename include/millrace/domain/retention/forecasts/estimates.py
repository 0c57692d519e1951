"""How large a topic will be, when a disk is full, and what retention by size holds how many days.

What is forecast is the inflow; the size follows from it and from the limits in force. So a change of the retention
moves the size, and no trend is taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from millrace.domain.formats.durations import roughly
from millrace.domain.retention.inflow import DAY, Band, Growth, Inflow, Point, came_since, measure
from millrace.domain.retention.settings import BrokerSettings, LogSettings

HORIZONS = (timedelta(days=7), timedelta(days=30), timedelta(days=90))
_FORESEEN = 3_650.0  # days; what is further off than ten years is never
_NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class Now:
    """A topic as it is.

    Attributes:
        size_bytes: of the leaders' replicas of all its partitions.
        partitions: how many it has.
        shares: what part of the inflow each partition gets, by number; empty: all the same.
    """

    size_bytes: int
    partitions: int
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What decided how much is kept when a forecast was made: a change of it makes the forecast void."""

    time: timedelta | None
    size_bytes: int | None
    partitions: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a topic's logs will hold at a time: bytes of the leaders' replicas of all its partitions."""

    days: int
    at: datetime
    low: int
    expected: int
    high: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to come of one topic.

    Attributes:
        made_at: when it was made, UTC.
        size_bytes: what its logs held then.
        inflow: bytes that came in a day then; None where it was seen for too short a time.
        growth: how that grows; None likewise.
        limits: the limits it counts on.
        estimates: nearest first; empty where nothing can be said.
        why: why nothing can be said; empty otherwise.
    """

    made_at: datetime
    size_bytes: int
    inflow: Band | None
    growth: Growth | None
    limits: Limits
    estimates: tuple[Estimate, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Full:
    """In how many days a disk is full at the earliest, and as expected; None: not in ten years."""

    earliest: float | None
    expected: float | None


class Shown(StrEnum):
    """What shows whether a limit of age is kept."""

    TIME = "time"
    SIZE = "size"
    OLDEST = "oldest record"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Keeping:
    """Whether no record gets older than it may, what shows it, and how, in one line."""

    kept: bool
    by: Shown
    text: str


def forecast(
    points: Sequence[Point], settings: LogSettings, now: Now, made_at: datetime, declared: float | None = None
) -> Forecast:
    """How large a topic will be in 7, 30 and 90 days.

    Args:
        points: what was seen of it, oldest first, of the topic as it is now: not of a former one of its name.
        settings: those in force.
        now: its logs as they are.
        made_at: the time, UTC; the last point may be older, and is then taken for it.
        declared: the growth that is declared, as a fraction of the inflow a day.

    Guarantees: 0 <= low <= expected <= high, and nothing above `size_cap`.
    """
    limits = Limits(settings.time, settings.size_bytes, now.partitions)
    if settings.compacts:
        why = "compacted: its size follows from its number of keys, not from its inflow"
        return Forecast(made_at, now.size_bytes, None, None, limits, (), why)
    inflow = measure(points, declared)
    if inflow is None:
        return Forecast(made_at, now.size_bytes, None, None, limits, (), "watched for less than an hour")
    estimates = tuple(_estimate(points, inflow, settings, now, made_at, horizon) for horizon in HORIZONS)
    return Forecast(made_at, now.size_bytes, inflow.level, inflow.growth, limits, estimates)


def size_cap(settings: LogSettings, partitions: int) -> int | None:
    """The bytes that a topic's logs do not exceed, by its limit of size; None where it has none.

    A segment goes once the log holds the limit without it, so a log may be above the limit by less than a segment. In
    between two checks it may grow further.
    """
    if not settings.deletes or settings.size_bytes is None:
        return None
    return partitions * (settings.size_bytes + settings.segment_bytes)


def size_for(forecast: Forecast, days: float, busiest: float) -> Band | None:
    """The `retention.bytes` of each partition that holds so many days, from now on; None where no inflow is known.

    Args:
        forecast: of the topic.
        days: how many are to be held.
        busiest: the part of the inflow that the partition with most of it gets, 0 to 1.
    """
    if forecast.inflow is None or forecast.growth is None:
        return None
    inflow, growth = forecast.inflow, forecast.growth.a_day
    found = [
        max(0.0, (level + inflow.expected * grows * days / 2) * days * busiest)
        for level, grows in ((inflow.low, growth.low), (inflow.expected, growth.expected), (inflow.high, growth.high))
    ]
    return Band(min(found[0], found[1]), found[1], max(found[1], found[2]))


def full_in(free_bytes: int, forecasts: Sequence[tuple[Forecast, float]]) -> Full:
    """When what is free on a disk is used up. After 90 days it goes on as in the last 60 of them.

    Args:
        free_bytes: what is free on the disk when the forecasts are made.
        forecasts: of each topic on the disk, with the part of its bytes that lies there: 1 for the replicas of all its
            partitions, 0.5 for those of half of them. One that says nothing is taken to stay as it is.
    """
    days = [horizon / DAY for horizon in HORIZONS]
    told = [(one, part) for one, part in forecasts if len(one.estimates) == len(days)]
    expected, high = [0.0], [0.0]
    for index in range(len(days)):
        expected.append(sum((one.estimates[index].expected - one.size_bytes) * part for one, part in told))
        high.append(sum((one.estimates[index].high - one.size_bytes) * part for one, part in told))
    likely, earliest = (_reaches(free_bytes, [0.0, *days], grown) for grown in (expected, high))
    # What is expected may still rise after 90 days where the most there may be has reached its limit.
    return Full(min((one for one in (likely, earliest) if one is not None), default=None), likely)


def size_reaches(forecast: Forecast, settings: LogSettings) -> float | None:
    """Days of inflow, at the least it may be, that the limit of size lets stand at most; None: it never bites."""
    cap = size_cap(settings, forecast.limits.partitions)
    if cap is None or forecast.inflow is None or forecast.inflow.low <= 0:
        return None
    return cap / forecast.inflow.low


def keeps(
    max_age: timedelta,
    settings: LogSettings,
    oldest: timedelta | None,
    broker: BrokerSettings | None = None,
    size_days: float | None = None,
) -> Keeping:
    """Whether no record of a topic gets older than `max_age`.

    Args:
        max_age: the age that none may pass.
        settings: those in force.
        oldest: the age of its oldest record, as measured; None where it has none or it is not known.
        broker: how often the brokers look for what they may delete.
        size_days: how many days its limit of size lets stand at present, see `size_reaches`. It is no promise: less
            may come in.
    """
    if oldest is not None and oldest > max_age:
        return Keeping(False, Shown.OLDEST, f"its oldest record is {roughly(oldest)} old")
    bound = _time_bound(settings, broker or BrokerSettings())
    if bound is not None and bound <= max_age:
        return Keeping(True, Shown.TIME, f"its time limit deletes records after {roughly(bound)}")
    if settings.deletes and not settings.compacts and size_days is not None and size_days <= max_age / DAY:
        return Keeping(True, Shown.SIZE, f"its size limit, which now holds {size_days:.1f} d at most")
    so_far = "" if oldest is None else f"; its oldest record is {roughly(oldest)} old so far"
    limit = "no time limit deletes its records" if bound is None else f"its records may become {roughly(bound)} old"
    return Keeping(False, Shown.NOTHING, limit + so_far)


def _time_bound(settings: LogSettings, broker: BrokerSettings) -> timedelta | None:
    """The age at which the limit of time has deleted a record for certain, its whole segment being that old."""
    if not settings.deletes or settings.time is None or settings.compacts:  # compaction merges segments
        return None
    bound = _NO_TIME
    for part in (settings.time, settings.segment_time, broker.check_every, settings.delete_delay):
        bound = timedelta.max if part > timedelta.max - bound else bound + part
    return bound


def _estimate(
    points: Sequence[Point], inflow: Inflow, settings: LogSettings, now: Now, made_at: datetime, horizon: timedelta
) -> Estimate:
    days = horizon / DAY
    wholes = []
    for index, kept in enumerate(_kept_days(settings, inflow, now)):
        first = 0.0 if kept is None else max(0.0, days - kept)
        coming = inflow.total(first, days)
        there = float(now.size_bytes) if kept is None else _still_there(points, inflow, now, kept - days)[index]
        whole = there + (coming.low, coming.expected, coming.high)[index]
        wholes.append(_capped(whole, settings, now, index / 2))
    low, expected, high = wholes
    return Estimate(round(days), made_at + horizon, int(min(low, expected)), int(expected), int(max(expected, high)))


def _kept_days(settings: LogSettings, inflow: Inflow, now: Now) -> tuple[float | None, float | None, float | None]:
    """How old the oldest record is, in days, just after a segment went, half a segment later, and before the next."""
    if not settings.deletes or settings.time is None:
        return None, None, None
    share = inflow.level.low / max(1, now.partitions)
    filled = settings.segment_bytes / share if share > 0 else float("inf")  # a quiet topic fills its segments slowly
    segment = min(settings.segment_time / DAY, filled)
    kept = settings.time / DAY
    return kept, kept + segment / 2, kept + segment


def _still_there(points: Sequence[Point], inflow: Inflow, now: Now, days: float) -> tuple[float, float, float]:
    """Bytes of what there is now that came in over the last so many days."""
    if days <= 0:
        return 0.0, 0.0, 0.0
    if days >= _FORESEEN:
        return (float(now.size_bytes),) * 3
    came, unknown = came_since(points, inflow.at - days * DAY)
    level, unseen = inflow.level, unknown / DAY
    low, expected, high = (came + unseen * one for one in (level.low, level.expected, level.high))
    there = float(now.size_bytes)
    return min(low, there), min(expected, there), min(high, there)


def _capped(whole: float, settings: LogSettings, now: Now, segments: float) -> float:
    """What the limit of size leaves, with so much of a segment above it in each partition."""
    if not settings.deletes or settings.size_bytes is None:
        return whole
    most = settings.size_bytes + segments * settings.segment_bytes
    shares = now.shares or (1 / max(1, now.partitions),) * now.partitions
    return sum(min(whole * share, most) for share in shares)


def _reaches(free_bytes: int, days: Sequence[float], grown: Sequence[float]) -> float | None:
    """When what has grown since now is as much as is free, on straight lines between the times."""
    if free_bytes <= 0:
        return 0.0
    for (first, before), (last, after) in pairwise(zip(days, grown, strict=True)):
        if after >= free_bytes:
            return first + (last - first) * (free_bytes - before) / (after - before)
    pace = (grown[-1] - grown[-2]) / (days[-1] - days[-2])
    if pace <= 0:
        return None
    found = days[-1] + (free_bytes - grown[-1]) / pace
    return found if found <= _FORESEEN else None
