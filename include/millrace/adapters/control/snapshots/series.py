"""What snapshots saw over a time, out of the rows that say only what changed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from millrace.adapters.control.snapshots import tables
from millrace.adapters.control.snapshots.newest import Only, newest_rows
from millrace.adapters.control.snapshots.rows import storable_name
from millrace.domain.groups.snapshots import History, LogSeries, Partition

Series = list[int | None]


@dataclass(frozen=True, slots=True)
class _Times:
    """The snapshots that are looked at: when each was taken, and from which whole one its rows go on."""

    at: Sequence[datetime]
    base: Sequence[datetime]

    def spans(self, rows: Sequence[Any]) -> Iterator[tuple[Any, int, int]]:
        """For each row of one thing, oldest first, the snapshots `first <= index < next` of which it speaks."""
        starts = [bisect_left(self.at, row.at) for row in rows]
        for row, (first, end) in zip(rows, pairwise([*starts, len(self.at)]), strict=True):
            yield row, first, bisect_right(self.base, row.at, first, end)

    def nothing(self) -> Series:
        return [None] * len(self.at)


def series_of(
    session: sa.Connection, connection: str, since: datetime, until: datetime, groups: Collection[str] | None
) -> History:
    """See `SnapshotTable.history`."""
    times = _times(session, connection, since, until)
    if not times.at:
        return History(())
    wanted = None if groups is None else [storable_name(name) for name in groups]
    members, unknown, assigned = _groups(session, connection, times, wanted)
    commits = _commits(session, connection, times, wanted, unknown)
    topics = None if wanted is None else sorted({topic for one in commits.values() for topic, _ in one} | assigned)
    return History(times.at, _logs(session, connection, times, topics), commits, members)


def _times(session: sa.Connection, connection: str, since: datetime, until: datetime) -> _Times:
    table = tables.snapshot
    query = sa.select(table.c.at, table.c.base, table.c.cluster_id)
    query = query.where(table.c.connection == connection, table.c.at.between(since, until))
    rows = session.execute(query.order_by(table.c.at)).all()
    present = [row for row in rows if row.cluster_id == rows[-1].cluster_id]
    other = max((row.at for row in rows if row.cluster_id != rows[-1].cluster_id), default=None)
    kept = [row for row in present if other is None or row.at > other]
    return _Times([row.at for row in kept], [row.base for row in kept])


def _rows(
    session: sa.Connection,
    query: sa.Select[Any],
    table: sa.Table,
    connection: str,
    times: _Times,
    only: Only,
) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The rows that say what was at these times, by key, oldest first: the last one of before, and what came since."""
    keys = [column for column in table.primary_key.columns if column.name not in ("connection", "at")]
    found: dict[tuple[str, ...], list[Any]] = {}
    for row in newest_rows(session, table, connection, times.base[0], times.at[0], only):
        found[tuple(getattr(row, key.name) for key in keys)] = [row]
    later = query.where(table.c.connection == connection, table.c.at > times.at[0], table.c.at <= times.at[-1])
    if only is not None:
        later = later.where(table.c[only[0]].in_(only[1]))
    for row in session.execute(later.order_by(*keys, table.c.at)):
        found.setdefault(tuple(getattr(row, key.name) for key in keys), []).append(row)
    yield from found.items()


def _only(groups: list[str] | None) -> Only:
    return None if groups is None else ("group_id", groups)


def _groups(
    session: sa.Connection, connection: str, times: _Times, groups: list[str] | None
) -> tuple[dict[str, Series], dict[str, list[tuple[int, int]]], set[str]]:
    """How many members each group had; when its commits were not known; the topics that members have assigned now."""
    table = tables.snapshot_group
    query = sa.select(table.c.group_id, table.c.at, table.c.state, table.c.commits_known, table.c.members)
    members: dict[str, Series] = {}
    unknown: dict[str, list[tuple[int, int]]] = defaultdict(list)
    assigned: set[str] = set()
    for (name,), rows in _rows(session, query, table, connection, times, _only(groups)):
        counts = members[name] = times.nothing()
        for row, first, end in times.spans(rows):
            counts[first:end] = [None if row.members is None else len(row.members)] * (end - first)
            if not row.commits_known:
                unknown[name].append((first, end))
        if groups is not None:
            own = (member["partitions"] or () for member in rows[-1].members or ())
            assigned |= {topic for partitions in own for topic, _ in partitions}
    return members, unknown, assigned


def _commits(
    session: sa.Connection,
    connection: str,
    times: _Times,
    groups: list[str] | None,
    unknown: dict[str, list[tuple[int, int]]],
) -> dict[str, dict[Partition, Series]]:
    table = tables.snapshot_commit
    query = sa.select(table.c.group_id, table.c.topic, table.c.at, table.c.offsets)
    commits: dict[str, dict[Partition, Series]] = {}
    for (name, topic), rows in _rows(session, query, table, connection, times, _only(groups)):
        own = commits.setdefault(name, {})
        for row, first, end in times.spans(rows):
            for number, offset in enumerate(row.offsets):
                series = own.setdefault((topic, number), times.nothing())
                series[first:end] = [offset] * (end - first)
        for (_, number), series in [entry for entry in own.items() if entry[0][0] == topic]:
            for first, end in unknown.get(name, ()):
                series[first:end] = [None] * (end - first)
            if not any(offset is not None for offset in series):
                del own[topic, number]
    return commits


def _logs(
    session: sa.Connection, connection: str, times: _Times, topics: list[str] | None
) -> dict[Partition, LogSeries]:
    table = tables.snapshot_topic
    query = sa.select(table.c.topic, table.c.at, table.c.topic_id, table.c.starts, table.c.ends, table.c.stables)
    wanted = None if topics is None else ("topic", topics)
    logs: dict[Partition, LogSeries] = {}
    for (topic,), rows in _rows(session, query, table, connection, times, wanted):
        newest = rows[-1]
        if newest.topic_id is None or newest.at < times.base[-1]:  # gone, also where a new day has not even a row of it
            continue
        of_topic = [(times.nothing(), times.nothing(), times.nothing()) for _ in newest.ends]
        for row, first, end in times.spans(rows):
            if row.topic_id != newest.topic_id:
                continue
            for own, values in zip(of_topic, zip(row.starts, row.ends, row.stables, strict=True), strict=False):
                for series, value in zip(own, values, strict=True):
                    series[first:end] = [value] * (end - first)
        logs.update({(topic, number): LogSeries(*series) for number, series in enumerate(of_topic)})
    return logs
