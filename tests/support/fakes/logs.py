"""Logs, groups' commits and settings of one cluster in memory, for what is decided before records are deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import DiskSeen, LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.holds import Hold, extended
from millrace.domain.rewind.time_travel import PartitionTimes, RecordAt
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import UnreachableError
from support.fakes.groups import FakeSnapshots
from support.fakes.plans import FakePlans
from support.fakes.streams import FakePlatform
from support.fakes.topics import FakeTopicAdmin

EACH_BYTES = 100


@dataclass
class FakeLog:
    """Records by partition: the timestamp of each, in milliseconds. Every record weighs 100 bytes.

    Attributes:
        silent: no broker answers.
        free_bytes: what is free on the one disk there is.
    """

    records: dict[TopicPartition, list[int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    commits: dict[str, dict[tuple[str, int], Committed]] = field(default_factory=dict)
    leaderless: set[TopicPartition] = field(default_factory=set)
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    free_bytes: int | None = None

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
        disk = DiskSeen(1, "/data", 10**9, self.free_bytes, dict.fromkeys(seen, 0))
        return Snapshot(at, "cluster-1", seen, {}, disks=(disk,))

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        self._ask("between")
        return (TopicRecord(partition, offset, None, b"v" * 68, ()) for offset in range(first, end))


class FakeHolds:
    """As `adapters.control.holds.HoldTable`.

    Attributes:
        silent: the control database does not answer.
        busy: somebody else is at every hold.
        logged: entries of the action log that were written with the end of one.
    """

    def __init__(self) -> None:
        self.rows: list[Hold] = []
        self.silent = False
        self.busy = False
        self.logged: list[dict[str, object]] = []

    @contextmanager
    def working(self, kafka: str, topic: str) -> Iterator[bool]:
        yield not self.busy

    def begin(self, hold: Hold) -> Hold:
        known = next((row for row in self.rows if row.ended_at is None and row.topic == hold.topic), None)
        if known is not None and known.topic_id == hold.topic_id:
            made = extended(known, hold)
            self.rows = [made if row is known else row for row in self.rows]
            return made
        self.rows = [replace(row, ended_at=hold.began_at) if row is known else row for row in self.rows]
        self.rows.append(replace(hold, identity=len(self.rows) + 1))
        return self.rows[-1]

    def list(self, kafka: str | None = None, *, only_open: bool = True, limit: int = 1_000) -> tuple[Hold, ...]:
        if self.silent:
            raise UnreachableError("the control database does not answer")
        return tuple(
            row
            for row in sorted(self.rows, key=lambda row: (row.kafka, row.topic, -row.identity))
            if (kafka is None or row.kafka == kafka) and (not only_open or row.ended_at is None)
        )

    def end(self, hold: Hold, *, at: datetime, actor: str, reason: str, after: Mapping[str, str], outcome: str) -> bool:
        for number, row in enumerate(self.rows):
            if row.identity == hold.identity and row.ended_at is None:
                self.rows[number] = replace(row, ended_at=at)
                self.logged.append({"subject": hold.topic, "after": dict(after), "outcome": outcome, "reason": reason})
                return True
        return False


@dataclass
class LogsPlatform(FakePlatform):
    """One cluster and a control database."""

    log: FakeLog = field(default_factory=FakeLog)
    admin: FakeTopicAdmin = field(default_factory=FakeTopicAdmin)

    def __post_init__(self) -> None:
        FakePlatform.__post_init__(self)
        self.plans = FakePlans()
        self.holds = FakeHolds()
        self.snapshots = FakeSnapshots()

    @property
    def control(self) -> SimpleNamespace:
        made = super().control
        made.plans, made.holds, made.snapshots = self.plans, self.holds, self.snapshots
        return made

    def kafka_topics(self, connection: str) -> FakeTopicAdmin:
        return self.admin

    def kafka_logs(self, connection: str) -> FakeLog:
        return self.log

    def kafka_cluster(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(take=lambda: self.log.snapshot(self.clock.now))

    def kafka_records(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(between=self.log.between)


def committed(offsets: Mapping[int, int], topic: str) -> dict[tuple[str, int], Committed]:
    """Commits of somebody else of a topic's partitions."""
    return {(topic, number): Committed(offset) for number, offset in offsets.items()}
