"""A start is above every epoch that anybody knows of, also where the control database was lost or restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.domain.groups import CommitMetadata
from millrace.domain.streams import SINK_EXHAUSTED, DesiredState
from millrace.usecases import streams
from support.declarations import example_project, s3_instead
from support.fakes_streams import FakePlatform

STREAM = "shop.purchases"


@pytest.fixture
def platform(tmp_path: Path) -> FakePlatform:
    return FakePlatform(example_project(tmp_path))


def started(platform: FakePlatform) -> int | None:
    return streams.start(platform, STREAM, "cli:me", "because").epoch  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fence", "group", "epoch"),
    [(0, 0, 1), (40, 41, 42), (41, 40, 42), (40, None, 41), (None, 40, 41), (None, None, 1)],
)
def test_a_lost_control_database_begins_above_what_sink_and_group_know(
    platform: FakePlatform, fence: int | None, group: int | None, epoch: int
) -> None:
    platform.epochs = {"fence": fence, "group": group}
    assert started(platform) == epoch
    [entry] = [entry for entry in platform.logged if entry["action"] == "stream.submit"]
    assert entry["after"] == {"epoch": str(epoch)}
    assert ("the control database only 0" in str(entry["reason"])) == (epoch > 1)


@pytest.mark.parametrize(
    ("fence", "group", "dataset", "epoch"),
    [(3, 4, 40, 41), (40, 3, 4, 41), (None, None, 40, 41), (40, 39, None, 41), (0, 0, 0, 1)],
)
def test_of_a_stream_that_writes_to_s3_the_chain_in_the_bucket_is_asked_as_well(
    platform: FakePlatform, fence: int | None, group: int | None, dataset: int | None, epoch: int
) -> None:
    s3_instead(platform.root, "{s3: {connection: lake_s3, prefix: lake/purchases}}")
    platform.epochs = {"fence": fence, "group": group, "dataset": dataset}
    assert started(platform) == epoch
    assert sorted(platform.asked) == ["dataset", "fence", "group"]
    assert ("lake_s3" in platform.unanswered) == (dataset is None)


def test_a_restored_control_database_goes_on_above_them(platform: FakePlatform) -> None:
    for _ in range(5):
        started(platform)
        platform.app_runner.end(STREAM, platform.app_runner.find(STREAM)[0].epoch, 0)
    platform.epochs = {"fence": 40, "group": 39}
    assert started(platform) == 41


def test_what_is_known_elsewhere_lowers_nothing(platform: FakePlatform) -> None:
    started(platform)
    platform.app_runner.end(STREAM, 1, 0)
    platform.epochs = {"fence": 1, "group": 1}
    assert started(platform) == 2


def test_who_does_not_answer_is_not_waited_for_by_every_start(platform: FakePlatform) -> None:
    platform.epochs = {"fence": None, "group": 7}
    for epoch in (8, 9):
        assert started(platform) == epoch
        platform.app_runner.end(STREAM, epoch, 0)
    assert platform.asked == ["fence", "group", "group"]
    [connection] = platform.unanswered
    platform.unanswered[connection] -= 60
    platform.epochs["fence"] = 40
    assert started(platform) == 41


def test_a_start_that_somebody_else_was_first_at_is_none(platform: FakePlatform) -> None:
    """Looking elsewhere takes a while: who looked before the other's start must not start again."""
    platform.epochs = {"fence": 40, "group": 40}
    platform.streams.set_desired(STREAM, actor="cli:me", reason="test", state=DesiredState.RUNNING)
    assert platform.streams.raise_epoch(STREAM, 0, host="here", above=40) == 41
    assert platform.streams.raise_epoch(STREAM, 0, host="here", above=40) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"millrace":1,"stream":"a.s","topic_id":"x","timeline":1,"epoch":"9","offset":1}',
        '{"millrace":1,"stream":"a.s","topic_id":"x","timeline":1,"epoch":9.5,"offset":1}',
        '{"millrace":1,"stream":"a.s","topic_id":"x","timeline":1,"epoch":true,"offset":1}',
        '{"millrace":1,"stream":"a.s","topic_id":"x","timeline":1,"epoch":-1,"offset":1}',
        '{"millrace":1,"stream":"a.s","topic_id":"x","timeline":1,"epoch":99999999999999999999,"offset":1}',
    ],
)
def test_metadata_with_numbers_that_are_none_is_not_ours(text: str) -> None:
    assert CommitMetadata.decode(text) is None


def test_the_alarm_of_a_full_sink_is_over_when_the_stream_is_stopped(platform: FakePlatform) -> None:
    started(platform)
    platform.alarms.open(SINK_EXHAUSTED, STREAM, "disk full")
    streams.stop(platform, STREAM, "cli:me", "because")  # type: ignore[arg-type]
    assert platform.alarms.open_kinds == [SINK_EXHAUSTED]
    platform.app_runner.end(STREAM, 1, 0)
    streams.supervise(platform, STREAM, "dag:test", now=platform.clock.now)  # type: ignore[arg-type]
    assert platform.alarms.open_kinds == []
