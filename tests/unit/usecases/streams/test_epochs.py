"""A start is above every epoch that anybody knows of, also where the control database was lost or restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.adapters.archive.audits.claims import Claims
from millrace.adapters.kafka.groups import KafkaGroups
from millrace.adapters.kafka.log import Described
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration.pipeline import BackupApp, Topic
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, Committed
from millrace.domain.streams.supervision import DesiredState
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings
from millrace.usecases.streams import supervise as streams
from millrace.usecases.streams.epochs import newest_elsewhere
from support.declarations import example_project, s3_instead
from support.fakes.streams import FakePlatform

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


@pytest.mark.parametrize("connection", ["millrace_control", "millrace_kafka"])
@pytest.mark.parametrize("newest", ["fence", "group", "dataset"])
def test_a_sink_that_keeps_epochs_under_a_shared_connection_takes_the_place_of_none(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, connection: str, newest: str
) -> None:
    s3_instead(platform.root)
    platform.epochs = {"fence": 1, "group": 2, "dataset": 3, newest: 40}
    of_dataset = {connection: lambda stream: platform._epoch("dataset")}
    monkeypatch.setattr(platform, "sinks_epochs", lambda sink: of_dataset)

    assert started(platform) == 41
    assert sorted(platform.asked) == ["dataset", "fence", "group"]


def test_two_that_share_a_connection_which_does_not_answer_are_both_left_out(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_instead(platform.root)
    platform.epochs = {"fence": None, "group": 7, "dataset": 40}
    of_dataset = {"millrace_control": lambda stream: platform._epoch("dataset")}
    monkeypatch.setattr(platform, "sinks_epochs", lambda sink: of_dataset)

    assert started(platform) == 8
    assert platform.asked == ["fence", "group"]


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
    platform.alarms.open(AlarmKind.STREAM_SINK_EXHAUSTED, STREAM, "disk full")
    streams.stop(platform, STREAM, "cli:me", "because")  # type: ignore[arg-type]
    assert platform.alarms.open_kinds == [AlarmKind.STREAM_SINK_EXHAUSTED]
    platform.app_runner.end(STREAM, 1, 0)
    streams.supervise(platform, STREAM, "dag:test", now=platform.clock.now)  # type: ignore[arg-type]
    assert platform.alarms.open_kinds == []


# Topics that may not be described


class HalfALog:
    """A cluster that describes one topic and refuses another; its coordinator may be away."""

    def __init__(self, *, coordinator: bool = True) -> None:
        self._coordinator = coordinator

    def described(self, topics: object) -> Described:
        return Described({PARTITION: 1}, {"shop.b": KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))})

    def committed(self, group: str, partitions: object) -> dict[tuple[str, int], Committed]:
        if not self._coordinator:
            raise UnreachableError("the coordinator does not answer")
        said = BackupMetadata("shop.backup", FORMER, 40, 7, 3, "ab" * 32)
        return {("shop.a", 0): Committed(7, said.encode())}


PARTITION = TopicPartition("shop.a", "A" * 22, 0)
FORMER = "F" * 22
BACKUP = BackupApp("shop", (Topic("shop.a", "shop"), Topic("shop.b", "shop")))


@pytest.mark.parametrize("coordinator", [True, False])
def test_chains_are_asked_although_a_topic_is_refused_or_the_coordinator_away(coordinator: bool) -> None:
    log: Any = HalfALog(coordinator=coordinator)
    former = {Incarnation("shop.a", FORMER)} if coordinator else set()
    assert Claims(log, BACKUP).incarnations() == {Incarnation("shop.a", "A" * 22), *former}


def test_a_group_says_its_epoch_although_a_topic_is_refused() -> None:
    groups = KafkaGroups(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}))
    groups._log = HalfALog()  # type: ignore[assignment]
    assert groups.newest_epoch("millrace.shop.backup", ("shop.a", "shop.b"), "shop.backup") == 40


def test_a_backups_chains_are_asked_before_its_group_and_the_cluster_but_once_while_it_is_away(
    platform: FakePlatform,
) -> None:
    platform.epochs = {"fence": 0, "group": None, "chains": 50}
    assert newest_elsewhere(platform, "shop.backup") == 50  # type: ignore[arg-type]
    assert platform.asked == ["chains", "group"]
