"""The records of `__consumer_offsets` that the real broker wrote for real consumers, decoded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.runtime.formats.coordinator_log import (
    OFFSETS_TOPIC,
    ClassicGroup,
    Commit,
    ConsumerAssignment,
    ConsumerMember,
    Entry,
    Unreadable,
    commit_key_prefixes,
    decode,
)
from millrace.settings import KafkaSettings
from support.topics.new import create_topics
from support.topics.python_consumer import joined_by_poll
from support.waiting import Deadline, eventually

Raw = tuple[int, bytes | None, bytes | None]


@pytest.fixture
def settings(kafka: Stack) -> KafkaSettings:
    return kafka.settings().kafka()


@pytest.fixture
def topic(settings: KafkaSettings) -> str:
    """A topic of two partitions with a few records each."""
    name = f"read-{uuid.uuid4().hex[:8]}"
    create_topics(KafkaTopicAdmin(settings), NewTopic(name, 2, 1, {}))
    producer = Producer({**settings.librdkafka})
    for number in range(10):
        producer.produce(name, value=str(number), partition=number % 2)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    return name


def topic_id(settings: KafkaSettings, topic: str) -> str:
    return KafkaTopicAdmin(settings).observe([topic])[topic].topic_id


def everything(settings: KafkaSettings) -> list[Raw]:
    """All that the coordinator's log holds, as a plain consumer reads it."""
    config = {**settings.librdkafka, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    found: list[Raw] = []
    with closing(Consumer(config)) as reader:
        log = reader.list_topics(OFFSETS_TOPIC, timeout=Deadline.METADATA.seconds).topics[OFFSETS_TOPIC]
        reader.assign([TopicPartition(OFFSETS_TOPIC, number, 0) for number in log.partitions])
        unread = set(log.partitions)
        while unread:
            for message in reader.consume(10_000, 1):
                if message.error():
                    unread.discard(message.partition())
                else:
                    found.append((message.partition(), message.key(), message.value()))
    return found


def of_group(settings: KafkaSettings, group: str) -> list[Entry]:
    entries = [decode(key, value) for _, key, value in everything(settings)]
    return [entry for entry in entries if getattr(entry, "group", None) == group]


@contextmanager
def joined(settings: KafkaSettings, topic: str, group: str, **more: object) -> Iterator[Consumer]:
    """A member that has both partitions."""
    with closing(Consumer({**settings.librdkafka, "group.id": group, "enable.auto.commit": False, **more})) as consumer:
        consumer.subscribe([topic])
        eventually(
            lambda: (consumer.poll(0.1), len(consumer.assignment()))[1] == 2,
            within=Deadline.SESSION,
            what="the assignment",
        )
        yield consumer


def wait_for(settings: KafkaSettings, group: str, condition: Callable[[list[Entry]], object]) -> list[Entry]:
    found: list[Entry] = []

    def met() -> bool:
        found[:] = of_group(settings, group)
        return bool(condition(found))

    eventually(met, within=Deadline.SESSION, what=f"the records of {group}")
    return found


def test_a_classic_consumer_is_told_by_its_group_and_its_commits(settings: KafkaSettings, topic: str) -> None:
    group = f"classic-{topic}"
    with joined(settings, topic, group, **{"client.id": "till-7", "group.instance.id": "seven"}) as consumer:
        places = [TopicPartition(topic, 0, 4, metadata="noted"), TopicPartition(topic, 1, 2)]
        consumer.commit(offsets=places, asynchronous=False)
        found = of_group(settings, group)
    commits = {entry.partition: entry for entry in found if isinstance(entry, Commit)}
    # librdkafka's Python client ends a commit's metadata with a NUL
    assert {number: (c.topic, c.offset, c.metadata.rstrip("\0")) for number, c in commits.items()} == {
        0: (topic, 4, "noted"),
        1: (topic, 2, ""),
    }
    assert all(commit.at_ms > 0 for commit in commits.values())
    *_, last = [entry for entry in found if isinstance(entry, ClassicGroup)]
    [member] = last.members
    assert (member.client_id, member.host, member.instance) == ("till-7", "127.0.0.1", "seven")
    assert member.assigned == {topic: (0, 1)}


def test_an_old_python_client_is_told_the_same_way(settings: KafkaSettings, topic: str) -> None:
    group = f"python-{topic}"
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=group,
        client_id="old-hand",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    with closing(consumer):
        assert joined_by_poll(consumer)
        consumer.commit()
        found = of_group(settings, group)
    assert any(isinstance(entry, Commit) and entry.offset for entry in found)
    *_, last = [entry for entry in found if isinstance(entry, ClassicGroup)]
    assert [(member.client_id, member.assigned) for member in last.members] == [("old-hand", {topic: (0, 1)})]


def test_a_consumer_of_the_new_protocol_is_told_by_its_own_records(settings: KafkaSettings, topic: str) -> None:
    group, uuid_of_topic = f"new-{topic}", topic_id(settings, topic)
    with joined(settings, topic, group, **{"client.id": "till-8", "group.protocol": "consumer"}) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 1)], asynchronous=False)
        found = of_group(settings, group)
        [member] = {entry.member_id for entry in found if isinstance(entry, ConsumerMember)}
        [facts] = {(e.client_id, e.host) for e in found if isinstance(e, ConsumerMember)}
        assert facts == ("till-8", "127.0.0.1")
        *_, assignment = [entry for entry in found if isinstance(entry, ConsumerAssignment)]
        assert assignment == ConsumerAssignment(group, member, {uuid_of_topic: (0, 1)})
        commits = {e.partition: e for e in found if isinstance(e, Commit)}
        assert {number: (c.topic, c.offset) for number, c in commits.items()} == {0: (topic, 3), 1: (topic, 1)}
        assert {commit.topic_id for commit in commits.values()} == {uuid_of_topic}
    found = wait_for(settings, group, lambda entries: ConsumerMember(group, member) in entries)
    assert ConsumerAssignment(group, member) in found


def test_nothing_of_the_real_log_is_unreadable(settings: KafkaSettings, topic: str) -> None:
    """Whatever the tests of this run have made it hold, transactions too."""
    group = f"all-{topic}"
    with joined(settings, topic, group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    records = everything(settings)
    decoded = [decode(key, value) for _, key, value in records]
    assert [entry for entry in decoded if isinstance(entry, Unreadable)] == []
    own = {number for number, key, _ in records if key and key.startswith(commit_key_prefixes(group))}
    by_name = {n for (n, _, _), e in zip(records, decoded, strict=True) if isinstance(e, Commit) and e.group == group}
    assert (own, len(own)) == (by_name, 1)
