"""A backup whose store is away: its alarms go by what the brokers answer now."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.adapters.kafka.log import AnsweredBounds, Described
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Backup, BackupApp, Topic
from millrace.domain.retention.headroom import Headroom, Rule, Unread
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import TopicAccessError, UnreachableError
from millrace.runtime.backup import driver, silence
from millrace.runtime.backup.driver import BackupDriver
from support.fakes.objects import MemoryStore
from support.fakes.platform import PartsPlatform
from support.fakes.topics import FakeTopicAdmin

A, B = TopicPartition("shop.a", "A" * 22, 0), TopicPartition("shop.b", "B" * 22, 0)
APP = "shop.backup"
AT_ONCE = Backup(every=timedelta(0), max_lag=timedelta(0), keep=timedelta(0))
REFUSED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not authorized"))


class Store(MemoryStore):
    """A store that may be away."""

    is_away = False

    def prove_create_only(self) -> None:
        self._answer()

    def create(self, key: str, data: bytes) -> Any:
        self._answer()
        return super().create(key, data)

    def folders(self, prefix: str) -> Iterator[str]:
        self._answer()
        return super().folders(prefix)

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Any:
        self._answer()
        return super().list(prefix, after=after, page_size=page_size)

    def get(self, key: str) -> bytes | None:
        self._answer()
        return super().get(key)

    def _answer(self) -> None:
        if self.is_away:
            raise UnreachableError("the store does not answer")


@dataclass
class Cluster:
    """Two topics of one partition, each led by a broker of its own; both logs are empty.

    Attributes:
        hidden: topics without the right Describe.
        silent: partitions whose broker hangs.
        is_away: no broker answers at all.
        start: where each log starts, and ends.
    """

    hidden: set[str] = field(default_factory=set)
    silent: set[TopicPartition] = field(default_factory=set)
    is_away: bool = False
    start: int = 0
    admin: FakeTopicAdmin = field(
        default_factory=lambda: FakeTopicAdmin(
            [ObservedTopic(p.topic, p.topic_id, 1, 1, {}, {"cleanup.policy": "delete"}) for p in (A, B)]
        )
    )

    def described(self, topics: Collection[str]) -> Described:
        if self.is_away:
            raise UnreachableError("no broker answers")
        leaders: dict[TopicPartition, int | None] = {
            partition: broker
            for broker, partition in enumerate((A, B))
            if partition.topic in topics and partition.topic not in self.hidden
        }
        return Described(leaders, {topic: REFUSED for topic in self.hidden & set(topics)})

    def answered_bounds(self, partitions: Collection[TopicPartition], within: timedelta) -> AnsweredBounds:
        silent = self.silent & set(partitions)
        bounds = {p: LogBounds(self.start, self.start) for p in partitions if p not in silent}
        return AnsweredBounds(bounds, dict.fromkeys(silent, "timed out"), silent)

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Any]:
        return {}

    def least(self, positions: Mapping[TopicPartition, int]) -> Headroom | None:
        """As `UnreadLogs` does: one fault is the fault of the whole."""
        if refused := {p.topic: "no" for p in positions if p.topic in self.admin.unreadable}:
            raise TopicAccessError(refused)
        if self.silent & set(positions):
            raise UnreachableError("a broker does not answer")
        danger = [Headroom(Unread(p, 0, None, 0, 0), timedelta(minutes=1), Rule.TIME) for p in sorted(positions)]
        return danger[0] if danger else None


class Rounds(threading.Event):
    """A stop that comes after so many pauses; what the test wants to happen in between comes with them."""

    def __init__(self, *between: Any) -> None:
        super().__init__()
        self.between = list(between)

    def wait(self, timeout: float | None = None) -> bool:
        if self.between:
            self.between.pop(0)()
        else:
            self.set()
        return True


@dataclass
class Lived:
    """A backup's life without servers.

    Attributes:
        alarms: what is open, by kind.
        closed: the kinds of the alarms that were closed.
    """

    store: Store = field(default_factory=Store)
    cluster: Cluster = field(default_factory=Cluster)
    alarms: dict[str, str] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    def lose_store(self) -> None:
        """Let the store go, and have the next round write there: that records are lost."""
        self.store.is_away = True
        self.cluster.start = 5

    def open(self, kind: str, subject: str, detail: str, extent: Extent) -> bool:
        self.alarms[kind] = detail
        return True

    def close(self, kind: str, subject: str) -> bool:
        self.alarms.pop(kind, None)
        self.closed.append(kind)
        return True

    def run(self, monkeypatch: pytest.MonkeyPatch, *between: Any) -> None:
        platform = PartsPlatform(
            objects_store=lambda name: self.store,
            kafka_topics=lambda name: self.cluster.admin,
            kafka_records=lambda name: MagicMock(),
            kafka_unread=lambda name: self.cluster,
        )
        monkeypatch.setattr(driver, "open_platform", lambda settings: platform)
        life = MagicMock()
        life.log = self.cluster
        life.launch = SimpleNamespace(stream=APP, epoch=1, instance="i1")
        life.control.alarms = self
        life.control.backups.waiting.return_value = []
        life.control.backups.expiries.return_value = []
        life.run = lambda work, options: work(MagicMock())
        topics = tuple(Topic(each.topic, "shop", partitions=1, backup=AT_ONCE) for each in (A, B))
        pipeline: Any = SimpleNamespace(backup=BackupApp("shop", topics), kafka="millrace_kafka")
        BackupDriver(life, pipeline).run(Rounds(*between))


@pytest.fixture
def lived(monkeypatch: pytest.MonkeyPatch) -> Lived:
    monkeypatch.setattr(silence, "TOLD_AFTER", timedelta(0))
    monkeypatch.setattr("millrace.runtime.backup.doom._AGAIN_SECONDS", 0.0)
    return Lived()


@pytest.mark.parametrize("right", ["describe", "describe configs"])
def test_a_topic_that_may_not_be_described_hides_no_danger_of_another(
    lived: Lived, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    if right == "describe":
        lived.cluster.hidden = {A.topic}
    else:
        lived.cluster.admin.unreadable = {A.topic: "not authorized"}
    lived.run(monkeypatch, lived.lose_store)
    assert lived.alarms[AlarmKind.BACKUP_DOOMED].startswith("shop.b/0 is not archived")
    assert A.topic in lived.alarms[AlarmKind.BACKUP_SILENT]


@pytest.mark.parametrize("when", ["at its start", "later"])
def test_a_broker_that_hangs_while_the_store_is_away_is_named_and_hides_no_danger(
    lived: Lived, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    lived.store.is_away = when == "at its start"
    lived.cluster.silent = {A} if when == "at its start" else set()

    def both_go() -> None:
        lived.lose_store()
        lived.cluster.silent = {A}

    lived.run(monkeypatch, both_go)
    assert lived.alarms[AlarmKind.BACKUP_DOOMED].startswith("shop.b/0 is not archived")
    assert "shop.a/0" in lived.alarms[AlarmKind.BACKUP_SILENT]


def test_a_broker_that_comes_back_while_the_store_is_away_is_measured_again(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.cluster.hidden = {A.topic}

    def store_goes_and_topic_comes_back() -> None:
        lived.lose_store()
        lived.cluster.hidden = set()

    lived.run(monkeypatch, store_goes_and_topic_comes_back)
    assert lived.alarms[AlarmKind.BACKUP_DOOMED].startswith("shop.a/0 is not archived")
    assert AlarmKind.BACKUP_SILENT not in lived.alarms


def test_an_alarm_of_silence_stays_while_no_broker_answers_at_all(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.cluster.hidden = {A.topic}
    lived.run(monkeypatch, lambda: setattr(lived.cluster, "is_away", True))
    assert A.topic in lived.alarms[AlarmKind.BACKUP_SILENT]
    assert AlarmKind.BACKUP_SILENT not in lived.closed


def test_a_backup_that_cannot_see_all_does_not_keep_up(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    lived.cluster.hidden = {A.topic, B.topic}  # nothing can be measured, and nothing waits
    lived.alarms[AlarmKind.BACKUP_DOOMED] = "of the former epoch"
    lived.run(monkeypatch)
    assert lived.alarms[AlarmKind.BACKUP_DOOMED] == "of the former epoch"


def test_a_backup_that_keeps_up_ends_the_alarm(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    lived.alarms[AlarmKind.BACKUP_DOOMED] = "of the former epoch"
    lived.run(monkeypatch)
    assert AlarmKind.BACKUP_DOOMED not in lived.alarms
