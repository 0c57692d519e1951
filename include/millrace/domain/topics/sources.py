"""Records that a source program feeds into a topic, and how each is known again.

A source program yields its records in an order that never changes. A record's position in that order is its
sequence; the header `millrace-sequence` carries it, with the source's name, into the topic. Sequences are
committed in order, so what a topic holds of a source is always a beginning of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

SEQUENCE_HEADER = "millrace-sequence"
NO_TIMESTAMP = -1
"""Kafka's CreateTime of a record whose producer gave none."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One record as a source program wants it in the topic.

    `timestamp` is UTC-aware; None is written as CreateTime -1. The exact start of 1970 is refused, because
    librdkafka takes a timestamp of 0 for "now".
    """

    key: bytes | None
    value: bytes | None
    timestamp: datetime | None
    headers: tuple[tuple[str, bytes], ...] = ()

    def __post_init__(self) -> None:
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError(f"a source record's timestamp needs a time zone: {self.timestamp!r}")
        if self.timestamp_milliseconds == 0:
            raise ValueError("a source record cannot carry timestamp 0: librdkafka takes it for 'now'")

    @property
    def timestamp_milliseconds(self) -> int:
        """CreateTime in milliseconds since 1970; -1 where there is none."""
        if self.timestamp is None:
            return NO_TIMESTAMP
        return (self.timestamp - _EPOCH) // timedelta(milliseconds=1)

    @property
    def size_bytes(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One committed record as it lies in a topic; `timestamp_ms` is None where the producer gave none.

    `appended_at`: the timestamp is the broker's, of when it took the record.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    appended_at: bool = False

    def header(self, name: str) -> bytes | None:
        """The last header of this name; None where there is none."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


def sequence_header(source: str, sequence: int) -> tuple[str, bytes]:
    """The header that says which record of which source (PIPELINE.NAME) this is."""
    return SEQUENCE_HEADER, f"{source}/{sequence}".encode()


def sequence_of(source: str, headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """The sequence a record has in this source; None where it came from anywhere else."""
    prefix = f"{source}/".encode()
    for name, value in headers:
        if name == SEQUENCE_HEADER and value is not None and value.startswith(prefix):
            digits = value[len(prefix) :]
            if digits.isdigit():
                return int(digits)
    return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a topic already holds of a source.

    `next_sequence` is the first sequence that was never committed; `present` counts the records still there.
    They differ where the topic's retention has deleted some, which are not written again.
    """

    next_sequence: int = 0
    present: int = 0
    doubled: tuple[int, ...] = ()

    @property
    def expired(self) -> int:
        """Records that were written and are no longer in the topic."""
        return self.next_sequence - self.present


def loaded(sequences: Iterable[int]) -> Loaded:
    """What the sequences found in a topic say about how far its source is loaded."""
    seen: set[int] = set()
    doubled: set[int] = set()
    for sequence in sequences:
        (doubled if sequence in seen else seen).add(sequence)
    return Loaded(next_sequence=max(seen, default=-1) + 1, present=len(seen), doubled=tuple(sorted(doubled)))
