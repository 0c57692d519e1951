"""Snapshots of clusters in the control database: only what changed is written, a partition of the tables a day.

Each day (UTC) begins with a whole snapshot, and so does another cluster under a connection's name: its `base`. What
was at a time is what the rows from its snapshot's base to that time say, so a day can be dropped alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.snapshots import tables
from millrace.adapters.control.snapshots.newest import newest_rows
from millrace.adapters.control.snapshots.rows import State, groups_of, state_of, storable, topics_of, values_of
from millrace.adapters.control.snapshots.samples import appended_at, resting_since, samples_of
from millrace.adapters.control.snapshots.series import series_of
from millrace.domain.groups.snapshots import SNAPSHOTS_KEPT, History, LogSample, Partition, Snapshot, SnapshotFacts
from millrace.domain.topics.offsets import TopicPartition
from millrace.settings import PostgresSettings

_LOCK = sa.text("select pg_advisory_xact_lock(hashtextextended('millrace.snapshot ' || :connection, 0))")
_ROWS_TOGETHER = 1_000
AHEAD = timedelta(hours=1)


class SnapshotTable:
    """Snapshots by the Connection of their cluster."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def add(self, connection: str, snapshot: Snapshot) -> bool:
        """Keep a snapshot; False, and nothing is written, where one that is as young is kept.

        What is kept of more than an hour later was written by a clock that ran ahead, and goes: it would keep all
        others out until its time has come.

        Guarantees: whole or not at all; of two at once one comes after the other.
        """
        with translated(self._settings), self._engine.begin() as session:
            session.execute(_LOCK, {"connection": connection})
            newest = _newest(session, connection)
            if newest is not None and newest.at - snapshot.at > AHEAD:
                _forget_since(session, connection, snapshot.at)
                newest = _newest(session, connection)
            if newest is not None and newest.at >= snapshot.at:
                return False
            session.execute(sa.select(sa.func.millrace_snapshot_day_make(_day(snapshot.at))))
            before, base = State(), snapshot.at
            if newest is not None and _goes_on(newest, snapshot):
                before, base = _state(session, connection, newest), newest.base
            kept = snapshot.offsets_kept
            row = {
                "connection": connection,
                "at": snapshot.at,
                "base": base,
                "cluster_id": storable(snapshot.cluster_id),
                "seconds": snapshot.seconds,
                "requests": snapshot.requests,
                "offsets_kept_seconds": None if kept is None else kept // timedelta(seconds=1),
                "faults": [storable(fault) for fault in snapshot.faults],
            }
            session.execute(tables.snapshot.insert(), [row])
            _write(session, connection, snapshot.at, state_of(snapshot).changes(before))
        return True

    def newest(self, connection: str) -> SnapshotFacts | None:
        """What is known of the newest snapshot beside what it saw; None where none is kept."""
        with translated(self._settings), self._engine.begin() as session:
            return _newest(session, connection)

    def latest(self, connection: str) -> Snapshot | None:
        """The newest snapshot, whole; None where none is kept."""
        with translated(self._settings), self._engine.begin() as session:
            newest = _newest(session, connection)
            if newest is None:
                return None
            state = _state(session, connection, newest)
        kept = newest.offsets_kept_seconds
        return Snapshot(
            at=newest.at,
            cluster_id=newest.cluster_id,
            topics=topics_of(state.topics),
            groups=groups_of(state),
            requests=newest.requests,
            seconds=newest.seconds,
            offsets_kept=None if kept is None else timedelta(seconds=kept),
            faults=tuple(newest.faults),
        )

    def history(
        self, connection: str, since: datetime, until: datetime, groups: Collection[str] | None = None
    ) -> History:
        """What the snapshots of one cluster saw over a time, both ends included.

        Args:
            connection: the cluster's. Where it led to another one meanwhile, what came after that counts.
            since: the time's beginning.
            until: its end.
            groups: only these, and the logs of what they have committed or have assigned; default: everything.
        """
        consistent = self._engine.execution_options(isolation_level="REPEATABLE READ")
        with translated(self._settings), consistent.begin() as session:
            return series_of(session, connection, since, until, groups)

    def samples(
        self, connection: str, topics: Collection[str], since: datetime, until: datetime, count: int
    ) -> Mapping[Partition, Sequence[LogSample]]:
        """Logs at some moments of a time, oldest first: of each of so many equal parts of it at its last snapshot.

        Only of the topics as they are now: a former one of that name has none.

        Args:
            connection: the cluster's. Where it led to another one meanwhile, what came after that counts.
            topics: their names.
            since: the time's beginning.
            until: its end.
            count: into how many parts it is cut.
        """
        with translated(self._settings), self._engine.begin() as session:
            return samples_of(session, connection, topics, since, until, count)

    def appended(
        self, connection: str, offsets: Mapping[TopicPartition, Collection[int]], since: datetime
    ) -> Mapping[TopicPartition, Mapping[int, datetime]]:
        """When the records at these offsets were appended at the earliest: the last snapshot that had not seen them.

        Without those that came before all snapshots since then, or have not come yet.
        """
        with translated(self._settings), self._engine.begin() as session:
            return appended_at(session, connection, offsets, since)

    def resting(self, connection: str, groups: Collection[str], since: datetime) -> set[str]:
        """Those of these groups that were seen at that time or before it, and whose commits are the same ever since."""
        with translated(self._settings), self._engine.begin() as session:
            return resting_since(session, connection, groups, since)

    def tidy(self, now: datetime, keep: timedelta = SNAPSHOTS_KEPT) -> int:
        """Drop the days that are wholly older than `keep`; how many of their tables. One that is read is left."""
        with translated(self._settings), self._engine.begin() as session:
            dropped = session.scalar(sa.select(sa.func.millrace_snapshot_days_drop(_day(now - keep))))
        return int(dropped or 0)


def _forget_since(session: sa.Connection, connection: str, at: datetime) -> None:
    for table in (tables.snapshot, tables.snapshot_topic, tables.snapshot_group, tables.snapshot_commit):
        session.execute(table.delete().where(table.c.connection == connection, table.c.at > at))


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _goes_on(newest: SnapshotFacts, snapshot: Snapshot) -> bool:
    return newest.cluster_id == storable(snapshot.cluster_id) and _day(newest.base) == _day(snapshot.at)


def _newest(session: sa.Connection, connection: str) -> SnapshotFacts | None:
    table = tables.snapshot
    query = sa.select(
        table.c.at,
        table.c.base,
        table.c.cluster_id,
        table.c.seconds,
        table.c.requests,
        table.c.offsets_kept_seconds,
        table.c.faults,
    ).where(table.c.connection == connection)
    row = session.execute(query.order_by(table.c.at.desc()).limit(1)).one_or_none()
    return None if row is None else SnapshotFacts(**row._mapping)


def _state(session: sa.Connection, connection: str, newest: SnapshotFacts) -> State:
    """How everything was at the newest snapshot."""
    found = State()
    span = (newest.base, newest.at)
    for row in newest_rows(session, tables.snapshot_topic, connection, *span):
        found.topics[row.topic] = values_of(row)
    for row in newest_rows(session, tables.snapshot_group, connection, *span):
        found.groups[row.group_id] = values_of(row)
    for row in newest_rows(session, tables.snapshot_commit, connection, *span):
        found.commits[row.group_id, row.topic] = values_of(row)
    return found


def _write(session: sa.Connection, connection: str, at: datetime, changes: State) -> None:
    own = {"connection": connection, "at": at}
    _insert(session, tables.snapshot_topic, [{**own, "topic": key, **row} for key, row in changes.topics.items()])
    _insert(session, tables.snapshot_group, [{**own, "group_id": key, **row} for key, row in changes.groups.items()])
    commits = [{**own, "group_id": name, "topic": topic, **row} for (name, topic), row in changes.commits.items()]
    _insert(session, tables.snapshot_commit, commits)


def _insert(session: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for first in range(0, len(rows), _ROWS_TOGETHER):
        session.execute(table.insert(), rows[first : first + _ROWS_TOGETHER])
