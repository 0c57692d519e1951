"""One micro-batch after another: write, commit to the sink, commit the group, in this order and no other.

The sink's record of work moves in the transaction that writes the rows; the consumer group follows. A crash between
the two leaves the group behind, and the next start resumes from the record. Nothing moves without its count: what was
read and found bad, what was staged, and what arrived are compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.declaration.pipeline import Stream, Topic
from millrace.domain.formats.undeclared import UndeclaredFields, names_to_show
from millrace.domain.groups.commits import Committed, stream_commits
from millrace.domain.sinks.batch import BatchCounts, TaskResults, Written
from millrace.domain.streams.batch_size import BatchSize
from millrace.domain.streams.control import BATCH_STEPS
from millrace.domain.streams.failing import FailingBound
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import (
    DataLossError,
    MillraceError,
    RecreatedTopicError,
    RowsRefusedError,
    UnreachableError,
)
from millrace.ports.sinks import SinkStore
from millrace.runtime.formats.coordinator_log import OFFSETS_TOPIC
from millrace.runtime.life.pulse import Pulse
from millrace.runtime.stream.inputs import Read, write_counted
from millrace.runtime.stream.isolation import without
from millrace.runtime.stream.offset_log import is_full, read_offset_log
from millrace.runtime.stream.plain_read import read_in_parts, spark_cannot_read
from millrace.runtime.stream.refusals import Refusals
from millrace.runtime.stream.source import RAW_TYPE, decoded, holds_only_commits_of, without_own
from millrace.runtime.stream.transform import Transform
from millrace.runtime.stream.tries import Tries
from millrace.runtime.stream.writing import with_sources, writing

log = structlog.get_logger()

_IN_SINK = frozenset({"plan", "copy", "merge"})
_REFUSED_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did: for people, not for correctness.

    Attributes:
        truncated: records of which a timestamp was cut to microseconds.
        undeclared: fields of the records that no schema names.
        steps: seconds of each step: `plan`, `copy` (read, decode, transform, stage), `check` (topic ids), `merge` (the
            sink's transaction), `group` (the commit).
    """

    batch_id: int
    rows_in: int
    truncated: int
    undeclared: UndeclaredFields
    counts: BatchCounts
    seconds: float
    steps: Mapping[str, float]
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Batches:
    """Everything a batch needs that stays the same from batch to batch."""

    stream: Stream
    topics: Mapping[str, Topic]
    transform: Transform
    sink: SinkStore
    member: GroupMember
    log: KafkaLog
    reader: Callable[[], TopicReader]
    read_topic: Callable[[SparkSession, Sequence[OffsetRange]], DataFrame]
    columns: tuple[str, ...]  # of the transform's output, as the sink has prepared for them
    epoch: int
    timeline: int
    in_order: bool  # whether the transform hands on the rows of each source partition as they come
    offset_log: Path
    on_report: Callable[[BatchReport], None]
    on_wait: Callable[[MillraceError | None], None]  # before each wait for the sink; None once it is over
    pulse: Pulse
    may_fail: FailingBound = field(default_factory=FailingBound)  # on how many records the transform may raise

    def commits(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Committed]:
        """What the group is committed at these positions."""
        return stream_commits(self.stream.qualified_name, self.epoch, self.timeline, positions)


class _StoppedError(Exception):
    """A stop came between two steps of a batch."""


class BatchRunner:
    """Runs batches for `foreachBatch` and stops between two of them.

    It keeps the trigger's pace itself: a batch that was not full waits for the rest of the interval, a full one makes
    way for the next at once. Spark's own trigger would let a stream that is behind wait as well.

    Guarantees: after `drain` has returned, no batch is in flight and none begins.

    Args:
        batches: what stays the same from batch to batch.
        positions: the next offset of each partition, as the record of work has it.
        size: how many records a batch of the query may have.
    """

    def __init__(self, batches: Batches, positions: Mapping[TopicPartition, int], size: BatchSize) -> None:
        self._fixed = batches
        self._of_query = self.size = size
        self._positions = dict(positions)
        self._in_flight = threading.Lock()
        self._draining = threading.Event()
        self._behind = False
        self._batch_id = -1
        self._refusals = Refusals(batches.stream, batches.topics, batches.sink, batches.may_fail)
        self._longest_merge = timedelta()  # of the batch at hand
        self._wrote = False  # whether rows were written that are seen at once
        self.failure: Exception | None = None

    def __call__(self, raw: DataFrame, batch_id: int) -> None:
        """Process one batch; whatever fails is kept in `failure` and ends the query."""
        began = time.monotonic()
        with self._in_flight:
            if self._draining.is_set() or self.failure is not None or self.resized:
                return  # what is not on record was not done: the next start reads it
            try:
                with self._fixed.pulse.batch(batch_id):
                    self._until_done(raw, batch_id)
            except Exception as error:
                self.failure = error
                raise
        if not self._behind and not self.resized:
            self._draining.wait(max(0.0, self._fixed.stream.trigger.total_seconds() - (time.monotonic() - began)))
        self._fixed.pulse.ready()

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition, as the last batch left them."""
        return dict(self._positions)

    @property
    def resized(self) -> bool:
        """True once batches should have another size than the query's; it begins no more batches."""
        return self.size.records != self._of_query.records

    def check_topics(self) -> None:
        """See that the topics are those that the stream began to read.

        Raises:
            RecreatedTopicError: one was made again.
            UnreachableError: one is not there.
        """
        self._check_topics(self._topic_ids())

    def drain(self) -> None:
        """Wait for the batch in flight, and let no other begin."""
        self._draining.set()
        with self._in_flight:
            pass

    def _until_done(self, raw: DataFrame, batch_id: int) -> None:
        """Run a batch, and again where its sink could not take it for a while; a stop leaves it undone."""
        tries = Tries()
        self._refusals.begin_batch()
        while True:
            try:
                self._run(raw, batch_id)
            except _StoppedError:
                return
            except MillraceError as error:
                pause = tries.pause_after(error)
                if pause is None:
                    raise
                log.warning("sink_waited_for", batch=batch_id, error=str(error))
                self._fixed.pulse.at(f"batch {batch_id}: pause before it is tried again")
                self._fixed.pulse.waits_for(f"the sink: {error.what}")
                self._fixed.on_wait(error)
                if self._draining.wait(pause):
                    return
            else:
                self._fixed.on_wait(None)
                return

    def _run(self, raw: DataFrame, batch_id: int) -> None:
        fixed = self._fixed
        self._batch_id, self._wrote, self._longest_merge = batch_id, False, timedelta()
        times, plain = [time.monotonic()], False
        self._at("plan")
        ranges = self._ranges(batch_id)
        self._behind = is_full(ranges, self._of_query.records)
        self._new_partitions(ranges)
        ids = self._topic_ids()
        times.append(time.monotonic())
        try:
            read, counts = self._write_and_commit(raw, self._by_topic(raw, ranges), ids, ranges, times)
        except MillraceError:
            raise
        except Exception as error:
            if self._wrote or not spark_cannot_read(error):
                raise
            log.warning("read_by_the_plain_client", batch=batch_id, error="a timestamp that Spark cannot count")
            del times[1:]
            times.append(time.monotonic())
            read, counts = self._by_plain_client(raw, ids, ranges, times)
            plain = True
        positions = {entry.partition: entry.next for entry in ranges}
        self._at("group")
        self._check_topics(ids)
        if plain or not self._is_own_echo(raw, counts):
            fixed.member.commit(fixed.commits(positions))
        times.append(time.monotonic())
        self._positions |= positions
        steps = dict(zip(BATCH_STEPS, (end - begin for begin, end in pairwise(times)), strict=True))
        seconds = times[-1] - times[0]
        self.size = self.size.after(self._longest_merge)
        fixed.on_report(
            BatchReport(
                batch_id,
                read.records,
                read.truncated,
                names_to_show(read.undeclared),
                counts,
                seconds,
                steps,
                dict(self._positions),
            )
        )

    def _is_own_echo(self, raw: DataFrame, counts: BatchCounts) -> bool:
        """Whether a batch is nothing but what this stream's own commits wrote into the coordinator's log.

        To commit the group for it would write the next such batch, for ever. The record of work has moved, and the
        next start goes by that: a group that is behind it with a commit of ours is no move by anybody (`open_at`).
        """
        stream = self._fixed.stream
        if OFFSETS_TOPIC not in stream.reads or counts.rows_out or counts.quarantined:
            return False
        return holds_only_commits_of(raw, stream.group)

    def _at(self, step: str) -> None:
        self._fixed.pulse.at(f"batch {self._batch_id}: {step}", in_sink=step in _IN_SINK)

    def _by_topic(self, raw: DataFrame, ranges: Sequence[OffsetRange]) -> dict[str, DataFrame]:
        """The batch's records of each topic, none of which costs a look at another topic's."""
        reads = self._fixed.stream.reads
        if len(reads) == 1:
            return {reads[0]: raw}
        parts = {name: [entry for entry in ranges if entry.partition.topic == name] for name in reads}
        return {name: self._fixed.read_topic(raw.sparkSession, part) for name, part in parts.items()}

    def _write_and_commit(
        self,
        raw: DataFrame,
        by_topic: Mapping[str, DataFrame],
        ids: Mapping[str, str],
        ranges: Sequence[OffsetRange],
        times: list[float],
    ) -> tuple[Read, BatchCounts]:
        """Stage and merge these ranges; the end of each step is added to `times`."""
        fixed = self._fixed
        if fixed.stream.reads_itself:
            own = fixed.stream.qualified_name, fixed.stream.writes_topics
            raw, by_topic = without_own(raw, *own), {topic: without_own(one, *own) for topic, one in by_topic.items()}
        self._at("copy")
        read, rows = self._write(raw, by_topic, ids, ranges)
        times.append(time.monotonic())
        self._at("check")
        self._check_topics(ids)
        times.append(time.monotonic())
        self._at("merge")
        counts = self._merge(raw, ids, ranges, rows, read)
        times.append(time.monotonic())
        return read, counts

    def _by_plain_client(
        self, raw: DataFrame, ids: Mapping[str, str], ranges: Sequence[OffsetRange], times: list[float]
    ) -> tuple[Read, BatchCounts]:
        """The same ranges read by the plain client, part by part: each moves the record of work by itself.

        Raises:
            _StoppedError: a stop came in between; what is done so far is on record.
        """
        read, counts = Read(), BatchCounts()
        spent = [0.0] * 3
        for part, table in read_in_parts(self._fixed.reader(), ranges):
            if self._draining.is_set():
                raise _StoppedError
            self._fixed.member.check()
            marks = [time.monotonic()]
            frame = raw.sparkSession.createDataFrame(table, schema=RAW_TYPE)
            more, done = self._write_and_commit(frame, dict.fromkeys(ids, frame), ids, part, marks)
            spent = [sum(pair) for pair in zip(spent, (b - a for a, b in pairwise(marks)), strict=True)]
            read += more
            counts += done
        for seconds in spent:
            times.append(times[-1] + seconds)
        return read, counts

    def _ranges(self, batch_id: int) -> list[OffsetRange]:
        """The exact range of each partition, from the query's own offset log."""
        self._fixed.member.check()
        ends = read_offset_log(self._fixed.offset_log / str(batch_id))
        by_name = {(p.topic, p.partition): p for p in self._positions}
        ids = {p.topic: p.topic_id for p in self._positions}
        ranges = []
        for (topic, number), end in sorted(ends.items()):
            partition = by_name.get((topic, number)) or TopicPartition(topic, ids[topic], number)
            first = self._positions.get(partition, 0)  # Kafka begins every partition at 0; Spark fails where it cannot
            if end < first:
                raise DataLossError(
                    f"{partition}: the batch ends at {end}, before {first}, where it begins: the log was cut",
                    next_step=f"see what happened to the topic, then reset the group {self._fixed.stream.group}",
                )
            ranges.append(OffsetRange(partition, first, end))
        return ranges

    def _new_partitions(self, ranges: list[OffsetRange]) -> None:
        """Give partitions that were made since the start a row in the record of work."""
        new = {entry.partition: entry.first for entry in ranges if entry.partition not in self._positions}
        if new:
            log.info("new_partitions", partitions=[str(partition) for partition in new])
            self._fixed.sink.open_positions(self._fixed.timeline, new)
            self._positions |= new

    def _topic_ids(self) -> dict[str, str]:
        return {partition.topic: partition.topic_id for partition in self._positions}

    def _write(
        self,
        raw: DataFrame,
        by_topic: Mapping[str, DataFrame],
        ids: Mapping[str, str],
        ranges: Sequence[OffsetRange],
    ) -> tuple[Read, TaskResults]:
        """Decode, count, transform and write; records that the transform raises on are left out, for quarantine."""
        fixed = self._fixed
        inputs = {name: decoded(by_topic[name], fixed.topics[name], ids[name]) for name in fixed.stream.reads}
        while True:
            try:
                return self._write_once(raw, inputs, ids, ranges)
            except MillraceError:
                raise
            except Exception as failure:
                self._refusals.isolate(inputs, self._rows_of, failure, self._on_try)
                self._at("copy")

    def _write_once(
        self, raw: DataFrame, inputs: Mapping[str, DataFrame], ids: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> tuple[Read, TaskResults]:
        """Write what the transform makes of these; where rows are seen at once, bad records are kept before."""
        fixed = self._fixed
        fixed.sink.begin_batch()
        writer = fixed.sink.rows_writer(fixed.timeline, ranges, in_order=fixed.in_order)
        quarantine = fixed.sink.quarantine

        def of_good(good: Mapping[str, DataFrame]) -> DataFrame:
            return writing(self._rows_of(good), writer)

        def keep(read: Read) -> None:
            assert quarantine is not None
            self._refusals.must_be_allowed(read.bad, {})
            refused = self._refusals.known(ranges)
            aside = self._refusals.write(raw, ids, refused, read.bad)
            self._check_topics(ids)
            of_bad = Written(aside.attempts, 0, aside.rows, refused, read.of_each)
            quarantine.keep(fixed.timeline, ranges, of_bad)
            self._wrote = True

        return write_counted(inputs, of_good, None if quarantine is None else keep)

    def _rows_of(self, good: Mapping[str, DataFrame]) -> DataFrame:
        """The transform's rows of these records, but for those that it raises on, as the sink takes them."""
        output = self._fixed.transform(without(good, self._refusals.failing), {})
        return with_sources(output, self._fixed.columns, self._fixed.sink.metadata)

    def _on_try(self, step: str) -> None:
        if self._draining.is_set():
            raise _StoppedError
        self._fixed.member.check()
        self._at(step)

    def _check_topics(self, ids: Mapping[str, str]) -> None:
        """A topic that was deleted and made again begins at offset 0 with other records under the old numbers."""
        now = {partition.topic: partition.topic_id for partition in self._fixed.log.partitions(ids)}
        stream = self._fixed.stream.qualified_name
        if changed := sorted(topic for topic in now if now[topic] != ids[topic]):
            raise RecreatedTopicError(
                f"{', '.join(changed)} was deleted and created again while the stream read it",
                where=f"stream {stream}",
                next_step=f"look at the new topic; `streams accept {stream} --reason ...` reads it from its beginning",
            )
        if missing := sorted(ids.keys() - now.keys()):
            raise UnreachableError(
                f"{', '.join(missing)} is not there any more: what comes under its name may be another topic",
                where=f"stream {stream}",
                next_step="the next start looks again; see who deleted the topic",
            )

    def _merge(
        self, raw: DataFrame, ids: Mapping[str, str], ranges: Sequence[OffsetRange], rows: TaskResults, read: Read
    ) -> BatchCounts:
        """The sink's commit, with quarantine; once more for each round of rows that it refuses."""
        fixed = self._fixed
        refused, bad = self._refusals.of_rows(rows.refused, ranges), read.bad
        self._refusals.must_be_allowed(bad, refused)
        for _ in range(_REFUSED_ROUNDS):
            kept = fixed.sink.quarantine is not None and refused == self._refusals.known(ranges)
            self._refusals.remember(refused)
            aside = TaskResults((), bad + len(refused)) if kept else self._refusals.write(raw, ids, refused, bad)
            of_batch = Written(
                attempts=(*rows.attempts, *aside.attempts),
                rows=rows.rows,
                bad_records=aside.rows,
                refused={} if kept else refused,  # what is kept was kept with what was refused
                records=read.of_each,
                receipts=rows.receipts,
            )
            began = time.monotonic()
            try:
                return fixed.sink.commit_batch(fixed.timeline, ranges, of_batch)
            except RowsRefusedError as error:
                self._refusals.must_be_allowed(bad, error.sources)
                log.warning("rows_refused", count=len(error.sources), first=next(iter(error.sources.items()), None))
                refused = refused | error.sources
            finally:
                self._longest_merge = max(self._longest_merge, timedelta(seconds=time.monotonic() - began))
        raise MillraceError(
            f"the sink goes on refusing rows after {_REFUSED_ROUNDS} rounds: its constraints seem to be changing",
            where=fixed.sink.where,
        )
