"""What a commit of ours says about itself, so that a commit by anybody else is told apart.

The stock tools leave a commit's metadata empty; copying tools keep it, and then the offset in it tells whether
it still belongs to the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from millrace.domain.topics.offsets import TopicPartition

METADATA_VERSION = 1
_LARGEST = 2**62  # what the databases hold, with room for one more
_LARGEST_PART_BYTES = 512 * 1024
_BYTES_BESIDE_TEXTS = 100  # of one commit in the coordinator's log: numbers, times, the topic's id, the record's frame


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata of one partition's commit.

    `offset` repeats the committed offset, which is the end of the batch that was committed.
    """

    stream: str
    topic_id: str
    timeline: int
    epoch: int
    offset: int

    def encode(self) -> str:
        """Compact JSON, well under the broker's default limit of 4,096 bytes."""
        return json.dumps({"millrace": METADATA_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> CommitMetadata | None:
        """The metadata in a commit, or None where it is not ours to read."""
        try:
            document = json.loads(text or "")
            if document.pop("millrace") != METADATA_VERSION:
                return None
            found = cls(**document)
            numbers = (found.timeline, found.epoch, found.offset)
            sound = all(type(number) is int and 0 <= number <= _LARGEST for number in numbers)
            return found if sound else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of one partition, with what its committer wrote beside it."""

    offset: int
    metadata: str = ""


def stream_commits(
    stream: str, epoch: int, timeline: int, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Committed]:
    """What a stream's driver commits of each partition: the next offset to read, and whose commit it is."""
    return {
        partition: Committed(offset, CommitMetadata(stream, partition.topic_id, timeline, epoch, offset).encode())
        for partition, offset in positions.items()
    }


def in_parts(group: str, commits: Mapping[TopicPartition, Committed]) -> Iterator[dict[TopicPartition, Committed]]:
    """The same commits, in parts that a coordinator takes one by one.

    It writes each request as one batch of `__consumer_offsets`, which holds 1 MiB by default, and answers a larger one
    with an error that names nothing.
    """
    part: dict[TopicPartition, Committed] = {}
    size_bytes = 0
    for partition, entry in commits.items():
        more = len(group) + len(partition.topic) + len(entry.metadata.encode()) + _BYTES_BESIDE_TEXTS
        if part and size_bytes + more > _LARGEST_PART_BYTES:
            yield part
            part, size_bytes = {}, 0
        part[partition] = entry
        size_bytes += more
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The metadata of a commit by which a plan moved a stopped stream: whose it is, and from which timeline.

    A Millrace that does not know it takes the commit for a move by somebody.
    """

    stream: str
    topic_id: str
    plan: str
    timeline: int  # the newest one when it was moved: the move opens the next
    offset: int

    def encode(self) -> str:
        """Compact JSON, as of our other commits."""
        return json.dumps({"millrace_move": METADATA_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> PlannedMove | None:
        """The move in a commit's metadata, or None where there is none that is ours to read."""
        try:
            document = json.loads(text or "")
            if document.pop("millrace_move") != METADATA_VERSION:
                return None
            found = cls(**document)
            sound = all(type(number) is int and 0 <= number <= _LARGEST for number in (found.timeline, found.offset))
            return found if sound else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class BackupMetadata:
    """The metadata of one partition's commit by the app that keeps a backup: up to where the chain is known to go.

    `sequence` and `sha256` are of the chain's last manifest when it was committed: a chain that ends earlier was cut
    off. `offset` repeats the committed offset.
    """

    app: str
    topic_id: str
    epoch: int
    offset: int
    sequence: int
    sha256: str

    def encode(self) -> str:
        """Compact JSON, as of our other commits."""
        return json.dumps({"millrace_backup": METADATA_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> BackupMetadata | None:
        """The metadata in a commit, or None where it is not of a backup."""
        try:
            document = json.loads(text or "")
            if document.pop("millrace_backup") != METADATA_VERSION:
                return None
            found = cls(**document)
            numbers = (found.epoch, found.offset, found.sequence)
            sound = all(type(number) is int and 0 <= number <= _LARGEST for number in numbers)
            return found if sound and isinstance(found.sha256, str) else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def archived_to(
    partitions: Iterable[TopicPartition], commits: Mapping[tuple[str, int], Committed]
) -> dict[TopicPartition, int]:
    """How far a backup's commits say that partitions are archived; 0 of those that it says nothing of.

    Args:
        partitions: of the topics as they are now: what was committed for a topic that is gone does not count.
        commits: the group's, by topic and number.
    """
    found = {}
    for partition in partitions:
        commit = commits.get((partition.topic, partition.partition))
        said = BackupMetadata.decode(commit.metadata) if commit else None
        found[partition] = said.offset if said is not None and said.topic_id == partition.topic_id else 0
    return found
