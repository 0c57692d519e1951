"""Snapshots of clusters in memory, and a cluster that says what it is told to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.groups.snapshots import SNAPSHOTS_KEPT, History, LogSample, Partition, Snapshot
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from support.fakes.streams import Clock, FakePlatform
from support.groups.worlds import history_of


class FakeSnapshots:
    """As `adapters.control.snapshots.store.SnapshotTable`; keeps whole snapshots. `silent`: it does not answer."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Snapshot]] = {}
        self.silent = False
        self.tidied: list[datetime] = []

    def _ask(self, connection: str) -> list[Snapshot]:
        if self.silent:
            raise UnreachableError("the control database does not answer")
        return self.kept.setdefault(connection, [])

    def add(self, connection: str, snapshot: Snapshot) -> bool:
        self._ask(connection).append(snapshot)
        return True

    def newest(self, connection: str) -> Snapshot | None:
        kept = self._ask(connection)
        return kept[-1] if kept else None

    latest = newest

    def history(
        self, connection: str, since: datetime, until: datetime, groups: Collection[str] | None = None
    ) -> History:
        return history_of([one for one in self._ask(connection) if since <= one.at <= until])

    def samples(
        self, connection: str, topics: Collection[str], since: datetime, until: datetime, count: int
    ) -> dict[Partition, list[LogSample]]:
        """The last snapshot of each part of the time, of the topics as they are in the newest."""
        kept = [one for one in self._ask(connection) if since <= one.at <= until]
        parts = {math.ceil((one.at - since) / (until - since) * count): one for one in kept}
        found: dict[Partition, list[LogSample]] = {}
        for one in parts.values():
            for name in topics:
                seen, newest = one.topics.get(name), kept[-1].topics.get(name)
                if seen is None or newest is None or seen.topic_id != newest.topic_id:
                    continue
                for number, log in enumerate(seen.logs):
                    if log is not None:
                        sample = LogSample(one.at, log.start, log.end, log.size_bytes)
                        found.setdefault((name, number), []).append(sample)
        return found

    def appended(
        self, connection: str, offsets: Mapping[TopicPartition, Collection[int]], since: datetime
    ) -> dict[TopicPartition, dict[int, datetime]]:
        """The last snapshot before the first one that had the record."""
        kept = [one for one in self._ask(connection) if since <= one.at]
        found: dict[TopicPartition, dict[int, datetime]] = {}
        for partition, own in offsets.items():
            here = (partition.topic, partition.partition)
            ends = [
                (one.at, log.end)
                for one in kept
                if (log := one.log(here)) is not None and one.topics[partition.topic].topic_id == partition.topic_id
            ]
            for offset in own:
                before = [at for at, end in ends if end <= offset]
                if before and any(end > offset for _, end in ends):
                    found.setdefault(partition, {})[offset] = before[-1]
        return found

    def resting(self, connection: str, groups: Collection[str], since: datetime) -> set[str]:
        """Those that were there at that time or before it, and whose commits are the same ever since."""
        kept = self._ask(connection)
        then = [one for one in kept if one.at <= since]
        if not then:
            return set()
        looked_at = [one.groups for one in kept if one.at >= then[-1].at]
        return {
            name
            for name in groups
            if all(name in one and one[name].commits == looked_at[0][name].commits for one in looked_at)
        }

    def tidy(self, now: datetime, keep: timedelta = SNAPSHOTS_KEPT) -> int:
        self.tidied.append(now)
        return 0


@dataclass
class FakeCluster:
    """A reader of a cluster: gives `snapshot`, or raises `error`."""

    snapshot: Snapshot | None = None
    error: Exception | None = None
    taken: int = 0

    def take(self) -> Snapshot:
        self.taken += 1
        if self.error:
            raise self.error
        assert self.snapshot is not None
        return self.snapshot


@dataclass
class GroupsPlatform(FakePlatform):
    """Snapshots beside alarms, and clusters by Connection."""

    snapshots: FakeSnapshots = field(default_factory=FakeSnapshots)
    clusters: dict[str, FakeCluster | ClusterReader] = field(default_factory=dict)
    topic_readers: dict[str, TopicReader] = field(default_factory=dict)

    @property
    def control(self) -> SimpleNamespace:
        made = super().control
        made.snapshots, made.check = self.snapshots, lambda: None
        return made

    def kafka_cluster(self, connection: str) -> FakeCluster | ClusterReader:
        return self.clusters[connection]

    def kafka_records(self, connection: str) -> TopicReader:
        return self.topic_readers[connection]


def groups_platform(root: Path, now: datetime) -> GroupsPlatform:
    """One whose project is at `root`."""
    return GroupsPlatform(root, Clock(now))
