"""The engine of a stream without state: the order of its steps, what a crash between two leaves, and its stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.groups.commits import Committed
from millrace.domain.sinks.batch import BatchCounts, TaskResults
from millrace.domain.streams import batch_size
from millrace.domain.streams.batch_size import BatchSize
from millrace.domain.streams.control import BATCH_STEPS
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import FencedError, MillraceError, RecreatedTopicError, SinkExhaustedError
from millrace.runtime.life.pulse import Pulse
from millrace.runtime.life.step_times import StepTimes
from millrace.runtime.stream import plain_read
from millrace.runtime.stream.batch import constants, runner, sink
from millrace.runtime.stream.batch.group import StreamGroup
from millrace.runtime.stream.batch.records import Batch, RecordReader
from millrace.runtime.stream.batch.reporting import BatchReport, BatchReporting
from millrace.runtime.stream.batch.runner import BatchRunner
from millrace.runtime.stream.batch.sink import BatchSink
from millrace.runtime.stream.inputs import Read
from support.streams.driver_without_spark import RunnerWithoutSpark
from support.streams.memory_sink import (
    NAME,
    P0,
    P1,
    MemorySink,
    raw_frame_without_spark,
    stream_constants,
)
from support.waiting import Deadline, eventually, in_time

VALUES = [b'{"id": 1}', b"not json", b'{"id": 3}']
CANNOT_COUNT = RuntimeError("java.lang.ArithmeticException: long overflow")


class World:
    """One query over a topic of one partition; sink, log and membership are in memory.

    Attributes:
        calls: of log, sink and group, in their order.
        is_member: False once another driver has taken the membership.
        ids: of the topic, look by look; the last one stays.
        partitions: the numbers of its partitions.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self.clock = Clock()
        self.is_member = True
        self.ids = [P0.topic_id]
        self.partitions = [0]
        self.committed: dict[TopicPartition, int] = {}
        self.sink = MemorySink(calls=self.calls)
        self.reports: list[BatchReport] = []
        self.waits: list[MillraceError | None] = []
        self.offset_log = folder / "checkpoint" / "offsets"
        self.runner: BatchRunner = self._runner(Pulse(folder / "status.json", timedelta(minutes=2)))
        self.write_ends(batch_id=0, end=len(VALUES))

    def _runner(self, pulse: Pulse) -> RunnerWithoutSpark:
        stream = replace(stream_constants().stream, trigger=timedelta())
        same = stream_constants(stream=stream)
        member: Any = SimpleNamespace(check=self._check_member, commit=self._commit)
        log: Any = SimpleNamespace(partitions=self._look)
        store: Any = self.sink
        by_spark: Any = None  # a stream of one topic asks Spark for nothing but the batch
        reader: Any = Reader(self.clock)
        return RunnerWithoutSpark(
            same,
            BatchSink(same, store),
            StreamGroup(same, member, log, {P0: 0}, self.offset_log),
            RecordReader(stream, by_spark, lambda: reader),
            BatchReporting(pulse, self.reports.append, self.waits.append),
            BatchSize.of(10_000),
        )

    def write_ends(self, *, batch_id: int, end: int, of_new: int | None = None) -> None:
        """Write what Spark does before it hands a batch over."""
        ends = {"0": end} if of_new is None else {"0": end, "1": of_new}
        folder = self.runner.group.offset_log
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch_id)).write_text(f"v1\n{{}}\n{json.dumps({NAME: ends})}")

    def _look(self, topics: Collection[str]) -> list[TopicPartition]:
        self.calls.append("topics")
        topic_id = self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]
        return [TopicPartition(NAME, topic_id, number) for number in self.partitions]

    def _check_member(self) -> None:
        if not self.is_member:
            raise FencedError("another driver is the member")

    def _commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self.calls.append("group")
        self.committed |= {partition: commit.offset for partition, commit in commits.items()}

    def run(self, batch_id: int = 0) -> None:
        raw: Any = raw_frame_without_spark(VALUES)
        self.runner(raw, batch_id)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Reader:
    """The plain client, which takes five seconds to begin; every record has a value that decodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        self._clock.seconds += 5
        for offset in range(first, end):
            value = b'{"id": %d}' % offset
            yield TopicRecord(partition=partition, offset=offset, timestamp_ms=0, key=None, value=value, headers=())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_topics_are_looked_at_before_each_commit_and_the_group_follows_the_sink(world: World) -> None:
    world.run()
    assert world.calls == ["topics", "sink", "topics", "group"]
    assert world.sink.record == world.committed == world.runner.group.positions == {P0: 3}
    [report] = world.reports
    assert (report.batch_id, report.rows_in, report.counts) == (0, 3, BatchCounts(rows_out=2, quarantined=1))
    assert report.positions == {P0: 3}
    assert tuple(report.steps) == BATCH_STEPS
    assert report.seconds == pytest.approx(sum(report.steps.values()))
    assert world.waits == [None]


@pytest.mark.parametrize(("looks", "record"), [(1, {}), (2, {P0: 3})], ids=["before the sink", "before the group"])
def test_a_topic_that_was_made_again_moves_nothing_from_then_on(
    world: World, looks: int, record: Mapping[TopicPartition, int]
) -> None:
    world.ids = [P0.topic_id] * (looks - 1) + ["another id"]
    with pytest.raises(RecreatedTopicError):
        world.run()
    assert world.sink.record == record
    assert world.committed == {}
    assert isinstance(world.runner.failure, RecreatedTopicError)
    assert world.reports == []
    world.ids = [P0.topic_id]
    world.run()
    assert world.committed == {}, "a batch ran behind one that failed"


def test_topics_are_looked_at_before_anything_is_kept_where_rows_are_seen_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in Kafka count once they are written, so this look comes before the write."""

    def write_counted(inputs: Any, writing: Any, before: Callable[[Read], None]) -> tuple[Read, TaskResults]:
        before(Read(3))
        world.calls.append("rows")
        return Read(3), TaskResults((1,), 3)

    monkeypatch.setattr(constants, "decoded", lambda frame, topic, topic_id: frame)
    monkeypatch.setattr(sink, "write_counted", write_counted)
    quarantine: Any = SimpleNamespace(keep=lambda *_: world.calls.append("kept"))
    world.sink.quarantine = quarantine
    raw: Any = raw_frame_without_spark(VALUES)
    batch = Batch(raw, {NAME: raw}, {NAME: P0.topic_id}, [OffsetRange(P0, 0, len(VALUES))])
    BatchRunner._write(world.runner, batch)
    assert world.calls == ["topics", "kept", "rows"]
    world.ids = ["another id"]
    with pytest.raises(RecreatedTopicError):
        BatchRunner._write(world.runner, batch)
    assert world.calls[3:] == ["topics"]


def test_a_slow_merge_ends_the_query_and_the_next_one_has_smaller_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "LONGEST_MERGE", -timedelta.resolution)
    world.run()
    assert world.runner.resized
    world.run(1)
    assert len(world.reports) == 1
    world.runner.drain()
    world.partitions = [0, 1]
    world.runner = world.runner.next_query()
    assert (world.runner.size.records, world.runner.resized) == (5_000, False)
    assert world.runner.group.positions == {P0: 3, P1: 0}
    assert world.sink.record == {P0: 3, P1: 0}
    world.write_ends(batch_id=0, end=6)
    world.run()
    assert world.committed == {P0: 6}


def test_no_query_begins_over_a_topic_that_was_made_again(world: World) -> None:
    world.ids = ["another id"]
    with pytest.raises(RecreatedTopicError):
        world.runner.next_query()


def test_a_partition_that_is_new_in_a_batch_is_committed_with_it(world: World) -> None:
    world.write_ends(batch_id=0, end=3, of_new=0)
    world.run()
    assert world.sink.opened == {P1: 0}
    assert world.sink.record == world.committed == {P0: 3, P1: 0}


def test_a_stop_ends_the_wait_for_a_sink_and_leaves_the_batch_undone(world: World) -> None:
    def full(*_: object) -> None:
        raise SinkExhaustedError("disk full")

    world.sink.commit_batch = full  # type: ignore[assignment,method-assign]
    batch = threading.Thread(target=world.run, daemon=True)
    batch.start()
    eventually(lambda: world.waits, within=Deadline.THREAD, what="the first wait")
    in_time(world.runner.drain, within=Deadline.THREAD, what="the drain")
    in_time(batch.join, within=Deadline.THREAD, what="the end of the batch")
    assert world.runner.failure is None
    assert None not in world.waits
    assert (world.committed, world.reports) == ({}, [])


def test_no_batch_begins_once_a_runner_is_drained(world: World) -> None:
    world.runner.drain()
    world.run()
    assert (world.calls, world.reports) == ([], [])


def unreadable(meets: Callable[[], None] = lambda: None, then: Callable[[], None] = lambda: None) -> Any:
    """Return a frame that Spark cannot read.

    Args:
        meets: called when it is read.
        then: called when a part becomes a frame that Spark can read.
    """

    def part(table: Any, schema: Any) -> Any:
        then()
        values = table.column("value").to_pylist()
        return raw_frame_without_spark(values, table.column("offset").to_pylist()[0])

    class Frame:
        sparkSession = SimpleNamespace(createDataFrame=part)

        @property
        def blocks(self) -> Sequence[Any]:
            meets()
            raise CANNOT_COUNT

    return Frame()


def test_a_batch_that_spark_cannot_read_goes_through_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(seconds: float) -> None:
        world.clock.seconds += seconds

    monkeypatch.setattr(plain_read, "_PART_RECORDS", 10)
    monkeypatch.setattr(runner, "StepTimes", partial(StepTimes, world.clock))
    world.write_ends(batch_id=0, end=25)
    world.runner(unreadable(partial(passes, 10), partial(passes, 1)), 0)
    assert world.calls == ["topics", "sink"] * 3 + ["topics", "group"]
    assert world.sink.record == world.committed == {P0: 25}
    [report] = world.reports
    assert (report.rows_in, report.counts) == (25, BatchCounts(rows_out=25))
    assert report.steps == {"plan": 10, "copy": 3, "check": 0, "merge": 0, "group": 5}


def test_a_batch_of_which_rows_may_be_seen_is_not_read_again(world: World) -> None:
    def wrote() -> None:
        world.runner._sink.wrote = True

    with pytest.raises(RuntimeError, match="long overflow"):
        world.runner(unreadable(wrote), 0)
    assert world.calls == []


def test_a_driver_that_lost_its_membership_begins_no_other_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        world.is_member = False

    monkeypatch.setattr(plain_read, "_PART_RECORDS", 10)
    world.write_ends(batch_id=0, end=90)
    with pytest.raises(FencedError):
        world.runner(unreadable(then=lose), 0)
    assert world.sink.record == {P0: 10}
    assert (world.committed, world.reports) == ({}, [])


def test_a_stop_is_heeded_between_two_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_read, "_PART_RECORDS", 10)
    world.write_ends(batch_id=0, end=90)
    world.runner(unreadable(then=world.runner._draining.set), 0)
    assert world.sink.record == {P0: 10}, "the part at hand is done, and no other begins"
    assert (world.committed, world.reports, world.waits) == ({}, [], [])
    assert world.runner.failure is None
