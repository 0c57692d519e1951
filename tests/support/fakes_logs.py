"""Logs, groups' commits and settings of one cluster in memory, for what is decided before records are deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace

from millrace.domain.groups import Committed
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds
from millrace.domain.snapshots import LogSeen, Snapshot, TopicSeen
from millrace.domain.sources import TopicRecord
from millrace.domain.time_travel import PartitionTimes, RecordAt
from millrace.errors import UnreachableError
from support.fakes_plans import FakePlans
from support.fakes_streams import FakePlatform
from support.fakes_topics import FakeTopicAdmin

EACH_BYTES = 100


@dataclass
class FakeLog:
    """Records by partition: the timestamp of each, in milliseconds. Every record weighs 100 bytes.

    Attributes:
        silent: no broker answers.
    """

    records: dict[TopicPartition, list[int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    commits: dict[str, dict[tuple[str, int], Committed]] = field(default_factory=dict)
    leaderless: set[TopicPartition] = field(default_factory=set)
    silent: bool = False
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.silent:
            raise UnreachableError("nobody answers", where="kafka")

    def fill(self, partition: TopicPartition, count: int, at: datetime, every: timedelta = timedelta()) -> None:
        """Append so many records, the first at this time, the others each so much later."""
        made = self.records.setdefault(partition, [])
        made += [int((at + every * number).timestamp() * 1000) for number in range(count)]

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        return sorted(self.leaders(topics))

    def leaders(self, topics: Collection[str]) -> dict[TopicPartition, bool]:
        self._ask("leaders")
        return {p: p not in self.leaderless for p in self.records if p.topic in topics}

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        self._ask("bounds")
        return {p: LogBounds(self.starts.get(p, 0), len(self.records[p])) for p in partitions}

    def times(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, PartitionTimes]:
        found = {}
        for partition, bounds in self.bounds(partitions).items():
            there = [RecordAt(o, self.records[partition][o]) for o in range(bounds.start, bounds.end)]
            at = next((record for record in there if record.timestamp_ms >= time_ms), None)
            latest = max(there, key=lambda record: record.timestamp_ms, default=None)
            found[partition] = PartitionTimes(bounds, at, first=there[0] if at else None, latest=None if at else latest)
        return found

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        self._ask(f"committed {group}")
        asked = {(p.topic, p.partition) for p in partitions}
        return {key: commit for key, commit in self.commits.get(group, {}).items() if key in asked}

    def snapshot(self, at: datetime) -> Snapshot:
        """All of it, as a reader of the cluster would see it."""
        self._ask("snapshot")
        topics: dict[str, dict[int, LogSeen]] = {}
        for p, bounds in self.bounds(list(self.records)).items():
            first = self.records[p][bounds.start] if bounds.start < bounds.end else None
            size = EACH_BYTES * (bounds.end - bounds.start)
            topics.setdefault(p.topic, {})[p.partition] = LogSeen(bounds.start, bounds.end, bounds.end, first, size)
        ids = {p.topic: p.topic_id for p in self.records}
        seen = {name: TopicSeen(ids[name], tuple(logs[n] for n in sorted(logs))) for name, logs in topics.items()}
        return Snapshot(at, "cluster-1", seen, {})

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        self._ask("between")
        return (TopicRecord(partition, offset, None, b"v" * 68, ()) for offset in range(first, end))


@dataclass
class LogsPlatform(FakePlatform):
    """One cluster and a control database."""

    log: FakeLog = field(default_factory=FakeLog)
    admin: FakeTopicAdmin = field(default_factory=FakeTopicAdmin)

    def __post_init__(self) -> None:
        FakePlatform.__post_init__(self)
        self.plans = FakePlans()

    def control(self) -> SimpleNamespace:
        made = super().control()
        made.plans = self.plans
        return made

    def topic_admin(self, connection: str) -> FakeTopicAdmin:
        return self.admin

    def kafka_log(self, connection: str) -> FakeLog:
        return self.log

    def cluster_reader(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(take=lambda: self.log.snapshot(self.clock.now))

    def topic_reader(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(between=self.log.between)


def committed(offsets: Mapping[int, int], topic: str) -> dict[tuple[str, int], Committed]:
    """Commits of somebody else of a topic's partitions."""
    return {(topic, number): Committed(offset) for number, offset in offsets.items()}
