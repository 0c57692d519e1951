"""The engine of a stream without state: one micro-batch after another, each step in this order and no other.

It writes, looks at the topics, commits to the sink, then commits the group. The sink's record of work moves in the
transaction that writes the rows; the consumer group follows. A crash between the two leaves the group behind, and the
next start resumes from the record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog
from pyspark.sql import DataFrame

from millrace.domain.sinks.batch import BatchCounts, TaskResults
from millrace.domain.streams.batch_size import BatchSize
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import MillraceError
from millrace.runtime.life.step_times import StepTimes
from millrace.runtime.stream.batch.constants import StreamConstants
from millrace.runtime.stream.batch.group import StreamGroup
from millrace.runtime.stream.batch.offset_log import is_full
from millrace.runtime.stream.batch.records import Batch, RecordReader
from millrace.runtime.stream.batch.reporting import BatchReporting
from millrace.runtime.stream.batch.sink import BatchSink
from millrace.runtime.stream.inputs import Read
from millrace.runtime.stream.plain_read import spark_cannot_read

log = structlog.get_logger()


class _StoppedError(Exception):
    """A stop came between two steps of a batch."""


class BatchRunner:
    """Runs the batches of one query for `foreachBatch` and stops between two of them.

    It keeps the trigger's pace itself: a batch that was not full waits for the rest of the interval, a full one makes
    way for the next at once. Spark's own trigger would let a stream that is behind wait as well.

    Guarantees: after `drain` has returned, no batch is in flight and none begins.

    Args:
        constants: what stays the same from batch to batch.
        sink: takes the batches.
        group: the query's positions.
        records: reads the records of a batch.
        reporting: says what a batch is at.
        size: how many records a batch of the query may have.
    """

    def __init__(
        self,
        constants: StreamConstants,
        sink: BatchSink,
        group: StreamGroup,
        records: RecordReader,
        reporting: BatchReporting,
        size: BatchSize,
    ) -> None:
        self.constants = constants
        self._sink = sink
        self.group = group
        self._records = records
        self._reporting = reporting
        self._of_query = self.size = size
        self._in_flight = threading.Lock()
        self._draining = threading.Event()
        self._behind = False
        self.failure: Exception | None = None

    def __call__(self, raw: DataFrame, batch_id: int) -> None:
        """Process one batch; whatever fails is kept in `failure` and ends the query."""
        began = time.monotonic()
        with self._in_flight:
            if self._draining.is_set() or self.failure is not None or self.resized:
                return  # what is not on record was not done: the next start reads it
            try:
                with self._reporting.batch(batch_id):
                    self._until_done(raw, batch_id)
            except Exception as error:
                self.failure = error
                raise
        if not self._behind and not self.resized:
            self._draining.wait(max(0.0, self.constants.stream.trigger.total_seconds() - (time.monotonic() - began)))
        self._reporting.ready()

    @property
    def resized(self) -> bool:
        """True once batches should have another size than the query's; it begins no more batches."""
        return self.size.records != self._of_query.records

    def drain(self) -> None:
        """Wait for the batch in flight, and let no other begin."""
        self._draining.set()
        with self._in_flight:
            pass

    def next_query(self) -> BatchRunner:
        """Return the runner of the next query, which begins where this one's batches ended; call `drain` before.

        Raises:
            RecreatedTopicError: a topic was made again meanwhile.
            UnreachableError: a topic is not there.
        """
        self.group.check_topics(self.group.topic_ids)
        group = self.group.next_query(self._sink.open_positions)
        return type(self)(self.constants, self._sink, group, self._records, self._reporting, self.size)

    def _until_done(self, raw: DataFrame, batch_id: int) -> None:
        """Run a batch, and again where its sink could not take it for a while; a stop leaves it undone."""
        try:
            taken = self._sink.until_taken(lambda: self._run(raw, batch_id), self._draining, self._reporting.waits)
        except _StoppedError:
            return
        if taken:
            self._reporting.went_through()

    def _run(self, raw: DataFrame, batch_id: int) -> None:
        """Try one batch: plan, write and merge, commit the group."""
        group, times = self.group, StepTimes()
        with self._step("plan", times):
            ranges = group.ranges(batch_id)
            self._behind = is_full(ranges, self._of_query.records)
            group.open_new_partitions(ranges, self._sink.open_positions)
            ids = group.topic_ids
        by_spark = True
        try:
            read, counts = self._write_and_merge(self._records.whole(raw, ids, ranges), times)
        except MillraceError:
            raise
        except Exception as error:
            if self._sink.wrote or not spark_cannot_read(error):
                raise
            log.warning("read_by_the_plain_client", batch=batch_id, error="a timestamp that Spark cannot count")
            by_spark = False
            times.start_over()
            read, counts = self._by_plain_client(raw, ids, ranges, times)
        with self._step("group", times):
            group.check_topics(ids)
            if not (by_spark and group.is_own_echo(raw, counts)):
                group.commit(ranges)
        group.advance(ranges)
        self.size = self.size.after(self._sink.longest_merge)
        self._reporting.done(read, counts, times, group.positions)

    def _by_plain_client(
        self, raw: DataFrame, ids: Mapping[str, str], ranges: Sequence[OffsetRange], times: StepTimes
    ) -> tuple[Read, BatchCounts]:
        """Do the same ranges as the plain client reads them, part by part: each moves the record of work by itself.

        Raises:
            _StoppedError: a stop came in between; what is done so far is on record.
        """
        read, counts = Read(), BatchCounts()
        for part, table in self._records.in_parts(ranges):
            self._go_on()
            times.begin()
            more, done = self._write_and_merge(self._records.part(raw.sparkSession, table, ids, part), times)
            read += more
            counts += done
        return read, counts

    def _write_and_merge(self, batch: Batch, times: StepTimes) -> tuple[Read, BatchCounts]:
        """Stage these records, look at their topics, and let the sink commit."""
        with self._step("copy", times):
            read, rows = self._write(batch)
        with self._step("check", times):
            self.group.check_topics(batch.ids)
        with self._step("merge", times):
            counts = self._sink.merge(batch, rows, read)
        return read, counts

    def _write(self, batch: Batch) -> tuple[Read, TaskResults]:
        """Decode, count, transform and write; records that the transform raises on are left out, for quarantine."""
        inputs = self.constants.decode(batch.by_topic, batch.ids)
        while True:
            try:
                return self._sink.write(batch, inputs, lambda: self.group.check_topics(batch.ids))
            except MillraceError:
                raise
            except Exception as failure:
                self._sink.isolate(inputs, failure, self._on_try)
                self._reporting.at("copy")

    @contextmanager
    def _step(self, step: str, times: StepTimes) -> Iterator[None]:
        self._reporting.at(step)
        yield
        times.end(step)

    def _on_try(self, step: str) -> None:
        self._go_on()
        self._reporting.at(step)

    def _go_on(self) -> None:
        """Raise where a stop came, or where the driver is no member of its group any more."""
        if self._draining.is_set():
            raise _StoppedError
        self.group.check_member()
