"""Forecasts of topics, one a topic a day, each with how far those before it were off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.groups.snapshots import Snapshot, TopicSeen
from millrace.domain.retention.forecasts.errors import errors
from millrace.domain.retention.forecasts.estimates import Limits, forecast
from millrace.domain.retention.forecasts.history import (
    MadeForecast,
    TopicLook,
    judged,
    look_of,
    looks_of,
    now_of,
    points_of,
)
from millrace.domain.retention.settings import LogSettings, log_settings

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_PURGED = "no limit deletes its records but something does, so its size does not follow from its inflow"
_LOOKED_BACK = timedelta(days=86)
_YOUNG_DAYS = 4  # whoever has fewer rows of a day is looked at by the hour too
_HOURLY = timedelta(days=3)
_STALE = timedelta(hours=1)


def note(platform: Platform, kafka: str, snapshot: Snapshot) -> int:
    """Keep what a snapshot saw as what its topics are today; of how many topics. The latest of a day counts.

    A topic of which a partition or a size is not known is left out.

    Raises:
        UnreachableError: the control database does not answer.
    """
    looks = looks_of(snapshot)
    platform.control.forecasts.measure(kafka, looks)
    return len(looks)


def forecast_all(
    platform: Platform,
    kafka: str,
    now: datetime,
    settings: Mapping[str, LogSettings],
    growths: Mapping[str, float] | None = None,
) -> Mapping[str, MadeForecast]:
    """Today's forecasts by topic; those that are missing are made, and those whose time has come are judged.

    Args:
        platform: where things are.
        kafka: the cluster's Connection.
        now: the time, UTC.
        settings: those in force, by topic; others are not forecast.
        growths: what is declared, as a fraction of the inflow a day, by topic.

    Guarantees: one a topic a day, however often this runs and how many do at once; another one only where the topic
    was made again that day. None is made of a snapshot that is older than an hour.

    Raises:
        UnreachableError: the control database does not answer.
    """
    store, snapshot = platform.control.forecasts, platform.control.snapshots.latest(kafka)
    _judge(platform, kafka, now, settings)
    if snapshot is not None and now - snapshot.at < _STALE:
        seen = {
            name: look
            for name, topic in snapshot.topics.items()
            if name in settings and (look := look_of(name, topic, snapshot.at)) is not None
        }
        made = store.latest(kafka, seen, day=now.astimezone(UTC).date())
        missing = {name: look for name, look in seen.items() if _missing(made.get(name), look)}
        store.add(kafka, _make(platform, kafka, now, snapshot, missing, settings, growths or {}))
    return _with_errors(platform, kafka, now, store.latest(kafka, settings, day=now.astimezone(UTC).date()))


def latest(
    platform: Platform, kafka: str, now: datetime, topics: Collection[str] | None = None
) -> Mapping[str, MadeForecast]:
    """The newest forecast of each topic that has one, with how far those before it were off.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return _with_errors(platform, kafka, now, platform.control.forecasts.latest(kafka, topics))


def purged(topic: TopicSeen, settings: LogSettings | None = None) -> bool:
    """Whether something else than its settings deletes its records, as Kafka Streams does in its repartition topics."""
    own = settings or (log_settings(topic.settings) if topic.settings else LogSettings())
    return not own.limited and not own.compacts and any(log.start > 0 for log in topic.logs if log is not None)


def tidy(platform: Platform, now: datetime) -> int:
    """Let go of what topics were more than 400 days ago, and of forecasts older than 200 days; how many rows.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control.forecasts.tidy(now)


def _missing(made: MadeForecast | None, look: TopicLook) -> bool:
    return made is None or made.topic_id != look.topic_id


def _make(
    platform: Platform,
    kafka: str,
    now: datetime,
    snapshot: Snapshot,
    looks: Mapping[str, TopicLook],
    settings: Mapping[str, LogSettings],
    growths: Mapping[str, float],
) -> list[MadeForecast]:
    if not looks:
        return []
    store = platform.control.forecasts
    daily = store.points(kafka, looks, now - _LOOKED_BACK, snapshot.at)
    young = [name for name, look in looks.items() if _days(daily.get(name, ()), look) < _YOUNG_DAYS]
    hourly = store.hourly(kafka, young, snapshot.at - _HOURLY, snapshot.at)
    found = []
    for name, look in looks.items():
        points = points_of([*hourly.get(name, ()), *daily.get(name, ()), look], look.topic_id)
        here = now_of(look, snapshot.topics[name].logs)
        told = forecast(points, settings[name], here, now, growths.get(name))
        if purged(snapshot.topics[name], settings[name]):
            told = replace(told, inflow=None, growth=None, estimates=(), why=_PURGED)
        found.append(MadeForecast(name, look.topic_id, told))
    return found


def _days(looks: Collection[TopicLook], now: TopicLook) -> int:
    return sum(look.topic_id == now.topic_id for look in looks)


def _judge(platform: Platform, kafka: str, now: datetime, settings: Mapping[str, LogSettings]) -> None:
    store = platform.control.forecasts
    found = []
    for due in store.due(kafka, now):
        own = settings.get(due.topic)
        if own is None:
            continue
        limits = Limits(own.time, own.size_bytes, due.actual.partitions)
        if (comparison := judged(due, limits)) is not None:
            found.append((due, comparison))
    store.judge(kafka, found)


def _with_errors(
    platform: Platform, kafka: str, now: datetime, made: Mapping[str, MadeForecast]
) -> Mapping[str, MadeForecast]:
    past = platform.control.forecasts.errors(kafka, now, made)
    return {name: replace(one, past=errors(past.get((name, one.topic_id), ()))) for name, one in sorted(made.items())}
