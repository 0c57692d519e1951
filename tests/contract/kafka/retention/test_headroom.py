"""How long unread records stay, asked of a real broker."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from millrace.domain.retention.headroom import Headroom, Rule
from millrace.embedded.stack import Stack
from support.archive.tees import Topics

HOUR_MS = 3_600_000


def now_ms() -> int:
    """Of the test, not of its module: between the two there may be more than the minutes that a rate is taken over."""
    return time.time_ns() // 1_000_000


@pytest.fixture
def topics(kafka: Stack) -> Topics:
    return Topics(kafka)


def least(topics: Topics, *names: str, at: int = 0) -> Headroom | None:
    partitions = topics.platform.kafka.logs().partitions(names)
    return topics.platform.kafka.unread().least(dict.fromkeys(partitions, at))


def test_the_oldest_unread_record_counts_and_what_is_read_does_not(topics: Topics) -> None:
    name = topics.make(partitions=2, retention_ms=str(10 * HOUR_MS))
    for partition, age in ((0, 9 * HOUR_MS), (0, 1 * HOUR_MS), (1, 4 * HOUR_MS)):
        topics.produce(name, partition, [b"x"], timestamp=now_ms() - age)
    found = least(topics, name)
    assert found is not None
    assert (found.unread.partition.partition, found.unread.first, found.rule) == (0, 0, Rule.TIME)
    assert timedelta(minutes=50) < found.left <= timedelta(hours=1)
    rest = least(topics, name, at=1)
    assert rest is not None
    assert (rest.unread.first, rest.left > timedelta(hours=8)) == (1, True)
    assert least(topics, name, at=2) is None


def test_a_size_is_met_as_fast_as_records_come(topics: Topics) -> None:
    name = topics.make(partitions=1, retention_ms="-1", retention_bytes="1000000")
    topics.produce(name, 0, [b"x" * 968] * 400, timestamp=now_ms())  # a thousand bytes each, in ten minutes
    found = least(topics, name)
    assert found is not None
    assert (found.rule, found.unread.bytes) == (Rule.SIZE, 400_000)
    assert found.left == timedelta(seconds=900)
    topics.produce(name, 0, [b"x" * 968] * 700, timestamp=now_ms())
    full = least(topics, name)
    assert full is not None
    assert full.left == timedelta(0)


def test_topics_without_limits_compacted_ones_and_empty_ones_lose_nothing(topics: Topics) -> None:
    kept = topics.make("kept", partitions=1, retention_ms="-1")
    compacted = topics.make("compacted", partitions=1, cleanup_policy="compact", retention_ms="1000")
    empty = topics.make("empty", partitions=1, retention_ms="1000")
    for name in (kept, compacted):
        topics.produce(name, 0, [b"x"], key=b"k", timestamp=now_ms())
    assert least(topics, kept, compacted, empty, topics.name("not_there")) is None
