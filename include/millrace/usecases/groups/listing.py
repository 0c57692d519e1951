"""Every consumer group of a cluster, for people: what it is, how far behind, whether it gets on, what it risks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from millrace.declarations import load
from millrace.domain.declaration.pipeline import BackupApp, is_backup
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, PlannedMove
from millrace.domain.groups.risks import GroupRisk, risks
from millrace.domain.groups.snapshots import (
    SNAPSHOT_EVERY,
    SNAPSHOTS_KEPT,
    GroupSeen,
    History,
    Partition,
    Snapshot,
    history_of,
)
from millrace.domain.groups.status import GroupReading, PartitionReading, Status, judge
from millrace.errors import Code, UnreachableError, UsageError
from millrace.settings import KAFKA
from millrace.usecases.declaration.lookup import declared_groups

if TYPE_CHECKING:
    from pathlib import Path

    from millrace.domain.declaration.pipeline import App
    from millrace.ports.platform import Platform

LOOKED_OVER = timedelta(hours=3)
MOST_ASKED_AGAIN = 20  # groups
LEAST_LOOKED_OVER_AGAIN = timedelta(hours=12)  # of the stopped groups, as many as this can be afforded for
MOST_OFFSETS = 2_000_000  # of snapshots and partitions that are looked at together, beyond those three hours
_TRIGGERS = 3
_OFFSETS_TOPIC = "__consumer_offsets"
_SPARK = "spark-kafka-source-"
FETCH = "millrace-fetch."


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group.

    Attributes:
        reading: how it is.
        what: what it is for people: one of our apps, a reader of Spark's; empty where it is somebody else's.
        declared: whether a sound declaration has an app with this group.
        risks: what may go wrong with it.
    """

    reading: GroupReading
    what: str
    declared: bool
    risks: Sequence[GroupRisk]

    @property
    def name(self) -> str:
        """The group's id."""
        return self.reading.group.name


@dataclass(frozen=True, slots=True)
class GroupList:
    """The groups of one cluster.

    Attributes:
        kafka: the Connection that leads to it.
        snapshot: what all of this was read from.
        age: how old that was when it was read.
        since: the first snapshot that was looked at beside it.
        groups: by name.
    """

    kafka: str
    snapshot: Snapshot
    age: timedelta
    since: datetime
    groups: Sequence[GroupRow]


def list_groups(
    platform: Platform, kafka: str, *, directly: bool = False, most: int | None = None, now: datetime | None = None
) -> GroupList:
    """Every group, by the newest snapshot and those of the three hours before it.

    Args:
        platform: the adapters.
        kafka: the cluster's Connection.
        directly: look at the cluster now instead, which works without the control database and knows no history.
        most: where there are more groups than this, only those of declared apps.
        now: the present.

    Raises:
        UnreachableError: the control database or the cluster does not answer, or there is no snapshot yet.
    """
    return _look(platform, kafka, None, directly=directly, most=most, now=now or datetime.now(UTC))


def show_group(
    platform: Platform, kafka: str, name: str, *, directly: bool = False, now: datetime | None = None
) -> GroupList:
    """One group, by all snapshots that are kept; of one with very many partitions by fewer.

    Raises:
        UsageError: there is no such group.
        UnreachableError: as for `list_groups`.
    """
    return _look(platform, kafka, name, directly=directly, most=None, now=now or datetime.now(UTC))


def _look(
    platform: Platform, kafka: str, name: str | None, *, directly: bool, most: int | None, now: datetime
) -> GroupList:
    declared = declared_groups(platform.settings.root, kafka)
    if directly:
        snapshot = platform.kafka.cluster(kafka).take()
        seen, history = _known(snapshot, kafka, name), history_of(snapshot)
    else:
        snapshot = _newest(platform, kafka)
        seen = _known(snapshot, kafka, name)
        few = name is not None
        if most is not None and len(seen) > most:
            seen, few = [group for group in seen if group.name in declared], True
        history = _history(platform, kafka, snapshot, [group.name for group in seen] if few else None)
    rows = [_row(group, snapshot, history, declared) for group in seen]
    if name is None and not directly:
        rows = _decided(platform, kafka, snapshot, rows, declared)
    return GroupList(kafka, snapshot, max(timedelta(0), now - snapshot.at), history.times[0], rows)


def _history(platform: Platform, kafka: str, snapshot: Snapshot, groups: Sequence[str] | None) -> History:
    """What led to a snapshot: of all groups for three hours, of a few for as long as it is kept and can be afforded."""
    over = LOOKED_OVER
    if groups is not None:
        partitions = sum(len(snapshot.groups[name].commits or {}) for name in groups)
        affordable = SNAPSHOT_EVERY * (MOST_OFFSETS // max(1, partitions))
        over = max(LOOKED_OVER, min(SNAPSHOTS_KEPT, affordable))
    found = platform.control.snapshots.history(kafka, snapshot.at - over, snapshot.at, groups)
    return found if found.times else history_of(snapshot)  # its day was let go meanwhile


def _decided(
    platform: Platform, kafka: str, snapshot: Snapshot, rows: Sequence[GroupRow], declared: Mapping[str, App]
) -> list[GroupRow]:
    """Return the same rows; those that three hours do not decide, by all that is kept.

    Three hours may not tell whether a group has read everything. Nor may they show how a reader that is no member
    commits, where records come more seldom.
    """
    undecided = [row for row in rows if row.reading.undecided and row.reading.group.members][:MOST_ASKED_AGAIN]
    found = dict[str, GroupRow]()
    for asked in (undecided, _perhaps_manual(rows)):
        if asked:
            longer = _history(platform, kafka, snapshot, [row.name for row in asked])
            found |= {row.name: _row(row.reading.group, snapshot, longer, declared) for row in asked}
    return [found.get(row.name, row) for row in rows]


def _perhaps_manual(rows: Sequence[GroupRow]) -> list[GroupRow]:
    """Return the stopped groups whose longer history can be afforded, those whose commits moved last first."""
    stopped = [row for row in rows if row.reading.status is Status.STOPPED and not row.what]
    never = datetime.min.replace(tzinfo=UTC)
    found, partitions = list[GroupRow](), 0
    for row in sorted(stopped, key=lambda row: row.reading.changed_at or never, reverse=True):
        partitions += len(row.reading.group.commits or {})
        if found and SNAPSHOT_EVERY * (MOST_OFFSETS // max(1, partitions)) < LEAST_LOOKED_OVER_AGAIN:
            break
        found.append(row)
    return found


def _newest(platform: Platform, kafka: str) -> Snapshot:
    snapshot = platform.control.snapshots.latest(kafka)
    if snapshot is None:
        raise UnreachableError(
            f"the cluster of {kafka} has no snapshot yet",
            where="control database",
            next_step="start Airflow: DAG `millrace.snapshots` takes one each minute; or give `--now` to ask the "
            "cluster",
            code=Code.NO_SNAPSHOT,
        )
    return snapshot


def _known(snapshot: Snapshot, kafka: str, name: str | None) -> list[GroupSeen]:
    if name is None:
        return [snapshot.groups[each] for each in sorted(snapshot.groups)]
    if name not in snapshot.groups:
        raise UsageError(
            f"group `{name}` does not exist",
            where=f"cluster of {kafka}, as seen {snapshot.at:%Y-%m-%d %H:%M:%S} UTC",
            next_step="see `millrace groups list`; a new group appears within a minute",
            code=Code.UNKNOWN_NAME,
        )
    return [snapshot.groups[name]]


def furthest_first(rows: Sequence[GroupRow]) -> list[tuple[GroupRow, PartitionReading]]:
    """Every partition of these groups, the one with the most unread records first, then those nobody knows it of."""
    found = [(row, one) for row in rows for one in row.reading.partitions]

    def order(entry: tuple[GroupRow, PartitionReading]) -> tuple[int, str, Partition]:
        row, one = entry
        return (1 if one.lag is None else -one.lag, row.name, one.partition)

    return sorted(found, key=order)


def clusters(root: Path) -> Sequence[str]:
    """The Connections of all clusters that sound declarations name; the usual one always.

    Asked once a minute, so declarations are read only when a file of them has changed.
    """
    files = sorted((root / "include").glob("*/*.yaml"))
    return _clusters(root, tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files))


@lru_cache(maxsize=4)
def _clusters(root: Path, files: tuple[tuple[str, int, int], ...]) -> Sequence[str]:
    return tuple(sorted({KAFKA, *(pipeline.kafka for pipeline in load(root).pipelines)}))


def _row(seen: GroupSeen, snapshot: Snapshot, history: History, declared: Mapping[str, App]) -> GroupRow:
    app = declared.get(seen.name)
    what = what_it_is(seen, app)
    reading = judge(
        seen,
        snapshot,
        history,
        at_least=_waits(app) if app else timedelta(0),
        commits_markers=app is not None and _OFFSETS_TOPIC not in app.reads,  # there its own commits may be left
        by_commits=not what,
    )
    return GroupRow(reading, what, app is not None, risks(reading, snapshot, history))


def _waits(app: App) -> timedelta:
    """How long an app of ours may wait with what it has read before it commits, by its declaration."""
    if isinstance(app, BackupApp):  # it lets little records of a quiet partition come together
        return max([app.stuck_after, *(topic.backup.max_lag for topic in app.topics if topic.backup)])
    return max(app.stuck_after, app.trigger * _TRIGGERS)


def what_it_is(seen: GroupSeen, app: App | None) -> str:
    """What a group is, by its declaration, what its commits say of themselves, or the name that Spark gives."""
    if app is not None:
        return _kind(app.qualified_name)
    texts = [commit.metadata for commit in (seen.commits or {}).values()]
    for text in texts:
        if own := CommitMetadata.decode(text) or PlannedMove.decode(text):
            return f"{_kind(own.stream)}, not declared"
        if backup := BackupMetadata.decode(text):
            return f"{_kind(backup.app)}, not declared"
    if seen.name.startswith(FETCH):
        return f"Spark's own reads of {seen.name.removeprefix(FETCH)}"
    if seen.name.startswith(_SPARK):
        return "a Spark query that keeps its offsets in its checkpoint"
    return ""


def _kind(qualified_name: str) -> str:
    return f"{'backup' if is_backup(qualified_name) else 'stream'} {qualified_name}"
