"""Topics lived hour by hour, with what snapshots saw of them up to now, and the truth of the 90 days after that.

A log is rolled and deleted here as a broker does it: segments by size and time, whole ones let go from the front.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from millrace.domain.retention.forecasts.estimates import HORIZONS, Now
from millrace.domain.retention.inflow import Point
from millrace.domain.retention.settings import LogSettings

NOW = datetime(2026, 11, 25, 14, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MEGABYTE = 1_000_000
PARTITIONS = 3
_LAST_HOUR = 90 * 24


class Kind(StrEnum):
    """How the inflow goes."""

    FLAT = "flat"
    LINEAR = "linear"
    WEEKLY = "weekly"
    STEP_UP = "step up"
    STEP_DOWN = "step down"
    RECREATED = "deleted and made again"
    CHANGED = "retention changed"
    GAPS = "gaps"
    FIRST_DAY = "first day"


class Limited(StrEnum):
    """What limits the logs."""

    TIME = "time"
    SIZE = "size"
    NOT = "unlimited"


@dataclass(frozen=True)
class Lived:
    """What could be seen of a topic until NOW, and what nobody knows yet.

    Attributes:
        points: of the topic as it is now.
        settings: those in force now.
        now: its logs at NOW.
        growth: the true growth at NOW, as a fraction of the inflow a day.
        truth: bytes on disk at each horizon.
        peak: the most that its logs held in the 90 days after NOW, looked at each hour.
        rate: the true inflow at NOW, in bytes a day; of a weekly one, of that day.
    """

    points: tuple[Point, ...]
    settings: LogSettings
    now: Now
    growth: float
    truth: tuple[int, ...]
    peak: int
    rate: float


@dataclass
class _Segment:
    begun: int
    newest: int
    size: float = 0.0


class _Log:
    """One partition, in hours and bytes."""

    def __init__(self) -> None:
        self.segments: deque[_Segment] = deque()
        self.size = 0.0

    def append(self, hour: int, size: float, settings: LogSettings) -> None:
        rolled = settings.segment_time / HOUR
        while size > 0:
            last = self.segments[-1] if self.segments else None
            if last is None or hour - last.begun >= rolled or last.size >= settings.segment_bytes:
                last = _Segment(hour, hour)
                self.segments.append(last)
            part = min(size, settings.segment_bytes - last.size)
            last.size, last.newest = last.size + part, hour
            self.size += part
            size -= part

    def clean(self, hour: int, settings: LogSettings) -> None:
        while self.segments and settings.time is not None and hour - self.segments[0].newest > settings.time / HOUR:
            self.size -= self.segments.popleft().size
        while (
            len(self.segments) > 1
            and settings.size_bytes is not None
            and self.size - self.segments[0].size >= settings.size_bytes
        ):
            self.size -= self.segments.popleft().size


@dataclass(frozen=True)
class _Plan:
    days: int
    rate: Callable[[float], float]  # bytes a day, by days from NOW
    growth: float
    changed: float | None = None  # by days from NOW
    seen_every: int = 24  # hours, before the last two days, which are seen hourly
    gaps: tuple[tuple[int, int], ...] = ()


def live(kind: Kind, limited: Limited, seed: int, noise: float = 0.1) -> Lived:
    """One topic's life; the same one for the same arguments."""
    chance = random.Random(f"{kind} {limited} {seed}")
    base = 300 * MEGABYTE * math.exp(chance.uniform(-1.5, 1.5))
    plan = _plan(kind, base, chance)
    settings = _settings(limited, base, chance)
    before = settings
    if plan.changed is not None:
        factor = chance.choice([0.4, 2.5])
        before = replace(
            settings,
            time=None if settings.time is None else settings.time * factor,
            size_bytes=None if settings.size_bytes is None else int(settings.size_bytes * factor),
        )
    return _live(plan, settings, before, noise, chance)


def _plan(kind: Kind, base: float, chance: random.Random) -> _Plan:
    growth = 0.0
    days = chance.randint(21, 100)
    if kind is Kind.LINEAR:
        growth = chance.choice([-1, 1]) * chance.uniform(0.002, 0.01)
        return _Plan(days, lambda day: base * max(0.05, 1 + growth * day), growth)
    if kind is Kind.WEEKLY:
        weekend, growth = chance.uniform(0.1, 0.6), chance.choice([0.0, 0.004])

        def weekly(day: float) -> float:
            usual = base * max(0.05, 1 + growth * day)
            return usual * (weekend if (NOW + day * DAY).weekday() >= 5 else 1.2)

        return _Plan(days, weekly, growth)
    if kind in (Kind.STEP_UP, Kind.STEP_DOWN):
        factor = chance.uniform(1.6, 4.0)
        former = base / factor if kind is Kind.STEP_UP else base * factor
        ago = chance.randint(8, days - 8)
        return _Plan(days, lambda day: former if day < -ago else base, 0.0)
    if kind is Kind.RECREATED:
        return _Plan(chance.randint(4, 20), lambda _: base, 0.0)
    if kind is Kind.CHANGED:
        return _Plan(days, lambda _: base, 0.0, changed=-chance.uniform(3, 12))
    if kind is Kind.GAPS:
        growth = chance.choice([0.0, 0.006])
        gaps = tuple((-(first := chance.randint(4, days - 3)), -first + chance.randint(2, 8)) for _ in range(3))
        return _Plan(days, lambda day: base * max(0.05, 1 + growth * day), growth, gaps=gaps)
    if kind is Kind.FIRST_DAY:
        return _Plan(1, lambda _: base, 0.0, seen_every=1)
    return _Plan(days, lambda _: base, 0.0)


def _settings(limited: Limited, base: float, chance: random.Random) -> LogSettings:
    segments = {"segment_bytes": 50 * MEGABYTE, "segment_time": timedelta(days=chance.choice([1, 7]))}
    if limited is Limited.TIME:
        return LogSettings(time=timedelta(days=chance.choice([1, 3, 7, 14, 45])), **segments)
    if limited is Limited.SIZE:
        holds = chance.choice([2, 10, 40])
        return LogSettings(time=None, size_bytes=int(base * holds / PARTITIONS), **segments)
    return LogSettings(time=None, **segments)


def _live(plan: _Plan, settings: LogSettings, before: LogSettings, noise: float, chance: random.Random) -> Lived:
    log = _Log()  # one for all: each partition is given the same
    horizons = {horizon / HOUR for horizon in HORIZONS}
    record = chance.uniform(100, 900)
    first = -plan.days * 24 + (chance.randint(0, 12) if plan.days == 1 else 0)
    ends, peak, luck, day_before = 0.0, 0.0, 1.0, None
    points: list[Point] = []
    truth: list[int] = []
    there = 0
    for hour in range(first, _LAST_HOUR + 1):
        in_force = before if plan.changed is not None and hour < plan.changed * 24 else settings
        size = log.size * PARTITIONS
        if hour <= 0 and _seen(plan, hour, first):
            points.append(Point(NOW + hour * HOUR, int(ends), record))
        if hour == 0:
            there = int(size)
        if hour >= 0:
            peak = max(peak, size)
        if hour in horizons:
            truth.append(int(size))
        at = NOW + hour * HOUR
        if at.date() != day_before:
            luck, day_before = math.exp(chance.gauss(0, noise)), at.date()
        came = plan.rate(hour / 24) / 24 * luck * (1 + 0.6 * math.sin(2 * math.pi * (at.hour - 8) / 24))
        ends += came / record
        log.append(hour, came / PARTITIONS, in_force)
        log.clean(hour, in_force)
    now = Now(there, PARTITIONS)
    return Lived(tuple(points), settings, now, plan.growth, tuple(truth), int(peak), plan.rate(0))


def _seen(plan: _Plan, hour: int, first: int) -> bool:
    """Whether there was a look at the topic: hourly of late, once a day before midnight until then."""
    if any(begun * 24 <= hour < over * 24 for begun, over in plan.gaps if over < -2):
        return False
    clock = (NOW + hour * HOUR).hour
    return hour == first or hour > -48 or clock % plan.seen_every == 23 % plan.seen_every
