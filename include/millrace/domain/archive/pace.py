"""When what waits in a log is archived, and how much of it at once.

An object costs a request and a name for as long as it is kept, so small ones wait: until they are not small any more,
or until their first record is half as old as it may become. Bytes are those of keys, values and headers as they are
in memory; an object of them is smaller by what compression gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millrace.domain.declaration.pipeline import Backup
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

LEAST_OBJECT_BYTES = 8 << 20
MOST_OBJECT_BYTES = 64 << 20
MOST_HOLES = 20_000  # of one object: each takes some 18 bytes of its manifest
READ_BYTES = 4 * MOST_OBJECT_BYTES  # of one partition in one round: what a crash makes be read again
ROUND_BYTES = 16 * MOST_OBJECT_BYTES
UNWEIGHED_OFFSETS = 20_000  # what is read at once of a partition of which nothing was weighed yet
ROUND_READS = 200  # partitions in one round: all of it is lost with the app
LONGEST_REST = timedelta(seconds=10)
SHORTEST_REST = timedelta(seconds=1)
_LOOKS_IN_EVERY = 6


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of one partition is in the log and not in the archive.

    Attributes:
        range: these offsets; not empty.
        since: its first record came at this moment or later.
        offset_bytes: what an offset weighed on average when some were read; None where none was.
        written_at: when the last object of the partition was written; None where that is not known.
    """

    range: OffsetRange
    since: datetime
    offset_bytes: float | None = None
    written_at: datetime | None = None

    @property
    def bytes(self) -> float | None:
        """What it weighs, as far as that can be guessed."""
        return None if self.offset_bytes is None else self.offset_bytes * len(self.range)


@dataclass(frozen=True, slots=True)
class Read:
    """What is read next of one partition. `whole`: to the end of what waits; otherwise more waits behind it."""

    range: OffsetRange
    whole: bool = True

    @property
    def partition(self) -> TopicPartition:
        """Whose offsets they are."""
        return self.range.partition


def due(waiting: Sequence[Waiting], backups: Mapping[str, Backup], now: datetime) -> tuple[list[Read], bool]:
    """What is to be read now; and whether more is due then, at once.

    Of one partition it is about `READ_BYTES` at most, and of all together about `ROUND_BYTES`. Whose last object is
    oldest comes first: a backlog takes turns with what is behind it, however old that backlog is.

    Args:
        waiting: what is not archived, a partition each.
        backups: what each topic declares.
        now: the present, by the clock that `since` and `written_at` are of.

    Returns:
        a range a partition, each from where its archive ends.
    """
    reads: list[Read] = []
    left = float(ROUND_BYTES)
    entries = [entry for entry in waiting if _is_due(entry, backups[entry.range.partition.topic], now)]
    for entry in sorted(entries, key=_turn):
        offsets = len(entry.range)
        most = UNWEIGHED_OFFSETS if entry.offset_bytes is None else int(READ_BYTES / max(entry.offset_bytes, 1))
        taken = min(offsets, max(most, 1))
        first = entry.range.first
        reads.append(Read(OffsetRange(entry.range.partition, first, first + taken), whole=taken == offsets))
        left -= taken * (entry.offset_bytes or READ_BYTES / UNWEIGHED_OFFSETS)
        if left <= 0 or len(reads) >= ROUND_READS:
            break
    return reads, len(reads) < len(entries) or any(not read.whole for read in reads)


def _turn(entry: Waiting) -> tuple[datetime, datetime, TopicPartition]:
    return entry.written_at or datetime.min.replace(tzinfo=UTC), entry.since, entry.range.partition


def _is_due(entry: Waiting, backup: Backup, now: datetime) -> bool:
    known = entry.bytes
    if known is not None and known >= MOST_OBJECT_BYTES:
        return True  # a full one is never too early
    if entry.written_at is not None and now < entry.written_at + backup.every:
        return False
    large = known is None or known >= LEAST_OBJECT_BYTES
    return large or now >= entry.since + backup.max_lag / 2


def rest(backups: Sequence[Backup]) -> timedelta:
    """How long to wait between two looks at the logs, where nothing is left to do."""
    every = min(backup.every for backup in backups)
    return min(LONGEST_REST, max(SHORTEST_REST, every / _LOOKS_IN_EVERY))
