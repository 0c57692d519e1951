"""Forecasts of a cluster and its disks, as the hourly DAG makes them and as people read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Backup
from millrace.domain.groups.snapshots import DiskSeen, LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.forecasts.errors import PastError
from millrace.domain.retention.forecasts.estimates import Estimate, Forecast, Limits, Shown
from millrace.domain.retention.forecasts.history import MadeForecast
from millrace.domain.retention.inflow import Band, Growth
from millrace.errors import UnreachableError
from millrace.usecases.retention import growth
from millrace.usecases.retention.growth import (
    disk_forecasts,
    foresee,
    in_words,
    keeping,
    known_forecasts,
    size_for_days,
)
from millrace.usecases.retention.sizing import TopicSizing, size
from support.declarations import example_project
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.groups.worlds import BEGAN

KAFKA = "millrace_kafka"
TOPIC = "shop.purchases"
DAY = timedelta(days=1)
GIB = 1 << 30


@pytest.fixture
def platform(tmp_path: Path) -> GroupsPlatform:
    return groups_platform(example_project(tmp_path), BEGAN)


def made(a_day: float, *, size_bytes: int = GIB, why: str = "") -> MadeForecast:
    """A topic that grows by so many bytes a day for ever."""
    estimates = tuple(
        Estimate(days, BEGAN + DAY * days, *(int(size_bytes + a_day * days * share) for share in (0.9, 1.0, 1.1)))
        for days in (7, 30, 90)
    )
    inflow = Band(a_day * 0.9, a_day, a_day * 1.1)
    grows = Growth(Band(0.0, 0.001, 0.002), 40)
    told = Forecast(BEGAN, size_bytes, inflow, grows, Limits(None, None, 2), () if why else estimates, why)
    return MadeForecast(TOPIC, "id", told)


def seen(*disks: DiskSeen) -> Snapshot:
    logs = tuple(LogSeen(0, 100, 100, None, GIB // 2, None) for _ in range(2))
    return Snapshot(BEGAN, "cluster", {TOPIC: TopicSeen("id", logs, {"retention.ms": "-1"}, 1)}, {}, disks=disks)


def disk(free: int, taken: int = GIB) -> DiskSeen:
    return DiskSeen(1, "/data", 100 * GIB, free, {TOPIC: taken, "other": 5})


def test_a_disk_is_full_when_what_lies_on_it_has_grown_by_what_is_free() -> None:
    [whole] = disk_forecasts(seen(disk(GIB)), {TOPIC: made(GIB / 10)})
    assert whole.full.expected == pytest.approx(10, abs=0.1)
    assert str(whole) == ("broker 1, /data: 1.0 GiB of 100 GiB are free; full in 10 days, at the earliest in 9")
    [half] = disk_forecasts(seen(disk(GIB, taken=GIB // 2)), {TOPIC: made(GIB / 10)})
    assert half.full.expected == pytest.approx(20, abs=0.1)
    [never] = disk_forecasts(seen(disk(GIB)), {TOPIC: made(0.0)})
    assert str(never).endswith("it is not full in ten years")
    assert disk_forecasts(seen(replace(disk(GIB), usable_bytes=None)), {}) == []


def test_a_topic_that_was_small_when_it_was_forecast_lies_on_the_disk_as_a_whole_all_the_same() -> None:
    small = made(GIB / 1000, size_bytes=GIB // 1000)
    [found] = disk_forecasts(seen(disk(GIB * 50)), {TOPIC: small})
    assert found.full.expected is None or found.full.expected > 3_000


def test_what_was_seen_for_less_than_a_week_is_no_alarm_and_a_disk_that_is_nearly_full_is() -> None:
    young = made(GIB)
    young = replace(young, forecast=replace(young.forecast, growth=Growth(Band(0.0, 0.0, 0.0), 0, "too short")))
    [found] = disk_forecasts(seen(disk(GIB * 20)), {TOPIC: young})
    assert (found.full.expected == pytest.approx(20), found.soon) == (True, False)
    [little] = disk_forecasts(seen(disk(GIB * 5)), {TOPIC: made(0.0)})
    assert little.soon


def test_a_disk_that_is_full_soon_is_an_alarm_until_it_is_not(
    platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {TOPIC: made(GIB / 5)}
    monkeypatch.setattr(growth.forecasts, "note", lambda *_: 1)
    monkeypatch.setattr(growth.forecasts, "forecast_all", lambda *_: told)
    monkeypatch.setattr(growth.forecasts, "tidy", lambda *_: None)
    pipeline = load_pipeline(platform.root, "shop")
    platform.clusters[KAFKA] = FakeCluster(seen(disk(GIB)))
    first = foresee(platform, pipeline, now=BEGAN)
    assert [line.split(":")[0] for line in first.new] == ["broker 1, /data"]
    again = foresee(platform, pipeline, now=BEGAN)
    assert (again.new, list(again.known)) == ([], list(first.new))
    [alarm] = [a for a in platform.control.alarms.list() if a.kind == AlarmKind.DISK_FULL]
    assert (alarm.subject, alarm.extent) == (f"{KAFKA}/broker 1 /data", Extent(GIB))
    platform.clusters[KAFKA] = FakeCluster(seen(disk(90 * GIB)))
    platform.clock.now += timedelta(minutes=1)
    assert foresee(platform, pipeline, now=BEGAN + timedelta(minutes=2)).new == []
    assert [a for a in platform.control.alarms.list() if a.kind == AlarmKind.DISK_FULL] == []


def test_a_forecast_is_told_with_its_band_its_growth_and_its_past_error() -> None:
    one = replace(made(GIB), past=(PastError(7, 0.08, 9, 10),))
    assert in_words(one) == (
        "1.0 GiB now, in 7 days 8.0 GiB (7.3 GiB to 8.7 GiB; off by 8% so far, 9 of 10 within), "
        "in 30 days 31.0 GiB (28.0 GiB to 34.0 GiB), in 90 days 91.0 GiB (82.0 GiB to 100 GiB); "
        "what comes in grows by +3.0% a month (measured over 40 days)"
    )
    other = replace(one.forecast, growth=Growth(Band(0.0, 0.001, 0.002), 40, "", 0.05))
    assert in_words(replace(one, forecast=other)).endswith("(measured over 40 days; +332.2% was expected)")
    assert in_words(made(1, why="watched for less than an hour")) == "not forecast: watched for less than an hour"


def sizing_of(platform: GroupsPlatform, *, keep: timedelta | None = None, backup: bool = False) -> TopicSizing:
    platform.clusters[KAFKA] = FakeCluster(seen())
    [found] = size(platform, KAFKA, [TOPIC]).topics
    assert found.declared is not None
    return replace(found, declared=replace(found.declared, backup=Backup(keep=keep) if backup else None))


def test_retention_by_size_is_told_for_the_fullest_partition(platform: GroupsPlatform) -> None:
    held = size_for_days(made(GIB), sizing_of(platform))
    assert [days for days, _ in held] == [7, 30, 90]
    assert held[0][1].expected == pytest.approx(3.5 * GIB, rel=0.01)


def test_whether_nothing_gets_too_old_is_told_of_topic_and_archive(platform: GroupsPlatform) -> None:
    [topic] = keeping(sizing_of(platform), made(GIB), 10 * DAY)
    assert (topic.kept, topic.by) == (False, Shown.NOTHING)
    limited = replace(sizing_of(platform, backup=True, keep=5 * DAY))
    assert limited.settings is not None
    limited = replace(limited, settings=replace(limited.settings, time=DAY))
    assert [each.kept for each in keeping(limited, None, 10 * DAY)] == [True, True]
    assert [each.kept for each in keeping(limited, None, 3 * DAY)] == [False, False]
    for_ever = replace(limited, declared=replace(limited.declared, backup=Backup()))  # type: ignore[type-var]
    assert [each.kept for each in keeping(for_ever, None, 10 * DAY)] == [True, False]
    assert not keeping(replace(limited, settings=None), None, DAY)[0].kept


def test_without_the_control_database_no_forecast_is_known(
    platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> dict[str, MadeForecast]:
        raise UnreachableError("the control database does not answer")

    monkeypatch.setattr(growth.forecasts, "latest", silent)
    assert known_forecasts(platform, KAFKA, [TOPIC]) == ({}, ("forecasts: the control database does not answer",))


def test_a_topic_of_which_something_else_deletes_records_fills_no_disk() -> None:
    """As repartition topics of Kafka Streams: without limits, and their logs begin behind their first record."""
    snapshot = seen(disk(GIB))
    logs = tuple(replace(log, start=50) if log else None for log in snapshot.topics[TOPIC].logs)
    topics = {TOPIC: replace(snapshot.topics[TOPIC], logs=logs)}
    [found] = disk_forecasts(replace(snapshot, topics=topics), {TOPIC: made(GIB)})
    assert found.full.expected is None
