"""`millrace topics sizing` and `topics headroom`, as called."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.terminal.bars import share_bar
from millrace.cli.topics import commands as topics
from millrace.cli.topics import headroom, sizing
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import DiskSeen, GroupSeen, GroupType, LogSeen, Partition, Snapshot, TopicSeen
from millrace.domain.retention.forecasts.estimates import Estimate, Forecast, Limits
from millrace.domain.retention.forecasts.history import MadeForecast
from millrace.domain.retention.inflow import Band, Growth
from millrace.domain.retention.readers import FirstRecords
from millrace.settings import Settings
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform

KAFKA = "millrace_kafka"
TOPIC = "shop.purchases"
GROUP = "millrace.shop.purchases"
NOW = datetime.now(UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
KEPT = {"retention.ms": "36000000", "segment.ms": "3600000"}


class NoRecords:
    """Everything was deleted before it could be read."""

    def first_records(self, asked: dict[Partition, tuple[int, int]], within: timedelta) -> FirstRecords:
        return FirstRecords({}, dict.fromkeys(asked, "it is gone"))


class Forecasts:
    """The forecasts that are kept."""

    def __init__(self) -> None:
        self.made: dict[str, MadeForecast] = {}

    def latest(self, kafka: str, topics: object = None, **_: object) -> dict[str, MadeForecast]:
        return self.made

    def errors(self, *_: object) -> dict[object, object]:
        return {}


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupsPlatform:
    example_project(tmp_path)
    monkeypatch.setenv("MILLRACE_ROOT", str(tmp_path))
    made = groups_platform(tmp_path, NOW)
    made.topic_readers[KAFKA] = NoRecords()  # type: ignore[assignment]
    made.known = made.rooms["forecasts"] = Forecasts()  # type: ignore[attr-defined]
    use_platform(monkeypatch, made, sizing, headroom, settings=Settings(tmp_path, lambda name: None))
    for minute in range(30):
        made.snapshots.add(KAFKA, seen(minute - 30))
    made.clusters[KAFKA] = FakeCluster(seen(0))
    return made


def seen(minute: int, *, age: timedelta = HOUR, **more: Any) -> Snapshot:
    end = 6_000 + 60 * minute
    first = NOW_MS - age // timedelta(milliseconds=1)
    logs = tuple(LogSeen(0, end, end, first, end * 100, NOW_MS) for _ in range(2))
    group = GroupSeen(GROUP, GroupType.CLASSIC, "Empty", "", (), {(TOPIC, 0): Committed(0), (TOPIC, 1): Committed(end)})
    disk = DiskSeen(1, "/data", 10 << 30, 5 << 30, {TOPIC: end * 200})
    topic = TopicSeen("id", logs, KEPT, 1)
    found = Snapshot(NOW + MINUTE * minute, "cluster-1", {TOPIC: topic, "__own": topic}, {GROUP: group}, disks=(disk,))
    return replace(found, **more)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(topics.app, arguments, env={"COLUMNS": "200"})


def document(*arguments: str) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


@pytest.mark.usefixtures("platform")
def test_sizes_are_told_beside_their_bounds() -> None:
    found = document("sizing")
    assert (found["schema"], found["kafka"], [one["topic"] for one in found["topics"]]) == (
        "millrace.topics.sizing/1",
        KAFKA,
        [TOPIC],
    )
    [one] = found["topics"]
    assert one["size_bytes"] == 1_200_000
    assert one["bytes_per_second"] == pytest.approx(200)
    assert one["bound_bytes"] == pytest.approx(200 * (36_000 + 3_600 + 300), rel=0.01)
    assert one["oldest_seconds"] == pytest.approx(3_600, abs=1)
    assert one["oldest_bound_seconds"] == 36_000 + 3_600 + 300
    assert (one["rate_is"], one["breaches"], one["forecast"]) == ("measured", [], None)
    shown = call("sizing")
    assert shown.exit_code == 0
    assert "1.1 MiB" in shown.stdout
    assert "5.0 GiB of 10.0 GiB are free" in shown.stdout


def test_one_topic_is_told_with_partitions_forecast_and_advice(platform: GroupsPlatform) -> None:
    estimates = tuple(Estimate(days, NOW, 1, 2, 3) for days in (7, 30, 90))
    told = Forecast(NOW, 5, Band(1.0, 2.0, 3.0), Growth(Band(0.0, 0.0, 0.0), 9), Limits(None, None, 2), estimates)
    platform.known.made = {TOPIC: MadeForecast(TOPIC, "id", told)}  # type: ignore[attr-defined]
    shown = call("sizing", TOPIC)
    assert shown.exit_code == 0
    for text in ("0 to 6,000", "in 30 days 2 B (1 B to 3 B)", "retention.bytes that holds", "advice: "):
        assert text in shown.stdout, text
    assert "the first record of shop.purchases/0: it is gone" in shown.stdout
    one = document("sizing", TOPIC)["topics"][0]
    assert [each["expected"] for each in one["forecast"]["estimates"]] == [2, 2, 2]
    assert set(one["retention_bytes_for_days"]) == {"7", "30", "90"}


def test_a_bound_that_is_broken_ends_with_one(platform: GroupsPlatform) -> None:
    platform.clusters[KAFKA] = FakeCluster(seen(0, age=DAY))
    shown = call("sizing")
    assert shown.exit_code == 1
    assert "partition 0: too-old: its oldest record is 24.0 h old, and 11.1 h is the most that follows" in shown.stdout


@pytest.mark.usefixtures("platform")
def test_an_age_that_nothing_may_pass_is_held_against_the_topic() -> None:
    assert call("sizing", TOPIC, "--max-age", "10d").exit_code == 1  # its archive keeps it for ten years
    found = document("sizing", TOPIC, "--max-age", "11y")
    assert [one["kept"] for one in found["topics"][0]["max_age"]] == [True, True]
    assert call("sizing", TOPIC, "--max-age", "11y").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("sizing", "nobody"), "topic `nobody` does not exist"),
        (("headroom", "nobody"), "group `nobody` does not exist"),
        (("sizing", "--max-age", "10"), "--max-age: "),
    ],
)
@pytest.mark.usefixtures("platform")
def test_what_is_not_there_is_a_usage_error(arguments: tuple[str, ...], what: str) -> None:
    found = call(*arguments)
    assert what in str(found.exception)


@pytest.mark.usefixtures("platform")
def test_headroom_is_told_by_reader_and_of_one_by_partition() -> None:
    found = document("headroom")
    [one] = found["readers"]
    assert (found["schema"], one["group"], one["what"], one["unread"], one["danger"]) == (
        "millrace.topics.headroom/1",
        GROUP,
        "stream shop.purchases",
        6_000,
        "none",
    )
    assert one["left_seconds"] == pytest.approx(32_400, abs=2)
    shown = call("headroom", "shop.purchases")
    assert shown.exit_code == 0
    assert "shop.purchases/0" in shown.stdout
    assert "9.0 h" in shown.stdout


def test_who_is_about_to_lose_something_ends_with_one(platform: GroupsPlatform) -> None:
    platform.clusters[KAFKA] = FakeCluster(seen(0, age=HOUR * 9.9))
    shown = call("headroom")
    assert shown.exit_code == 1
    assert "alarm" in shown.stdout


def test_without_the_control_database_both_work_and_say_so(platform: GroupsPlatform) -> None:
    platform.snapshots.silent = True
    for command in ("sizing", "headroom"):
        shown = call(command)
        assert shown.exit_code == 0, command
        assert "not known: what the snapshots say" in shown.stdout


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, ""), (0.0, "░░░░"), (0.01, "█░░░"), (0.5, "██░░"), (0.99, "███░"), (1.0, "████"), (7, "████")],
)
def test_a_bar_is_never_full_or_empty_where_the_share_is_not(share: float | None, text: str) -> None:
    assert share_bar(share, cells=4).plain == text
