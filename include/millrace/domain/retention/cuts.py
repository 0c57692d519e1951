"""What a topic that keeps less would lose, and which declared readers have not read that yet.

Kafka deletes whole segments, so what is really deleted is at most what is said here, and usually less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from millrace.domain.declaration.pipeline import App, BackupApp, Start
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.groups.commits import CommitMetadata, Committed, PlannedMove, archived_to
from millrace.domain.retention.headroom import Limits
from millrace.domain.retention.settings import BrokerSettings, LogSettings
from millrace.domain.rewind.time_travel import PartitionTimes
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

KEYS = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
"""The topic settings whose change may delete records."""

_BEYOND = 2**63 - 1
_NAMED = 8  # partitions of a reader that are named
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogNow:
    """One partition's log before the cut.

    Attributes:
        partition: whose.
        start: its first offset.
        end: the offset after its last record that is replicated, open transactions or not.
        young: the first offset whose record is younger than the new limit of time; without one it does not matter.
        size_bytes: its size on disk; None where nobody could tell.
        samples: offsets, and what a record there weighs, in bytes; none: all weigh the same.
        oldest_ms: the timestamp of its first record, in milliseconds since 1970; None where that is not known.
    """

    partition: TopicPartition
    start: int
    end: int
    young: int = 0
    size_bytes: int | None = None
    samples: Sequence[tuple[int, float]] = ()
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """What a cut takes of one partition: the offsets `start <= offset < until`, about so many bytes."""

    partition: TopicPartition
    start: int
    until: int
    size_bytes: float | None = None

    @property
    def records(self) -> int:
        """Offsets that go; no more records than that."""
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """What keeping less takes of one topic, in the order of its partitions.

    `oldest` is when the oldest record that goes was written, None where that is not known or nothing goes.
    """

    topic: str
    partitions: tuple[PartitionCut, ...]
    oldest: datetime | None = None

    @property
    def records(self) -> int:
        """Offsets that go; no more records than that."""
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> float | None:
        """What goes weighs about that much on the leaders' disks; None where that is not known."""
        sizes = [each.size_bytes for each in self.partitions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def __str__(self) -> str:
        if not self.records:
            return f"{self.topic}: the new settings delete no present record"
        hit = sum(1 for each in self.partitions if each.records)
        size = "" if self.size_bytes is None else f", about {roughly_bytes(self.size_bytes)}"
        oldest = "" if self.oldest is None else f", the oldest of {self.oldest:%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"{self.topic}: deletes at most {_records(self.records)}{size} of {hit} of its {len(self.partitions)} "
            f"partitions{oldest}"
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """A declared app and where it stands.

    Attributes:
        app: the stream or backup.
        positions: the first offset it has not read of each partition; one that is missing has nothing to lose.
        uncommitted: whether its group's commits say nothing at all.
    """

    app: App
    positions: Mapping[TopicPartition, int]
    uncommitted: bool = False

    @property
    def what(self) -> str:
        """`stream PIPELINE.STREAM` or `backup PIPELINE.backup`."""
        return f"{'backup' if isinstance(self.app, BackupApp) else 'stream'} {self.app.qualified_name}"


@dataclass(frozen=True, slots=True)
class Loss:
    """What one reader has not read and a cut would take, one range a partition."""

    reader: Reader
    ranges: tuple[OffsetRange, ...]

    @property
    def records(self) -> int:
        """Offsets it would never see; no more records than that."""
        return sum(len(each) for each in self.ranges)

    def __str__(self) -> str:
        verb = "archived" if isinstance(self.reader.app, BackupApp) else "read"
        yet = f"that no commit of its group marks as {verb}" if self.reader.uncommitted else f"that it has not {verb}"
        more = f" and {len(self.ranges) - _NAMED} more" if len(self.ranges) > _NAMED else ""
        named = ", ".join(str(each) for each in self.ranges[:_NAMED])
        return f"{self.reader.what} would lose {_records(self.records)} {yet}: {named}{more}"


def narrowed(before: LogSettings, after: LogSettings) -> Limits | None:
    """The limits that bite sooner, or for the first time, after a change; None: none does.

    A log that begins to be compacted may lose any record, as one without a key or with one that came again: all of it
    counts. What one loses that was compacted before is no loss.
    """
    if after.compacts and not before.compacts:
        return Limits(timedelta(0), None)
    if not after.deletes:
        return None
    time = after.time if _less(after.time, before.time if before.deletes else None) else None
    size = after.size_bytes if _less(after.size_bytes, before.size_bytes if before.deletes else None) else None
    return None if time is None and size is None else Limits(time, size)


def young_from_ms(limit: timedelta, now: datetime, broker: BrokerSettings) -> int:
    """The timestamp from which on records outlive the next sweep, in milliseconds since 1970.

    Brokers look every `check_every` for what is too old, so what gets too old until then is counted too; with a very
    short limit what gets too old within half of it.
    """
    until_swept = min(broker.check_every, limit / 2)
    return max(0, (now - _EPOCH - limit + until_swept) // _MILLISECOND)


def first_young(times: PartitionTimes, time_ms: int) -> int:
    """The first offset whose record has this timestamp or a later one; beyond all offsets where none is known to have.

    Where a record below the log start hides it, the last one it can be. Behind an open transaction nobody tells.
    """
    bounds = times.bounds
    if times.at is not None:
        return min(max(times.at.offset, bounds.start), bounds.end)
    if times.latest is not None and times.latest.timestamp_ms >= time_ms:
        return max(times.latest.offset, bounds.start)
    return _BEYOND


def cut_of(topic: str, limits: Limits, logs: Iterable[LogNow]) -> Cut:
    """What these limits take of a topic that has no others.

    By time, all before the first record that is young enough. By size, all before the last `size_bytes` of the log, by
    what its records weigh where that was looked at; between two such places the heavier ones count, so that rather
    too many records are called taken.

    Does not guarantee: that as much goes, for Kafka deletes whole segments and keeps the one that a limit falls into.
    Where much heavier records lie between two places that were looked at, a limit of size may take more.
    """
    ordered = sorted(logs, key=lambda log: log.partition)
    partitions = []
    for log in ordered:
        until = max(_until(log, limits), log.start)
        partitions.append(PartitionCut(log.partition, log.start, until, _taken(log, until)))
    hit = (log for log, each in zip(ordered, partitions, strict=True) if each.records)
    oldest = min((log.oldest_ms for log in hit if log.oldest_ms is not None), default=None)
    return Cut(topic, tuple(partitions), None if oldest is None else _EPOCH + timedelta(milliseconds=oldest))


def losses(cuts: Iterable[Cut], readers: Iterable[Reader]) -> tuple[Loss, ...]:
    """What each reader has not read of what the cuts take, by the readers' names; without those that lose nothing.

    What was deleted before is no loss of these cuts.
    """
    taken = {each.partition: each for cut in cuts for each in cut.partitions if each.records}
    found = []
    for reader in sorted(readers, key=lambda reader: reader.app.qualified_name):
        ranges = tuple(
            OffsetRange(partition, max(position, taken[partition].start), taken[partition].until)
            for partition, position in sorted(reader.positions.items())
            if partition in taken and position < taken[partition].until
        )
        if ranges:
            found.append(Loss(reader, ranges))
    return tuple(found)


def reader_of(
    app: App, partitions: Collection[TopicPartition], commits: Mapping[tuple[str, int], Committed], *, has_run: bool
) -> Reader:
    """Where an app stands, by its group's commits.

    Of a stream the commit counts, whoever made it; without one everything is unread, unless it shall start at the
    latest record and has never run. Of a backup counts what its commits call archived. A commit for another
    incarnation of the topic does not count.

    Args:
        app: the stream or backup.
        partitions: all of the topics that it reads, as they are now.
        commits: its group's, by topic and number.
        has_run: whether the app has ever run, though its commits may have expired since.
    """
    if isinstance(app, BackupApp):
        archived = archived_to(partitions, commits)
        return Reader(app, archived, uncommitted=not any(archived.values()))
    known: dict[TopicPartition, int] = {}
    for partition in partitions:
        commit = commits.get((partition.topic, partition.partition))
        if commit is not None and _of_this_incarnation(commit, partition):
            known[partition] = commit.offset
    if not known and not has_run and app.start is Start.LATEST:
        return Reader(app, {}, uncommitted=True)
    return Reader(app, {partition: known.get(partition, 0) for partition in partitions}, uncommitted=not known)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _less(new: timedelta | int | None, old: timedelta | int | None) -> bool:
    return new is not None and (old is None or new < old)  # type: ignore[operator]


def _of_this_incarnation(commit: Committed, partition: TopicPartition) -> bool:
    ours = CommitMetadata.decode(commit.metadata) or PlannedMove.decode(commit.metadata)
    return ours is None or ours.topic_id == partition.topic_id


def _until(log: LogNow, limits: Limits) -> int:
    by_time = log.start if limits.time is None else min(log.young, log.end)
    return by_time if limits.size_bytes is None else max(by_time, _kept_from(log, limits.size_bytes))


def _kept_from(log: LogNow, limit_bytes: int) -> int:
    """The first offset of the last so many bytes, or a later one; where nobody knows the size, the end: all may go."""
    if log.size_bytes is None:
        return log.end
    if log.size_bytes <= limit_bytes:
        return log.start
    slices = list(_slices(log))
    scale = log.size_bytes / sum(each.lightest * each.length for each in slices)
    left = float(limit_bytes)
    for each in reversed(slices):
        heavy = each.heaviest * scale
        if left < heavy * each.length:
            return each.next - int(left / heavy)
        left -= heavy * each.length
    return log.start


def _taken(log: LogNow, until: int) -> float | None:
    """What the offsets before one weigh on disk, about."""
    if log.size_bytes is None or until <= log.start:
        return None if log.size_bytes is None else 0.0
    total = taken = 0.0
    for each in _slices(log):
        total += each.middling * each.length
        taken += each.middling * max(0, min(each.next, until) - each.first)
    return log.size_bytes * taken / total


@dataclass(frozen=True, slots=True)
class _Slice:
    """Offsets `first <= offset < next` between two samples, and the weights of these."""

    first: int
    next: int
    lightest: float
    heaviest: float

    @property
    def length(self) -> int:
        return self.next - self.first

    @property
    def middling(self) -> float:
        return (self.lightest + self.heaviest) / 2


def _slices(log: LogNow) -> Iterator[_Slice]:
    """A log that is not empty, in parts from one sample to the next."""
    samples = sorted(sample for sample in log.samples if log.start <= sample[0] < log.end and sample[1] > 0)
    first, last = (samples[0][1], samples[-1][1]) if samples else (1.0, 1.0)
    for (at, one), (following, other) in pairwise([(log.start, first), *samples, (log.end, last)]):
        if at < following:
            yield _Slice(at, following, min(one, other), max(one, other))
