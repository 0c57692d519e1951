"""Moving staged rows into their table, and finding those that the table refuses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from psycopg import sql

from millrace.adapters.postgres.connection import REFUSED_CLASSES
from millrace.adapters.sinks.postgres.staging import Staging
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, STAGING_SCHEMA, Cursor, TargetColumn, TargetTable
from millrace.domain.topics.offsets import OffsetRange, Source

TRIED_TOGETHER = 500  # sources; each try takes one of the server's transaction ids
_LONGEST_CHAIN = 100  # of rows that refer to one another
# Tries the rows of many sources at once, and of each source alone only where those are refused. A savepoint a source:
# ten thousand refused ones among fifty thousand take a second, where halving them from outside took a minute.
_SEARCH = """
CREATE FUNCTION {search} (_among tid[])
RETURNS TABLE (_refused_topic_id text, _refused_partition int, _refused_offset bigint, _places tid[], _why text)
LANGUAGE plpgsql AS $search$
DECLARE
    _many record;
    _one record;
BEGIN
    FOR _many IN
        SELECT array_agg(_place) AS _all FROM (
            SELECT ctid AS _place,
                (dense_rank() OVER (ORDER BY _topic_id, _partition, _offset) - 1) / {together} AS _number
            FROM {staging} WHERE _attempt = ANY({attempts}) AND (_among IS NULL OR ctid = ANY(_among))
        ) AS _numbered GROUP BY _number ORDER BY _number
    LOOP
        BEGIN
            {insert} WHERE ctid = ANY(_many._all);
            CONTINUE;
        EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
            IF left(SQLSTATE, 2) <> ALL ({classes}) THEN
                RAISE;
            END IF;
        END;
        FOR _one IN
            SELECT _topic_id, _partition, _offset, array_agg(ctid) AS _all FROM {staging}
            WHERE ctid = ANY(_many._all) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        LOOP
            BEGIN
                {insert} WHERE ctid = ANY(_one._all);
            EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
                IF left(SQLSTATE, 2) <> ALL ({classes}) THEN
                    RAISE;
                END IF;
                _refused_topic_id := _one._topic_id;
                _refused_partition := _one._partition;
                _refused_offset := _one._offset;
                _places := _one._all;
                _why := SQLERRM;
                RETURN NEXT;
            END;
        END LOOP;
    END LOOP;
END
$search$
"""


@dataclass(frozen=True, slots=True)
class Merge:
    """The statements of one epoch's batches; every method works inside the caller's transaction.

    Here rows are appended: a source has its rows for good, and a range that is read again replaces them.

    Attributes:
        in_rounds: whether more may be refused once what was refused is left out: rows that others stood before.
    """

    in_rounds: ClassVar[bool] = False

    target: TargetTable
    staging: Staging
    columns: tuple[TargetColumn, ...]

    @property
    def search(self) -> sql.Identifier:
        """The function that looks for refused rows; it lives as long as the transaction of the search."""
        return sql.Identifier(STAGING_SCHEMA, f"{self.staging.application_name}?")

    def replace_range(self, cursor: Cursor, stream: str, entry: OffsetRange) -> None:
        """Remove the rows and the quarantine that a former run of this range left."""
        self.delete_rows(cursor, entry)
        self.staging.delete_quarantine(cursor, stream, entry)

    def insert_rows(self, cursor: Cursor, timeline: int, attempts: Sequence[int]) -> int:
        """Put what these attempts staged where it belongs; how many of the rows came there."""
        cursor.execute(
            sql.SQL("{} WHERE _attempt = ANY(%s)").format(self._insert(sql.SQL("%s"))), (timeline, list(attempts))
        )
        return cursor.rowcount

    def rows_to_book(self, attempts: Sequence[int]) -> sql.Composable:
        """Where the rows of a batch are, once they are inserted: a relation with their sources."""
        return self.target.identifier

    def _insert(self, timeline: sql.Composable) -> sql.Composed:
        fields = self._fields
        return sql.SQL("INSERT INTO {} AS _held ({}, _timeline) SELECT {}, {} FROM {}").format(
            self.target.identifier, fields, fields, timeline, self.staging.rows
        )

    @property
    def _fields(self) -> sql.Composed:
        """What a staged row and a row of the table both have."""
        own = [name for name, _ in self.target.own_columns if name != "_timeline"]
        return sql.SQL(", ").join(map(sql.Identifier, [*own, *(column.name for column in self.columns)]))

    def unstage_below(
        self, cursor: Cursor, batch: OffsetRange, keep_from: int, attempts: Sequence[int]
    ) -> tuple[int, int]:
        """Take out of staging what is on record already; how many rows, and how many bad records, these attempts'."""
        counts = []
        for table in (self.staging.rows, self.staging.bad_records):
            cursor.execute(
                sql.SQL(
                    "DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset < %s AND _attempt = ANY(%s)"
                ).format(table),
                (batch.partition.topic_id, batch.partition.partition, keep_from, list(attempts)),
            )
            counts.append(cursor.rowcount)
        return counts[0], counts[1]

    def unstage(self, cursor: Cursor, sources: Collection[Source], attempts: Sequence[int]) -> int:
        """Take the rows of these sources out of staging; how many of these attempts' there were."""
        if not sources:
            return 0
        topic_ids, partitions, offsets = map(list, zip(*sources, strict=True))
        cursor.execute(
            sql.SQL(
                "DELETE FROM {} USING unnest(%s::text[], %s::int[], %s::bigint[]) AS _refused (t, p, o) "
                "WHERE _topic_id = _refused.t AND _partition = _refused.p AND _offset = _refused.o "
                "AND _attempt = ANY(%s)"
            ).format(self.staging.rows),
            (topic_ids, partitions, offsets, list(attempts)),
        )
        return cursor.rowcount

    def count_outside(self, cursor: Cursor, ranges: Sequence[OffsetRange], attempts: Sequence[int]) -> int:
        """How many of the rows that these attempts staged name a source that is in none of these ranges."""
        columns = ((r.partition.topic_id, r.partition.partition, r.first, r.next) for r in ranges)
        ids, partitions, firsts, nexts = map(list, zip(*columns, strict=True))
        cursor.execute(
            sql.SQL(
                "SELECT count(*) FROM {} WHERE _attempt = ANY(%s) AND NOT EXISTS (SELECT FROM "
                "unnest(%s::text[], %s::int[], %s::bigint[], %s::bigint[]) AS _range (_t, _p, _first, _next) "
                "WHERE _topic_id = _t AND _partition = _p AND _offset >= _first AND _offset < _next)"
            ).format(self.staging.rows),
            (list(attempts), ids, partitions, firsts, nexts),
        )
        [(count,)] = cursor.fetchall()
        return int(count)

    def find_refused(
        self, cursor: Cursor, ranges: Sequence[OffsetRange], timeline: int, attempts: Sequence[int], *, deferred: bool
    ) -> dict[Source, str]:
        """The staged sources whose rows the table refuses, with its reasons. The caller must roll back.

        A row that is refused because another one is not there yet (a reference within the table) is tried again once
        the others are.

        Args:
            cursor: of a transaction that did nothing else.
            ranges: the ranges of the batch.
            timeline: the timeline of the rows.
            attempts: the tasks whose rows count.
            deferred: whether the refusal came at the commit, by a constraint that is checked only there.
        """
        cursor.execute(BY_THE_KEY)
        for entry in ranges:
            self.delete_rows(cursor, entry)
        if deferred:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(self._search(timeline, attempts))
        call = sql.SQL(
            "SELECT _refused_topic_id, _refused_partition, _refused_offset, _places::text[], _why FROM {}(%s::tid[])"
        ).format(self.search)
        refused = cursor.execute(call, (None,)).fetchall()
        for _ in range(_LONGEST_CHAIN):
            if not refused:
                break
            places = [place for row in refused for place in row[3]]
            again = cursor.execute(call, (places,)).fetchall()
            if len(again) == len(refused):
                break
            refused = again
        return {(row[0], row[1], row[2]): str(row[4]) for row in refused}

    def _search(self, timeline: int, attempts: Sequence[int]) -> sql.Composed:
        return sql.SQL(_SEARCH).format(
            search=self.search,
            insert=self._insert(sql.Literal(timeline)),
            staging=self.staging.rows,
            attempts=sql.Literal(list(attempts)),
            classes=sql.Literal(list(REFUSED_CLASSES)),
            together=sql.Literal(TRIED_TOGETHER),
        )

    def delete_rows(self, cursor: Cursor, entry: OffsetRange) -> None:
        """Remove the rows of a range; by values that the planner knows, so it opens no partition without any."""
        cursor.execute(
            sql.SQL(
                "DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset >= %s AND _offset < %s"
            ).format(self.target.identifier),
            (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next),
        )
