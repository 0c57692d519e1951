"""Groups as `groups list` sees them, held against Kafka's own tool while readers run, stop and die."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.groups.commits import stream_commits
from millrace.domain.groups.status import GroupReading, Status
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.ports.platform import Platform
from millrace.settings import Settings
from millrace.usecases.groups import snapshots
from millrace.usecases.groups.listing import list_groups, show_group
from millrace.usecases.groups.snapshots import take_due
from millrace.wiring import open_platform
from support.fakes.platform import PartsPlatform
from support.groups.readers import GroupReader, group_reader, wait_for_the_stock_tool
from support.stack.control_databases import Databases
from support.topics.new import create_topics
from support.waiting import Deadline, eventually

KAFKA = "millrace_kafka"
PARTITIONS, EACH = 3, 40
LIBRARIES = (("confluent", "classic"), ("confluent", "consumer"), ("kafka-python", "classic"))


@pytest.fixture
def topic(kafka: Stack) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    settings = kafka.settings().kafka()
    create_topics(KafkaTopicAdmin(settings), NewTopic(name, PARTITIONS, 1, {}))
    producer = Producer({**settings.librdkafka})
    for number in range(PARTITIONS * EACH):
        producer.produce(name, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    return name


def test_lag_members_and_hosts_are_those_of_the_stock_tool_while_readers_run_stop_and_die(
    kafka: Stack, topic: str
) -> None:
    readers: list[GroupReader] = []
    with ExitStack() as living:
        for number, (library, protocol) in enumerate(LIBRARIES):
            group = f"{library}-{protocol}-{topic}"
            reader = group_reader(kafka, topic, group, library=library, protocol=protocol, count=20 + number)
            readers.append(living.enter_context(reader))
        simple = f"simple-{topic}"
        outside = Consumer({**kafka.settings().kafka().librdkafka, "group.id": simple})
        outside.commit(offsets=[ClientTopicPartition(topic, 1, 7)], asynchronous=False)
        outside.close()
        settings = kafka.settings().kafka()
        partitions = KafkaLog(settings, client_id="test").partitions([topic])
        driver = GroupMember(settings, stream=f"shop.{topic}", group=f"millrace.{topic}", epoch=1)
        driver.join(partitions, None)
        living.callback(driver.close)
        driver.commit(stream_commits(f"shop.{topic}", 1, 1, dict.fromkeys(partitions, 9)))
        groups = [*(reader.group for reader in readers), simple, f"millrace.{topic}"]
        wait_for_the_stock_tool(kafka, groups)
        driver.close()  # a static member stays until its session ends
        readers[0].leave()
        readers[2].kill()
        found = list_groups(open_platform(kafka.settings()), KAFKA, directly=True)
        left = {row.name: row for row in found.groups}
        assert left[readers[0].group].reading.group.members == ()
        assert left[f"millrace.{topic}"].what == f"stream shop.{topic}, not declared"
        wait_for_the_stock_tool(kafka, groups)
        dead = readers[2].group
        eventually(
            lambda: members_of(kafka, dead) == 0, within=Deadline.SESSION, what="the dead reader's session to end"
        )
        wait_for_the_stock_tool(kafka, groups)


def members_of(stack: Stack, group: str) -> int | None:
    found = list_groups(open_platform(stack.settings()), KAFKA, directly=True)
    return next((len(row.reading.group.members or ()) for row in found.groups if row.name == group), None)


@pytest.fixture
def platform(kafka: Stack, control_databases: Databases, tmp_path: Path) -> Platform:
    """The real cluster and a control database of the test's own, in a project that declares nothing."""
    (tmp_path / "include/pipelines").mkdir(parents=True)
    made = control_databases.create_upgraded()
    store = ControlStore(made.working)
    settings = Settings(root=tmp_path, lookup=kafka.settings().lookup)
    real = open_platform(settings)
    return cast(
        Platform,
        PartsPlatform(settings=settings, control=store, kafka_cluster=real.kafka.cluster),
    )


def test_a_reader_that_assigns_its_partitions_is_told_by_its_commits(
    kafka: Stack, topic: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", snapshots._EARLY)  # none is too early
    group = f"assigns-{topic}"
    settings = {**kafka.settings().kafka().librdkafka, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(settings)) as reader:
        reader.assign([ClientTopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        for offset in (1, 2, 3):
            reader.commit(
                offsets=[ClientTopicPartition(topic, number, offset) for number in range(PARTITIONS)],
                asynchronous=False,
            )
            assert [one.failed for one in take_due(platform, datetime.now(UTC))] == [False]
        [row] = [row for row in list_groups(platform, KAFKA).groups if row.name == group]
    assert (row.reading.group.members, row.reading.status) == ((), Status.MANUAL)
    assert row.reading.lag == PARTITIONS * (EACH - 3)


@pytest.mark.full
def test_a_reader_that_hangs_is_found_within_three_of_its_intervals(
    kafka: Stack, topic: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots come as fast as they can here; the reader is killed, and stays a member until its session ends."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", snapshots._EARLY)  # none is too early
    producer = Producer({**kafka.settings().kafka().librdkafka})
    group = f"dies-{topic}"
    looks: list[datetime] = []

    def look() -> GroupReading:
        for number in range(PARTITIONS):
            producer.produce(topic, value=b"more", partition=number)
        producer.flush(Deadline.METADATA.seconds)
        assert [one.failed for one in take_due(platform, datetime.now(UTC))] == [False]
        found = show_group(platform, KAFKA, group)
        looks.append(found.snapshot.at)
        return found.groups[0].reading

    def looked(wanted: Callable[[GroupReading], bool]) -> GroupReading | None:
        reading = look()
        return reading if wanted(reading) else None

    with group_reader(kafka, topic, group, library="confluent", session_seconds=45) as reader:
        rhythm = eventually(
            lambda: looked(lambda one: one.interval is not None and len(looks) > 5),
            within=Deadline.SESSION,
            what="its rhythm to be known",
        )
        assert rhythm.status is Status.OK
        reader.kill()
        stuck = eventually(
            lambda: looked(lambda one: one.status is Status.STUCK), within=Deadline.SESSION, what="it to be found stuck"
        )
        assert stuck.interval is not None
        assert stuck.group.members, "found before its session was over"
        waited = looks[-1] - max(one.changed_at for one in stuck.partitions if one.changed_at)
        assert waited <= stuck.interval * 3 + 2 * max(after - before for before, after in pairwise(looks))
    gone = eventually(
        lambda: looked(lambda one: one.status is Status.STOPPED), within=Deadline.SESSION, what="its session to end"
    )
    assert gone.group.members == ()
