"""The real driver of a stream with a stand-in for Spark: no JVM, all else as it is.

`DriverWithoutSpark` is given a session that plays the few parts of pyspark which the runtime calls: a source that
takes the real options of the Kafka source, a query that writes Spark's offset log and calls `foreachBatch`, a frame
whose blocks of Arrow are handed to the real copying tasks. Left out are the transform (rows are the declared columns)
and Spark's own reading: the records are given, as a plain consumer read them. Everything that decides and everything
that writes is the product's own.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pyarrow as pa

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.declaration.pipeline import Pipeline, Stream, Topic
from millrace.domain.sinks.batch import TaskResults
from millrace.domain.streams.control import BatchSecond, StreamProgress
from millrace.runtime.formats.registry import decoder_of
from millrace.runtime.life import app as runtime_life
from millrace.runtime.life.reporter import Reporter
from millrace.runtime.stream import driver
from millrace.runtime.stream import writing as runtime_writing
from millrace.runtime.stream.batch.records import Batch
from millrace.runtime.stream.batch.runner import BatchRunner
from millrace.runtime.stream.inputs import Read
from millrace.runtime.stream.plain_read import RAW_SCHEMA
from millrace.runtime.stream.writing import writing, written
from support.stack.faults import Crash, Life, watched_control, watched_member, watched_sink
from support.waiting import Deadline, joined

IDENTITY = """
def transform(inputs, tables):
    [records] = inputs.values()
    return records
"""
"""A transform that needs no JVM."""


class Record(NamedTuple):
    """One record of the stream's topic; `timestamp` in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class DriverWithoutSpark(driver.Driver):
    """The driver; its adapters are those of one life.

    Args:
        life: counts their calls.
        records: all that the stream's one topic holds.
        stop: what `run` is given; it is set once all records are done, as an operator would.
        pipeline: what is declared.
        stream: the stream of it that is run.
        arguments: those of the product's own `Life`, but for what the declaration says.
    """

    def __init__(
        self,
        life: Life,
        records: Sequence[Record],
        stop: threading.Event,
        pipeline: Pipeline,
        stream: Stream,
        **arguments: Any,
    ) -> None:
        arguments["control"] = watched_control(life, arguments["control"])
        kafka = arguments["settings"].kafka(pipeline.kafka)
        self.session = Session(life, stream.reads[0], records, stop)
        super().__init__(LifeWithoutSpark(self.session, kafka=kafka, app=stream, **arguments), pipeline, stream)
        self._life.log = life.watch("log", self._life.log)  # type: ignore[assignment]
        self._life.member = watched_member(life, self._life.member)
        self._watching = life

    def _open_sink(self) -> Any:
        return watched_sink(self._watching, super()._open_sink())

    def end(self) -> None:
        """Wait for the threads of a life that is over."""
        self._life.reporter.close()
        self.session.stop()


class LifeWithoutSpark(runtime_life.Life):
    """The product's own, with this session in the place of Spark's."""

    def __init__(self, session: Session, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._session = session

    def _open_session(self, options: Mapping[str, str]) -> Any:
        return self._session


class PromptReporter(Reporter):
    """Saves progress at once, so that a life makes the same calls in the same order every time."""

    def progress(self, progress: StreamProgress, steps: Mapping[str, float]) -> None:
        self._remember(BatchSecond.of(progress, steps))
        self._try_to_save(progress)

    def alarm(self, kind: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        if kind not in self._alarms_set or self._alarms_set[kind] != (detail, extent):
            self._try_to_set(kind, (detail, extent))


class NobodyOnTheLookout:
    """In the place of threads that would call between a life's own calls. It keeps nothing of what it is shown."""

    def __init__(self, pulse: Any) -> None: ...

    def watch_jvm(self, session: Any) -> None: ...

    def watch_sink(self, sink: Any) -> None: ...

    def watch_log(self, kafka: Any, positions: Any) -> None: ...


class NoHeartbeat:
    """In the place of a thread that would call between a life's own calls."""

    def __init__(self, beat: Any) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class EachTaskAnAttempt:
    """In the place of a `TaskContext`: what a former task of a batch staged is told from what another one did."""

    _attempts = itertools.count()

    @classmethod
    def get(cls) -> EachTaskAnAttempt:
        return cls()

    def taskAttemptId(self) -> int:
        return next(self._attempts)


class RunnerWithoutSpark(BatchRunner):
    """Writes the declared columns of the good records by the real task."""

    def _write(self, batch: Batch) -> tuple[Read, TaskResults]:
        constants, store, raw = self.constants, self._sink._store, cast(Frame, batch.raw)
        store.begin_batch()
        [name] = batch.by_topic
        good = [_good_rows(block, constants.topics[name], batch.ids[name]) for block in raw.blocks]
        writer = store.rows_writer(constants.timeline, batch.ranges)
        rows = written(writing(cast(Any, raw.holding("write_rows", good)), writer))
        of_each = Counter((name, number) for block in raw.blocks for number in block.column("partition").to_pylist())
        read = of_each.total()
        return Read(read, read - sum(len(block) for block in good), of_each=of_each), rows


@contextmanager
def without_spark(root: Path) -> Iterator[None]:
    """While this is open, every driver of this process writes without Spark, to the connections of this project."""
    with (
        patch.object(driver, "BatchRunner", RunnerWithoutSpark),
        patch.object(runtime_writing, "TaskContext", EachTaskAnAttempt),
        patch.object(runtime_life, "Reporter", PromptReporter),
        patch.object(runtime_life, "Lookout", NobodyOnTheLookout),
        patch.object(runtime_life, "Heartbeat", NoHeartbeat),
        patch.dict(os.environ, {"MILLRACE_ROOT": str(root)}),  # where an app looks for connections
        patch.object(sys, "path", list(sys.path)),  # an app's folder is put there
    ):
        yield


class Session:
    """What of a `SparkSession` the driver uses."""

    def __init__(self, life: Life, topic: str, records: Sequence[Record], stop: threading.Event) -> None:
        self.life, self.topic, self.records, self.done = life, topic, records, stop
        self.queries: list[Query] = []

    def createDataFrame(self, rows: Sequence[Any], schema: Any) -> Any:
        return SimpleNamespace(schema=schema)

    @property
    def readStream(self) -> Source:
        return Source(self)

    def stop(self) -> None:
        for query in self.queries:
            joined(query.thread, within=Deadline.SERVER, what="the end of a query")


class Source:
    """What of the readers and writers of a streaming `DataFrame` the runtime uses; each call gives the same object."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._runner: Callable[[Any, int], None] = lambda raw, batch_id: None

    def format(self, source: str) -> Source:
        assert source == "kafka"
        return self

    def options(self, **options: str) -> Source:
        self._read = options
        return self

    def load(self) -> Source:
        return self

    def selectExpr(self, *columns: str) -> Source:
        return self

    @property
    def writeStream(self) -> Source:
        return self

    def queryName(self, name: str) -> Source:
        return self

    def foreachBatch(self, runner: Callable[[Any, int], None]) -> Source:
        self._runner = runner
        return self

    def option(self, name: str, value: str) -> Source:
        self._written[name] = value
        return self

    def trigger(self, **trigger: str) -> Source:
        return self

    def start(self) -> Query:
        starting = json.loads(self._read["startingOffsets"])[self._session.topic]
        positions = {int(number): offset for number, offset in starting.items()}
        bound = int(self._read["maxOffsetsPerTrigger"])
        query = Query(self._session, self._runner, Path(self._written["checkpointLocation"]), positions, bound)
        self._session.queries.append(query)
        query.thread.start()
        return query


class Query:
    """What of a `StreamingQuery` the driver uses: batch after batch in a thread of its own, until all is read."""

    def __init__(
        self,
        session: Session,
        runner: Callable[[Any, int], None],
        checkpoint: Path,
        positions: dict[int, int],
        bound: int,
    ) -> None:
        self._session, self._runner, self._positions = session, runner, positions
        self._offsets = checkpoint / "offsets"
        self._of_each = bound // len(positions)
        self._failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="stream execution", daemon=True)

    @property
    def isActive(self) -> bool:
        return self.thread.is_alive()

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self._session.stop()

    def _run(self) -> None:
        try:
            for batch_id, batch in enumerate(self._batches()):
                self._runner(batch, batch_id)
            self._session.done.set()
        except Crash:  # the life's other threads learn of it at their next call
            pass
        except Exception as error:
            self._failure = error

    def _batches(self) -> Iterator[Frame]:
        """The records of each batch, once its end stands in the log of offsets (as Spark's OffsetSeqLog writes it)."""
        self._offsets.mkdir(parents=True)  # fresh in every epoch
        records = self._session.records
        last = {number: sum(record.partition == number for record in records) for number in self._positions}
        while self._positions != last:
            ends = {number: min(first + self._of_each, last[number]) for number, first in self._positions.items()}
            entry = {self._session.topic: {str(number): end for number, end in ends.items()}}
            path = self._offsets / str(len(list(self._offsets.iterdir())))
            path.write_text(f"v1\n{{}}\n{json.dumps(entry)}", encoding="utf-8")
            yield Frame(self._session.life, "write_bad_records", [self._block(ends)])
            self._positions = ends

    def _block(self, ends: Mapping[int, int]) -> pa.RecordBatch:
        rows = [
            {
                "topic": self._session.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp,
                "key": record.key,
                "value": record.value,
                "headers": [{"key": key, "value": value} for key, value in record.headers],
            }
            for record in self._session.records
            if self._positions[record.partition] <= record.offset < ends[record.partition]
        ]
        return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)


class Frame:
    """What of a batch's `DataFrame` the copying uses; each block is one task, whose call is counted."""

    def __init__(self, life: Life, name: str, blocks: Sequence[pa.RecordBatch]) -> None:
        self._life, self._name, self.blocks = life, name, blocks

    def holding(self, name: str, blocks: Sequence[pa.RecordBatch]) -> Frame:
        return Frame(self._life, name, blocks)

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Any:
        def run(block: pa.RecordBatch) -> list[Any]:
            return [SimpleNamespace(**row) for report in task(iter([block])) for row in report.to_pylist()]

        def collect() -> list[Any]:
            found = [self._life.call(f"task.{self._name}", partial(run, block)) for block in self.blocks]
            return [report for reports in found for report in reports]

        return SimpleNamespace(collect=collect)


def _good_rows(block: pa.RecordBatch, topic: Topic, topic_id: str) -> pa.RecordBatch:
    """The good records of one block, as the columns that the task copies."""
    assert topic.value is not None
    decoder = decoder_of(topic.value, topic.key)
    found = decoder.decode(
        block.column("value").to_pylist(), block.column("key").to_pylist(), block.column("timestamp_ms").to_pylist()
    )
    columns = {
        "_topic_id": pa.array([topic_id] * len(block)),
        "_partition": block.column("partition"),
        "_offset": block.column("offset"),
        "_ordinal": pa.array([0] * len(block), type=pa.int32()),
        **dict(zip((column.name for column in topic.value.decoded), found.columns, strict=True)),
    }
    return pa.RecordBatch.from_pydict(columns).filter(pa.array([rule is None for rule in found.rules]))
