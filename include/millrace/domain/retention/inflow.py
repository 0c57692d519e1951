"""How much comes into a topic a day, and whether that grows: a level, a trend and the days of the week.

Everything rests on medians, so that a day of an outage or of a load test moves little: the slope is that of Theil and
Sen, its bounds are Sen's (Journal of the American Statistical Association 63, 1968), the spread is the median absolute
deviation. What lies before the last step of the level is left out: a step is no trend.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median

DAY = timedelta(days=1)
LEVEL_DAYS = 3
GROWTH_DAYS = 7
UNMEASURED_GROWTH = 0.02
_LOOKED_AT = 84  # days: twelve weeks; what was before says little of the next three months
_LEAST_SPAN = timedelta(hours=1)
_WIDEST_HOP = timedelta(hours=36)  # between two points, for the midnight in between to be known
_WEEKS = 2
_WEEKLY_GAIN = 0.6  # the days of the week count where they leave less than this of what days differ from their week
_STEP_SIDE = 3  # days that a new level has lasted before it is one
_STEP_AROUND = 7
_STEP_GAIN = 0.85
_STEP_DOUBTS = 5.0  # of the two levels' medians
_SURE = 2.33  # standard deviations, 98 %: at 95 % one steady topic in twenty would be said to grow
_BAND = 2.0
_TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation, of a normal distribution


@dataclass(frozen=True, slots=True)
class Point:
    """One look at a topic.

    Attributes:
        at: when, UTC.
        ends: the sum of its partitions' end offsets.
        record_bytes: what an offset took on disk then, on average.
    """

    at: datetime
    ends: int
    record_bytes: float


@dataclass(frozen=True, slots=True)
class Band:
    """What is expected, and between what it lies in nine of ten cases or more."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How the inflow grows.

    Attributes:
        a_day: as a fraction of today's inflow a day, so that 0.01 adds in 100 days what comes in today.
        days: over how many days it was measured; 0 where it was not.
        why: why it could not be measured; empty where it was.
        declared: what the declaration expects, as a fraction a day; None where it expects nothing.
    """

    a_day: Band
    days: int = 0
    why: str = ""
    declared: float | None = None

    @property
    def as_declared(self) -> bool | None:
        """Whether what is declared lies within what was measured; None where one of them is missing."""
        if self.declared is None or not self.days:
            return None
        return self.a_day.low <= self.declared <= self.a_day.high


@dataclass(frozen=True, slots=True)
class Inflow:
    """What comes into a topic.

    Attributes:
        at: when this was made, UTC.
        level: bytes a day, now.
        growth: how it grows from there.
        noise: by how much days differ from what is expected of them, as a fraction (one standard deviation).
        weekly: what share of a usual day's each day of the week has, Monday first; empty where that is not known.
    """

    at: datetime
    level: Band
    growth: Growth
    noise: float
    weekly: tuple[float, ...] = ()

    def total(self, first: float, last: float) -> Band:
        """Bytes that come in from `first` to `last`, in days from now, 0 <= first <= last."""
        if last <= first:
            return Band(0.0, 0.0, 0.0)
        days = last - first
        sums = [0.0, 0.0, 0.0]
        for middle, length in self._pieces(first, last):
            share = self._share(middle) * length
            for index, rate in enumerate(self._rates(middle)):
                sums[index] += rate * share
        low, expected, high = sums
        # A part of a day may be its busiest or its quietest.
        uneven = _BAND * self.noise / math.sqrt(max(days, 1.0)) + 0.5 * max(0.0, 1.0 - days)
        return Band(max(0.0, low - uneven * expected), expected, high + uneven * expected)

    def _rates(self, day: float) -> tuple[float, float, float]:
        usual, growth = self.level.expected, self.growth.a_day
        rates = (
            self.level.low + usual * growth.low * day,
            usual + usual * growth.expected * day,
            self.level.high + usual * growth.high * day,
        )
        low, expected, high = (max(0.0, rate) for rate in rates)
        return min(low, expected), expected, max(high, expected)

    def _pieces(self, first: float, last: float) -> Sequence[tuple[float, float]]:
        """The middles and lengths of the days, from midnight to midnight, that make up a time."""
        passed = (self.at - _midnight(self.at)) / DAY
        cuts = [first]
        following = math.floor(first + passed) + 1 - passed
        while following < last:
            cuts.append(following)
            following += 1
        return [((before + after) / 2, after - before) for before, after in pairwise([*cuts, last]) if after > before]

    def _share(self, day: float) -> float:
        return self.weekly[(self.at + day * DAY).weekday()] if self.weekly else 1.0


def measure(points: Sequence[Point], declared: float | None = None) -> Inflow | None:
    """What comes into a topic, out of what was seen of it; None where it was watched for less than an hour.

    Args:
        points: oldest first, all of the topic as it is now; at any distance from each other.
        declared: the growth that is declared, as a fraction a day. It stands in where none could be measured.
    """
    points = [point for point in points if points[-1].at - point.at <= (_LOOKED_AT + 1) * DAY]
    if not points or points[-1].at - points[0].at < _LEAST_SPAN:
        return None
    days = _daily(points)
    if len(days) < LEVEL_DAYS:
        return _short(points, declared)
    weekly = _weekly(days)
    first = days[0][0]
    times = [(day - first) / DAY + 0.5 for day, _ in days]
    usual = [came / (weekly[day.weekday()] if weekly else 1.0) for day, came in days]
    begun = _after_last_step(times, usual)
    now = (points[-1].at - first) / DAY
    return _fit(points[-1].at, [t - now for t in times[begun:]], usual[begun:], weekly, begun > 0, declared)


def came_since(points: Sequence[Point], since: datetime) -> tuple[float, timedelta]:
    """Bytes that came in since then, and how much of that time, at its beginning, the points say nothing of."""
    if not points or since >= points[-1].at:
        return 0.0, timedelta(0)
    unknown = max(timedelta(0), points[0].at - since)
    total = 0.0
    for before, after in pairwise(points[max(0, bisect_right(points, since, key=_at) - 1) :]):
        part = min(1.0, (after.at - since) / (after.at - before.at)) if after.at > before.at else 1.0
        total += max(0, after.ends - before.ends) * after.record_bytes * part
    return total, unknown


def _at(point: Point) -> datetime:
    return point.at


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _daily(points: Sequence[Point]) -> list[tuple[datetime, float]]:
    """Bytes that came in on each whole day (UTC) of which both midnights are known."""
    found = []
    day = _midnight(points[0].at)
    ends = _ends_at(points, day)
    while day + DAY <= points[-1].at:
        following = _ends_at(points, day + DAY)
        if ends is not None and following is not None:
            size = points[min(len(points) - 1, bisect_left(points, day + DAY, key=_at))].record_bytes
            found.append((day, max(0.0, following - ends) * size))
        day, ends = day + DAY, following
    return found[-_LOOKED_AT:]


def _ends_at(points: Sequence[Point], at: datetime) -> float | None:
    index = bisect_left(points, at, key=_at)
    if index < len(points) and points[index].at == at:
        return float(points[index].ends)
    if not 0 < index < len(points):
        return None
    before, after = points[index - 1], points[index]
    if after.at - before.at > _WIDEST_HOP:
        return None
    return before.ends + (after.ends - before.ends) * ((at - before.at) / (after.at - before.at))


def _short(points: Sequence[Point], declared: float | None) -> Inflow:
    """Of a topic that is young, or was seen too seldom: its mean, which may be of its busiest hours or its quietest."""
    span = points[-1].at - points[0].at
    over = span if span < DAY else DAY * (span // DAY)
    total, _ = came_since(points, points[-1].at - over)
    level = total / (over / DAY)
    doubt = 1.5 + 1.5 * max(0.0, 1.0 - span / DAY)
    whole = span // DAY
    why = f"seen for {whole} whole days" if whole < LEVEL_DAYS else "seen with too many gaps"
    band = Band(level / doubt, level, level * doubt)
    return Inflow(points[-1].at, band, _unmeasured(why, declared), noise=0.0)


def _unmeasured(why: str, declared: float | None) -> Growth:
    if declared is None:
        return Growth(Band(-UNMEASURED_GROWTH, 0.0, UNMEASURED_GROWTH), 0, why)
    return Growth(Band(min(0.0, 2 * declared), declared, max(0.0, 2 * declared)), 0, why, declared)


def _weekly(days: Sequence[tuple[datetime, float]]) -> tuple[float, ...]:
    """Each day's share of a usual one, out of whole weeks; empty where there are not two, or it explains little."""
    shares: list[list[float]] = [[] for _ in range(7)]
    index = len(days) - 7
    while index >= 0:
        week = days[index : index + 7]
        mean = sum(came for _, came in week) / 7
        if week[-1][0] - week[0][0] == 6 * DAY and mean > 0:
            for day, came in week:
                shares[day.weekday()].append(came / mean)
            index -= 7
        else:
            index -= 1
    if min(map(len, shares)) < _WEEKS:
        return ()
    medians = [median(own) for own in shares]
    factors = [max(0.01, own * 7 / sum(medians)) if sum(medians) else 1.0 for own in medians]
    with_factors = sum(abs(share - factor) for own, factor in zip(shares, factors, strict=True) for share in own)
    without = sum(abs(share - 1.0) for own in shares for share in own)
    return tuple(factors) if with_factors < _WEEKLY_GAIN * without else ()


def _after_last_step(times: Sequence[float], values: Sequence[float]) -> int:
    """The index of the first day after the last step of the level; 0 where there was none."""
    begun = 0
    while (step := _step(times[begun:], values[begun:])) is not None:
        begun += step
    return begun


def _step(times: Sequence[float], values: Sequence[float]) -> int | None:
    """Where the level stepped: where two levels with one slope tell far more than one line does."""
    count = len(values)
    if count < 2 * _STEP_SIDE:
        return None
    at = max(range(_STEP_SIDE, count - _STEP_SIDE + 1), key=lambda index: _gain(values, index))
    early, late = slice(0, at), slice(at, count)
    line = _rests(times, values, _middle_slope(_slopes(times, values)))
    slope = _middle_slope(_slopes(times[early], values[early]) + _slopes(times[late], values[late]))
    parts = [_rests(times[part], values[part], slope) for part in (early, late)]
    levels = [median(y - slope * t for t, y in zip(times[part], values[part], strict=True)) for part in (early, late)]
    rests = [abs(rest) for part in parts for rest in part]
    height = abs(levels[1] - levels[0])
    told = sum(rests) < _STEP_GAIN * sum(map(abs, line))
    doubt = 1.25 * _TO_DEVIATION * median(rests) * math.sqrt(1 / at + 1 / (count - at))
    high = height > _STEP_DOUBTS * doubt and height > 0.1 * abs(median(values))
    return at if told and high else None


def _gain(values: Sequence[float], index: int) -> float:
    """How much better two levels tell the days around one of them than one does."""
    before, after = values[max(0, index - _STEP_AROUND) : index], values[index : index + _STEP_AROUND]
    return _off([*before, *after]) - _off(before) - _off(after)


def _off(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def _rests(times: Sequence[float], values: Sequence[float], slope: float) -> list[float]:
    flat = [y - slope * t for t, y in zip(times, values, strict=True)]
    middle = median(flat)
    return [value - middle for value in flat]


def _slopes(times: Sequence[float], values: Sequence[float]) -> list[float]:
    return [
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    ]


def _middle_slope(slopes: Sequence[float]) -> float:
    return median(slopes) if slopes else 0.0


def _fit(
    at: datetime,
    times: Sequence[float],
    values: Sequence[float],
    weekly: tuple[float, ...],
    stepped: bool,
    declared: float | None,
) -> Inflow:
    """Level, trend and noise of days since the last step; `times` in days from now, so below zero."""
    count = len(values)
    slope = Band(0.0, 0.0, 0.0)
    if count >= GROWTH_DAYS:
        slope = _trend(sorted(_slopes(times, values)), count)
    rests = _rests(times, values, slope.expected)
    line = median(y - slope.expected * t for t, y in zip(times, values, strict=True))  # where the line is now
    level = max(0.0, line)
    few = 1 + 3 / count  # of few days the deviation is taken for too small
    deviation = _TO_DEVIATION * median(map(abs, rests)) * few
    doubt = _BAND * 1.25 * deviation / math.sqrt(count) + 0.03 * level  # 1.25: a median's error to that of a mean
    if count < GROWTH_DAYS:
        over = f"{count} days since its inflow stepped" if stepped else f"seen for {count} whole days"
        growth = _unmeasured(over, declared)
    else:
        limit = math.inf if slope.expected else UNMEASURED_GROWTH
        bounds = [max(-limit, min(limit, one / level)) if level else 0.0 for one in (slope.low, slope.high)]
        growth = Growth(Band(bounds[0], slope.expected / level if level else 0.0, bounds[1]), count, "", declared)
    # What the slope may be off by has moved the line since the middle of its days already.
    moved = -median(times) * level
    low = level - doubt - moved * (growth.a_day.expected - growth.a_day.low if growth.days else 0.0)
    high = level + doubt + moved * (growth.a_day.high - growth.a_day.expected if growth.days else 0.0)
    noise = min(1.0, deviation / level) if level else 0.0
    return Inflow(at, Band(max(0.0, low), level, max(high, level)), growth, noise, weekly)


def _trend(slopes: Sequence[float], count: int) -> Band:
    """The slope and its bounds, out of all slopes between two days, sorted; expected is 0 where it may be chance."""
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)  # of Kendall's score, where there is no trend
    skipped = max(0, int((len(slopes) - _SURE * deviation) / 2))
    low, high = slopes[skipped], slopes[-1 - skipped]
    expected = median(slopes) if low > 0 or high < 0 else 0.0
    return Band(min(low, expected), expected, max(high, expected))
