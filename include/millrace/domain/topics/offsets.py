"""Offsets: half-open ranges, the record of work, and how a batch meets it.

Exactly-once is kept by offset range, not by batch id. A batch says which range of each partition it holds;
the sink's record of work says how far that partition is done; `classify` says what to do with the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of one incarnation of a topic: `topic_id` is Kafka's own id, in its 22-character text form."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class SourceAt:
    """Where an input record lies: the source of its output rows."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


# A row's source, as a key: topic id, partition, offset.
Source = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first <= offset < next` of one partition. Empty where both are equal."""

    partition: TopicPartition
    first: int
    next: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.next:
            raise ValueError(f"not a half-open offset range: [{self.first}, {self.next}) of {self.partition}")

    def __len__(self) -> int:
        return self.next - self.first

    def __str__(self) -> str:
        return f"{self.partition}[{self.first}, {self.next})"


class Meeting(StrEnum):
    """How a batch's range meets the record of work."""

    APPLY = "apply"  # starts exactly where the record ends
    SKIP = "skip"  # was done before, wholly
    TRIM = "trim"  # was done before in part: drop the rows below the record
    GAP = "gap"  # starts behind the record's end: offsets between them would be lost


def classify(batch: OffsetRange, stored_next: int) -> Meeting:
    """How a batch's range meets the next offset on record.

    Args:
        batch: the offsets the batch holds.
        stored_next: the next offset to do, from the sink's record of work.
    """
    if batch.first > stored_next:
        return Meeting.GAP
    if batch.next <= stored_next:
        return Meeting.SKIP if batch.first < stored_next else Meeting.APPLY
    return Meeting.APPLY if batch.first == stored_next else Meeting.TRIM
