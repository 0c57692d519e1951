"""What Spark's tasks write into a stream's sink: rows and bad records, each pass with one report a task.

The writer comes from the sink (`SinkStore`) and travels to the tasks with the batch, the way into the sink with it:
a worker reads no file and no variable for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.sinks.batch import TaskResult, TaskResults
from millrace.domain.topics.offsets import Source
from millrace.errors import (
    DeclarationError,
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
    code_named,
)
from millrace.ports.sinks import TaskWriter
from millrace.runtime.stream.transform import DELETED_FIELD, ORDINAL_FIELD

REPORT = "attempt bigint, rows bigint, refused string, receipt string, failure string"
_REPORTED = pa.schema(
    [
        ("attempt", pa.int64()),
        ("rows", pa.int64()),
        ("refused", pa.string()),
        ("receipt", pa.string()),
        ("failure", pa.string()),
    ]
)
_FAILURES: dict[str, type[MillraceError]] = {
    kind.__name__: kind
    for kind in (SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError, DeclarationError)
}

Blocks = Iterator[pa.RecordBatch]


def with_sources(output: DataFrame, columns: Sequence[str], metadata: Sequence[str] = ()) -> DataFrame:
    """A transform's output as a sink takes it: the source columns, the sink's `metadata`, then these.

    Where the transform gives `_deleted`, a null in it stays one, for the sink to refuse: to take it for false could put
    the nulls of a record that deletes in the place of a row.
    """
    deleted = F.col(DELETED_FIELD) if DELETED_FIELD in output.columns else F.lit(False)
    of_rows = {"_timestamp": F.col("_source.timestamp"), DELETED_FIELD: deleted}
    return output.select(
        F.col("_source.topic_id").alias("_topic_id"),
        F.col("_source.partition").alias("_partition"),
        F.col("_source.offset").alias("_offset"),
        (F.col(ORDINAL_FIELD) if ORDINAL_FIELD in output.columns else F.lit(0)).alias("_ordinal"),
        *(of_rows[name].alias(name) for name in metadata),
        *(F.col(name) for name in columns),
    )


def writing(frame: DataFrame, writer: TaskWriter, prepare: Callable[[Blocks], Blocks] = iter) -> DataFrame:
    """The writing of a frame, to be run by `written`.

    Args:
        frame: what to write.
        writer: of the sink.
        prepare: makes the blocks that the writer takes of the frame's.
    """
    return frame.mapInArrow(task(writer, prepare), REPORT)


def task(writer: TaskWriter, prepare: Callable[[Blocks], Blocks] = iter) -> Callable[[Blocks], Blocks]:
    """What one task does: it writes its blocks and reports once, also a failure that the driver can act on."""

    def write(blocks: Blocks) -> Blocks:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        result, told = TaskResult(), None
        try:
            result = writer(prepare(blocks), attempt)
        except tuple(_FAILURES.values()) as error:
            told = json.dumps([_kind(error), error.what, error.where, error.next_step, error.code])
            for _ in blocks:  # a task that does not read to the end would end its worker
                pass
        refused = json.dumps([(*source, why) for source, why in result.refused.items()])
        report = {"attempt": [attempt], "rows": [result.rows], "refused": [refused]}
        report |= {"receipt": [result.receipt], "failure": [told]}
        yield pa.RecordBatch.from_pydict(report, schema=_REPORTED)

    return write


def _kind(error: MillraceError) -> str:
    """The one of these that an error is: a subclass is an adapter's own, and means the same to the driver."""
    return next(name for name, kind in _FAILURES.items() if isinstance(error, kind))


def written(writing: DataFrame) -> TaskResults:
    """Run a writing: what its tasks report.

    Raises:
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError, DeclarationError: what stopped
            one of them.
    """
    reports = writing.collect()
    refused: dict[Source, str] = {}
    for report in reports:
        if report.failure:
            kind, what, where, next_step, code = json.loads(report.failure)
            raise _FAILURES[kind](what, where=where, next_step=next_step, code=code_named(code))
        refused |= {
            (topic_id, partition, offset): why for topic_id, partition, offset, why in json.loads(report.refused)
        }
    return TaskResults(
        attempts=tuple(report.attempt for report in reports),
        rows=sum(report.rows for report in reports),
        refused=refused,
        receipts=tuple(report.receipt for report in reports if report.receipt),
    )
