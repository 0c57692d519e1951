"""How long what a reader has not read yet stays in its topic: from retention, age and rate.

A bound from below: Kafka drops whole segments, and one of them is kept for as long as its youngest record. What
compaction takes is no loss, so it does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from millrace.domain.topics.offsets import TopicPartition

LEAST_HEADROOM = timedelta(minutes=15)
_NO_TIMESTAMP = -1


class Rule(StrEnum):
    """Which of a topic's limits is met first."""

    TIME = "time"  # retention.ms
    SIZE = "size"  # retention.bytes
    COMPACTION = "compaction"  # min.cleanable.dirty.ratio
    TOMBSTONES = "tombstones"  # delete.retention.ms


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much of a partition a topic keeps; None: without limit."""

    time: timedelta | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """What of one partition a reader has not read.

    Attributes:
        partition: whose.
        first: its first offset.
        first_ms: that record's timestamp, in milliseconds since 1970; None where nobody knows it.
        bytes: what it takes in the log, about.
        bytes_per_second: how fast it grows, about.
    """

    partition: TopicPartition
    first: int
    first_ms: int | None
    bytes: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """An unread record that may be deleted after this time, and by which limit; zero: at any moment."""

    unread: Unread
    left: timedelta
    rule: Rule


def headroom(unread: Unread, limits: Limits, now_ms: int) -> Headroom | None:
    """When the first unread record of a partition may be deleted; None: never, by what is known.

    Args:
        unread: what was not read.
        limits: of its topic.
        now_ms: the present, in milliseconds since 1970.
    """
    found = []
    if limits.time is not None and unread.first_ms is not None and unread.first_ms != _NO_TIMESTAMP:
        kept_ms = limits.time // timedelta(milliseconds=1)
        found.append(Headroom(unread, _at_least_zero((unread.first_ms + kept_ms - now_ms) / 1000), Rule.TIME))
    if limits.size_bytes is not None:
        room = limits.size_bytes - unread.bytes
        if room <= 0:
            found.append(Headroom(unread, timedelta(0), Rule.SIZE))
        elif unread.bytes_per_second > 0:
            found.append(Headroom(unread, _at_least_zero(room / unread.bytes_per_second), Rule.SIZE))
    return least(found)


class Danger(StrEnum):
    """How near it is that an unread record may be deleted."""

    NONE = "none"
    WARNING = "warning"
    ALARM = "alarm"


def danger(left: timedelta, window: timedelta | None) -> Danger:
    """A warning below a quarter of the time that a topic keeps; an alarm below a tenth of it, or a quarter of an hour.

    Where half of that time is less than a quarter of an hour, half of it counts, so that a short retention is no alarm
    by itself.

    Args:
        left: until the record may be deleted.
        window: how long the topic keeps, by the rule that is met first; None: nobody knows.
    """
    if left <= timedelta(0):
        return Danger.ALARM
    if window is None:
        return Danger.ALARM if left < LEAST_HEADROOM else Danger.NONE
    if left < max(window / 10, min(LEAST_HEADROOM, window / 2)):
        return Danger.ALARM
    return Danger.WARNING if left < window / 4 else Danger.NONE


def least(found: Iterable[Headroom]) -> Headroom | None:
    """The one whose time is over first."""
    return min(found, key=lambda one: (one.left, one.unread.partition), default=None)


def _at_least_zero(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(0.0, seconds), timedelta.max.total_seconds() - 1))
