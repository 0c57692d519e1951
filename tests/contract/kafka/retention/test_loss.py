"""The oldest record's age and a stopped reader's headroom, against a broker that deletes and compacts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Environment
from millrace.domain.retention.headroom import Danger, Rule
from millrace.domain.retention.readers import Room
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.usecases.retention.alarms import watch
from millrace.usecases.retention.readers import Memory, look
from millrace.usecases.retention.sizing import size
from support.fakes.groups import GroupsPlatform, groups_platform
from support.stack.brokers import Brokers, one_broker
from support.waiting import Deadline, eventually, in_time

KAFKA = "millrace_kafka"
CHECK_SECONDS = 1.0
SEGMENT_SECONDS = 2.0
DELETE_SECONDS = 1.0
MINUTES_10 = 600
SOON = 30
"""Seconds until what a test waits for: a busy machine takes several to look before."""


@pytest.fixture
def broker(kafka: Stack, tmp_path: Path) -> Iterator[Brokers]:
    """One that looks every second for what it may delete and compact."""
    jars = [jar.path_in(cache_folder()) for jar in read_lock("kafka")]
    (tmp_path / "broker").mkdir()
    with one_broker(
        tmp_path / "broker",
        jars,
        log_retention_check_interval_ms=int(CHECK_SECONDS * 1000),
        log_initial_task_delay_ms=500,
        log_cleaner_backoff_ms=500,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
    ) as made:
        eventually(lambda: _answers(made), within=Deadline.SERVER, what="the broker")
        yield made


def _answers(broker: Brokers) -> bool:
    try:
        admin = AdminClient({**broker.settings.librdkafka, "log_level": 0})
        return bool(admin.describe_cluster(request_timeout=3).result(3).nodes)
    except (KafkaException, TimeoutError):
        return False


@pytest.fixture
def platform(broker: Brokers, tmp_path: Path) -> Iterator[GroupsPlatform]:
    """The real cluster beside a control database in memory."""
    (tmp_path / "include/pipelines").mkdir(parents=True)
    made = groups_platform(tmp_path, datetime.now(UTC))
    made.topic_readers[KAFKA] = TopicReader(broker.settings)
    with ClusterReader(broker.settings) as reader:
        made.clusters[KAFKA] = reader
        yield made


class World:
    """Topics, records and commits on one broker."""

    def __init__(self, broker: Brokers) -> None:
        self.broker = broker
        self.admin = AdminClient(dict(broker.settings.librdkafka))
        self.producer = Producer({**broker.settings.librdkafka})

    def make(self, name: str, **config: object) -> None:
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        made = self.admin.create_topics([NewTopic(name, 1, 1, config=settings)])
        in_time(made[name].result, within=Deadline.METADATA, what=name)

    def produce(self, name: str, ages: list[float], *, key: bytes | None = None) -> None:
        """Records dated so many seconds back."""
        for age in ages:
            stamp = int((time.time() - age) * 1000)
            self.producer.produce(name, b"x" * 100, key=key, partition=0, timestamp=stamp)
        assert self.producer.flush(Deadline.METADATA.seconds) == 0

    def transaction(self, name: str, ages: list[float], *, committed: bool) -> None:
        producer = Producer({**self.broker.settings.librdkafka, "transactional.id": f"{name}-writer"})
        producer.init_transactions(Deadline.SESSION.seconds)
        producer.begin_transaction()
        for age in ages:
            producer.produce(name, b"x", partition=0, timestamp=int((time.time() - age) * 1000))
        assert producer.flush(Deadline.METADATA.seconds) == 0
        (producer.commit_transaction if committed else producer.abort_transaction)(Deadline.SESSION.seconds)

    def delete_before(self, name: str, offset: int) -> None:
        asked = TopicPartition(name, 0, offset)
        in_time(self.admin.delete_records([asked])[asked].result, within=Deadline.METADATA, what="the deletion")

    def commit(self, group: str, name: str, offset: int) -> None:
        """Commit as soon as the group has a coordinator: the first group of a broker waits for one."""
        with closing(Consumer({**self.broker.settings.librdkafka, "group.id": group})) as made:
            commit = partial(made.commit, offsets=[TopicPartition(name, 0, offset)], asynchronous=False)
            eventually(commit, within=Deadline.SESSION, what=f"the commit of {group}", ignoring=(KafkaException,))

    def first_record(self, name: str) -> float | None:
        """The timestamp of the first record that a plain consumer of committed data gets, in seconds."""
        settings = {**self.broker.settings.librdkafka, "group.id": "plain", "auto.offset.reset": "earliest"}
        with closing(Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})) as made:
            made.assign([TopicPartition(name, 0, 0)])
            message = made.poll(Deadline.METADATA.seconds)
            assert message is not None
            return None if message.error() else message.timestamp()[1] / 1000


def oldest(platform: GroupsPlatform, name: str) -> float | None:
    """When the oldest record was dated by sizing, in seconds."""
    found = size(platform, KAFKA, [name], read=True)
    age = found.topics[0].age
    return None if age is None else found.snapshot.at.timestamp() - age.total_seconds()


@pytest.mark.full
def test_the_oldest_age_is_that_of_the_first_record(platform: GroupsPlatform, broker: Brokers) -> None:
    world = World(broker)
    world.make("plain", retention_ms=-1)
    world.produce("plain", [500.0, 400.0, 300.0, 200.0])
    world.make("written", retention_ms=-1)
    for ages, committed in (([900.0, 890.0], True), ([800.0, 790.0], False), ([700.0, 690.0], True)):
        world.transaction("written", ages, committed=committed)  # offsets 0 to 1 and a marker, 3 to 4, 6 to 7
    for name, before in (("plain", 0), ("plain", 2), ("plain", 4), *(("written", n) for n in (0, 1, 2, 3, 4, 5, 7, 8))):
        world.delete_before(name, before)
        expected, found = world.first_record(name), oldest(platform, name)
        assert (found is None) == (expected is None), (name, before)
        assert found == pytest.approx(expected, abs=0.002), (name, before)
    world.make("compacted", cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0.01)
    world.produce("compacted", [90.0], key=b"a")
    world.produce("compacted", [80.0], key=b"b")
    world.produce("compacted", [5.0], key=b"a")
    first = world.first_record("compacted")
    assert oldest(platform, "compacted") == pytest.approx(first, abs=0.002)

    def compacted() -> bool:
        world.produce("compacted", [0.0], key=b"c")  # rolls a segment
        return world.first_record("compacted") != first

    eventually(compacted, within=Deadline.SERVER, what="compaction")
    assert oldest(platform, "compacted") == pytest.approx(world.first_record("compacted"), abs=0.002)


def room_of(platform: GroupsPlatform, group: str) -> Room:
    [reader] = look(platform, KAFKA, Environment("test"), group=group).readers
    [room] = reader.rooms
    return room


def until_lost(platform: GroupsPlatform, group: str) -> float:
    """When the first unread record of a group was seen to be gone."""

    def lost() -> float | None:
        return time.time() if room_of(platform, group).position.lost else None

    found = eventually(lost, within=Deadline.SERVER, what=f"{group} to lose something")
    assert found is not None
    return found


@pytest.mark.full
def test_the_loss_of_a_stopped_reader_is_foretold_by_time_and_by_size(
    platform: GroupsPlatform, broker: Brokers
) -> None:
    world = World(broker)
    world.make("by_time", retention_ms=8000, segment_ms=int(SEGMENT_SECONDS * 1000))
    world.make("by_size", retention_ms=-1, retention_bytes=4 << 20, segment_bytes=1 << 20)
    for name in ("by_time", "by_size"):
        world.produce(name, [0.0] * 20)
        world.commit(f"stopped-{name}", name, 10)
    began = time.time()
    room = room_of(platform, "stopped-by_time")
    assert (room.rule, room.unread, room.position.lost) == (Rule.TIME, 10, 0)
    assert room.left is not None
    foretold = time.time() + room.left.total_seconds()

    def gone() -> float | None:
        world.produce("by_time", [0.0])
        return time.time() if room_of(platform, "stopped-by_time").position.lost else None

    lost = eventually(gone, within=Deadline.SERVER, what="a record to be deleted")
    assert lost is not None
    print(f"foretold {foretold - began:.1f} s, lost {lost - began:.1f} s")
    assert foretold <= lost
    assert lost <= foretold + SEGMENT_SECONDS + CHECK_SECONDS + DELETE_SECONDS + 3.0  # the look itself takes a while

    def full() -> bool:
        platform.snapshots.add(KAFKA, platform.clusters[KAFKA].take())
        world.producer.produce("by_size", b"x" * 100_000, partition=0)
        world.producer.flush(Deadline.METADATA.seconds)
        return room_of(platform, "stopped-by_size").left is not None

    assert eventually(full, within=Deadline.METADATA, what="a rate")
    rooms = []
    while not (room := room_of(platform, "stopped-by_size")).position.lost:
        rooms.append(room)
        world.producer.produce("by_size", b"x" * 100_000, partition=0)
        world.producer.flush(Deadline.METADATA.seconds)
    assert {room.rule for room in rooms} == {Rule.SIZE}
    assert rooms[-1].danger is Danger.ALARM


@pytest.mark.full
def test_with_ten_minutes_of_retention_the_alarm_comes_before_the_loss(
    platform: GroupsPlatform, broker: Brokers
) -> None:
    world = World(broker)
    memory = Memory()

    def alarms() -> set[str]:
        watch(platform, KAFKA, platform.clusters[KAFKA].take(), memory)
        return {alarm.subject for alarm in platform.control.alarms.list() if alarm.kind == AlarmKind.READER_HEADROOM}

    for name, age in (("fresh", 30.0), ("half", MINUTES_10 / 2 - SOON), ("late", MINUTES_10 - SOON)):
        world.make(name, retention_ms=MINUTES_10 * 1000, segment_ms=MINUTES_10 * 1000)
        world.produce(name, [age, 0.0])
        world.commit(f"reader-of-{name}", name, 0)
    late, half = (f"{KAFKA}/reader-of-{name} {name}" for name in ("late", "half"))
    assert alarms() == {late}
    eventually(lambda: alarms() == {late, half}, within=Deadline.SERVER, what="five minutes to be left")

    world.make("alone", retention_ms=MINUTES_10 * 1000)  # a segment goes as a whole, so this one has no younger record
    world.produce("alone", [MINUTES_10 - SOON])
    world.commit("reader-of-alone", "alone", 0)
    assert f"{KAFKA}/reader-of-alone alone" in alarms()
    assert not room_of(platform, "reader-of-alone").position.lost
    until_lost(platform, "reader-of-alone")
    assert not room_of(platform, "reader-of-late").position.lost
    world.commit("reader-of-late", "late", 2)
    assert late not in alarms()
