"""Snapshots of clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from millrace.domain.groups.snapshots import SNAPSHOTS_KEPT, History, LogSample, Partition, Snapshot, SnapshotFacts
from millrace.domain.topics.offsets import TopicPartition


class Snapshots(Protocol):
    """Snapshots by the Connection of their cluster."""

    def add(self, connection: str, snapshot: Snapshot) -> bool:
        """Keep a snapshot; False, and nothing is written, where one that is as young is kept."""
        ...

    def newest(self, connection: str) -> SnapshotFacts | None:
        """Return what is known of the newest snapshot beside what it saw; None where none is kept."""
        ...

    def latest(self, connection: str) -> Snapshot | None:
        """The newest snapshot, whole; None where none is kept."""
        ...

    def history(
        self, connection: str, since: datetime, until: datetime, groups: Collection[str] | None = None
    ) -> History:
        """Return what the snapshots of one cluster saw over a time, both ends included."""
        ...

    def samples(
        self, connection: str, topics: Collection[str], since: datetime, until: datetime, count: int
    ) -> Mapping[Partition, Sequence[LogSample]]:
        """Logs at some moments of a time, oldest first: of each of so many equal parts of it at its last snapshot."""
        ...

    def appended(
        self, connection: str, offsets: Mapping[TopicPartition, Collection[int]], since: datetime
    ) -> Mapping[TopicPartition, Mapping[int, datetime]]:
        """Return the earliest append time of records: of the last snapshot that had not seen them."""
        ...

    def resting(self, connection: str, groups: Collection[str], since: datetime) -> set[str]:
        """Those of these groups that were seen at that time or before it, and whose commits are the same ever since."""
        ...

    def tidy(self, now: datetime, keep: timedelta = SNAPSHOTS_KEPT) -> int:
        """Drop the days that are wholly older than `keep`; how many of their tables. One that is read is left."""
        ...
