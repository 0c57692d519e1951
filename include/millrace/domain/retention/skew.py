"""How unevenly a topic's records lie in its partitions, and which keys make the fullest one full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from millrace.domain.archive.restore.records import Placement, place
from millrace.domain.groups.snapshots import LogSeen, TopicSeen

SAMPLED = 20_000
TOP_KEYS = 10
MOST_SAMPLED_BYTES = 256 * 1024**2
"""How much of a log is read for a sample at most, about: fewer records where they are large."""

_KEYS_HASHED = 5_000
_BYTES_HASHED = 4 * 1024**2  # some seconds' work
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What one partition holds.

    Attributes:
        partition: its number.
        records: its end less its start: at most so many records, since markers of transactions and what compaction took
            have offsets too; None where its leader did not answer.
        size_bytes: of the leader's replica on disk; None where that is not known.
    """

    partition: int
    records: int | None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class KeyCount:
    """How many records of a sample have one key.

    Attributes:
        key: the key as it is shown: its text, or hexadecimal digits where that is no printable UTF-8.
        is_text: whether it is text.
        is_cut: whether it is the beginning of a longer key.
        size_bytes: of the whole key.
        records: how many have it.
    """

    key: str
    is_text: bool
    is_cut: bool
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The keys of the newest committed records of a partition.

    Attributes:
        partition: which.
        first: the first offset that was read.
        next: the offset after the last.
        records: how many committed records are there.
        without_key: how many of them have none.
        keys: how many different keys they have.
        top: the most frequent keys, those first that have more records.
        hashed: how many different keys were hashed, the most frequent ones first.
        elsewhere: how many of these murmur2 would put into another partition; None where there is but one partition.
    """

    partition: int
    first: int
    next: int
    records: int
    without_key: int
    keys: int
    top: tuple[KeyCount, ...]
    hashed: int
    elsewhere: int | None

    @property
    def by_murmur2(self) -> bool | None:
        """Whether the keys are partitioned by murmur2, as Kafka's own clients do; None where that cannot be told."""
        return None if self.elsewhere is None or not self.hashed else self.elsewhere == 0


@dataclass(frozen=True, slots=True)
class Load:
    """What each partition of a topic holds, by number."""

    partitions: tuple[PartitionLoad, ...]

    @property
    def records(self) -> int:
        """The records of all partitions whose leader answered."""
        return sum(each.records or 0 for each in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """The bytes of all partitions; None where those of one are not known."""
        sizes = [each.size_bytes for each in self.partitions if each.size_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.partitions) else None

    @property
    def mean(self) -> float:
        """The records of a partition where they were all alike."""
        known = sum(1 for each in self.partitions if each.records is not None)
        return self.records / known if known else 0.0

    @property
    def unknown(self) -> tuple[int, ...]:
        """The partitions whose leader did not answer."""
        return tuple(each.partition for each in self.partitions if each.records is None)

    @property
    def hottest(self) -> PartitionLoad | None:
        """The partition with most records; None where there is none at all."""
        held = [each for each in self.partitions if each.records]
        return max(held, key=lambda each: (each.records or 0, -each.partition), default=None)

    def share(self, load: PartitionLoad) -> float | None:
        """Which part of all records a partition holds, from 0 to 1; None where that is not known."""
        return None if load.records is None or not self.records else load.records / self.records

    def against_mean(self, load: PartitionLoad) -> float | None:
        """How many times the mean a partition holds; None where that is not known."""
        return None if load.records is None or not self.mean else load.records / self.mean


def load_of(topic: TopicSeen) -> Load:
    """What each partition holds, as the brokers say it."""
    logs: Sequence[LogSeen | None] = topic.logs
    return Load(
        tuple(
            PartitionLoad(number, None if log is None else max(0, log.end - log.start), log.size_bytes if log else None)
            for number, log in enumerate(logs)
        )
    )


def newest(log: LogSeen, records: int) -> tuple[int, int]:
    """Which offsets are read for a sample: the first, and the one after the last.

    Args:
        log: the partition's log. What lies behind its last stable offset is not committed yet, and is left out.
        records: how many at most; fewer where they are known to be large.
    """
    if log.size_bytes and log.end > log.start:
        mean_bytes = log.size_bytes / (log.end - log.start)
        records = max(1, min(records, int(MOST_SAMPLED_BYTES / mean_bytes)))
    end = min(log.stable, log.end)
    return min(max(log.start, end - records), end), end


def sample_of(partition: int, bounds: tuple[int, int], keys: Iterable[bytes | None], partitions: int) -> Sample:
    """What the keys of a partition's newest records say.

    Args:
        partition: its number.
        bounds: the first offset that was read and the one after the last.
        keys: of each committed record between them.
        partitions: how many the topic has.
    """
    counts = Counter(keys)
    without = counts.pop(None, 0)
    named = {key: count for key, count in counts.items() if key is not None}
    ordered = nsmallest(_KEYS_HASHED, named.items(), key=lambda item: (-item[1], item[0]))
    hashed, elsewhere = _hashed([key for key, _ in ordered], partition, partitions)
    return Sample(
        partition=partition,
        first=bounds[0],
        next=bounds[1],
        records=without + sum(named.values()),
        without_key=without,
        keys=len(named),
        top=tuple(_counted(key, count) for key, count in ordered[:TOP_KEYS]),
        hashed=hashed,
        elsewhere=elsewhere if partitions > 1 else None,
    )


def _hashed(keys: Sequence[bytes], partition: int, partitions: int) -> tuple[int, int]:
    """How many keys were hashed, and how many of them belong into another partition."""
    hashed = elsewhere = size = 0
    for key in keys:
        if (size := size + len(key)) > _BYTES_HASHED:
            break
        hashed += 1
        elsewhere += place(Placement.KEY, partition, key, partitions) != partition
    return hashed, elsewhere


def _counted(key: bytes, records: int) -> KeyCount:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    is_text = text.isprintable() and bool(text or not key)
    whole = text if is_text else key.hex()
    shown = whole[:_SHOWN_CHARACTERS]
    return KeyCount(shown, is_text, len(shown) < len(whole), len(key), records)
