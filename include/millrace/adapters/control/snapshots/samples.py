"""A few moments out of the snapshots of a long time, without reading all that lies between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from millrace.adapters.control.database.tables import TIMESTAMP
from millrace.adapters.control.snapshots import tables
from millrace.adapters.control.snapshots.rows import storable, storable_name
from millrace.domain.groups.snapshots import LogSample, Partition
from millrace.domain.topics.offsets import TopicPartition

# The cluster that the connection leads to now, and the snapshots since it last led to another one.
_MOMENTS = sa.text(
    """
    with mine as (
        select at, base, cluster_id from snapshot where connection = :connection and at between :since and :until
    ), present as (
        select at, base from mine
        where cluster_id = (select cluster_id from mine order by at desc limit 1)
          and at > coalesce((
              select max(at) from mine
              where cluster_id <> (select cluster_id from mine order by at desc limit 1)
          ), '-infinity')
    )
    select max(at) as at, (array_agg(base order by at desc))[1] as base from present
    group by ceil(extract(epoch from at - :since) / :part_seconds) order by 1
    """
)

# The row that was in force at each moment is the last one since that moment's whole snapshot.
_LOGS = sa.text(
    """
    select q.at as seen_at, s.topic, s.topic_id, s.starts, s.ends, s.sizes
    from unnest(:times, :bases) as q(at, base) cross join unnest(:topics) as n(topic)
    cross join lateral (
        select t.* from snapshot_topic t
        where t.connection = :connection and t.topic = n.topic and t.at between q.base and q.at
        order by t.at desc limit 1
    ) s
    order by s.topic, q.at
    """
).bindparams(
    sa.bindparam("times", type_=ARRAY(TIMESTAMP)),
    sa.bindparam("bases", type_=ARRAY(TIMESTAMP)),
    sa.bindparam("topics", type_=ARRAY(sa.Text)),
)

# From the newest row back, for most readers are near the end: the last one that had not seen the record, the one after
# it, and the last snapshot before that one.
_APPENDED = sa.text(
    """
    select q.topic, q.topic_id, q.number, q.log_offset, b.at
    from unnest(:topics, :ids, :numbers, :offsets) as q(topic, topic_id, number, log_offset)
    cross join lateral (
        select t.at from snapshot_topic t
        where t.connection = :connection and t.topic = q.topic and t.topic_id = q.topic_id and t.at >= :since
          and t.ends[q.number + 1] <= q.log_offset
        order by t.at desc limit 1
    ) r
    cross join lateral (
        select t.at from snapshot_topic t
        where t.connection = :connection and t.topic = q.topic and t.topic_id = q.topic_id and t.at > r.at
        order by t.at limit 1
    ) f
    cross join lateral (
        select s.at from snapshot s where s.connection = :connection and s.at >= r.at and s.at < f.at
        order by s.at desc limit 1
    ) b
    """
).bindparams(
    sa.bindparam("topics", type_=ARRAY(sa.Text)),
    sa.bindparam("ids", type_=ARRAY(sa.Text)),
    sa.bindparam("numbers", type_=ARRAY(sa.Integer)),
    sa.bindparam("offsets", type_=ARRAY(sa.BigInteger)),
)


def samples_of(
    session: sa.Connection, connection: str, topics: Collection[str], since: datetime, until: datetime, count: int
) -> Mapping[Partition, Sequence[LogSample]]:
    """See `SnapshotTable.samples`."""
    part = (until - since).total_seconds() / count
    asked = {"connection": connection, "since": since, "until": until, "part_seconds": part}
    moments = session.execute(_MOMENTS, asked).all() if topics and part > 0 else []
    if not moments:
        return {}
    rows = session.execute(
        _LOGS,
        {
            "connection": connection,
            "times": [row.at for row in moments],
            "bases": [row.base for row in moments],
            "topics": sorted(map(storable, topics)),
        },
    ).all()
    newest: dict[str, Any] = {row.topic: row.topic_id for row in rows}  # oldest first: the last one stays
    there = {row.topic for row in rows if row.seen_at == moments[-1].at}
    found: dict[Partition, list[LogSample]] = defaultdict(list)
    for row in rows:
        if row.topic_id is None or row.topic_id != newest[row.topic] or row.topic not in there:
            continue
        for number, (start, end, size) in enumerate(zip(row.starts, row.ends, row.sizes, strict=True)):
            if start is not None and end is not None:
                found[row.topic, number].append(LogSample(row.seen_at, start, end, size))
    return found


def appended_at(
    session: sa.Connection, connection: str, offsets: Mapping[TopicPartition, Collection[int]], since: datetime
) -> Mapping[TopicPartition, Mapping[int, datetime]]:
    """See `SnapshotTable.appended`."""
    asked = [(partition, offset) for partition, own in offsets.items() for offset in own]
    if not asked:
        return {}
    rows = session.execute(
        _APPENDED,
        {
            "connection": connection,
            "since": since,
            "topics": [storable(partition.topic) for partition, _ in asked],
            "ids": [partition.topic_id for partition, _ in asked],
            "numbers": [partition.partition for partition, _ in asked],
            "offsets": [offset for _, offset in asked],
        },
    )
    names = {storable(partition.topic): partition.topic for partition in offsets}
    found: dict[TopicPartition, dict[int, datetime]] = defaultdict(dict)
    for row in rows:
        found[TopicPartition(names[row.topic], row.topic_id, row.number)][row.log_offset] = row.at
    return found


def resting_since(session: sa.Connection, connection: str, groups: Collection[str], since: datetime) -> set[str]:
    """See `SnapshotTable.resting`. Each day has a row of everything, so a day before is looked at too."""
    names = {storable_name(name): name for name in groups}
    table = tables.snapshot_commit
    rests = sa.and_(sa.func.min(table.c.at) <= since, sa.func.count(sa.distinct(table.c.offsets)) == 1)
    query = (
        sa.select(table.c.group_id, rests.label("rests"))
        .where(
            table.c.connection == connection,
            table.c.group_id.in_(list(names)),
            table.c.at >= since - timedelta(days=1),
        )
        .group_by(table.c.group_id, table.c.topic)
    )
    rows = session.execute(query).all() if names else []
    moving = {row.group_id for row in rows if not row.rests}
    return {names[row.group_id] for row in rows} - {names[name] for name in moving}
