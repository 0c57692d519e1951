"""A whole topic as any consumer of committed records gets it; knows nothing of Millrace, so that it can judge it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from support.waiting import Deadline, eventually

AT_ONCE = 10_000
POLL_SECONDS = 1.0
NO_TIMESTAMP = -1


class PlainRecord(NamedTuple):
    """One record.

    Attributes:
        timestamp_type: Kafka's number: -1 none, 0 create time, 1 log append time.
        timestamp_ms: the number in the log; -1: none.
        headers: in their order, names may come twice.
    """

    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Bounds(NamedTuple):
    """A partition's log as it was read: `start <= offset < end`; the end is its last stable offset."""

    start: int
    end: int


@dataclass(frozen=True)
class PlainTopic:
    """Every committed record of a topic, and the bounds of each partition's log that they were read in."""

    records: list[PlainRecord]
    bounds: dict[int, Bounds]


def read_topic(settings: Mapping[str, Any], topic: str) -> PlainTopic:
    """Every committed record that a topic holds now.

    Args:
        settings: how to reach the cluster, in librdkafka's own keys.
        topic: its name.

    Raises:
        DeadlinePassedError: nothing comes any more, and an end was not reached.
        KafkaException: a broker says no; the log's start moved on while it was read.
    """
    bounds = bounds_of(settings, topic)
    left = {number: each.end for number, each in bounds.items() if each.start < each.end}
    found: list[PlainRecord] = []
    own = {
        "group.id": f"plain-{topic}",  # the client wants one; with `assign` and no commits there is no group
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    with closing(Consumer({**settings, **own})) as consumer:
        consumer.assign([TopicPartition(topic, number, bounds[number].start) for number in left])

        def went_on() -> bool:
            first = consumer.poll(POLL_SECONDS)
            if first is None:
                return False
            for message in [first, *consumer.consume(AT_ONCE, 0)]:  # `consume` alone waits for as many as it may get
                _take(message, left, found)
            return True

        while left:
            eventually(went_on, within=Deadline.METADATA, what=f"records of {topic} below {left}")
    return PlainTopic(sorted(found, key=lambda record: record[:2]), bounds)


def bounds_of(settings: Mapping[str, Any], topic: str) -> dict[int, Bounds]:
    """The log start and the last stable offset of each partition of a topic."""
    admin = AdminClient(dict(settings))
    described = admin.list_topics(topic, timeout=Deadline.METADATA.seconds).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    asked = [TopicPartition(topic, number) for number in described.partitions]
    start, end = (_offsets(admin, asked, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
    return {number: Bounds(start[number], end[number]) for number in sorted(start)}


def _offsets(admin: AdminClient, asked: list[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    answers = admin.list_offsets(
        dict.fromkeys(asked, spec),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=Deadline.METADATA.seconds,
    )
    return {each.partition: answer.result().offset for each, answer in answers.items()}


def _take(message: Message, left: dict[int, int], found: list[PlainRecord]) -> None:
    """Take a record below the end of its partition, and see when that is reached: markers are no records."""
    number, offset = message.partition(), message.offset()
    if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if (end := left.get(number)) is None:
        return  # the log has grown meanwhile
    if error is None and offset < end:
        found.append(_record(message))
    if (offset if error is not None else offset + 1) >= end:
        del left[number]


def _record(message: Message) -> PlainRecord:
    kind, timestamp_ms = message.timestamp()  # 0 not available, 1 create time, 2 log append time
    headers = tuple((name, value) for name, value in message.headers() or ())
    place = (message.partition(), message.offset(), kind - 1, timestamp_ms if kind else NO_TIMESTAMP)
    return PlainRecord(*place, message.key(), message.value(), headers)
