"""The ledger of a stream: for each range of offsets what became of its records, written with the batch itself.

What is neither a row nor in quarantine is kept as offsets, not as a number: a row that goes missing later is told from
a record that the transform dropped. How many of those offsets held a record is known by the count of what was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from millrace.adapters.sinks.postgres.tables import Cursor, TargetTable
from millrace.domain.topics.offsets import OffsetRange, Source
from millrace.errors import SinkRolledBackError

LARGEST_ENTRY = 1_000_000
"""An entry that covers so many offsets grows no more."""
_GROWS_BYTES = 1_000  # an entry whose absent offsets take more is not written again with each batch

# A statement a range: its values are constants for the planner, which then opens no other part of a partitioned table
# and needs no statistics to find the key.
_PLACE = "{alias}.stream = %(stream)s AND {alias}.topic_id = %(topic_id)s AND {alias}.partition = %(partition)s"
_ENTRY, _BEFORE = _PLACE.format(alias="entry"), _PLACE.format(alias="before")
# Entries are disjoint, so those that a range meets are the last one that begins before it and those that begin in it.
_CUT = f"""
WITH met AS (
    DELETE FROM millrace.ledger AS entry
    WHERE {_ENTRY} AND entry.first_offset < %(next)s AND entry.next_offset > %(first)s
        AND entry.first_offset >= coalesce((
            SELECT max(before.first_offset) FROM millrace.ledger AS before
            WHERE {_BEFORE} AND before.first_offset <= %(first)s
        ), %(first)s)
    RETURNING entry.*
), piece AS (
    SELECT met.*, first_offset AS piece_first, %(first)s::bigint AS piece_next FROM met WHERE first_offset < %(first)s
    UNION ALL
    SELECT met.*, %(next)s, next_offset FROM met WHERE next_offset > %(next)s
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

_OF_TABLE = "_topic_id = %(topic_id)s AND _partition = %(partition)s AND _offset >= %(first)s AND _offset < %(next)s"
_ASIDE = (
    "bad.stream = %(stream)s AND bad.topic_id = %(topic_id)s AND bad.partition = %(partition)s "
    'AND bad."offset" >= %(first)s AND bad."offset" < %(next)s'
)
_BOOK = f"""
WITH booked AS MATERIALIZED (
    SELECT rows_out, sources, quarantined, CASE
        WHEN sources + quarantined = %(next)s::bigint - %(first)s::bigint THEN '{{{{}}}}'::int8multirange
        ELSE (
            SELECT coalesce(range_agg(int8range(behind + 1, here)) FILTER (WHERE here > behind + 1), '{{{{}}}}') FROM (
                SELECT here, lag(here, 1, %(first)s::bigint - 1) OVER (ORDER BY here) AS behind FROM (
                    SELECT _offset AS here FROM {{rows}} AS _row WHERE {_OF_TABLE}
                    UNION ALL SELECT bad."offset" FROM millrace.quarantine AS bad WHERE {_ASIDE}
                    UNION ALL SELECT %(next)s
                ) AS present
            ) AS step
        ) END AS absent
    FROM (
        SELECT count(*) AS rows_out, count(DISTINCT _offset) AS sources FROM {{rows}} AS _row WHERE {_OF_TABLE}
    ) AS held, (
        SELECT count(*) AS quarantined FROM millrace.quarantine AS bad WHERE {_ASIDE}
    ) AS aside
), grown AS (
    UPDATE millrace.ledger AS entry SET next_offset = %(next)s, batches = entry.batches + 1,
        records = entry.records + %(records)s, sources = entry.sources + booked.sources,
        rows_out = entry.rows_out + booked.rows_out, quarantined = entry.quarantined + booked.quarantined,
        dropped = entry.dropped + %(records)s - booked.sources - booked.quarantined,
        absent = entry.absent + booked.absent, booked_at = now()
    FROM booked
    WHERE {_ENTRY}
        AND entry.first_offset = (SELECT max(before.first_offset) FROM millrace.ledger AS before
            WHERE {_BEFORE} AND before.first_offset < %(first)s)
        AND entry.next_offset = %(first)s AND entry.timeline = %(timeline)s AND entry.epoch = %(epoch)s
        AND entry.began_at > now() - interval '10 minutes' AND entry.dropped IS NOT NULL
        AND %(records)s::bigint IS NOT NULL AND pg_column_size(entry.absent) <= {{grows_bytes}}
        AND %(next)s - entry.first_offset <= {{largest}}
    RETURNING entry.first_offset
), added AS (
    INSERT INTO millrace.ledger (stream, timeline, topic, topic_id, partition, first_offset, next_offset, batches,
        records, sources, rows_out, quarantined, dropped, absent, epoch)
    SELECT %(stream)s, %(timeline)s, %(topic)s, %(topic_id)s, %(partition)s, %(first)s, %(next)s, 1,
        %(records)s::bigint, sources, rows_out, quarantined, %(records)s::bigint - sources - quarantined, absent,
        %(epoch)s
    FROM booked WHERE NOT EXISTS (SELECT FROM grown)
)
SELECT rows_out FROM booked
"""
# Where a record was that has left quarantine, one row more or none. Of a piece the counts stay unknown.
_MOVE = """
WITH moved AS (
    SELECT * FROM unnest(%(ids)s::text[], %(partitions)s::int[], %(offsets)s::bigint[], %(rows)s::int[])
        AS one (topic_id, partition, here, rows_out)
), summed AS (
    SELECT topic_id, partition, first_offset, count(*) AS records, sum(rows_out) AS rows_out,
        count(*) FILTER (WHERE rows_out > 0) AS sources, count(*) FILTER (WHERE rows_out = 0) AS dropped,
        coalesce(range_agg(int8range(here, here + 1)) FILTER (WHERE rows_out = 0), '{}') AS absent
    FROM moved, LATERAL (
        SELECT before.first_offset, before.next_offset FROM millrace.ledger AS before
        WHERE before.stream = %(stream)s AND before.topic_id = moved.topic_id AND before.partition = moved.partition
            AND before.first_offset <= moved.here
        ORDER BY before.first_offset DESC LIMIT 1
    ) AS met WHERE here < next_offset
    GROUP BY topic_id, partition, first_offset
), done AS (
    UPDATE millrace.ledger AS entry SET sources = entry.sources + summed.sources,
        rows_out = entry.rows_out + summed.rows_out, quarantined = entry.quarantined - summed.records,
        dropped = entry.dropped + summed.dropped, absent = entry.absent + summed.absent
    FROM summed WHERE entry.stream = %(stream)s AND entry.topic_id = summed.topic_id
        AND entry.partition = summed.partition AND entry.first_offset = summed.first_offset
    RETURNING entry.first_offset
)
SELECT (SELECT count(*) FROM summed), (SELECT count(*) FROM done)
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
        rows: sql.Composable | None = None,
    ) -> int:
        """Write what lies of these ranges in the table and in quarantine, in the place of what was booked of them.

        A range that follows the newest entry of the same epoch joins it for ten minutes, so that a stream of many small
        batches has no entry for each.

        Args:
            cursor: of the transaction that has written their rows, in which `BY_THE_KEY` was set.
            ranges: at most one of a partition, none empty.
            timeline: theirs.
            epoch: of who writes.
            records: how many records were read of each range; None: that is not known.
            rows: where their rows lie, where that is not the table.

        Returns:
            how many rows lie in these ranges.
        """
        asked: list[dict[str, Any]] = [
            {
                "stream": self.stream,
                "timeline": timeline,
                "epoch": epoch,
                "topic": one.partition.topic,
                "topic_id": one.partition.topic_id,
                "partition": one.partition.partition,
                "first": one.first,
                "next": one.next,
                "records": count,
            }
            for one, count in zip(ranges, records, strict=True)
        ]
        if not asked:
            return 0
        cursor.executemany(_CUT, asked)
        cursor.executemany(self._book(rows or self.target.identifier), asked, returning=True)
        found = 0
        while True:
            [(held,)] = cursor.fetchall()
            found += int(held)
            if not cursor.nextset():
                return found

    def move(self, cursor: Cursor, rows: Mapping[Source, int]) -> None:
        """Write that records have left quarantine: each is a source of so many rows now, or dropped.

        Args:
            cursor: of the transaction that takes them out of there.
            rows: how many rows each has become.

        Raises:
            SinkRolledBackError: a batch of the stream cut an entry just now, as one does after a rewind.
        """
        ids, partitions, offsets = ([source[at] for source in rows] for at in range(3))
        among = {"ids": ids, "partitions": partitions, "offsets": offsets, "rows": list(rows.values())}
        [(entries, written)] = cursor.execute(_MOVE, {"stream": self.stream, **among}).fetchall()
        if written != entries:  # what was cut meanwhile is not there under its name any more
            raise SinkRolledBackError(
                f"{written} of {entries} entries of the ledger were written", where=f"stream {self.stream}"
            )

    @staticmethod
    def _book(rows: sql.Composable) -> sql.Composed:
        return sql.SQL(_BOOK).format(
            rows=rows,
            grows_bytes=sql.Literal(_GROWS_BYTES),
            largest=sql.Literal(LARGEST_ENTRY),
        )
