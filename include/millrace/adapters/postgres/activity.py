"""Reads what the stream over `__consumer_offsets` has kept: the views of spark_apps/activity/views.sql."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import Any

from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.domain.activity.readings import Reading, UnreadableRecords

_COMMITS = "activity.commits"
# As the view activity.commits, but joined as a whole: looked up one by one, two million commits take half a minute.
_READINGS = """
WITH told AS MATERIALIZED (
    SELECT group_id, topic, topic_id, partition, committed, committed_at, records, _topic_id, _partition, _offset,
        _ordinal, _timeline
    FROM activity.seen
    WHERE kind = 'commit' AND committed_at >= %(since)s AND (%(group)s::text IS NULL OR group_id = %(group)s)
        AND (%(topic)s::text IS NULL OR topic = %(topic)s)
), held AS MATERIALIZED (
    SELECT * FROM activity.readers WHERE group_id IN (SELECT DISTINCT group_id FROM told)
), had AS (
    SELECT DISTINCT ON (told._topic_id, told._partition, told._offset, told._ordinal, told._timeline)
        told.group_id, told.topic, client_id, client_host, instance, told.partition, committed, committed_at, records
    FROM told LEFT JOIN held ON held.group_id = told.group_id AND held.partition = told.partition
        AND held.log_topic_id = told._topic_id AND held.log_partition = told._partition
        AND (held.topic = told.topic OR held.topic_id = told.topic_id)
        AND held.from_offset < told._offset AND (held.until_offset IS NULL OR told._offset < held.until_offset)
    ORDER BY told._topic_id, told._partition, told._offset, told._ordinal, told._timeline,
        held.from_offset DESC NULLS LAST
)
SELECT group_id, topic, client_id, client_host, instance, partition,
    (array_agg(committed ORDER BY committed_at DESC))[1], min(committed_at), max(committed_at), sum(records)::bigint
FROM had GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
"""
_UNREADABLE = "SELECT version, error, records FROM activity.unreadable ORDER BY version"


class ActivityReader(SinkReader):
    """Reads one sink database. Changes nothing."""

    def readings(self, since: datetime, group: str | None, topic: str | None) -> list[Reading] | None:
        """Every reading since then, by group, topic and client; None where the stream has made no views yet.

        Raises:
            UnreachableError: the database does not answer, or not within a minute.
        """
        with self._looking_at(_COMMITS) as connection:
            if connection is None:
                return None
            arguments = {"since": since, "group": group, "topic": topic}
            found = connection.execute(_READINGS, arguments).fetchall()
        return [_reading(who, list(rows)) for who, rows in groupby(found, key=lambda row: row[:5])]

    def unreadable(self) -> list[UnreadableRecords]:
        """What of the coordinator's log could not be read, ever, by version."""
        with self._looking_at("activity.unreadable") as connection:
            found = connection.execute(_UNREADABLE).fetchall() if connection else []
        return [UnreadableRecords(*row) for row in found]


def _reading(who: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> Reading:
    group, topic, client_id, host, instance = who
    offsets = {int(row[5]): int(row[6]) for row in rows}
    first, last = min(row[7] for row in rows), max(row[8] for row in rows)
    return Reading(group, topic, offsets, client_id, host, instance, first, last, sum(int(row[9]) for row in rows))
