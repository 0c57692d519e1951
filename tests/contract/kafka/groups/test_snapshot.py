"""A snapshot of the whole cluster, held against the real broker and its other clients."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from types import MappingProxyType

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer

from millrace.adapters.kafka.cluster import answers as kafka_answers
from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Snapshot
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError, UsageError
from millrace.settings import KafkaSettings
from millrace.wiring import open_platform
from support.topics.new import create_topics
from support.topics.python_consumer import joined_by_poll
from support.waiting import Deadline, at_once, eventually

STAMPED_MS = 1_700_000_000_000


@pytest.fixture
def settings(kafka: Stack) -> KafkaSettings:
    return kafka.settings().kafka()


@pytest.fixture
def reader(settings: KafkaSettings) -> Iterator[ClusterReader]:
    with ClusterReader(settings) as made:
        yield made


@pytest.fixture
def topic(settings: KafkaSettings) -> str:
    """A topic of three partitions: five records, three, and none; they are old, and kept nevertheless."""
    name = make_topics(settings, 1, 3, {"retention.ms": "-1"})[0]
    producer = Producer({**settings.librdkafka})
    for partition, count in ((0, 5), (1, 3)):
        for number in range(count):
            producer.produce(name, value=str(number), partition=partition, timestamp=STAMPED_MS + number)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    return name


def make_topics(
    settings: KafkaSettings, count: int, partitions: int, config: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    names = [f"snapshot-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    create_topics(KafkaTopicAdmin(settings), *(NewTopic(name, partitions, 1, config) for name in names))
    return names


def logs_of(reader: ClusterReader, topic: str) -> list[LogSeen]:
    """Its logs, once a leader answers for each: a new partition may have none for a moment."""

    def all_of_them() -> list[LogSeen]:
        seen = reader.take().topics.get(topic)
        return [log for log in seen.logs if log] if seen and all(seen.logs) else []

    return eventually(all_of_them, within=Deadline.METADATA, what="every partition's leader")


def group_when(reader: ClusterReader, name: str, members: int) -> GroupSeen:
    """The group, once so many members have something assigned."""

    def settled() -> GroupSeen | None:
        seen = reader.take().groups.get(name)
        at_work = [member for member in (seen.members or ()) if member.partitions] if seen else []
        return seen if len(at_work) == members else None

    found = eventually(settled, within=Deadline.SESSION, what=f"{members} members of {name} at work")
    assert found is not None
    return found


def test_bounds_are_those_of_the_other_client(settings: KafkaSettings, reader: ClusterReader, topic: str) -> None:
    logs = logs_of(reader, topic)
    log = KafkaLog(settings, client_id="test")
    partitions = log.partitions([topic])
    expected = log.bounds(partitions)
    assert [(each.start, each.stable) for each in logs] == [(expected[p].start, expected[p].end) for p in partitions]
    assert [each.end for each in logs] == [5, 3, 0]
    assert [each.first_ms for each in logs] == [STAMPED_MS, STAMPED_MS, None]
    assert [bool(each.size_bytes) for each in logs] == [True, True, False]
    assert logs[2].size_bytes == 0
    snapshot = reader.take()
    assert snapshot.topics[topic].topic_id == partitions[0].topic_id
    assert "__consumer_offsets" in snapshot.topics or not snapshot.groups
    assert (snapshot.offsets_kept, snapshot.faults) == (timedelta(days=7), ())


def test_sizes_are_those_of_the_files(kafka: Stack, reader: ClusterReader, topic: str) -> None:
    logs = logs_of(reader, topic)
    folders = [next((kafka.layout.state / "kafka" / "data").glob(f"{topic}-{number}")) for number in range(3)]
    assert [log.size_bytes for log in logs] == [sum(f.stat().st_size for f in at.glob("*.log")) for at in folders]


def test_an_open_transaction_holds_the_stable_offset_back(
    settings: KafkaSettings, reader: ClusterReader, topic: str
) -> None:
    producer = Producer({**settings.librdkafka, "transactional.id": topic})
    producer.init_transactions(Deadline.SESSION.seconds)
    producer.begin_transaction()
    producer.produce(topic, value="open", partition=1)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    log = reader.take().log((topic, 1))
    assert log is not None
    assert (log.start, log.stable, log.end) == (0, 3, 4)
    producer.abort_transaction(Deadline.SESSION.seconds)
    eventually(
        lambda: (after := reader.take().log((topic, 1))) and after.stable == after.end == 5,
        within=Deadline.METADATA,
        what="the end of the transaction",
    )


def test_members_of_a_classic_group_and_what_they_read(
    settings: KafkaSettings, reader: ClusterReader, topic: str
) -> None:
    with ExitStack() as ended:
        group = f"classic-{topic}"
        for number, more in enumerate(({}, {"group.instance.id": "static"})):
            made = Consumer({**settings.librdkafka, "group.id": group, "client.id": f"c{number}", **more})
            ended.callback(made.close)
            made.subscribe([topic])
            ended.enter_context(polled(made))
        seen = group_when(reader, group, 2)
    assert (seen.type, seen.state, seen.protocol, seen.fault) == (GroupType.CLASSIC, "Stable", "range", "")
    assert seen.members is not None
    assert [member.member_id for member in seen.members] == sorted(member.member_id for member in seen.members)
    assert {(member.client_id, member.instance, member.host) for member in seen.members} == {
        ("c0", None, "127.0.0.1"),
        ("c1", "static", "127.0.0.1"),
    }
    assert sorted(p for member in seen.members for p in member.partitions or ()) == [(topic, n) for n in range(3)]


def test_a_member_by_the_python_client(settings: KafkaSettings, reader: ClusterReader, topic: str) -> None:
    group = f"python-{topic}"
    asked = {"bootstrap_servers": settings.bootstrap_servers, "group_id": group, "auto_offset_reset": "earliest"}
    with closing(KafkaConsumer(topic, **asked)) as made:
        assert joined_by_poll(made)
        seen = group_when(reader, group, 1)
    assert seen.members is not None
    assert seen.members[0].partitions == tuple((topic, number) for number in range(3))


def test_a_group_of_the_consumer_protocol(settings: KafkaSettings, reader: ClusterReader, topic: str) -> None:
    group = f"consumer-{topic}"
    with closing(
        Consumer({**settings.librdkafka, "group.id": group, "group.protocol": "consumer", "group.instance.id": "one"})
    ) as made:
        made.subscribe([topic])
        with polled(made):
            seen = group_when(reader, group, 1)
        made.commit(offsets=[TopicPartition(topic, 0, 2, metadata="mine")], asynchronous=False)
        after = reader.take().groups[group]
    assert (seen.type, seen.state, seen.protocol) == (GroupType.CONSUMER, "Stable", "uniform")
    assert seen.members is not None
    assert (seen.members[0].instance, seen.members[0].host) == ("one", "127.0.0.1")
    assert seen.members[0].partitions == tuple((topic, number) for number in range(3))
    assert after.commits is not None
    assert after.commits[topic, 0] == Committed(2, "mine")


def test_commits_from_outside_are_a_group_without_members(
    settings: KafkaSettings, reader: ClusterReader, topic: str
) -> None:
    commit_from_outside(settings, [f"outside-{topic}"], topic)
    seen = reader.take().groups[f"outside-{topic}"]
    assert (seen.type, seen.state, seen.members, seen.fault) == (GroupType.CLASSIC, "Empty", (), "")
    assert seen.commits == {(topic, 0): Committed(1, "by hand"), (topic, 1): Committed(0)}


def test_requests_do_not_grow_with_topics_and_hardly_with_groups(
    settings: KafkaSettings, reader: ClusterReader, topic: str
) -> None:
    def looks() -> tuple[Snapshot, Snapshot, Snapshot, Snapshot] | None:
        """None where a member of another test's group was told gone meanwhile: those are asked about too."""
        reader.take()
        before = reader.take()
        make_topics(settings, 5, 10)
        topics_more, topics_known = reader.take(), reader.take()
        commit_from_outside(settings, [f"many-{uuid.uuid4().hex}" for _ in range(100)], topic)
        found = before, topics_more, topics_known, reader.take()
        members = [{name for name, group in look.groups.items() if group.members} for look in found]
        return found if all(each == members[0] for each in members) else None

    before, topics_more, topics_known, after = eventually(
        looks, within=Deadline.SESSION, what="looks between which no session ended"
    )
    assert topics_more.requests <= before.requests + 1  # the settings of the new ones, together
    assert topics_known.requests == before.requests
    assert len(after.groups) >= 100
    assert after.requests <= before.requests + 2  # one part more of commits, one at most of members
    assert after.requests <= 10 + len(after.groups) / 100 + 10


@pytest.mark.full
def test_the_bound_of_requests_at_the_size_that_is_promised(settings: KafkaSettings, reader: ClusterReader) -> None:
    names = make_topics(settings, 40, 50)
    commit_from_outside(settings, [f"bound-{names[0]}-{number}" for number in range(500)], names[0])
    for name in names:
        assert len(logs_of(reader, name)) == 50
    snapshot = reader.take()
    assert not any(seen.fault for seen in snapshot.groups.values())
    assert sum(len(seen.logs) for seen in snapshot.topics.values()) >= 2000
    assert len(snapshot.groups) >= 500
    assert snapshot.requests <= 10 + len(snapshot.groups) / 100 + 10


def test_the_connections_are_kept_and_opened_again(kafka: Stack) -> None:
    platform = open_platform(kafka.settings())
    reader = platform.kafka.cluster()
    assert platform.kafka.cluster() is reader
    first = reader.take()
    reader.close()
    again = reader.take()
    assert again.cluster_id == first.cluster_id
    assert again.topics.keys() >= first.topics.keys()
    reader.close()


def test_a_silent_cluster_is_named() -> None:
    with (
        ClusterReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"})) as reader,
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"),
    ):
        reader.take()


def test_one_that_takes_connections_and_says_nothing_costs_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        quick = timedelta(milliseconds=500)
        with (
            ClusterReader(KafkaSettings({"bootstrap.servers": address}), timeout=quick) as reader,
            pytest.raises(UnreachableError, match="no answer in time"),
        ):
            reader.take()


def test_the_next_broker_is_asked_where_the_first_hangs(settings: KafkaSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        both = KafkaSettings({**settings.librdkafka, "bootstrap.servers": f"{address},{settings.bootstrap_servers}"})
        with ClusterReader(both) as reader:
            assert not reader.take().faults


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"security.protocol": "ssl", "ssl.ca.location": "/absent"}, r"ssl\.ca\.location"),
        ({"security.protocol": "ssl", "ssl.keystore.location": "/absent"}, r"ssl\.keystore\.location"),
        ({"security.protocol": "sasl_ssl", "sasl.username": "u", "sasl.password": "hidden"}, "GSSAPI"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.password": "hidden"}, r"sasl\.username"),
        ({"security.protocol": "carrier pigeon"}, "PIGEON"),
    ],
)
def test_what_this_client_cannot_do_is_named(more: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        ClusterReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1", **more}))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\0\0\1", b"\0\0\x7f\xff\xff\xff" + b"\xff" * 40, b"garbage" * 9])
def test_an_assignment_that_is_none_is_not_guessed_at(data: bytes) -> None:
    assert kafka_answers.assigned(data) is None


def polled(consumer: Consumer) -> ExitStack:
    """Polls it in a thread until the end of the block: it joins only while it is polled."""
    import threading

    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    ended = ExitStack()
    ended.callback(thread.join, Deadline.THREAD.seconds)
    ended.callback(over.set)
    return ended


def commit_from_outside(settings: KafkaSettings, groups: Sequence[str], topic: str) -> None:
    def commit(group: str) -> None:
        with closing(Consumer({**settings.librdkafka, "group.id": group})) as made:
            made.commit(
                offsets=[TopicPartition(topic, 0, 1, metadata="by hand"), TopicPartition(topic, 1, 0)],
                asynchronous=False,
            )

    for some in range(0, len(groups), 10):  # a client takes 50 ms, most of it waits
        calls = [partial(commit, group) for group in groups[some : some + 10]]
        at_once(calls, within=Deadline.METADATA, what="commits")
