"""A snapshot of the real broker: what it says of logs, groups and members is so, and it costs few requests."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.adapters.kafka_log import KafkaLog
from millrace.adapters.kafka_snapshot import ClusterReader
from millrace.adapters.kafka_topics import KafkaTopicAdmin
from millrace.domain.groups import Committed
from millrace.domain.snapshots import GroupType, LogSeen, Snapshot
from millrace.domain.topics import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError, UsageError
from millrace.settings import KafkaSettings
from support.group_readers import group_reader
from support.waiting import Deadline, eventually


@pytest.fixture
def settings(kafka: Stack) -> KafkaSettings:
    return kafka.settings().kafka()


@pytest.fixture
def name() -> str:
    return f"seen-{uuid.uuid4().hex[:8]}"


def make(settings: KafkaSettings, *topics: NewTopic) -> None:
    admin = KafkaTopicAdmin(settings)
    assert set(admin.create(topics).values()) == {None}
    names = [topic.name for topic in topics]
    eventually(lambda: len(admin.observe(names)) == len(names), within=Deadline.METADATA, what="the new topics")


def produce(settings: KafkaSettings, topic: str, partition: int, count: int, **more: str) -> None:
    producer = Producer({**settings.librdkafka, **more})
    if more:
        producer.init_transactions(Deadline.SESSION.seconds)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, value=b"v" * 100, partition=partition, timestamp=1_700_000_000_000 + number)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    if more:
        OPEN.append(producer)


OPEN: list[Producer] = []
"""Producers in the middle of a transaction; one that is forgotten aborts it."""


@pytest.fixture
def closing() -> Iterator[None]:
    yield
    for producer in OPEN:
        producer.abort_transaction(Deadline.SESSION.seconds)
    OPEN.clear()


def take(settings: KafkaSettings) -> Snapshot:
    with ClusterReader(settings) as reader:
        return reader.take()


@pytest.mark.usefixtures("closing")
def test_logs_are_as_every_other_client_sees_them(settings: KafkaSettings, name: str) -> None:
    make(settings, NewTopic(name, 4, 1, {"retention.ms": "-1"}))
    produce(settings, name, 0, 7)
    produce(settings, name, 1, 3)
    produce(settings, name, 1, 5, **{"transactional.id": name})
    seen = take(settings)
    partitions = KafkaLog(settings, client_id="test").partitions([name])
    assert seen.topics[name].topic_id == partitions[0].topic_id
    logs = seen.topics[name].logs
    bounds = KafkaLog(settings, client_id="test").bounds(partitions)
    assert [(log.start, log.stable) for log in logs if log] == [(bounds[p].start, bounds[p].end) for p in partitions]
    assert [log.end for log in logs if log] == [7, 8, 0, 0]
    assert [log.stable for log in logs if log] == [7, 3, 0, 0]
    assert [log.first_ms for log in logs if log] == [1_700_000_000_000, 1_700_000_000_000, None, None]
    sizes = [log.size_bytes for log in logs if log]
    assert sizes[0] is not None
    assert sizes[0] > 7 * 100 > 0 == sizes[2]
    assert seen.cluster_id == KafkaTopicAdmin(settings).cluster_id()
    assert seen.offsets_kept == timedelta(days=7)
    assert seen.faults == ()


def test_groups_of_every_kind(kafka: Stack, settings: KafkaSettings, name: str) -> None:
    make(settings, NewTopic(name, 3, 1, {}))
    for partition in range(3):
        produce(settings, name, partition, 10)
    with (
        group_reader(kafka, name, f"{name}-c", library="confluent", count=30) as classic,
        group_reader(kafka, name, f"{name}-n", library="confluent", protocol="consumer", count=30) as newer,
        group_reader(kafka, name, f"{name}-p", library="kafka-python", count=30) as python,
    ):
        outside = Consumer({**settings.librdkafka, "group.id": f"{name}-s"})
        outside.commit(offsets=[ClientTopicPartition(name, 2, 4, "said")], asynchronous=False)
        outside.close()
        seen = take(settings)
        all_of_it = tuple((name, number) for number in range(3))
        everything = {partition: Committed(10) for partition in all_of_it}
        for reader, kind in ((classic, GroupType.CLASSIC), (newer, GroupType.CONSUMER), (python, GroupType.CLASSIC)):
            group = seen.groups[reader.group]
            assert (group.type, group.state, group.fault) == (kind, "Stable", "")
            assert group.commits == everything
            assert group.members is not None
            [member] = group.members
            assert (member.client_id, member.host) == (f"client-of-{reader.group}", "127.0.0.1")
            assert member.partitions == all_of_it
            assert member.instance is None
        simple = seen.groups[f"{name}-s"]
        assert (simple.type, simple.members) == (GroupType.CLASSIC, ())
        assert simple.commits == {(name, 2): Committed(4, "said")}
        assert seen.groups[f"{name}-n"].protocol == "uniform"
        classic.leave()
        left = take(settings).groups[classic.group]
        assert (left.state, left.members, left.commits) == ("Empty", (), everything)


def test_a_static_member_carries_its_name(settings: KafkaSettings, name: str) -> None:
    make(settings, NewTopic(name, 1, 1, {}))
    consumer = Consumer({**settings.librdkafka, "group.id": name, "group.instance.id": "first", "client.id": "own"})
    consumer.subscribe([name])

    def members() -> object:
        consumer.poll(0.2)
        group = take(settings).groups.get(name)
        return group is not None and group.state == "Stable" and group.members

    eventually(members, within=Deadline.SESSION, what="the member to join")
    found = take(settings).groups[name].members
    assert found is not None
    assert [(member.instance, member.client_id, member.partitions) for member in found] == [
        ("first", "own", ((name, 0),))
    ]
    consumer.close()


def test_requests_grow_with_neither_groups_nor_partitions(settings: KafkaSettings, name: str) -> None:
    before = take(settings)
    make(settings, *(NewTopic(f"{name}-{number}", 10, 1, {}) for number in range(5)))
    for number in range(60):
        outside = Consumer({**settings.librdkafka, "group.id": f"{name}-{number}"})
        outside.commit(offsets=[ClientTopicPartition(f"{name}-0", number % 10, 0)], asynchronous=False)
        outside.close()
    after = take(settings)
    assert len(after.groups) >= len(before.groups) + 60
    assert after.requests <= before.requests + 1  # the sixtieth group may begin another hundred
    assert after.requests <= 10 + len(after.groups) / 100 + 10


def test_a_reader_is_good_for_many_looks(settings: KafkaSettings, name: str) -> None:
    with ClusterReader(settings) as reader:
        first = reader.take()
        make(settings, NewTopic(name, 2, 1, {}))
        second = eventually(
            lambda: (seen := reader.take()).topics[name].logs == (LogSeen(0, 0, 0, None, 0),) * 2 and seen,
            within=Deadline.METADATA,
            what="the folders of the new topic's logs",
        )
    assert name not in first.topics
    assert second.requests < first.requests  # it is connected
    assert first.at < second.at


def test_times_are_those_of_the_clock(settings: KafkaSettings) -> None:
    taken = [take(settings).at for _ in range(2)]
    assert all(before < after for before, after in pairwise(taken))


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        ClusterReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), timeout=timedelta(seconds=1))


def test_an_address_that_hangs_or_is_dead_keeps_nobody_from_the_others(settings: KafkaSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        addresses = f"127.0.0.1:{hangs.getsockname()[1]},127.0.0.1:1,{settings.bootstrap_servers}"
        seen = take(KafkaSettings({**settings.librdkafka, "bootstrap.servers": addresses}))
    assert seen.topics
    assert seen.faults == ()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, "SASL mechanism GSSAPI"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/absent"}, "no client can be made"),
    ],
)
def test_properties_that_no_client_can_be_made_of_are_named(more: dict[str, str], said: str) -> None:
    with pytest.raises((UsageError, UnreachableError), match=said):
        ClusterReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1", **more}), timeout=timedelta(seconds=1))


def test_what_a_hostile_leader_wrote_as_an_assignment_is_not_known() -> None:
    from millrace.adapters.kafka_group_answers import _classic_assignment

    wrong: list[Callable[[], bytes]] = [
        lambda: b"\x00",
        lambda: b"\x00\x00\x7f\xff\xff\xff",
        lambda: b"\x00\x00\x00\x00\x00\x01\x00\x05abc",
        lambda: b"\xff" * 40,
    ]
    assert [_classic_assignment(each()) for each in wrong] == [None] * 4
    assert _classic_assignment(b"") == ()
