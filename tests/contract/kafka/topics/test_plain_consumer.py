"""The plain consumer gets what was committed, and nothing else, bit for bit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.embedded.stack import Stack
from support.topics.plain_consumer import Bounds, PlainRecord, bounds_of, read_topic
from support.waiting import Deadline, eventually, result_of

HEADERS = [("trace", b"\xff"), ("trace", None), ("", b"")]


@pytest.fixture
def settings(kafka: Stack) -> dict[str, Any]:
    return dict(kafka.settings().kafka().librdkafka)


@pytest.fixture
def topic(settings: dict[str, Any]) -> Iterator[str]:
    admin, name = AdminClient(settings), f"plain.{uuid.uuid4().hex[:8]}"
    made = admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "-1"})])[name]
    result_of(made, what="the new topic")
    yield name
    result_of(admin.delete_topics([name])[name], what="the end of the topic")


def record(offset: int, timestamp_ms: int, value: bytes | None, key: bytes | None = b"", **more: Any) -> PlainRecord:
    return PlainRecord(0, offset, 0, timestamp_ms, key, value, more.get("headers", ()))


def in_a_transaction(settings: dict[str, Any], topic: str, value: bytes) -> Any:
    producer = Producer({**settings, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(Deadline.SERVER.seconds)
    producer.begin_transaction()
    producer.produce(topic, value, b"", partition=0, timestamp=7)
    assert producer.flush(Deadline.SERVER.seconds) == 0
    return producer


def test_it_gets_what_was_committed_and_nothing_else(settings: dict[str, Any], topic: str) -> None:
    producer, admin = Producer(settings), AdminClient(settings)  # a client that is gone answers nothing any more
    eventually(
        lambda: len(bounds_of(settings, topic)) == 3,
        within=Deadline.METADATA,
        what="the new topic",
        ignoring=(KafkaException,),
    )
    producer.produce(topic, b"gone", partition=0, timestamp=1)
    for key, value, headers in ((None, b"", []), (b"\x00\xff", None, HEADERS)):
        producer.produce(topic, value, key, partition=0, timestamp=2, headers=headers)
    assert producer.flush(Deadline.SERVER.seconds) == 0
    in_a_transaction(settings, topic, b"aborted").abort_transaction(Deadline.SERVER.seconds)  # 3, and its marker 4
    in_a_transaction(settings, topic, b"committed").commit_transaction(Deadline.SERVER.seconds)  # 5, and its marker 6
    open_one = in_a_transaction(settings, topic, b"open")  # 7
    producer.produce(topic, b"behind the open one", partition=0)
    assert producer.flush(Deadline.SERVER.seconds) == 0
    [cut] = admin.delete_records([TopicPartition(topic, 0, 1)]).values()
    result_of(cut, what="the new log start")

    found = eventually(
        lambda: (read := read_topic(settings, topic)).bounds[0].end >= 7 and read,
        within=Deadline.METADATA,
        what="the markers of the transactions",
    )
    assert found.bounds == {0: Bounds(1, 7), 1: Bounds(0, 0), 2: Bounds(0, 0)}
    assert found.records == [
        record(1, 2, b"", None),
        record(2, 2, None, b"\x00\xff", headers=tuple(HEADERS)),
        record(5, 7, b"committed"),
    ]
    open_one.abort_transaction(Deadline.SERVER.seconds)
