"""A backup's own driver with Spark, on the real broker, store and control database."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from millrace.adapters.archive.objects import read_object
from millrace.adapters.archive.summaries import resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.chain.head import Writer
from millrace.domain.streams.supervision import ExitReason
from millrace.embedded.stack import Stack
from millrace.usecases.streams.epochs import newest_elsewhere
from support.archive.tees import TeeWorld, Topics
from support.streams.apps import Driven
from support.waiting import Deadline, exit_code_of

ANCIENT = -62_135_596_800_000  # the first of January of the year 1, which Spark would shift by two days
FOR_EVER = "-1"  # the broker's first sweep would delete what is so old
TOO_GREAT = 9_300_000_000_000_000  # milliseconds that Spark, which counts microseconds, cannot hold


class BackedUp:
    """A pipeline whose topics are backed up as soon as Millrace allows, its driver, and its proof."""

    def __init__(self, stack: Stack) -> None:
        self.topics = Topics(stack)
        self.driver = Driven(stack.root, f"{self.topics.pipeline}.backup")
        self.file = stack.root / "include" / "pipelines" / f"{self.topics.pipeline}.yaml"

    def declare(self, *names: str) -> TeeWorld:
        topics = "".join(f"  {name}:\n    manage: none\n    backup: {{every: 10s, max_lag: 1m}}\n" for name in names)
        self.file.write_text(f"pipeline: {self.topics.pipeline}\nowner: tests\ntopics:\n{topics}")
        return TeeWorld(self.topics, names, self.topics.platform.objects.store())

    def until_proven(self, world: TeeWorld, records: Mapping[str, int]) -> None:
        """Wait until the archive of each of these topics proves to hold so many records."""
        for name, count in records.items():
            self.driver.until(partial(proves, world, name, count), f"{count} records of {name} to be archived")


@pytest.fixture
def backed_up(kafka: Stack, s3: Stack, postgres: Stack) -> Iterator[BackedUp]:
    made = BackedUp(kafka)
    yield made
    made.file.unlink(missing_ok=True)


def proves(world: TeeWorld, name: str, records: int) -> bool:
    found = world.inspect(name).coverage
    return found.verdict is Verdict.PROVEN and sum(part.records for part in found.partitions) == records


def archived(world: TeeWorld, name: str) -> list[tuple[int, ArchivedRecord]]:
    here = Incarnation(name, world.topics.topic_id(name))
    found = []
    for info in world.store.list(here.prefix):
        if (object_name := here.object_name(info.key)) is not None:
            data = world.store.get(info.key)
            assert data is not None
            found += [(object_name.partition, record) for record in read_object(data).records()]
    return sorted(found, key=lambda one: (one[0], one[1].offset))


@dataclass
class Odd:
    """Topics with records that are easily changed on their way, and one topic that does not exist at first."""

    backed_up: BackedUp
    name: str
    other: str
    old: str
    late: str
    world: TeeWorld

    @classmethod
    def of(cls, backed_up: BackedUp) -> Odd:
        topics = backed_up.topics
        name = topics.make(partitions=2, retention_ms=FOR_EVER)
        other = topics.make("other", partitions=1, message_timestamp_type="LogAppendTime", retention_ms=FOR_EVER)
        old = topics.make("old", partitions=1, retention_ms=FOR_EVER)
        late = topics.name("late")
        world = backed_up.declare(name, other, old, late)
        topics.produce(old, 0, [b"o"], timestamp=ANCIENT)
        topics.produce(name, 0, [b"", b"v", None], key=b"k", timestamp=1_700_000_000_000)
        topics.produce(name, 0, [b"h"], headers=[("a", b"1"), ("a", None), ("größe", b"")], timestamp=1)
        topics.transaction(name, 1, [b"aborted"] * 3, commit=False)  # its partition has nothing but what is absent
        topics.produce(other, 0, [b"x"] * 1000)
        return cls(backed_up, name, other, old, late, world)

    def until_the_first_are_proven(self) -> None:
        self.backed_up.until_proven(self.world, {self.name: 4, self.other: 1000, self.old: 1})

    def the_first_must_be_as_they_were(self) -> None:
        """Read them from the archive's objects."""
        assert [record.timestamp_ms for _, record in archived(self.world, self.old)] == [ANCIENT]
        create = TimestampType.CREATE_TIME
        assert [record for _, record in archived(self.world, self.name)] == [
            ArchivedRecord(0, 1_700_000_000_000, create, b"k", b"", ()),
            ArchivedRecord(1, 1_700_000_000_000, create, b"k", b"v", ()),
            ArchivedRecord(2, 1_700_000_000_000, create, b"k", None, ()),
            ArchivedRecord(3, 1, create, None, b"h", (("a", b"1"), ("a", None), ("größe", b""))),
        ]
        types = {record.timestamp_type for _, record in archived(self.world, self.other)}
        assert types == {TimestampType.LOG_APPEND_TIME}

    def produce_more(self) -> None:
        """Make the late topic; produce to it and to two others."""
        topics = self.backed_up.topics
        topics.produce(self.name, 0, [b"later"] * 10)
        topics.produce(self.other, 0, [b"great"], timestamp=1)
        topics.make("late", partitions=1, retention_ms=FOR_EVER)
        topics.produce(self.late, 0, [b"g"], timestamp=TOO_GREAT)

    def until_more_are_proven(self) -> None:
        self.backed_up.until_proven(self.world, {self.name: 14, self.other: 1001, self.late: 1})
        assert [record.timestamp_ms for _, record in archived(self.world, self.late)] == [TOO_GREAT]


def test_every_record_is_archived_bit_for_bit_and_a_new_topic_is_noticed(backed_up: BackedUp) -> None:
    odd = Odd.of(backed_up)
    with backed_up.driver.running():
        odd.until_the_first_are_proven()
        odd.the_first_must_be_as_they_were()
        odd.produce_more()
        odd.until_more_are_proven()
    assert "read_by_the_plain_client" in backed_up.driver.log()


@pytest.mark.full  # first tier: contract/mixed/archive/tee/test_crashes.py, at calls of every kind
def test_a_killed_driver_loses_no_record(backed_up: BackedUp) -> None:
    odd = Odd.of(backed_up)
    with backed_up.driver.started() as driver:
        odd.until_the_first_are_proven()
        os.killpg(driver.pid, signal.SIGKILL)
        exit_code_of(driver, within=Deadline.KILLED, what="the driver's death")
    odd.the_first_must_be_as_they_were()
    odd.produce_more()
    with backed_up.driver.running():
        odd.until_more_are_proven()
    assert "read_by_the_plain_client" in backed_up.driver.log()


@pytest.mark.full  # first tier: tests/contract/mixed, archive/tee/test_rounds.py and streams/test_epochs_elsewhere.py
def test_a_writer_that_nobody_knows_halts_one_topic_and_a_known_one_ends_the_app(backed_up: BackedUp) -> None:
    topics, platform = backed_up.topics, backed_up.topics.platform
    damaged, sound = topics.make("damaged", partitions=1), topics.make("sound", partitions=1)
    world, app = backed_up.declare(damaged, sound), f"{topics.pipeline}.backup"
    alarms = platform.control.alarms

    def halted() -> list[str]:
        return [
            alarm.detail
            for alarm in alarms.list()
            if alarm.kind == AlarmKind.BACKUP_HALTED and damaged in alarm.subject
        ]

    def another_writes(name: str, epoch: int) -> None:
        tiling = resume(world.store, Incarnation(name, topics.topic_id(name)))
        ArchiveWriter.take_over(world.store, tiling, Writer(epoch, "another"), lambda: world.look([name])[name])
        topics.produce(name, 0, [b"behind another writer"])

    for name in world.names:
        topics.produce(name, 0, [b"first"])
    with backed_up.driver.running():
        backed_up.until_proven(world, {damaged: 1, sound: 1})
        another_writes(damaged, 57)
        topics.produce(sound, 0, [b"beside it"])
        backed_up.until_proven(world, {sound: 2})
        backed_up.driver.until(halted, "the alarm of the halted topic")
        assert "epoch 57, instance another, that no start claimed" in halted()[0]
    backed_up.driver.epoch = newest_elsewhere(platform, app)
    assert backed_up.driver.epoch == 57
    with backed_up.driver.started() as driver:
        backed_up.until_proven(world, {damaged: 2, sound: 2})
        backed_up.driver.until(lambda: not halted(), "the alarm to be closed")
        assert platform.control.streams.claim(app, 99, "another", "host")
        another_writes(sound, 99)
        exit_code = exit_code_of(driver, within=Deadline.STREAM, what="the driver's end")
    assert exit_code == ExitReason.FENCED, backed_up.driver.log()
    assert halted() == []
