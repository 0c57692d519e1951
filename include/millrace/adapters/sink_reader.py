"""Reads of a PostgreSQL sink: its rows with their sources, its quarantine, and the record of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres_connection import UNACKNOWLEDGED
from millrace.domain.books import SourceAt, StoredRow
from millrace.domain.quarantine import Excerpt, Header, QuarantinedRecord, RuleCount
from millrace.errors import DeclarationError, UnreachableError
from millrace.settings import PostgresSettings

_ROWS_A_FETCH = 20_000
_LONGEST_COUNT_SECONDS = 60
_WHEN_AND_WHERE = """ARRAY[(extract(epoch FROM quarantined_at) * 1000000)::bigint, partition::bigint, "offset"]"""
"""Sorts records by when they came to quarantine, and says where they lie: its least is the first record."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One record in quarantine, without its content."""

    source: SourceAt
    rule: str
    error: str


class SinkReader:
    """Reads what streams have written to one sink database. Changes nothing.

    Args:
        settings: the sink's database.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings

    def next_offsets(self, stream: str, topic_id: str) -> dict[int, int]:
        """The next offset of each partition by the record of work, on the stream's newest timeline."""
        found = self._query(
            "millrace.progress",
            "SELECT partition, min(next_offset) FROM millrace.progress WHERE stream = %(stream)s AND topic_id = %(id)s "
            "AND timeline = (SELECT max(timeline) FROM millrace.progress WHERE stream = %(stream)s) GROUP BY partition",
            {"stream": stream, "id": topic_id},
        )
        return {int(partition): int(offset) for partition, offset in found}

    def former_topic_ids(self, stream: str, topic_id: str) -> frozenset[str]:
        """Ids of topics of the same name that the stream has worked on before."""
        found = self._query(
            "millrace.progress",
            "SELECT DISTINCT topic_id FROM millrace.progress WHERE stream = %(stream)s AND topic_id <> %(id)s",
            {"stream": stream, "id": topic_id},
        )
        return frozenset(str(row[0]) for row in found)

    def rows(self, table: str, columns: Sequence[str], topic: str, topic_id: str) -> Iterator[tuple[str, StoredRow]]:
        """Every row of a sink table, each with the topic id it names.

        Raises:
            DeclarationError: the table lacks one of the columns.
        """
        schema, _, name = table.partition(".")
        wanted = sql.SQL(", ").join(map(sql.Identifier, ("_topic_id", "_partition", "_offset", *columns)))
        statement = sql.SQL("SELECT {} FROM {}").format(wanted, sql.Identifier(schema, name))
        for found_id, partition, offset, *values in self._query(table, statement, {}):
            yield str(found_id), StoredRow(SourceAt(topic, int(partition), int(offset)), tuple(values))

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

    def quarantine_counts(self, stream: str | None, limit: int) -> list[RuleCount]:
        """How many records each stream has in quarantine under each rule; counted in the database, in one pass.

        Args:
            stream: only this one; None: all that are there.
            limit: how many counts at most, by stream, topic and rule.

        Raises:
            UnreachableError: the database does not answer, or counting takes longer than a minute.
        """
        of_stream = "" if stream is None else "WHERE stream = %(stream)s "
        found = self._query(
            "millrace.quarantine",
            f"SELECT stream, topic, rule, count(*), min({_WHEN_AND_WHERE}), min(quarantined_at), "
            f"max({_WHEN_AND_WHERE}), max(quarantined_at) FROM millrace.quarantine {of_stream}"
            "GROUP BY stream, topic, rule ORDER BY stream, topic, rule LIMIT %(limit)s",
            {"stream": stream or "", "limit": limit},
            bounded=True,
        )
        return [
            RuleCount(name, topic, rule, count, SourceAt(topic, *first[1:]), began, SourceAt(topic, *last[1:]), ended)
            for name, topic, rule, count, first, began, last, ended in found
        ]

    def quarantined_record(self, stream: str, source: SourceAt, longest_bytes: int) -> QuarantinedRecord | None:
        """One record in quarantine; of a topic that was deleted and made again, that of the latest one.

        Args:
            stream: the stream that put it there.
            source: its topic, partition and offset.
            longest_bytes: of key and value no more is read.
        """
        found = self._query(
            "millrace.quarantine",
            "SELECT topic_id, rule, error, substring(key FOR %(longest)s), octet_length(key), "
            "substring(value FOR %(longest)s), octet_length(value), headers, timestamp, timestamp_ms, quarantined_at, "
            "epoch, timeline FROM millrace.quarantine WHERE stream = %(stream)s AND topic = %(topic)s "
            'AND partition = %(partition)s AND "offset" = %(offset)s ORDER BY quarantined_at DESC LIMIT 1',
            {
                "stream": stream,
                "topic": source.topic,
                "partition": source.partition,
                "offset": source.offset,
                "longest": longest_bytes,
            },
            bounded=True,
        )
        for topic_id, rule, error, key, key_size, value, value_size, headers, *when in found:
            return QuarantinedRecord(
                stream,
                source,
                topic_id,
                rule,
                error,
                None if key is None else Excerpt(key, key_size),
                None if value is None else Excerpt(value, value_size),
                tuple(_header(entry, longest_bytes) for entry in headers),
                *when,
            )
        return None

    def _query(
        self, table: str, statement: str | sql.Composed, arguments: Mapping[str, object], *, bounded: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """The statement's rows; none where the table is not there yet."""
        with self._connected() as connection:
            there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
            if there != (True,):
                return
            if bounded:
                connection.execute(f"SET LOCAL statement_timeout = {_LONGEST_COUNT_SECONDS * 1000}")
            with connection.cursor(name="millrace_read") as cursor:
                cursor.itersize = _ROWS_A_FETCH
                try:
                    cursor.execute(statement, arguments)
                    yield from cursor
                except psycopg.errors.UndefinedColumn as error:
                    raise DeclarationError(
                        f"the table does not have a column of the example: {error.diag.message_primary}",
                        where=table,
                        next_step="let the stream make the table: stop it, drop the table, rewind it, start it",
                    ) from error
                except psycopg.errors.QueryCanceled as error:
                    raise UnreachableError(
                        f"the sink database had no answer within {_LONGEST_COUNT_SECONDS} s",
                        where=table,
                        next_step="ask for one stream with `--stream`; see what else keeps the database busy",
                    ) from error

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        address = f"{self._settings.host}:{self._settings.port}/{self._settings.database}"
        try:
            with psycopg.connect(
                host=self._settings.host,
                port=self._settings.port,
                dbname=self._settings.database,
                user=self._settings.user,
                password=self._settings.password,
                application_name="millrace sink reader",
                connect_timeout=10,
                options="-c timezone=UTC -c default_transaction_read_only=on "
                "-c lock_timeout=10s -c statement_timeout=60s",  # a fetch is a statement
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=UNACKNOWLEDGED // timedelta(milliseconds=1),
            ) as connection:
                yield connection
        except psycopg.OperationalError as error:
            raise UnreachableError(
                f"the sink database does not answer: {str(error).strip()}",
                where=address,
                next_step="see that PostgreSQL runs: `./millrace status`",
            ) from error


def _header(entry: Mapping[str, str | None], longest_bytes: int) -> Header:
    """A header as the sink keeps it: the value in hexadecimal."""
    held = entry["value"]
    value = None if held is None else bytes.fromhex(held)
    return Header(str(entry["key"]), None if value is None else Excerpt(value[:longest_bytes], len(value)))
