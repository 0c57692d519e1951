"""Copies into PostgreSQL's staging tables, made by the tasks of a batch; the driver merges them.

A task that is tried again leaves what its former try copied: rows carry the id of the task attempt, and only the
attempts that reported back are merged.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from millrace.adapters.postgres.connection import Fault, connect, fault_of, holds_unicode, sink_error
from millrace.adapters.sinks.row_sources import sources_of
from millrace.adapters.sinks.value_ranges import unheld_rows
from millrace.domain.sinks.batch import TaskResult
from millrace.settings import PostgresSettings

_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=20_000)


@dataclass(frozen=True, slots=True)
class RowsCopy:
    """Copies rows into a staging table. It travels to the tasks, the way into the database with it.

    Args:
        settings: the sink's database.
        application_name: how its backends are listed.
        table: the staging table.
    """

    settings: PostgresSettings
    application_name: str
    table: sql.Identifier

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Copy blocks that have the table's columns but for `_attempt`; where none comes, nobody connects.

        Raises:
            SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: by SQLSTATE.
        """
        return self._copy(blocks, attempt, lambda block, unicode: block)

    def _copy(
        self,
        blocks: Iterator[pa.RecordBatch],
        attempt: int,
        prepare: Callable[[pa.RecordBatch, bool], pa.RecordBatch],
    ) -> TaskResult:
        connection: psycopg.Connection[Any] | None = None
        refused: list[tuple[Any, ...]] = []
        rows = 0
        try:
            with ExitStack() as closing:
                for block in blocks:
                    if not len(block):
                        continue
                    connection = connection or closing.enter_context(connect(self.settings, self.application_name))
                    text = _with_attempt(prepare(block, holds_unicode(connection)), attempt)
                    rows += copy_block(connection, self._statement(text.column_names), text, refused)
        except psycopg.Error as error:
            raise sink_error(self.settings, error, "copy to staging") from error
        return TaskResult(rows, {(topic_id, number, offset): why for topic_id, number, offset, why in refused})

    def _statement(self, names: Sequence[str]) -> sql.Composed:
        fields = sql.SQL(", ").join(map(sql.Identifier, names))
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self.table, fields)


@dataclass(frozen=True, slots=True)
class BadRecordsCopy(RowsCopy):
    """Copies bad records into a staging table, as text and jsonb of its database hold them."""

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Copy blocks as `SinkStore.bad_records_writer` describes them.

        Raises:
            SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: by SQLSTATE.
        """
        return self._copy(blocks, attempt, _held)


def _held(block: pa.RecordBatch, unicode: bool) -> pa.RecordBatch:
    headers = [_headers(entry, unicode) for entry in block.column("headers").to_pylist()]
    errors = [text_held(error, unicode) for error in block.column("error").to_pylist()]
    columns = dict(zip(block.schema.names, block.columns, strict=True))
    texts = {"headers": pa.array(headers, type=pa.string()), "error": pa.array(errors, type=pa.string())}
    return pa.RecordBatch.from_pydict(columns | texts)


def _headers(entries: Sequence[Mapping[str, Any]] | None, unicode: bool) -> str:
    """Headers as JSON, their values as hexadecimal: they may be anything."""
    listed = [
        {"key": text_held(entry["key"], unicode), "value": None if entry["value"] is None else entry["value"].hex()}
        for entry in entries or ()
    ]
    return json.dumps(listed)


def text_held(text: str, unicode: bool) -> str:
    """What PostgreSQL's text and jsonb hold: not U+0000, and in a database that is not UTF-8 ASCII for certain."""
    held = text.replace("\0", "\ufffd")
    return held if unicode else held.encode("ascii", "backslashreplace").decode("ascii")


def _with_attempt(block: pa.RecordBatch, attempt: int) -> pa.Table:
    columns = [pa.array([attempt] * len(block), type=pa.int64()), *(as_text(column) for column in block.columns)]
    return pa.table(columns, names=["_attempt", *block.schema.names])


def as_text(column: pa.Array) -> pa.Array:
    """Return a column as Arrow's CSV writer is to print it.

    Binary is PostgreSQL's hexadecimal form. A timestamp loses its zone: with it Arrow takes thirty times as long to
    print it, and without it means UTC, as `connect` sees to.
    """
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexadecimal = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(hexadecimal, type=pa.string())
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.view(pa.timestamp(column.type.unit))
    return column


def copy_block(
    connection: psycopg.Connection[Any], statement: sql.Composed, block: pa.Table, refused: list[tuple[Any, ...]]
) -> int:
    """Copy rows but for those that no sink takes or that PostgreSQL refuses; return how many.

    Where PostgreSQL refuses a value, halve until the row that holds it stands alone.

    Args:
        connection: of `connect`.
        statement: the COPY.
        block: the columns as `as_text` gives them.
        refused: takes the source and the reason of each row that is left out.
    """
    block = _held_rows(block, refused)
    pending = [block] if len(block) else []
    rows = 0
    while pending:
        part = pending.pop()
        text = io.BytesIO()
        pa.csv.write_csv(part, text, _CSV)
        try:
            with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(text.getbuffer())
            rows += len(part)
        except psycopg.Error as error:
            if fault_of(error) is not Fault.REFUSED:
                raise
            if len(part) == 1:
                refused.append((*sources_of(part)[0], str(error.diag.message_primary or error)))
                continue
            middle = len(part) // 2
            pending += [part.slice(middle), part.slice(0, middle)]
    return rows


def _held_rows(block: pa.Table, refused: list[tuple[Any, ...]]) -> pa.Table:
    """A block without the rows that no sink takes."""
    columns = [column.combine_chunks() for column in block.columns]
    wrong = unheld_rows(block.column_names, columns)
    if not wrong:
        return block
    rows = sorted(wrong)
    refused += [(*source, wrong[row]) for row, source in zip(rows, sources_of(block, rows), strict=True)]
    return block.filter(pa.array([row not in wrong for row in range(len(block))]))
