"""The ledger of a stream: for each range of offsets what became of its records, written with the batch itself.

What is neither a row nor in quarantine is kept as offsets, not as a number: a row that goes missing later is told from
a record that the transform dropped. How many of those offsets held a record is known by the count of what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from millrace.adapters.postgres_tables import Cursor, TargetTable
from millrace.domain.offsets import OffsetRange

TopicNumber = tuple[str, int]
"""A topic's name and a partition's number."""

LARGEST_ENTRY = 1_000_000
"""An entry that covers so many offsets grows no more."""
_GROWS_BYTES = 8_192  # an entry whose absent offsets take more is not written again with each batch

_RANGES = (
    "unnest(%(topics)s::text[], %(ids)s::text[], %(partitions)s::int[], %(firsts)s::bigint[], %(nexts)s::bigint[], "
    "%(records)s::bigint[]) AS _batch (topic, topic_id, partition, first_offset, next_offset, records)"
)
# Entries are disjoint, so those that a range meets are the last one that begins before it and those that begin in it.
_MET = (
    "entry.stream = %(stream)s AND entry.topic_id = _batch.topic_id AND entry.partition = _batch.partition "
    "AND entry.first_offset < _batch.next_offset AND entry.next_offset > _batch.first_offset "
    "AND entry.first_offset >= coalesce((SELECT max(before.first_offset) FROM millrace.ledger AS before "
    "WHERE before.stream = %(stream)s AND before.topic_id = _batch.topic_id AND before.partition = _batch.partition "
    "AND before.first_offset <= _batch.first_offset), _batch.first_offset)"
)
_CUT = f"""
WITH met AS (
    DELETE FROM millrace.ledger AS entry USING {_RANGES} WHERE {_MET}
    RETURNING entry.*, _batch.first_offset AS cut_first, _batch.next_offset AS cut_next
), piece AS (
    SELECT met.*, first_offset AS piece_first, cut_first AS piece_next FROM met WHERE first_offset < cut_first
    UNION ALL
    SELECT met.*, cut_next, next_offset FROM met WHERE next_offset > cut_next
)
INSERT INTO millrace.ledger (stream, timeline, topic, topic_id, partition, first_offset, next_offset, absent, records,
    epoch, began_at, booked_at)
SELECT stream, timeline, topic, topic_id, partition, piece_first, piece_next, left_absent, CASE
        WHEN records = next_offset - first_offset THEN piece_next - piece_first
        WHEN dropped = 0 THEN piece_next - piece_first - (
            SELECT coalesce(sum(upper(one) - lower(one)), 0) FROM unnest(left_absent) AS one
        )
    END, epoch, began_at, booked_at
FROM piece, LATERAL (SELECT absent * int8multirange(int8range(piece_first, piece_next)) AS left_absent) AS cut
"""
"""Of a cut entry the counts are not known any more, but that of the records where every offset or none held one."""

_BOOK = """
WITH booked AS MATERIALIZED (
    SELECT _batch.*, rows_out, sources, quarantined, CASE
        WHEN sources + quarantined = next_offset - first_offset THEN '{{}}'::int8multirange
        ELSE (
            SELECT coalesce(range_agg(int8range(behind + 1, here)) FILTER (WHERE here > behind + 1), '{{}}') FROM (
                SELECT here, lag(here, 1, _batch.first_offset - 1) OVER (ORDER BY here) AS behind FROM (
                    SELECT _offset AS here FROM {target} AS _row WHERE _topic_id = _batch.topic_id
                        AND _partition = _batch.partition
                        AND _offset >= _batch.first_offset AND _offset < _batch.next_offset
                    UNION ALL SELECT "offset" FROM millrace.quarantine AS bad WHERE bad.stream = %(stream)s
                        AND bad.topic_id = _batch.topic_id AND bad.partition = _batch.partition
                        AND "offset" >= _batch.first_offset AND "offset" < _batch.next_offset
                    UNION ALL SELECT _batch.next_offset
                ) AS present
            ) AS step
        ) END AS absent
    FROM {ranges}, LATERAL (
        SELECT count(*) AS rows_out, count(DISTINCT _offset) AS sources FROM {target} AS _row
        WHERE _topic_id = _batch.topic_id AND _partition = _batch.partition
            AND _offset >= _batch.first_offset AND _offset < _batch.next_offset
    ) AS held, LATERAL (
        SELECT count(*) AS quarantined FROM millrace.quarantine AS bad
        WHERE bad.stream = %(stream)s AND bad.topic_id = _batch.topic_id AND bad.partition = _batch.partition
            AND "offset" >= _batch.first_offset AND "offset" < _batch.next_offset
    ) AS aside
), grown AS (
    UPDATE millrace.ledger AS entry SET next_offset = booked.next_offset, batches = entry.batches + 1,
        records = entry.records + booked.records, sources = entry.sources + booked.sources,
        rows_out = entry.rows_out + booked.rows_out, quarantined = entry.quarantined + booked.quarantined,
        dropped = entry.dropped + booked.records - booked.sources - booked.quarantined,
        absent = entry.absent + booked.absent, booked_at = now()
    FROM booked
    WHERE entry.stream = %(stream)s AND entry.topic_id = booked.topic_id AND entry.partition = booked.partition
        AND entry.first_offset = (SELECT max(before.first_offset) FROM millrace.ledger AS before
            WHERE before.stream = %(stream)s AND before.topic_id = booked.topic_id
                AND before.partition = booked.partition AND before.first_offset < booked.first_offset)
        AND entry.next_offset = booked.first_offset AND entry.timeline = %(timeline)s AND entry.epoch = %(epoch)s
        AND entry.began_at > now() - interval '10 minutes' AND entry.dropped IS NOT NULL
        AND booked.records IS NOT NULL AND pg_column_size(entry.absent) <= {grows_bytes}
        AND booked.next_offset - entry.first_offset <= {largest}
    RETURNING booked.topic_id, booked.partition
), added AS (
    INSERT INTO millrace.ledger (stream, timeline, topic, topic_id, partition, first_offset, next_offset, batches,
        records, sources, rows_out, quarantined, dropped, absent, epoch)
    SELECT %(stream)s, %(timeline)s, topic, topic_id, partition, first_offset, next_offset, 1,
        records, sources, rows_out, quarantined, records - sources - quarantined, absent, %(epoch)s
    FROM booked WHERE NOT EXISTS (
        SELECT FROM grown WHERE grown.topic_id = booked.topic_id AND grown.partition = booked.partition
    )
)
SELECT coalesce(sum(rows_out), 0)::bigint FROM booked
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Books the ranges of one stream; every method works inside the transaction of a batch, under the fence."""

    stream: str
    target: TargetTable

    def book(
        self,
        cursor: Cursor,
        ranges: Sequence[OffsetRange],
        *,
        timeline: int,
        epoch: int,
        records: Sequence[int | None],
    ) -> int:
        """Write what lies of these ranges in the table and in quarantine, in the place of what was booked of them.

        A range that follows the newest entry of the same epoch joins it for ten minutes, so that a stream of many small
        batches has no entry for each.

        Args:
            cursor: of the transaction that has written their rows.
            ranges: at most one of a partition, none empty.
            timeline: theirs.
            epoch: of who writes.
            records: how many records were read of each range; None: that is not known.

        Returns:
            how many rows of the table lie in these ranges.
        """
        if not ranges:
            return 0
        arguments: dict[str, Any] = {
            "stream": self.stream,
            "timeline": timeline,
            "epoch": epoch,
            "topics": [one.partition.topic for one in ranges],
            "ids": [one.partition.topic_id for one in ranges],
            "partitions": [one.partition.partition for one in ranges],
            "firsts": [one.first for one in ranges],
            "nexts": [one.next for one in ranges],
            "records": list(records),
        }
        cursor.execute(_CUT, arguments)
        cursor.execute(self._book, arguments)
        [(rows,)] = cursor.fetchall()
        return int(rows)

    @property
    def _book(self) -> sql.Composed:
        return sql.SQL(_BOOK).format(
            target=self.target.identifier,
            ranges=sql.SQL(_RANGES),
            grows_bytes=sql.Literal(_GROWS_BYTES),
            largest=sql.Literal(LARGEST_ENTRY),
        )
