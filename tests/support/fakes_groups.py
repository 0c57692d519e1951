"""Snapshots of clusters in memory, and a cluster that says what it is told to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from millrace.domain.snapshots import SNAPSHOTS_KEPT, History, Snapshot
from millrace.errors import UnreachableError
from support.fakes_streams import Clock, FakePlatform
from support.group_worlds import history_of


class FakeSnapshots:
    """As `adapters.control_snapshots.SnapshotTable`; keeps whole snapshots. `silent`: the database does not answer."""

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
    clusters: dict[str, FakeCluster] = field(default_factory=dict)

    def control(self) -> SimpleNamespace:
        made = super().control()
        made.snapshots, made.check = self.snapshots, lambda: None
        return made

    def cluster_reader(self, connection: str) -> FakeCluster:
        return self.clusters[connection]


def groups_platform(root: Path, now: datetime) -> GroupsPlatform:
    """One whose project is at `root`."""
    return GroupsPlatform(root, Clock(now))
