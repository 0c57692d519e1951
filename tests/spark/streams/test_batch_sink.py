"""The sink of a batch takes a batch from Spark without an engine, a group or a report."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from millrace.domain.sinks.batch import BatchCounts
from millrace.domain.topics.offsets import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.domain.sinks.batch import TaskResult, TaskResults
    from millrace.runtime.stream.inputs import Read

VALUES = [b'{"id": 0}', b'{"id": 1}', b"not json", b'{"id": 3}', b'{"id": 4}']


def telling(blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
    """A task's writer that tells which offsets it was given."""
    from millrace.domain.sinks.batch import TaskResult

    offsets = [offset for block in blocks for offset in block.column("_offset").to_pylist()]
    return TaskResult(len(offsets), receipt=json.dumps(offsets))


def raising_on_three(inputs: Mapping[str, DataFrame], tables: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    [records] = inputs.values()
    return records.withColumn("id", F.when(F.col("id") == 3, F.raise_error(F.lit("three"))).otherwise(F.col("id")))


def test_rows_are_written_and_what_becomes_no_row_is_kept_aside(spark: SparkSession) -> None:
    from millrace.runtime.stream.batch.records import Batch
    from millrace.runtime.stream.batch.sink import BatchSink
    from support.streams.memory_sink import ID, NAME, P0, MemorySink, stream_constants
    from support.streams.raw_records import raw_frame  # workers import this module, and have no `support`

    raw = raw_frame(spark, [(NAME, 0, offset, 0, b"k", value, []) for offset, value in enumerate(VALUES)], 2)
    batch = Batch(raw, {NAME: raw}, {NAME: ID}, [OffsetRange(P0, 0, len(VALUES))])
    constants, store = stream_constants(transform=raising_on_three), MemorySink(writer=telling)
    sink = BatchSink(constants, store)  # type: ignore[arg-type]
    inputs = constants.decode(batch.by_topic, batch.ids)
    counts: list[BatchCounts] = []

    def write() -> tuple[Read, TaskResults]:
        return sink.write(batch, inputs, lambda: None)

    def attempt() -> None:
        with pytest.raises(Exception, match="three") as caught:
            write()
        sink.isolate(inputs, caught.value, lambda step: None)
        read, rows = write()
        counts.append(sink.merge(batch, rows, read))

    assert sink.until_taken(attempt, threading.Event(), lambda error: None)
    assert counts == [BatchCounts(rows_out=3, quarantined=2)]
    assert store.record == {P0: len(VALUES)}
    [written] = store.commits
    assert sorted(offset for receipt in written.receipts for offset in json.loads(receipt)) == [0, 1, 4]
    assert list(written.refused) == [(ID, 0, 3)]
    assert written.records == {(NAME, 0): len(VALUES)}
