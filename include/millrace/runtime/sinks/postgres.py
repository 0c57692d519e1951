"""Copies of a batch into PostgreSQL's staging tables, made by Spark's tasks; the driver merges them.

A task that is tried again leaves what its former try copied: rows carry the id of the task attempt, and only the
attempts that reported back are merged.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.adapters.postgres_connection import (
    Fault,
    SinkExhaustedError,
    SinkFailure,
    SinkUnreachableError,
    connect,
    fault_of,
    holds_unicode,
)
from millrace.adapters.postgres_fence import Identity
from millrace.adapters.postgres_tables import QUARANTINE_COLUMNS, SOURCE_COLUMNS, Staging, TargetColumn
from millrace.domain.declaration import Topic
from millrace.domain.offsets import Source
from millrace.domain.quarantine import Rule
from millrace.runtime.decode import Decoder
from millrace.runtime.decoders import Untouched, decoder_of
from millrace.runtime.source import timestamps
from millrace.settings import PostgresSettings, open_settings

REPORT = "attempt bigint, rows bigint, refused string, failure string"
_REPORTED = pa.schema(
    [("attempt", pa.int64()), ("rows", pa.int64()), ("refused", pa.string()), ("failure", pa.string())]
)
_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=20_000)

Blocks = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where tasks copy to. It names the connection and holds no secret: it travels to the workers."""

    connection: str
    identity: Identity
    turn: int = 0

    @property
    def staging(self) -> Staging:
        """The tables that are filled."""
        return Staging(self.identity.application_name, self.turn)


@dataclass(frozen=True, slots=True)
class Copied:
    """What the tasks of one pass copied.

    Attributes:
        attempts: the ids of the tasks.
        rows: how many rows the staging table took.
        refused: sources with a value that it did not take, with the database's reason.
    """

    attempts: tuple[int, ...]
    rows: int
    refused: Mapping[Source, str]


def copying(output: DataFrame, columns: Sequence[TargetColumn], destination: Destination) -> DataFrame:
    """The copy of a transform's output into the staging table of rows, to be run by `copied`."""
    flat = with_sources(output, [column.name for column in columns])
    return flat.mapInArrow(_copier(destination, destination.staging.rows, flat.columns), REPORT)


def with_sources(output: DataFrame, columns: Sequence[str]) -> DataFrame:
    """A transform's output as a table has it: the source columns, then these."""
    return output.select(
        F.col("_source.topic_id").alias("_topic_id"),
        F.col("_source.partition").alias("_partition"),
        F.col("_source.offset").alias("_offset"),
        (F.col("_ordinal") if "_ordinal" in output.columns else F.lit(0)).alias("_ordinal"),
        *(F.col(name) for name in columns),
    )


def copy_bad_records(
    raw: DataFrame, topics: Mapping[str, tuple[Topic, str]], refused: Mapping[Source, str], destination: Destination
) -> Copied:
    """Find the bad records of a batch, and those whose rows the sink refused, and copy them for quarantine.

    It reads the batch once more, so it is called only where there is something to find.

    Args:
        raw: the batch's records, a frame of `runtime.source.RAW_TYPE`.
        topics: each topic with the id it has now.
        refused: sources whose rows the sink refused, with its reason.
        destination: where to copy to.

    Raises:
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkStatementError: what stopped a task's copy.
    """
    names = [name for name, _ in SOURCE_COLUMNS] + [name for name, _ in QUARANTINE_COLUMNS]
    table = destination.staging.bad_records
    return copied(raw.mapInArrow(_copier(destination, table, names, _bad_records(topics, refused)), REPORT))


def copied(copying: DataFrame) -> Copied:
    """Run a copy: what its tasks report.

    Raises:
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkStatementError: what stopped a task's copy.
    """
    reports = copying.collect()
    refused: dict[Source, str] = {}
    for report in reports:
        if report.failure:
            raise SinkFailure(**json.loads(report.failure)).error()
        refused |= {
            (topic_id, partition, offset): why for topic_id, partition, offset, why in json.loads(report.refused)
        }
    return Copied(tuple(report.attempt for report in reports), sum(report.rows for report in reports), refused)


def _as_they_are(blocks: Blocks, unicode: bool) -> Blocks:
    return blocks


def _copier(
    destination: Destination,
    table: sql.Identifier,
    names: Sequence[str],
    prepare: Callable[[Blocks, bool], Blocks] = _as_they_are,
) -> Callable[[Blocks], Blocks]:
    """A task that copies its blocks and reports once; refused rows are left out and reported, and so is a failure.

    Args:
        destination: where to copy to.
        table: the staging table.
        names: the columns of the blocks.
        prepare: makes the blocks of those that come in; it is told whether the database holds every character.
    """
    fields = sql.SQL(", ").join(sql.Identifier(name) for name in ("_attempt", *names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, fields)

    def copy(blocks: Blocks) -> Blocks:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        rows = 0
        refused: list[tuple[Any, ...]] = []
        failure: SinkFailure | None = None
        settings = open_settings().postgres(destination.connection)
        try:
            with connect(settings, destination.identity.application_name) as connection:
                for block in prepare(blocks, holds_unicode(connection)):
                    if len(block):
                        rows += copy_block(connection, statement, _with_attempt(block, names, attempt), refused)
        except (psycopg.Error, SinkUnreachableError, SinkExhaustedError) as error:
            failure = _failure(settings, error)
            for _ in blocks:  # a task that does not read to the end would end its worker
                pass
        told = json.dumps(asdict(failure)) if failure else None
        report = {"attempt": [attempt], "rows": [rows], "refused": [json.dumps(refused)], "failure": [told]}
        yield pa.RecordBatch.from_pydict(report, schema=_REPORTED)

    return copy


def _failure(settings: PostgresSettings, error: Exception) -> SinkFailure:
    """From what the copy raised, or `connect` before it."""
    if isinstance(error, psycopg.Error):
        return SinkFailure.of(settings, error, "copy to staging")
    assert isinstance(error.__cause__, psycopg.Error)
    return SinkFailure.at_connect(settings, error.__cause__)


def _with_attempt(block: pa.RecordBatch, names: Sequence[str], attempt: int) -> pa.Table:
    columns = [pa.array([attempt] * len(block), type=pa.int64())]
    columns += [as_text(block.column(name)) for name in names]
    return pa.table(columns, names=["_attempt", *names])


def as_text(column: pa.Array) -> pa.Array:
    """Binary as PostgreSQL's hexadecimal form; everything else as Arrow's CSV writer gives it."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexadecimal = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(hexadecimal, type=pa.string())
    return column


def copy_block(
    connection: psycopg.Connection[Any], statement: sql.Composed, block: pa.Table, refused: list[tuple[Any, ...]]
) -> int:
    """Copy rows; where PostgreSQL refuses a value, halve until the row that holds it stands alone."""
    pending = [block]
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
                source = [part.column(name)[0].as_py() for name in ("_topic_id", "_partition", "_offset")]
                refused.append((*source, str(error.diag.message_primary or error)))
                continue
            middle = len(part) // 2
            pending += [part.slice(middle), part.slice(0, middle)]
    return rows


def _bad_records(
    topics: Mapping[str, tuple[Topic, str]], refused: Mapping[Source, str]
) -> Callable[[Blocks, bool], Blocks]:
    def find(blocks: Blocks, unicode: bool) -> Blocks:
        decoders = {
            name: (decoder_of(topic.value, key_required=topic.key is not None), topic_id)
            for name, (topic, topic_id) in topics.items()
            if topic.value is not None
        }
        for block in blocks:
            for name, (decoder, topic_id) in decoders.items():
                part = block.filter(pc.equal(block.column("topic"), name))
                if len(part):
                    yield _bad_of(part, decoder, topic_id, refused, unicode)

    return find


def _bad_of(
    block: pa.RecordBatch, decoder: Decoder | Untouched, topic_id: str, refused: Mapping[Source, str], unicode: bool
) -> pa.RecordBatch:
    milliseconds = block.column("timestamp_ms").to_pylist()
    found = decoder.decode(block.column("value").to_pylist(), block.column("key").to_pylist(), milliseconds)
    rules, errors, bad = list(found.rules), list(found.errors), []
    places = zip(block.column("partition").to_pylist(), block.column("offset").to_pylist(), strict=True)
    for row, (partition, offset) in enumerate(places):
        why = refused.get((topic_id, partition, offset))
        if rules[row] is None and why is not None:
            rules[row], errors[row] = Rule.SINK_REFUSED, why
        bad.append(rules[row] is not None)
    part = block.filter(pa.array(bad))
    at = timestamps(part.column("timestamp_ms"))
    headers = [_headers(entry, unicode) for entry in part.column("headers").to_pylist()]
    return pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array([topic_id] * len(part), type=pa.string()),
            "_partition": part.column("partition"),
            "_offset": part.column("offset"),
            "_ordinal": pa.array([0] * len(part), type=pa.int32()),
            "topic": part.column("topic"),
            "timestamp": at,
            "timestamp_ms": pc.if_else(pc.is_null(at), part.column("timestamp_ms"), pa.scalar(None, pa.int64())),
            "key": part.column("key"),
            "value": part.column("value"),
            "headers": pa.array(headers, type=pa.string()),
            "rule": pa.array([str(rule) for rule in rules if rule is not None], type=pa.string()),
            "error": pa.array([text_held(error, unicode) for error in errors if error is not None], type=pa.string()),
        }
    )


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
