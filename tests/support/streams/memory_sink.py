"""A stream's batches without Spark and servers: constants, a sink in memory, frames of Arrow blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from millrace.domain.declaration.pipeline import Column, ColumnType, Stream, Topic, ValueFormat, ValueSchema
from millrace.domain.declaration.sinks import PostgresSink
from millrace.domain.sinks.batch import BatchCounts, TaskResult, Written
from millrace.domain.topics.offsets import OffsetRange, Source, TopicPartition
from millrace.errors import RowsRefusedError

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.ports.sinks import TaskWriter
    from millrace.runtime.stream.batch.constants import StreamConstants
    from support.streams.driver_without_spark import Frame

NAME, ID = "clicks", "id of clicks"
TOPIC = Topic(
    name=NAME, pipeline="p", value=ValueSchema(ValueFormat.JSON, (Column("id", ColumnType.INT, required=True),))
)
P0, P1 = TopicPartition(NAME, ID, 0), TopicPartition(NAME, ID, 1)
TIMELINE, EPOCH = 3, 7
SPARK_WAITS = SimpleNamespace(call=lambda name, step: step())


def stream_constants(**changes: Any) -> StreamConstants:
    """Return the constants of a stream that reads one topic; its rows are the records."""
    from millrace.runtime.stream.batch.constants import StreamConstants

    stream = Stream("s", "p", "app", (NAME,), PostgresSink("sink", "p.rows"), "group")
    given: dict[str, Any] = {
        "stream": stream,
        "topics": {NAME: TOPIC},
        "transform": lambda inputs, tables: inputs[NAME],
        "columns": ("id",),
        "epoch": EPOCH,
        "timeline": TIMELINE,
        "in_order": True,
    }
    return StreamConstants(**given | changes)


def counting(blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
    """A task's writer that takes everything."""
    return TaskResult(sum(len(block) for block in blocks))


class MemorySink:
    """A sink in memory that refuses rows when they are to be committed.

    Args:
        refuses: the sources that it refuses at each of the next commits.
        writer: writes rows and bad records in the tasks.
        calls: gets a word for each commit.

    Attributes:
        record: the record of work on the one timeline.
        opened: where partitions begin on it.
        commits: what was committed, batch by batch.
    """

    where = "memory"
    metadata: tuple[str, ...] = ()
    quarantine = None

    def __init__(
        self,
        refuses: Sequence[Mapping[Source, str]] = (),
        writer: TaskWriter = counting,
        calls: list[str] | None = None,
    ) -> None:
        self._refuses = list(refuses)
        self._refused: set[Source] = set()
        self._writer = writer
        self._calls = [] if calls is None else calls
        self.record: dict[TopicPartition, int] = {}
        self.opened: dict[TopicPartition, int] = {}
        self.commits: list[Written] = []

    def begin_batch(self) -> None:
        """Nothing is staged here."""

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        assert timeline == TIMELINE
        self.opened |= positions
        self.record |= positions

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> TaskWriter:
        return self._writer

    def bad_records_writer(self) -> TaskWriter:
        return self._writer

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        assert timeline == TIMELINE
        if self._refuses:
            found = self._refuses.pop(0)
            self._refused |= found.keys()
            raise RowsRefusedError(found, where=self.where)
        self._calls.append("sink")
        self.record |= {entry.partition: entry.next for entry in ranges}
        self.commits.append(written)
        return BatchCounts(written.rows - len(self._refused & written.refused.keys()), written.bad_records)


def raw_block(values: Sequence[bytes], first: int = 0, partition: int = 0) -> pa.RecordBatch:
    """Return the raw records of these values in one partition, as a batch of Arrow."""
    import pyarrow as pa

    from millrace.runtime.stream.plain_read import RAW_SCHEMA

    place = {"topic": NAME, "partition": partition, "timestamp_ms": 0, "key": b"k", "headers": []}
    rows = [place | {"offset": offset, "value": value} for offset, value in enumerate(values, first)]
    return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)


def raw_frame_without_spark(values: Sequence[bytes], first: int = 0) -> Frame:
    """Return a frame of these records that the real tasks read, in this process."""
    from support.streams.driver_without_spark import Frame

    life: Any = SPARK_WAITS
    return Frame(life, "write", [raw_block(values, first)])
