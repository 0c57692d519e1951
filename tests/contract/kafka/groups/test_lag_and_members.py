"""Lag and members of consumer groups, as the real broker has them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.adapters.kafka.groups import KafkaGroups
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError, UsageError
from millrace.settings import KafkaSettings
from support.begun import Begun
from support.topics.new import create_topics
from support.waiting import Deadline, eventually, in_background, result_of

Answers = dict[str, Future[int | None]]


def ask_nobody() -> Answers:
    """Ask a silent cluster: each answer comes after five seconds."""
    groups = KafkaGroups(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}))
    members, lag = partial(groups.members, "g"), partial(groups.lag, "g", ["t"])
    return {"members": in_background(members), "lag": in_background(lag)}


@pytest.fixture(scope="module", autouse=True)
def asked() -> Begun[Answers]:
    """Questions that were put to a silent cluster when the module began."""
    return Begun(ask_nobody)


@pytest.fixture
def settings(kafka: Stack) -> KafkaSettings:
    return kafka.settings().kafka()


@pytest.fixture
def topic(settings: KafkaSettings) -> str:
    """A topic of two partitions with five and three records."""
    name = f"groups-{uuid.uuid4().hex[:8]}"
    create_topics(KafkaTopicAdmin(settings), NewTopic(name, 2, 1, {}))
    producer = Producer({**settings.librdkafka})
    for partition, count in ((0, 5), (1, 3)):
        for number in range(count):
            producer.produce(name, value=str(number), partition=partition)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    return name


@pytest.fixture
def consumer(settings: KafkaSettings, topic: str) -> Iterator[Consumer]:
    made = Consumer(
        {
            **settings.librdkafka,
            "group.id": f"g-{topic}",
            "group.instance.id": topic,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
        }
    )
    yield made
    made.close()


def test_lag_counts_from_the_commit_and_else_from_the_log_start(
    settings: KafkaSettings, topic: str, consumer: Consumer
) -> None:
    groups = KafkaGroups(settings)
    assert groups.lag(f"g-{topic}", [topic]) == 8
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    assert groups.lag(f"g-{topic}", [topic]) == 1 + 3
    consumer.commit(offsets=[TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 3)], asynchronous=False)
    assert groups.lag(f"g-{topic}", [topic]) == 0


def test_a_topic_that_is_not_there_has_no_lag(settings: KafkaSettings) -> None:
    assert KafkaGroups(settings).lag("g", [f"absent-{uuid.uuid4().hex[:8]}"]) is None


def test_a_static_member_stays_until_its_session_is_over(
    settings: KafkaSettings, topic: str, consumer: Consumer
) -> None:
    groups = KafkaGroups(settings)
    # the first group of a cluster waits for a coordinator
    eventually(lambda: _members(groups, topic) == 0, within=Deadline.SESSION, what="the group's coordinator")
    consumer.subscribe([topic])
    eventually(
        lambda: (consumer.poll(0.2), _members(groups, topic))[1] == 1,
        within=Deadline.SESSION,
        what="the member to join",
    )
    consumer.close()
    assert groups.members(f"g-{topic}") == 1
    eventually(
        lambda: groups.members(f"g-{topic}") == 0, within=Deadline.SESSION, what="the end of the member's session"
    )


def test_a_silent_cluster_is_named(asked: Begun[Answers]) -> None:
    for what, answer in asked.take().items():
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            result_of(answer, what=what)


def test_properties_that_no_client_can_be_made_of_are_named(tmp_path: Path) -> None:
    """A start that asks for epochs goes on then: the driver's own end says the same, with an alarm."""
    properties = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": f"{tmp_path}/no"}
    with pytest.raises(UsageError, match=r"ssl\.ca\.location"):
        KafkaGroups(KafkaSettings(properties))


def _members(groups: KafkaGroups, topic: str) -> int | None:
    try:
        return groups.members(f"g-{topic}")
    except UnreachableError:
        return None
