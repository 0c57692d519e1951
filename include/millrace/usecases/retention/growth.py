"""How large topics will be and when disks are full: today's forecasts of a whole cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.groups.snapshots import DiskSeen, Snapshot
from millrace.domain.retention.forecasts.estimates import (
    HORIZONS,
    Full,
    Keeping,
    Shown,
    full_in,
    keeps,
    size_for,
    size_reaches,
)
from millrace.domain.retention.forecasts.history import MadeForecast
from millrace.domain.retention.inflow import Band
from millrace.domain.retention.settings import log_settings
from millrace.errors import UnreachableError
from millrace.usecases.declaration.lookup import declared_topics
from millrace.usecases.retention import forecasts
from millrace.usecases.retention.alarms import MOST_ALARMS
from millrace.usecases.retention.forecasts import purged
from millrace.usecases.retention.sizing import TopicSizing

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

SOON_DAYS = 7.0
NEARLY_FULL = 0.1


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """When a broker's disk is full, as the forecasts of the topics on it say; `surely`: those that are a week old."""

    disk: DiskSeen
    full: Full
    surely: Full

    @property
    def soon(self) -> bool:
        """Whether it is nearly full, or within a week by what topics grow whose growth was measured over a week."""
        disk = self.disk
        little = bool(disk.total_bytes) and (disk.usable_bytes or 0) < (disk.total_bytes or 0) * NEARLY_FULL
        return little or (self.surely.expected is not None and self.surely.expected <= SOON_DAYS)

    def __str__(self) -> str:
        """In a line for people."""
        disk = self.disk
        free, total = roughly_bytes(disk.usable_bytes or 0), roughly_bytes(disk.total_bytes or 0)
        where = f"broker {disk.broker}, {disk.folder}: {free} of {total} are free"
        if self.full.expected is None and self.full.earliest is None:
            return f"{where}; it is not full in ten years"
        expected = "not in ten years" if self.full.expected is None else f"in {self.full.expected:,.0f} days"
        earliest = "" if self.full.earliest is None else f", at the earliest in {self.full.earliest:,.0f}"
        return f"{where}; full {expected}{earliest}"


@dataclass(frozen=True, slots=True)
class Grown:
    """Forecasts by topic and disk; `new` and `known` are lines of disks that are full soon."""

    topics: Mapping[str, MadeForecast]
    disks: Sequence[DiskForecast]
    new: Sequence[str] = ()
    known: Sequence[str] = ()


def foresee(platform: Platform, pipeline: Pipeline, *, now: datetime | None = None) -> Grown:
    """Keep what the topics of a pipeline's cluster are today, forecast each of them once a day, and look at the disks.

    A disk that is expected to be full within a week opens an alarm.

    Raises:
        UnreachableError: no broker, or the control database, does not answer.
    """
    began = now or datetime.now(UTC)
    kafka = pipeline.kafka
    snapshot = platform.kafka.cluster(kafka).take()
    settings = {name: log_settings(topic.settings) for name, topic in snapshot.topics.items() if topic.settings}
    declared = declared_topics(platform.settings.root, kafka)
    growths = {
        name: topic.expect.growth_per_day
        for name, topic in declared.items()
        if topic.expect is not None and topic.expect.growth_per_day is not None
    }
    forecasts.note(platform, kafka, snapshot)
    made = forecasts.forecast_all(platform, kafka, began, settings, growths)
    forecasts.tidy(platform, began)
    disks = disk_forecasts(snapshot, made)
    new, known = _hold_disks(platform, kafka, disks, began)
    return Grown(made, disks, new, known)


def disk_forecasts(snapshot: Snapshot, made: Mapping[str, MadeForecast]) -> list[DiskForecast]:
    """When each disk is full that tells how much of it is free."""
    found = []
    for disk in snapshot.disks:
        if disk.usable_bytes is not None:
            parts = [
                (made[name].forecast, _part(snapshot, name, size))
                for name, size in disk.topics.items()
                if name in made and name in snapshot.topics and not purged(snapshot.topics[name])
            ]
            sure = [each for each in parts if each[0].growth is not None and each[0].growth.days]
            full, surely = full_in(disk.usable_bytes, parts), full_in(disk.usable_bytes, sure)
            found.append(DiskForecast(disk, full, surely))
    return found


def known_forecasts(
    platform: Platform, kafka: str, topics: Collection[str], *, now: datetime | None = None
) -> tuple[Mapping[str, MadeForecast], Sequence[str]]:
    """The newest forecast of each of these topics that has one, and what keeps anybody from knowing them."""
    try:
        return forecasts.latest(platform, kafka, now or datetime.now(UTC), topics), ()
    except UnreachableError as error:
        return {}, (f"forecasts: {error.what}",)


def size_for_days(made: MadeForecast, topic: TopicSizing) -> Sequence[tuple[int, Band]]:
    """The `retention.bytes` that holds 7, 30 and 90 days in the partition with the most; none where nobody knows."""
    sizes = [one.log.size_bytes or 0 if one.log else 0 for one in topic.partitions]
    busiest = max(sizes) / sum(sizes) if sum(sizes) else 1 / max(1, len(sizes))
    found = ((horizon.days, size_for(made.forecast, horizon.days, busiest)) for horizon in HORIZONS)
    return [(days, band) for days, band in found if band is not None]


def keeping(topic: TopicSizing, made: MadeForecast | None, max_age: timedelta) -> Sequence[Keeping]:
    """Whether no record of a topic, and of its archive where it has one, gets older than it may; what shows it."""
    if topic.settings is None:
        return [Keeping(False, Shown.NOTHING, "its settings are not known")]
    days = None if made is None else size_reaches(made.forecast, topic.settings)
    found = [keeps(max_age, topic.settings, topic.age, topic.broker, days)]
    backup = topic.declared.backup if topic.declared else None
    if backup is not None and backup.keep is None:
        found.append(Keeping(False, Shown.NOTHING, "its archive keeps everything"))
    elif backup is not None and backup.keep is not None:
        text = f"its archive keeps it for {roughly(backup.keep)} at least, and lets it go when it is next collected"
        found.append(Keeping(backup.keep < max_age, Shown.TIME, text))
    return found


def _part(snapshot: Snapshot, topic: str, size_bytes: int) -> float:
    """What lies on a disk of a topic, as a part of its leaders' replicas as they are now; of an empty one all."""
    led = sum(log.size_bytes or 0 for log in snapshot.topics[topic].logs if log is not None)
    return size_bytes / led if led else 1.0


def _hold_disks(
    platform: Platform, kafka: str, disks: Sequence[DiskForecast], began: datetime
) -> tuple[list[str], list[str]]:
    alarms = platform.control.alarms
    now_open = {alarm.subject for alarm in alarms.list(limit=MOST_ALARMS) if alarm.kind == AlarmKind.DISK_FULL}
    new: list[str] = []
    known: list[str] = []
    for one in disks:
        subject = f"{kafka}/broker {one.disk.broker} {one.disk.folder}"
        if one.soon:
            (
                new if alarms.open(AlarmKind.DISK_FULL, subject, str(one), Extent(one.disk.usable_bytes)) else known
            ).append(str(one))
        elif subject in now_open:
            alarms.close(AlarmKind.DISK_FULL, subject, opened_before=began)
    return new, known


def forecast_lines(made: Mapping[str, MadeForecast]) -> Iterator[str]:
    """What is to come of topics, a line each."""
    for name, one in sorted(made.items()):
        yield f"{name}: {in_words(one)}"


def in_words(made: MadeForecast) -> str:
    """What is to come of one topic."""
    one = made.forecast
    if not one.estimates:
        return f"not forecast: {one.why}"
    past = {each.days: each for each in made.past}
    parts = []
    for each in one.estimates:
        band = f"{roughly_bytes(each.low)} to {roughly_bytes(each.high)}"
        text = f"in {each.days} days {roughly_bytes(each.expected)} ({band}"
        if each.days in past:
            seen = past[each.days]
            text += f"; off by {seen.error:.0%} so far, {seen.within} of {seen.count} within"
        parts.append(text + ")")
    return f"{roughly_bytes(one.size_bytes)} now, {', '.join(parts)}; {growth_in_words(made)}"


def growth_in_words(made: MadeForecast) -> str:
    """How what comes in grows."""
    growth = made.forecast.growth
    if growth is None:
        return "its growth is not known"
    month = growth.a_day.expected * 30
    measured = f"measured over {growth.days} days" if growth.days else growth.why
    differs = growth.as_declared is False and growth.declared is not None
    declared = None if growth.declared is None else (1 + growth.declared) ** 30 - 1
    other = f"; {declared:+.1%} was expected" if differs and declared is not None else ""
    return f"what comes in grows by {month:+.1%} a month ({measured}{other})"
