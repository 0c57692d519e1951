"""Records of an archive on their way back into a topic: how each is known again there, and where it goes.

Every record gets headers behind its own that say where it came from, so the target itself says how far a restore has
come. Each partition of the archive is written in the order of its offsets and goes on behind its last committed record;
so what lies in a target is always a beginning of what was asked for, partition by partition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord, Headers, content_hash
from millrace.domain.archive.selection import NO_TIMESTAMP, Selection
from millrace.domain.topics.sources import TopicRecord

MARKS = tuple(
    f"millrace.restored.{name}"
    for name in ("topic", "topic_id", "partition", "offset", "timestamp_ms", "timestamp_type", "selection")
)
"""The headers that a restored record has behind its own, in this order."""

_SELECTION_DIGITS = 16
_MOST_DIGITS = 19  # of an offset
_MODULUS = 1 << 256
_SEED, _MULTIPLIER, _WORD = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


class Placement(StrEnum):
    """Into which partition of the target a record goes."""

    SAME = "same"  # that of the same number, in a topic that has as many
    KEEP = "keep"  # that of the same number, in a topic that may have more
    KEY = "key"  # the one that Kafka's own partitioner chooses for its key


def place(placement: Placement, partition: int, key: bytes | None, partitions: int) -> int:
    """The target's partition for a record; without a key its own number modulo the target's `partitions`."""
    if placement is not Placement.KEY:
        return partition
    return partition % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients choose a key's partition, as an unsigned number.

    Source: org.apache.kafka.common.utils.Utils#murmur2.
    """
    found, whole = _SEED ^ len(data), len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        found = found * _MULTIPLIER & _WORD ^ word
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _WORD
    found = (found ^ found >> 13) * _MULTIPLIER & _WORD
    return found ^ found >> 15


def selection_id(selection: Selection, placement: Placement, partitions: int) -> str:
    """A short name of what is asked for and of where it goes: two restores that write otherwise have two.

    Args:
        selection: which records.
        placement: where they go; whether the target may have more partitions changes nothing of that.
        partitions: of the target, of which a placement by key depends.
    """
    said = {
        "partition": selection.partition,
        "offsets": [selection.first, selection.next],
        "times": [selection.from_ms, selection.to_ms],
        "key": None if selection.key is None else selection.key.hex(),
        "place": f"key of {partitions}" if placement is Placement.KEY else "number",
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:_SELECTION_DIGITS]


class Restored(NamedTuple):
    """One record as it is written into a partition of the target."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and headers, before they are compressed; characters of headers' names count as one."""
        within = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + within


class Marker:
    """Marks records of one incarnation and one selection, and knows them again.

    Args:
        source: whose archive they come from.
        selection: the name of what was asked for.
    """

    def __init__(self, source: Incarnation, selection: str) -> None:
        self._topic = (MARKS[0], source.topic.encode())
        self._topic_id = (MARKS[1], source.topic_id.encode())
        self._selection = (MARKS[6], selection.encode())

    def marked(self, partition: int, record: ArchivedRecord) -> Headers:
        """A record's headers as the target gets them: its own, then where it came from."""
        return (
            *record.headers,
            self._topic,
            self._topic_id,
            (MARKS[2], b"%d" % partition),
            (MARKS[3], b"%d" % record.offset),
            (MARKS[4], b"%d" % record.timestamp_ms),
            (MARKS[5], record.timestamp_type.name.lower().encode()),
            self._selection,
        )

    def place_of(self, headers: Headers) -> tuple[int, int] | None:
        """Partition and offset in the archive of a record that this restore has written; None of any other."""
        marks = headers[-len(MARKS) :]
        if tuple(name for name, _ in marks) != MARKS:
            return None
        if (marks[0], marks[1], marks[6]) != (self._topic, self._topic_id, self._selection):
            return None
        partition, offset = _number(marks[2][1]), _number(marks[3][1])
        return None if partition is None or offset is None else (partition, offset)


def is_restored(headers: Headers) -> bool:
    """Whether a record was written by a restore, of whatever."""
    return tuple(name for name, _ in headers[-len(MARKS) :]) == MARKS


def incarnation_of(headers: Headers) -> Incarnation | None:
    """Whose archive a restored record says that it comes from; None of any other record."""
    if not is_restored(headers):
        return None
    (_, topic), (_, topic_id) = headers[-len(MARKS) :][:2]
    try:
        return Incarnation((topic or b"").decode(), (topic_id or b"").decode())
    except ValueError:
        return None


def content_of(record: TopicRecord) -> bytes:
    """The hash of a restored record's content as it was before it was marked."""
    at = NO_TIMESTAMP if record.timestamp_ms is None else record.timestamp_ms
    return content_hash(at, record.key, record.value, record.headers[: -len(MARKS)])


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and len(text) <= _MOST_DIGITS and text.isdigit() else None


@dataclass(slots=True)
class PartitionTally:
    """Records of one partition of an archive, added up.

    Attributes:
        records: how many.
        content: the sum of their contents' hashes.
        last: the greatest offset; -1 of none.
        misplaced: how many lie behind one of a greater offset, or of the same.
    """

    records: int = 0
    content: int = 0
    last: int = -1
    misplaced: int = 0


@dataclass(slots=True)
class Tally:
    """Records added up by the partition of the archive that they come from: memory is for the partitions alone."""

    partitions: dict[int, PartitionTally] = field(default_factory=dict)
    _lanes: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, partition: int, offset: int, content: bytes, lane: int = 0) -> None:
        """Count one record.

        Args:
            partition: its partition in the archive.
            offset: its offset there.
            content: the hash of its content.
            lane: the log in which it was found; in each of them offsets of a partition have to rise.
        """
        tally = self.partitions.get(partition)
        if tally is None:
            tally = self.partitions[partition] = PartitionTally()
        tally.records += 1
        tally.content += int.from_bytes(content, "big")
        tally.misplaced += offset <= self._lanes.get((partition, lane), -1)
        self._lanes[partition, lane] = offset
        tally.last = max(tally.last, offset)

    def last(self, partition: int) -> int:
        """The greatest offset of a partition; -1 where there is none."""
        tally = self.partitions.get(partition)
        return -1 if tally is None else tally.last

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(tally.records for tally in self.partitions.values())


def differences(archived: Tally, found: Tally) -> Iterator[str]:
    """How a target's records of one restore differ from those of the archive; nothing where they are the same."""
    for number in sorted(archived.partitions.keys() | found.partitions.keys()):
        meant, there = (tally.partitions.get(number) or PartitionTally() for tally in (archived, found))
        if meant.records != there.records:
            yield f"of partition {number} the target has {there.records} records, the archive {meant.records}"
        elif (meant.content - there.content) % _MODULUS:
            yield f"of partition {number} the target has other records than the archive"
        if there.misplaced:
            yield f"of partition {number} {there.misplaced} records lie in the target twice, or out of order"
