"""The books of a PostgreSQL sink: what its table, its quarantine and its ledger say of the same offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from millrace.adapters.sinks.postgres.ledger import LARGEST_ENTRY
from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, Cursor, KeyedTable, TargetTable
from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.quality.books import MOST_NAMED, Doubt, Entry, Fault, Finding, Part
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, DeclarationError

_PLACE = "stream = %(stream)s AND topic_id = %(topic_id)s AND partition = %(partition)s"
_ROWS = "_topic_id = %(topic_id)s AND _partition = %(partition)s"
_WITHIN = "first_offset >= %(first)s AND first_offset < %(next)s"
_BEGIN = f"""
SELECT first_offset, next_offset FROM millrace.ledger
WHERE {_PLACE} AND first_offset <= %(first)s ORDER BY first_offset DESC LIMIT 1
"""
_END = f"SELECT max(next_offset) FROM millrace.ledger WHERE {_PLACE} AND {_WITHIN}"
_BOOKED = f"""booked AS (
    SELECT coalesce(range_agg(int8range(first_offset, next_offset)), '{{{{}}}}') AS covered, (
        SELECT coalesce(range_agg(one), '{{{{}}}}') FROM millrace.ledger, unnest(absent) AS one
        WHERE {_PLACE} AND {_WITHIN}
    ) AS absent
    FROM millrace.ledger WHERE {_PLACE} AND {_WITHIN}
)"""
_NAMED = f"""
SELECT fault, (SELECT sum(upper(one) - lower(one)) FROM unnest(offsets) AS one),
    (SELECT count(*) FROM unnest(offsets)),
    ARRAY(SELECT ARRAY[lower(one), upper(one)] FROM unnest(offsets) AS one LIMIT {MOST_NAMED})
FROM fault WHERE NOT isempty(offsets)
"""
# Sources in order, rows before the quarantine's entry: each is held against the one before it.
_FAULTS = f"""
WITH place AS (
    SELECT _offset AS here, _ordinal AS ordinal FROM {{target}}
    WHERE {_ROWS} AND _offset >= %(first)s AND _offset < %(next)s
    UNION ALL
    SELECT "offset", NULL FROM millrace.quarantine WHERE {_PLACE} AND "offset" >= %(first)s AND "offset" < %(next)s
    UNION ALL
    SELECT %(next)s, NULL
), step AS (
    SELECT here, ordinal, lag(here, 1, %(first)s - 1) OVER in_order AS behind, lag(ordinal) OVER in_order AS former
    FROM place WINDOW in_order AS (ORDER BY here, ordinal)
), seen AS (
    SELECT
        coalesce(range_agg(int8range(behind + 1, here)) FILTER (WHERE here > behind + 1), '{{{{}}}}') AS gone,
        coalesce(range_agg(int8range(here, here + 1)) FILTER (
            WHERE here = behind AND (ordinal = former OR ordinal IS NULL)), '{{{{}}}}') AS doubled,
        coalesce(range_agg(int8range(here, here + 1)) FILTER (
            WHERE ordinal < 0 OR ordinal > CASE WHEN here = behind THEN former + 1 ELSE 0 END), '{{{{}}}}') AS ordinals
    FROM step
), {_BOOKED}, fault AS (
    SELECT fault, offsets FROM seen, booked, LATERAL (VALUES
        ('missing', gone * covered - absent), ('doubled', doubled), ('ordinals', ordinals),
        ('unexpected', absent - gone), ('unbooked', gone - covered)
    ) AS named (fault, offsets)
)
{_NAMED}
"""
_ENTRIES = f"""
SELECT first_offset, next_offset, records, sources, rows_out, quarantined, dropped,
    (SELECT coalesce(sum(upper(one) - lower(one)), 0)::bigint FROM unnest(absent) AS one), (
        SELECT count(*) FROM {{target}} AS _row
        WHERE {_ROWS} AND _offset >= entry.first_offset AND _offset < entry.next_offset
    )
FROM millrace.ledger AS entry WHERE {_PLACE} AND {_WITHIN} ORDER BY first_offset
"""
_ASIDE = f"""
SELECT count(*) AS held, coalesce(range_agg(int8range("offset", "offset" + 1)), '{{{{}}}}') AS offsets
FROM millrace.quarantine WHERE {_PLACE} AND"""
_KEYED_FAULTS = f"""
WITH aside AS ({_ASIDE} "offset" >= %(first)s AND "offset" < %(next)s), {_BOOKED}, fault AS (
    SELECT fault, named.offsets FROM aside, booked, LATERAL (VALUES
        ('unexpected', absent * aside.offsets), ('unbooked', int8multirange(int8range(%(first)s, %(next)s)) - covered)
    ) AS named (fault, offsets)
)
{_NAMED}
"""
# With what lies in quarantine of an entry, but for what is `unexpected` there.
_KEYED_ENTRIES = f"""
SELECT first_offset, next_offset, records, sources, rows_out, quarantined, dropped,
    (SELECT coalesce(sum(upper(one) - lower(one)), 0)::bigint FROM unnest(absent) AS one), coalesce(rows_out, 0),
    held - (SELECT coalesce(sum(upper(one) - lower(one)), 0) FROM unnest(absent * offsets) AS one)
FROM millrace.ledger AS entry, LATERAL (
    {_ASIDE} "offset" >= entry.first_offset AND "offset" < entry.next_offset
) AS aside WHERE {_PLACE} AND {_WITHIN} ORDER BY first_offset
"""
_DOUBTS = f"""
SELECT first_offset, next_offset, next_offset - first_offset - records,
    ARRAY(SELECT ARRAY[lower(one), upper(one)] FROM unnest(absent) AS one)
FROM millrace.ledger
WHERE {_PLACE} AND {_WITHIN} AND NOT isempty(absent) AND (records < next_offset - first_offset) IS NOT FALSE
ORDER BY first_offset
"""
# The record of work is read in the same snapshot: what a batch writes meanwhile is on record.
# What any stream has done counts: a table may be written by two, or by one that had another name.
_UNREACHED = """
WITH place AS (
    SELECT int8multirange(int8range(0, %(last)s)) - coalesce(of_any, '{{}}') AS of_any,
        int8multirange(int8range(0, %(last)s)) - coalesce(of_it, '{{}}') AS of_it
    FROM (
        SELECT range_agg(int8range(first_offset, next_offset)) AS of_any,
            range_agg(int8range(first_offset, next_offset)) FILTER (WHERE stream = %(stream)s) AS of_it
        FROM millrace.progress WHERE topic_id = %(topic_id)s AND partition = %(partition)s
    ) AS done
)
"""
_ROWS_OUTSIDE = f"""
SELECT 'row', least, most FROM place, unnest(of_any) AS _span, LATERAL (
    SELECT min(_offset) AS least, max(_offset) AS most FROM {{target}} AS _row
    WHERE {_ROWS} AND _offset >= lower(_span) AND _offset < upper(_span)
) AS there WHERE least IS NOT NULL
"""
_RECORDS_OUTSIDE = f"""
SELECT 'record in quarantine', least, most FROM place, unnest(of_it) AS _span, LATERAL (
    SELECT min("offset") AS least, max("offset") AS most FROM millrace.quarantine
    WHERE {_PLACE} AND "offset" >= lower(_span) AND "offset" < upper(_span)
) AS there WHERE least IS NOT NULL
"""
# Steps from one partition to the next by the key: what lies in between is not read.
_PARTITIONS = """
WITH RECURSIVE present AS (
    (SELECT _topic_id, _partition FROM {target} AS _row ORDER BY _topic_id, _partition LIMIT 1)
    UNION ALL
    SELECT following.* FROM present, LATERAL (
        SELECT _topic_id, _partition FROM {target} AS _row
        WHERE (_topic_id, _partition) > (present._topic_id, present._partition)
        ORDER BY _topic_id, _partition LIMIT 1
    ) AS following
)
SELECT _topic_id, _partition FROM present
WHERE NOT EXISTS (SELECT FROM millrace.progress WHERE topic_id = _topic_id AND partition = _partition) LIMIT 20
"""
_LAST = 2**63 - 1


class SinkBooks(SinkReader):
    """Reads what a sink's table, quarantine and ledger say of the same offsets. Changes nothing."""

    @contextmanager
    def opened(self, stream: str, table: str, key: tuple[str, ...] = ()) -> Iterator[OpenBooks]:
        """The books of one stream, read by one connection.

        Args:
            stream: the stream that wrote the table.
            table: `schema.table`.
            key: the columns of which the table has one row each, the last one; empty: it has every row.

        Raises:
            UnreachableError: the database does not answer.
            DeclarationError: the sink has no ledger, or a table lacks a column.
        """
        with self._looking_at("millrace.ledger") as connection:
            if connection is None:
                raise DeclarationError(
                    "the sink has no ledger: an older Millrace created its tables",
                    where=f"stream {stream}",
                    next_step="restart the stream: it creates the ledger; earlier rows are `unbooked`",
                    code=Code.WRONG_TABLE,
                )
            connection.commit()
            yield KeyedBooks(connection, stream, table, key) if key else OpenBooks(connection, stream, table)


class OpenBooks:
    """The books of one stream while a connection is open; each method sees one snapshot.

    Here of a table that has every row: what lies there is held against the ledger by its source.
    """

    _outside: ClassVar[str] = f"{_UNREACHED} {_ROWS_OUTSIDE} UNION ALL {_RECORDS_OUTSIDE}"
    _key_told = "its source columns"

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], stream: str, table: str) -> None:
        self._connection = connection
        self._stream = stream
        self._target = TargetTable.parse(table)

    def part(self, range_: OffsetRange) -> Part:
        """Hold the beginning of a range against the ledger: whole entries, a million offsets or so.

        Args:
            range_: what is to be looked at; not empty.

        Returns:
            What was looked at begins where an entry does, at or before the range, and ends where one does.
        """
        place = self._place(range_.partition)
        with self._snapshot() as cursor:
            looked = _aligned(cursor, place, range_)
            place |= {"first": looked.first, "next": looked.next}
            findings, entries = self._held(cursor, place, range_.partition)
            doubts = cursor.execute(_DOUBTS, place).fetchall()
        return Part(
            looked,
            tuple(findings),
            tuple(entries),
            tuple(
                Doubt(OffsetRange(range_.partition, first, next_), Spans(_spans(absent)), gaps)
                for first, next_, gaps, absent in doubts
            ),
        )

    def _held(
        self, cursor: Cursor, place: Mapping[str, Any], partition: TopicPartition
    ) -> tuple[list[Finding], list[Entry]]:
        """What is there of whole entries, held against them."""
        faults = cursor.execute(self._on_target(_FAULTS), place).fetchall()
        entries = cursor.execute(self._on_target(_ENTRIES), place).fetchall()
        return _findings(partition, faults), [Entry(*row) for row in entries]

    def outside(self, partition: TopicPartition) -> Finding | None:
        """Rows, and records in quarantine, that no timeline of the record of work reaches."""
        with self._snapshot() as cursor:
            found = cursor.execute(self._on_target(self._outside), {**self._place(partition), "last": _LAST}).fetchall()
        if not found:
            return None
        named = Spans(sorted((int(least), int(most) + 1) for _, least, most in found))
        detail = (
            f"a {' and a '.join(sorted({what for what, *_ in found}, reverse=True))}, at the first and the last offset"
        )
        return Finding(Fault.OUTSIDE, partition, tuple(named), named.offsets, len(named), detail)

    def about_the_table(self) -> tuple[Finding, ...]:
        """What is wrong with the table as a whole: its key, and rows of partitions that no stream has on record."""
        with self._snapshot() as cursor:
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (self._target.identifier.as_string(cursor),))
            if cursor.fetchone() != (True,):
                return (Finding(Fault.MISSING, None, detail=f"table {self._target} is not there"),)
            if self._target.find_key(cursor) is None:
                return (Finding(Fault.UNKEYED, None, detail=f"table {self._target} has no key on {self._key_told}"),)
            return self._strange(cursor)

    def _strange(self, cursor: Cursor) -> tuple[Finding, ...]:
        """Rows of partitions that no stream has on record."""
        cursor.execute(self._on_target(_PARTITIONS))
        strangers = [f"partition {number} of topic id {topic_id}" for topic_id, number in cursor]
        if not strangers:
            return ()
        return (Finding(Fault.STRANGE, None, detail=f"no stream has on record {', '.join(strangers)}"),)

    @contextmanager
    def _snapshot(self) -> Iterator[Cursor]:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(BY_THE_KEY)
            yield cursor

    def _on_target(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(target=self._target.identifier)

    def _place(self, partition: TopicPartition) -> dict[str, Any]:
        return {"stream": self._stream, "topic_id": partition.topic_id, "partition": partition.partition}


class KeyedBooks(OpenBooks):
    """The books of a table that has one row a key, the last one: a record's own row may have gone with its key.

    So the table is never read: quarantine and the ledger's own numbers are all that is held. The rows of an entry
    are those that the ledger says were given.
    """

    _outside = f"{_UNREACHED} {_RECORDS_OUTSIDE}"

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], stream: str, table: str, key: tuple[str, ...]
    ) -> None:
        super().__init__(connection, stream, table)
        self._target = KeyedTable.of(table, key)
        self._key_told = ", ".join(key)

    def _held(
        self, cursor: Cursor, place: Mapping[str, Any], partition: TopicPartition
    ) -> tuple[list[Finding], list[Entry]]:
        found = _findings(partition, cursor.execute(self._on_target(_KEYED_FAULTS), place).fetchall())
        entries = []
        for *numbers, aside in cursor.execute(self._on_target(_KEYED_ENTRIES), place).fetchall():
            entry = Entry(*numbers)
            entries.append(entry)
            found += miscounted(partition, entry, int(aside))
        return found, entries

    def _strange(self, cursor: Cursor) -> tuple[Finding, ...]:
        """Not asked: nothing finds the rows of a partition but a look at all of them."""
        return ()


def miscounted(partition: TopicPartition, entry: Entry, aside: int) -> list[Finding]:
    """Whether quarantine has as many records of an entry as went there, where that is known.

    Args:
        partition: the entry's.
        entry: of the ledger.
        aside: how many there are at offsets of which the ledger says that something came.
    """
    booked = entry.quarantined
    if booked is None or aside == booked or entry.contradiction:
        return []
    fault = Fault.MISSING if aside < booked else Fault.UNEXPECTED
    detail = f"{booked:,} records went to quarantine, {aside:,} are there"
    return [Finding(fault, partition, ((entry.first, entry.next),), abs(booked - aside), 1, detail)]


def _aligned(cursor: Cursor, place: Mapping[str, Any], range_: OffsetRange) -> OffsetRange:
    """Where the first entries of a range begin and end."""
    first = range_.first
    for began, ended in cursor.execute(_BEGIN, {**place, "first": first}).fetchall():
        first = began if ended > first else first
    stop = min(range_.next, first + LARGEST_ENTRY)
    [(end,)] = cursor.execute(_END, {**place, "first": first, "next": stop}).fetchall()
    return OffsetRange(range_.partition, first, max(stop, end or 0))


def _findings(partition: TopicPartition, faults: Iterable[tuple[Any, ...]]) -> list[Finding]:
    return [
        Finding(Fault(fault), partition, _spans(named), int(offsets), ranges)
        for fault, offsets, ranges, named in faults
    ]


def _spans(found: Iterable[Iterable[int]]) -> tuple[Span, ...]:
    return tuple((first, next_) for first, next_ in found)
