"""Reads of a PostgreSQL sink: its rows with their sources, its quarantine, and the record of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres.connection import UNACKNOWLEDGED, address, sink_error
from millrace.adapters.postgres.schema import READ_RECORD, SHARD, work_record
from millrace.domain.quality.ranges import Work
from millrace.domain.quarantine.redrive import Left
from millrace.domain.quarantine.rules import Excerpt, Former, Header, QuarantinedRecord, QuarantineEntry, RuleCount
from millrace.domain.sinks.batch import RangeCounts
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition
from millrace.errors import Code, DeclarationError, UnreachableError
from millrace.settings import PostgresSettings

_ROWS_A_FETCH = 20_000
_LONGEST_STATEMENT_SECONDS: float = 60
_CONNECT_SECONDS = 10
_OFFSETS_A_COUNT = 500_000
_COUNTED = sql.SQL(
    "SELECT coalesce(sum(held), 0)::bigint, coalesce(sum(older), 0)::bigint FROM "
    "unnest(%(ids)s::text[], %(partitions)s::int[], %(firsts)s::bigint[], %(nexts)s::bigint[]) "
    "AS _range (_t, _p, _first, _next) CROSS JOIN LATERAL ({}) AS _counted"
)
"""Range by range, each by the key: a join would read the whole table for each statement."""
_ENDS = """
SELECT stream, topic, rule,
    min(ARRAY[partition::bigint, "offset"]) FILTER (WHERE quarantined_at = began),
    max(ARRAY[partition::bigint, "offset"]) FILTER (WHERE quarantined_at = ended)
FROM millrace.quarantine JOIN unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[])
    AS counted (stream, topic, rule, began, ended) USING (stream, topic, rule)
WHERE quarantined_at IN (began, ended) GROUP BY stream, topic, rule
"""
"""Where the first and the last record of each count lie."""
_TOUCHED = """
SELECT DISTINCT topic, topic_id, partition, first_offset, next_offset FROM (
    SELECT topic, topic_id, partition, "offset" AS here FROM millrace.redrives
    WHERE stream = %(stream)s AND plan = %(plan)s
) AS redriven, LATERAL (
    SELECT first_offset, next_offset FROM millrace.ledger AS entry
    WHERE entry.stream = %(stream)s AND entry.topic_id = redriven.topic_id AND entry.partition = redriven.partition
        AND first_offset <= here
    ORDER BY first_offset DESC LIMIT 1
) AS entry WHERE here < next_offset ORDER BY 2, 3, 4
"""


class SinkReader:
    """Reads what streams have written to one sink database. Changes nothing.

    Args:
        settings: the sink's database.
        statement_seconds: how long one statement may take.
        connect_seconds: how long a connection may take; at least two.
    """

    def __init__(
        self,
        settings: PostgresSettings,
        *,
        statement_seconds: float = _LONGEST_STATEMENT_SECONDS,
        connect_seconds: int = _CONNECT_SECONDS,
    ) -> None:
        self._settings = settings
        self._statement_seconds = statement_seconds
        self._connect_seconds = connect_seconds

    @property
    def address(self) -> str:
        """`host:port/database`."""
        return address(self._settings)

    def next_offsets(self, stream: str, topic_id: str) -> dict[int, int]:
        """The next offset of each partition by the record of work, on the stream's newest timeline."""
        found = self._query(
            "millrace.progress",
            "SELECT partition, min(next_offset) FROM millrace.progress WHERE stream = %(stream)s AND topic_id = %(id)s "
            "AND timeline = (SELECT max(timeline) FROM millrace.progress WHERE stream = %(stream)s) GROUP BY partition",
            {"stream": stream, "id": topic_id},
        )
        return {int(partition): int(offset) for partition, offset in found}

    def record_of_work(self, stream: str) -> WorkRecord:
        """The record of work on a stream's newest timeline."""
        with self._looking_at("millrace.progress") as connection:
            if connection is None:
                return WorkRecord()
            return work_record(connection.execute(READ_RECORD, {"stream": stream, "shard": SHARD}).fetchall())

    def work(self, stream: str) -> tuple[tuple[Work, ...], datetime | None]:
        """A stream's record of work, of every timeline, and when it was last written; None: there is none."""
        found = self._query(
            "millrace.progress",
            "SELECT timeline, topic, topic_id, partition, first_offset, next_offset, updated_at "
            "FROM millrace.progress WHERE stream = %(stream)s",
            {"stream": stream},
        )
        rows = list(found)
        work = tuple(Work(row[0], TopicPartition(*row[1:4]), row[4], row[5]) for row in rows)
        return work, max((row[6] for row in rows), default=None)

    def count_in(self, stream: str, table: str | None, ranges: Sequence[OffsetRange], *, timeline: int) -> RangeCounts:
        """How many rows of a table, and records of the stream's quarantine, come from these ranges.

        Args:
            stream: the stream that wrote them.
            table: `schema.table`; one that is not there has no rows. None: only quarantine is counted.
            ranges: sources.
            timeline: rows of others are counted as `older` too.

        Raises:
            UnreachableError: the database does not answer.
        """
        about = {"timeline": timeline, "stream": stream}
        of_rows = (0, 0) if table is None else self._rows_in(table, ranges, about)
        bad = _COUNTED.format(
            sql.SQL(
                "SELECT count(*) AS held, count(*) FILTER (WHERE timeline <> %(timeline)s) AS older "
                "FROM millrace.quarantine WHERE stream = %(stream)s AND topic_id = _t AND partition = _p "
                'AND "offset" >= _first AND "offset" < _next'
            )
        )
        of_bad = self._counts("millrace.quarantine", bad, ranges, about)
        return RangeCounts(of_rows[0], of_bad[0], of_rows[1] + of_bad[1])

    def _rows_in(self, table: str, ranges: Sequence[OffsetRange], about: Mapping[str, object]) -> tuple[int, int]:
        schema, _, name = table.partition(".")
        target = sql.Identifier(schema, name)
        rows = _COUNTED.format(
            sql.SQL(
                "SELECT count(*) AS held, count(*) FILTER (WHERE _timeline <> %(timeline)s) AS older FROM {} "
                "WHERE _topic_id = _t AND _partition = _p AND _offset >= _first AND _offset < _next"
            ).format(target)
        )
        return self._counts(target.as_string(), rows, ranges, about)

    def columns(self, table: str) -> Mapping[str, str]:
        """The columns of a table and their types, as `format_type` spells them; none where it is not there.

        Args:
            table: `schema.table`.

        Raises:
            UnreachableError: the database does not answer.
        """
        with self._looking_at(table) as connection:
            if connection is None:
                return {}
            found = connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                (table,),
            )
            return {str(name): str(type_name) for name, type_name in found}

    def _counts(
        self, table: str, statement: sql.Composed, ranges: Sequence[OffsetRange], about: Mapping[str, object]
    ) -> tuple[int, int]:
        """Two counts over ranges, by as many statements as it takes that none of them is long."""
        sums = (0, 0)
        with self._looking_at(table) as connection:
            if connection is None:
                return sums
            for part in _parts(ranges):
                columns = ((r.partition.topic_id, r.partition.partition, r.first, r.next) for r in part)
                among = zip(
                    ("ids", "partitions", "firsts", "nexts"), map(list, zip(*columns, strict=True)), strict=True
                )
                [found] = connection.execute(statement, {**about, **dict(among)}).fetchall()
                sums = (sums[0] + found[0], sums[1] + found[1])
        return sums

    def quarantined(self, stream: str, topic: str, topic_id: str) -> list[QuarantineEntry]:
        """Every entry in quarantine of one stream and topic id, by partition and offset."""
        found = self._query(
            "millrace.quarantine",
            'SELECT partition, "offset", rule, error FROM millrace.quarantine '
            'WHERE stream = %(stream)s AND topic_id = %(id)s ORDER BY partition, "offset"',
            {"stream": stream, "id": topic_id},
        )
        return [
            QuarantineEntry(SourceAt(topic, int(partition), int(offset)), str(rule), str(error))
            for partition, offset, rule, error in found
        ]

    def redriven(self, stream: str, plan: str) -> Left:
        """What has left a stream's quarantine by a plan."""
        found = self._query(
            "millrace.redrives",
            "SELECT count(*) FILTER (WHERE rows_out > 0), coalesce(sum(rows_out), 0), "
            "count(*) FILTER (WHERE rows_out = 0) FROM millrace.redrives "
            "WHERE stream = %(stream)s AND plan = %(plan)s",
            {"stream": stream, "plan": plan},
        )
        return next((Left(*map(int, row)) for row in found), Left())

    def touched(self, stream: str, plan: str) -> list[OffsetRange]:
        """The entries of the ledger that what has left by a plan lies in."""
        found = self._query(
            "millrace.redrives",
            _TOUCHED,
            {"stream": stream, "plan": plan},
        )
        return [OffsetRange(TopicPartition(*row[:3]), row[3], row[4]) for row in found]

    def redriven_sources(self, stream: str, topic: str, topic_id: str) -> set[SourceAt]:
        """All that has left quarantine by a plan of a redrive, of one stream and topic id."""
        found = self._query(
            "millrace.redrives",
            'SELECT partition, "offset" FROM millrace.redrives WHERE stream = %(stream)s AND topic_id = %(id)s',
            {"stream": stream, "id": topic_id},
        )
        return {SourceAt(topic, int(partition), int(offset)) for partition, offset in found}

    def quarantine_counts(self, stream: str | None, limit: int) -> list[RuleCount]:
        """How many records each stream has in quarantine under each rule; counted in the database, in two passes.

        Args:
            stream: only this one; None: all that are there.
            limit: how many counts at most, by stream, topic and rule.

        Raises:
            UnreachableError: the database does not answer, or one of the two takes longer than a minute.
        """
        of_stream = "" if stream is None else "WHERE stream = %(stream)s "
        arguments = {"stream": stream or "", "limit": limit}
        with self._looking_at("millrace.quarantine") as connection:
            if connection is None:
                return []
            # by ordinary statements: PostgreSQL runs a cursor's in one process
            counted = connection.execute(
                "SELECT stream, topic, rule, count(*), min(quarantined_at), max(quarantined_at) "
                f"FROM millrace.quarantine {of_stream}GROUP BY stream, topic, rule ORDER BY stream, topic, rule "
                "LIMIT %(limit)s",
                arguments,
            ).fetchall()
            columns = [list(column) for column in zip(*counted, strict=True)] or [[]] * 6
            found = connection.execute(_ENDS, (*columns[:3], *columns[4:])).fetchall()
        places = {row[:3]: row[3:] for row in found}
        return [
            RuleCount(name, topic, rule, count, SourceAt(topic, *first), began, SourceAt(topic, *last), ended)
            for name, topic, rule, count, began, ended in counted
            for first, last in [places[name, topic, rule]]
        ]

    def quarantined_record(self, stream: str, source: SourceAt, longest_bytes: int) -> QuarantinedRecord | None:
        """One record in quarantine; of a topic that was deleted and made again, that of the latest one.

        Args:
            stream: the stream that put it there.
            source: its topic, partition and offset.
            longest_bytes: of key and value no more is read.
        """
        statement = (
            "SELECT topic_id, rule, error, substring(key FOR %(longest)s), octet_length(key), "
            "substring(value FOR %(longest)s), octet_length(value), headers, timestamp, timestamp_ms, quarantined_at, "
            "epoch, timeline, former FROM millrace.quarantine WHERE stream = %(stream)s AND topic = %(topic)s "
            'AND partition = %(partition)s AND "offset" = %(offset)s ORDER BY quarantined_at DESC LIMIT 1'
        )
        place = {"topic": source.topic, "partition": source.partition, "offset": source.offset}
        with self._looking_at("millrace.quarantine") as connection:
            arguments = {"stream": stream, "longest": longest_bytes, **place}
            found = connection.execute(statement, arguments).fetchall() if connection else []
        for (
            topic_id,
            rule,
            error,
            key,
            key_size,
            value,
            value_size,
            headers,
            at,
            at_ms,
            taken,
            epoch,
            timeline,
            former,
        ) in found:
            return QuarantinedRecord(
                stream,
                source,
                topic_id,
                rule,
                error,
                None if key is None else Excerpt(key, key_size),
                None if value is None else Excerpt(value, value_size),
                tuple(_header(entry, longest_bytes) for entry in headers),
                at,
                at_ms,
                taken,
                epoch,
                timeline,
                tuple(_former(entry) for entry in former),
            )
        return None

    def _query(
        self, table: str, statement: str | sql.Composed, arguments: Mapping[str, object]
    ) -> Iterator[tuple[Any, ...]]:
        """The statement's rows, fetched in parts; none where the table is not there yet."""
        with self._looking_at(table) as connection:
            if connection is None:
                return
            with connection.cursor(name="millrace_read") as cursor:
                cursor.itersize = _ROWS_A_FETCH
                cursor.execute(statement, arguments)
                yield from cursor

    @contextmanager
    def _looking_at(self, table: str) -> Iterator[psycopg.Connection[tuple[Any, ...]] | None]:
        """A connection; None where the table is not there yet.

        Raises:
            DeclarationError: the table lacks a column.
            UnreachableError: the database does not answer, or a statement took too long.
            SinkFailedError: it refuses, for instance because this role may not read the table.
        """
        with self._connected() as connection:
            try:
                there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
                yield connection if there == (True,) else None
            except psycopg.errors.UndefinedColumn as error:
                next_step = "stop the stream, drop the table, rewind the stream and start it: it creates the table"
                if table.startswith("millrace."):
                    next_step = (
                        "restart one of its streams: the next start adds the column, which an older Millrace lacks"
                    )
                raise DeclarationError(
                    f"the table lacks a column: {error.diag.message_primary}",
                    where=table,
                    next_step=next_step,
                    code=Code.WRONG_TABLE,
                ) from error
            except psycopg.errors.QueryCanceled as error:
                raise UnreachableError(
                    f"the sink database did not answer within {self._statement_seconds:g} s",
                    where=table,
                    next_step="check what else keeps the database busy; `--stream` reads one stream only",
                    code=Code.SINK_UNREACHABLE,
                ) from error
            except psycopg.OperationalError:
                raise  # told by the connection
            except psycopg.Error as error:
                raise sink_error(self._settings, error, f"read {table}") from error

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            with psycopg.connect(
                **self._settings.keywords(),  # type: ignore[arg-type]
                application_name="millrace sink reader",
                connect_timeout=self._connect_seconds,
                options="-c timezone=UTC -c default_transaction_read_only=on "
                "-c default_transaction_isolation=repeatable\\ read -c lock_timeout=10s "
                f"-c statement_timeout={int(self._statement_seconds * 1000)}",  # a fetch is a statement
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=UNACKNOWLEDGED // timedelta(milliseconds=1),
            ) as connection:
                yield connection
        except psycopg.OperationalError as error:
            raise UnreachableError(
                f"the sink database does not answer: {str(error).strip()}",
                where=self.address,
                next_step="check that PostgreSQL runs: `./millrace status`",
                code=Code.SINK_UNREACHABLE,
            ) from error


def _parts(ranges: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    """The same offsets in parts of at most so many."""
    part: list[OffsetRange] = []
    room = _OFFSETS_A_COUNT
    for entry in ranges:
        first = entry.first
        while first < entry.next:
            piece = OffsetRange(entry.partition, first, min(entry.next, first + room))
            part.append(piece)
            first, room = piece.next, room - len(piece)
            if not room:
                yield part
                part, room = [], _OFFSETS_A_COUNT
    if part:
        yield part


def _former(entry: Mapping[str, str]) -> Former:
    return Former(entry["rule"], entry["error"], datetime.fromisoformat(entry["until"]), entry["plan"])


def _header(entry: Mapping[str, str | None], longest_bytes: int) -> Header:
    """A header as the sink keeps it: the value in hexadecimal."""
    held = entry["value"]
    value = None if held is None else bytes.fromhex(held)
    return Header(str(entry["key"]), None if value is None else Excerpt(value[:longest_bytes], len(value)))
