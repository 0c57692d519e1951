"""A stream with records in quarantine, and what puts them through, without Spark: rows are made by SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.books import SinkBooks
from millrace.adapters.sinks.postgres.redrive import Held, Put, QuarantineRedrive, open_redrive
from millrace.adapters.sinks.postgres.types import target_columns
from millrace.domain.quality.books import judged
from millrace.domain.quarantine.redrive import Selection
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from support.sinks.writer import COLUMNS, P0, Writer

EVERYTHING = Selection()
BAD = Broken(Rule.WRONG_TYPE, "of another type")


class Bench:
    """A stream with records in quarantine, and what puts them through."""

    def __init__(self, database, name: str, admin: psycopg.Connection[Any]) -> None:
        self.database, self.name, self.admin = database, name, admin
        self.writer = Writer(database, name, 1).ready()
        self.stream = self.writer.identity.stream

    def commit(self, first: int, end: int, *, bad: Iterable[int], dropped: Iterable[int] = (), timeline=1) -> None:
        """A batch of partition 0: what is neither bad nor dropped is a row."""
        bad, dropped = list(bad), list(dropped)
        kept = [offset for offset in range(first, end) if offset not in (*bad, *dropped)]
        self.writer.sink.begin_batch()
        self.writer.stage(kept)
        statement = sql.SQL(
            "INSERT INTO {} (_attempt, _topic_id, _partition, _offset, _ordinal, topic, key, value, headers, rule, "
            "error, timestamp) VALUES (1, %s, 0, %s, 0, 't', 'k', 'v', %s, 'not_json', 'why', '2026-01-01Z')"
        ).format(self.writer.sink.staging.bad_records)
        with connect(self.database, "stage") as connection:
            for offset in bad:
                connection.execute(statement, (P0.topic_id, offset, '[{"key": "h", "value": "00ff"}]'))
        records = {("t", 0): end - first}
        self.writer.merge(first, end, rows=len(kept), bad_records=len(bad), timeline=timeline, records=records)

    @contextmanager
    def opened(self, plan: str = "redrive-1") -> Iterator[QuarantineRedrive]:
        with open_redrive(self.database, self.stream, f"{self.name}.rows", plan) as redrive:
            redrive.prepare(target_columns(COLUMNS, "the test"))
            yield redrive

    def put(
        self,
        made: Mapping[int, int] | None = None,
        bad: Mapping[int, Broken] | None = None,
        *,
        keep: bool = True,
        plan: str = "redrive-1",
        selection: Selection = EVERYTHING,
    ) -> dict[int, Put]:
        """Put through what is selected; `made` is how many rows each record becomes, one where it is not named."""
        done: dict[int, Put] = {}
        with self.opened(plan) as redrive:
            for _, part in redrive.parts(selection, redrive.now()):
                done |= self.put_part(redrive, part, made or {}, bad or {}, keep=keep)
        return done

    def put_part(
        self,
        redrive: QuarantineRedrive,
        part: list[Held],
        made: Mapping[int, int] = {},
        bad: Mapping[int, Broken] = {},
        *,
        keep: bool = True,
    ) -> dict[int, Put]:
        redrive.empty()
        rows = {one.offset: made.get(one.offset, 1) for one in part if one.offset not in bad}
        self.make(redrive, rows)
        wrong = {one.source: bad[one.offset] for one in part if one.offset in bad}
        put = redrive.put_through(part, wrong, rows=sum(rows.values()), keep=keep)
        return {source[2]: became for source, became in put.items()}

    def make(self, redrive: QuarantineRedrive, rows: Mapping[int, int]) -> None:
        statement = sql.SQL(
            "INSERT INTO {} (_topic_id, _partition, _offset, _ordinal, name, amount) VALUES (%s, 0, %s, %s, 'again', 1)"
        ).format(redrive.rows)
        for offset, count in rows.items():
            for ordinal in range(count):
                redrive.connection.execute(statement, (P0.topic_id, offset, ordinal))

    def rows(self) -> list[tuple[int, int]]:
        found = self.admin.execute(f"SELECT _offset, _ordinal FROM {self.name}.rows ORDER BY 1, 2").fetchall()
        return [(int(offset), int(ordinal)) for offset, ordinal in found]

    def again(self) -> list[int]:
        """The offsets whose rows a redrive has written."""
        query = f"SELECT DISTINCT _offset FROM {self.name}.rows WHERE name = 'again' ORDER BY 1"
        return [int(offset) for (offset,) in self.admin.execute(query)]

    def quarantine(self, columns: str = '"offset"') -> list[Any]:
        query = f'SELECT {columns} FROM millrace.quarantine WHERE stream = %s ORDER BY topic_id, partition, "offset"'
        found = self.admin.execute(query, (self.stream,)).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def ledger(self, columns: str = "records, sources, rows_out, quarantined, dropped") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM millrace.ledger WHERE stream = %s ORDER BY topic_id, partition, first_offset"
        return self.admin.execute(query, (self.stream,)).fetchall()

    def redrives(self, columns: str = '"offset", rows_out, plan') -> list[tuple[Any, ...]]:
        query = f'SELECT {columns} FROM millrace.redrives WHERE stream = %s ORDER BY "offset", plan'
        return self.admin.execute(query, (self.stream,)).fetchall()

    def unbalanced(self, end: int, partition: TopicPartition = P0) -> list[str]:
        """What table, quarantine and ledger do not say together."""
        found, at = [], 0
        with SinkBooks(self.database).opened(self.stream, f"{self.name}.rows") as books:
            while at < end:
                part = books.part(OffsetRange(partition, at, end))
                found += [str(finding) for finding in judged(part)]
                at = part.range.next
        return found
