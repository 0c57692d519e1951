"""One micro-batch after another: copy, merge, commit the group, in this order and no other.

The sink's record of work moves in the transaction that writes the rows; the consumer group follows. A crash between
the two leaves the group behind, and the next start resumes from the record.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from millrace.adapters.group_member import GroupMember
from millrace.adapters.kafka_log import KafkaLog
from millrace.adapters.postgres_merge import Source
from millrace.adapters.postgres_sink import BatchCounts, PostgresSink, RowsRefusedError
from millrace.domain.declaration import OnBadRecord, Stream, Topic
from millrace.domain.offsets import OffsetRange, TopicPartition
from millrace.errors import DataLossError, MillraceError, RecreatedTopicError
from millrace.runtime.app import Transform
from millrace.runtime.sinks.postgres import Copied, Destination, copy_bad_records, copy_rows
from millrace.runtime.source import BAD_FIELD, decoded

log = structlog.get_logger()

STEPS = ("plan", "copy", "check", "merge", "group")
_REFUSED_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did: for people, not for correctness.

    Attributes:
        steps: seconds of each step: `plan`, `copy` (read, decode, transform, stage), `check` (topic ids), `merge` (the
            sink's transaction), `group` (the commit).
    """

    batch_id: int
    rows_in: int
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
    sink: PostgresSink
    member: GroupMember
    log: KafkaLog
    destination: Destination
    timeline: int
    offset_log: Path
    on_report: Callable[[BatchReport], None]


class BatchRunner:
    """Runs batches for `foreachBatch` and stops between two of them.

    It keeps the trigger's pace itself: a batch that was not full waits for the rest of the interval, a full one makes
    way for the next at once. Spark's own trigger would let a stream that is behind wait as well.

    Guarantees: after `drain` has returned, no batch is in flight and none begins.

    Args:
        batches: what stays the same from batch to batch.
        positions: the next offset of each partition, as the record of work has it.
    """

    def __init__(self, batches: Batches, positions: Mapping[TopicPartition, int]) -> None:
        self._fixed = batches
        self._positions = dict(positions)
        self._in_flight = threading.Lock()
        self._draining = threading.Event()
        self._behind = False
        self.failure: Exception | None = None

    def __call__(self, raw: DataFrame, batch_id: int) -> None:
        """Process one batch; whatever fails is kept in `failure` and ends the query."""
        began = time.monotonic()
        with self._in_flight:
            if self._draining.is_set() or self.failure is not None:
                return  # what is not on record was not done: the next start reads it
            try:
                self._run(raw, batch_id)
            except Exception as error:
                self.failure = error
                raise
        if not self._behind:
            self._draining.wait(max(0.0, self._fixed.stream.trigger.total_seconds() - (time.monotonic() - began)))

    def drain(self) -> None:
        """Wait for the batch in flight, and let no other begin."""
        self._draining.set()
        with self._in_flight:
            pass

    def _run(self, raw: DataFrame, batch_id: int) -> None:
        fixed = self._fixed
        times = [time.monotonic()]
        ranges = self._ranges(batch_id)
        self._behind = is_full(ranges, fixed.stream.resources.max_records_per_batch)
        self._new_partitions(ranges)
        ids = self._topic_ids()
        times.append(time.monotonic())
        rows_in, rows, bad = self._copy(raw, ids)
        times.append(time.monotonic())
        self._check_topics(ids)
        times.append(time.monotonic())
        counts = self._merge(raw, ids, ranges, rows, bad)
        times.append(time.monotonic())
        positions = {entry.partition: entry.next for entry in ranges}
        fixed.member.commit(positions, fixed.timeline)
        times.append(time.monotonic())
        self._positions |= positions
        steps = dict(zip(STEPS, (end - begin for begin, end in pairwise(times)), strict=True))
        fixed.on_report(BatchReport(batch_id, rows_in, counts, times[-1] - times[0], steps, dict(self._positions)))

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

    def _copy(self, raw: DataFrame, ids: Mapping[str, str]) -> tuple[int, Copied, int]:
        """Decode, transform and stage in one pass; how many records were read and how many of them are bad."""
        fixed = self._fixed
        fixed.sink.empty_staging()
        watched: list[Observation] = []
        inputs: dict[str, DataFrame] = {}
        for name in fixed.stream.reads:
            seen = Observation(f"records of {name}")
            watched.append(seen)
            frame = decoded(raw, fixed.topics[name], ids[name]).observe(
                seen, F.count(F.lit(1)).alias("records"), F.count_if(F.col(BAD_FIELD)).alias("bad")
            )
            inputs[name] = frame.where(~F.col(BAD_FIELD)).drop(BAD_FIELD)
        rows = copy_rows(fixed.transform(inputs, {}), fixed.sink.columns, fixed.destination)
        metrics = [seen.get for seen in watched]
        return sum(entry["records"] for entry in metrics), rows, sum(entry["bad"] for entry in metrics)

    def _check_topics(self, ids: Mapping[str, str]) -> None:
        """A topic that was deleted and made again begins at offset 0 with other records under the old numbers."""
        now = {partition.topic: partition.topic_id for partition in self._fixed.log.partitions(ids)}
        changed = sorted(topic for topic, id_ in ids.items() if now.get(topic, id_) != id_)
        if changed:
            stream = self._fixed.stream.qualified_name
            raise RecreatedTopicError(
                f"{', '.join(changed)} was deleted and created again while the stream read it",
                where=f"stream {stream}",
                next_step=f"look at the new topic; `streams accept {stream}` reads it from its beginning",
            )

    def _merge(
        self, raw: DataFrame, ids: Mapping[str, str], ranges: list[OffsetRange], rows: Copied, bad: int
    ) -> BatchCounts:
        """The batch's transaction, with quarantine; once more for each round of rows that the sink refuses."""
        fixed = self._fixed
        refused: dict[Source, str] = dict(rows.refused)
        if (bad or refused) and fixed.stream.on_bad_record is OnBadRecord.FAIL:
            raise self._bad_records(bad, refused)
        topics = {name: (fixed.topics[name], ids[name]) for name in fixed.stream.reads}
        attempts = rows.attempts
        for _ in range(_REFUSED_ROUNDS):
            quarantined: tuple[int, ...] = ()
            if bad or refused:
                quarantined = copy_bad_records(raw, topics, refused, fixed.destination).attempts
            try:
                return fixed.sink.commit_batch(fixed.timeline, ranges, (*attempts, *quarantined), refused)
            except RowsRefusedError as error:
                if fixed.stream.on_bad_record is OnBadRecord.FAIL:
                    raise self._bad_records(bad, error.sources) from error
                log.warning("rows_refused", count=len(error.sources), first=next(iter(error.sources.items()), None))
                refused |= error.sources
        raise MillraceError(
            f"the table goes on refusing rows after {_REFUSED_ROUNDS} rounds: its constraints seem to be changing",
            where=str(fixed.sink.target),
        )

    def _bad_records(self, bad: int, refused: Mapping[Source, str]) -> DataLossError:
        named = "; ".join(f"{p}@{o}: {why}" for (_, p, o), why in list(refused.items())[:5])
        return DataLossError(
            f"{bad + len(refused)} bad records in this batch, and the stream declares `on_bad_record: fail`. {named}",
            where=f"stream {self._fixed.stream.qualified_name}",
            next_step="declare `on_bad_record: quarantine` to keep them aside and go on",
        )


def is_full(ranges: Sequence[OffsetRange], bound: int) -> bool:
    """Whether a batch is as large as one may be, so that more is likely to wait behind it.

    Spark shares the bound out among the partitions and rounds down, so a full batch may be a little smaller.
    """
    return sum(entry.next - entry.first for entry in ranges) >= bound - 2 * len(ranges)


def read_offset_log(entry: Path) -> dict[tuple[str, int], int]:
    """The end offsets of one batch: a version line, the batch's metadata, then one line of JSON a source.

    Source: Spark's OffsetSeqLog and KafkaSourceOffset; pinned by tests/spark/test_offset_log.py.
    """
    lines = entry.read_text(encoding="utf-8").splitlines()
    if lines[0] != "v1" or len(lines) != 3:
        raise MillraceError(f"not an offset log entry of version 1 with one source: {lines[0]!r}", where=str(entry))
    topics: dict[str, dict[str, int]] = json.loads(lines[2])
    return {(topic, int(partition)): end for topic, ends in topics.items() for partition, end in ends.items()}
