"""Copies of a batch into PostgreSQL's staging tables, made by Spark's tasks; the driver merges them.

A task that is tried again leaves what its former try copied: rows carry the id of the task attempt, and only the
attempts that reported back are merged.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.adapters.postgres_connection import connect
from millrace.adapters.postgres_merge import Source
from millrace.adapters.postgres_sink import Identity
from millrace.adapters.postgres_tables import QUARANTINE_COLUMNS, SOURCE_COLUMNS, Staging, TargetColumn
from millrace.domain.declaration import Topic
from millrace.domain.quarantine import Rule
from millrace.runtime.decode import Decoder
from millrace.runtime.source import milliseconds
from millrace.settings import open_settings

_REPORT = "attempt bigint, rows bigint, refused string"
_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=20_000)

Blocks = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where tasks copy to. It names the connection and holds no secret: it travels to the workers."""

    connection: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class Copied:
    """What the tasks of one pass copied: their attempts, how many rows, and which sources the COPY refused."""

    attempts: tuple[int, ...]
    rows: int
    refused: Mapping[Source, str]


def copy_rows(output: DataFrame, columns: Sequence[TargetColumn], destination: Destination) -> Copied:
    """Copy a transform's output into the staging table of rows."""
    ordinal = F.col("_ordinal") if "_ordinal" in output.columns else F.lit(0)
    flat = output.select(
        F.col("_source.topic_id").alias("_topic_id"),
        F.col("_source.partition").alias("_partition"),
        F.col("_source.offset").alias("_offset"),
        ordinal.alias("_ordinal"),
        *(F.col(column.name) for column in columns),
    )
    names = [name for name, _ in SOURCE_COLUMNS] + [column.name for column in columns]
    table = Staging(destination.identity.application_name).rows
    return _run(flat, _copier(destination, table, names))


def copy_bad_records(
    raw: DataFrame, topics: Mapping[str, tuple[Topic, str]], refused: Mapping[Source, str], destination: Destination
) -> Copied:
    """Find the bad records of a batch, and those whose rows the sink refused, and copy them for quarantine.

    It reads the batch once more, so it is called only where there is something to find.

    Args:
        raw: the batch's records as the Kafka source gives them.
        topics: each topic with the id it has now.
        refused: sources whose rows the sink refused, with its reason.
        destination: where to copy to.
    """
    names = [name for name, _ in SOURCE_COLUMNS] + [name for name, _ in QUARANTINE_COLUMNS]
    table = Staging(destination.identity.application_name).bad_records
    copy = _copier(destination, table, names)
    find = _bad_records(topics, refused)

    def find_and_copy(blocks: Blocks) -> Blocks:
        return copy(find(blocks))

    columns = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return _run(raw.select(*columns), find_and_copy)


def _run(frame: DataFrame, task: Callable[[Blocks], Blocks]) -> Copied:
    reports = frame.mapInArrow(task, _REPORT).collect()
    refused: dict[Source, str] = {}
    for report in reports:
        refused |= {
            (topic_id, partition, offset): why for topic_id, partition, offset, why in json.loads(report.refused)
        }
    return Copied(tuple(report.attempt for report in reports), sum(report.rows for report in reports), refused)


def _copier(destination: Destination, table: sql.Identifier, names: Sequence[str]) -> Callable[[Blocks], Blocks]:
    """A task that copies its blocks in one COPY and reports once; refused rows are left out and reported."""
    fields = sql.SQL(", ").join(sql.Identifier(name) for name in ("_attempt", *names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, fields)

    def copy(blocks: Blocks) -> Blocks:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        rows = 0
        refused: list[tuple[Any, ...]] = []
        settings = open_settings().postgres(destination.connection)
        with connect(settings, destination.identity.application_name) as connection:
            for block in blocks:
                if len(block):
                    taken = _copy_block(connection, statement, _with_attempt(block, names, attempt), refused)
                    rows += taken
        report = {"attempt": [attempt], "rows": [rows], "refused": [json.dumps(refused)]}
        yield pa.RecordBatch.from_pydict(report)

    return copy


def _with_attempt(block: pa.RecordBatch, names: Sequence[str], attempt: int) -> pa.Table:
    columns = [pa.array([attempt] * len(block), type=pa.int64())]
    columns += [_as_text(block.column(name)) for name in names]
    return pa.table(columns, names=["_attempt", *names])


def _as_text(column: pa.Array) -> pa.Array:
    """Binary as PostgreSQL's hexadecimal form; everything else as Arrow's CSV writer gives it."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexadecimal = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(hexadecimal, type=pa.string())
    return column


def _copy_block(
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
        except psycopg.DataError as error:
            if len(part) == 1:
                source = [part.column(name)[0].as_py() for name in ("_topic_id", "_partition", "_offset")]
                refused.append((*source, str(error.diag.message_primary or error)))
                continue
            middle = len(part) // 2
            pending += [part.slice(middle), part.slice(0, middle)]
    return rows


def _bad_records(topics: Mapping[str, tuple[Topic, str]], refused: Mapping[Source, str]) -> Callable[[Blocks], Blocks]:
    def find(blocks: Blocks) -> Blocks:
        decoders = {
            name: (Decoder(topic.value, key_required=topic.key is not None), topic_id)
            for name, (topic, topic_id) in topics.items()
            if topic.value is not None
        }
        for block in blocks:
            for name, (decoder, topic_id) in decoders.items():
                part = block.filter(pc.equal(block.column("topic"), name))
                if len(part):
                    yield _bad_of(part, decoder, topic_id, refused)

    return find


def _bad_of(block: pa.RecordBatch, decoder: Decoder, topic_id: str, refused: Mapping[Source, str]) -> pa.RecordBatch:
    timestamps = milliseconds(block.column("timestamp"))
    found = decoder.decode(block.column("value").to_pylist(), block.column("key").to_pylist(), timestamps)
    rules, errors, bad = list(found.rules), list(found.errors), []
    places = zip(block.column("partition").to_pylist(), block.column("offset").to_pylist(), strict=True)
    for row, (partition, offset) in enumerate(places):
        why = refused.get((topic_id, partition, offset))
        if rules[row] is None and why is not None:
            rules[row], errors[row] = Rule.SINK_REFUSED, why
        bad.append(rules[row] is not None)
    kept = pa.array(bad)
    part = block.filter(kept)
    return pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array([topic_id] * len(part), type=pa.string()),
            "_partition": part.column("partition"),
            "_offset": part.column("offset"),
            "_ordinal": pa.array([0] * len(part), type=pa.int32()),
            "topic": part.column("topic"),
            "timestamp": part.column("timestamp").cast(pa.timestamp("us", tz="UTC")),
            "key": part.column("key"),
            "value": part.column("value"),
            "headers": pa.array([_headers(entry) for entry in part.column("headers").to_pylist()], type=pa.string()),
            "rule": pa.array([str(rule) for rule in rules if rule is not None], type=pa.string()),
            "error": pa.array([_without_nul(error) for error in errors if error is not None], type=pa.string()),
        }
    )


def _headers(entries: Sequence[Mapping[str, Any]] | None) -> str:
    """Headers as JSON, their values as hexadecimal: they may be anything."""
    listed = [
        {"key": _without_nul(entry["key"]), "value": None if entry["value"] is None else entry["value"].hex()}
        for entry in entries or ()
    ]
    return json.dumps(listed)


def _without_nul(text: str) -> str:
    """PostgreSQL's text and jsonb hold every character but U+0000."""
    return text.replace("\0", "\ufffd")
