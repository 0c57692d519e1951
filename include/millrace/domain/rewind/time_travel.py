"""Back in time: which offset a time means on each partition, and what of a stream a rewind there would move.

Pure: adapters say what the brokers answered, use cases do what is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millrace.domain.streams.position import LogBounds, WorkRecord
from millrace.domain.topics.offsets import TopicPartition

EARLIEST = "earliest"


class Quality(StrEnum):
    """How good an answer a partition gives to a time."""

    EXACT = "exact"
    BEFORE_LOG_START = "before-log-start"  # the log begins later: what lay between has expired
    AFTER_END = "after-end"  # no record is that late
    EMPTY = "empty"  # it holds no record
    NO_LEADER = "no-leader"  # no broker answers for it


class Policy(StrEnum):
    """What to do with a partition whose log begins after the time."""

    FAIL = "fail"
    EARLIEST = "earliest"


@dataclass(frozen=True, slots=True)
class RecordAt:
    """Where a record lies and its timestamp, in milliseconds since 1970."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """What the brokers say of one partition, for a reader of committed records.

    Attributes:
        at: the first record with a timestamp at or after the time. None: there is none, or there was one below the log
            start whose segment is still there, which may hide later ones (tried on Kafka 4.3 after DeleteRecords).
        first: where there is an `at`: the first record that is held. None: not asked for, or hidden in the same way.
        latest: where there is no `at`: the record with the greatest timestamp, wherever it lies.
    """

    bounds: LogBounds
    at: RecordAt | None
    first: RecordAt | None = None
    latest: RecordAt | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The offset that a time means on a partition: where a reader that wants everything from then on begins.

    `offset` is None where the partition has no such record; before the log start it is the first record's, and `late`
    is by how much the log begins after the time.
    """

    quality: Quality
    offset: int | None = None
    late: timedelta = timedelta()


def resolve(time_ms: int, seen: PartitionTimes | None) -> Resolved:
    """What a time means on one partition.

    A log that begins at offset 0 has lost nothing, so that its first record answers any earlier time exactly. Of a log
    that begins later nobody can tell whether records at or after the time have expired, where the first one that is
    left is not before it, or cannot be told.

    Does not guarantee: that the offset is a record's. The broker counts aborted records and the markers of transactions
    too, which bear the time of their end: the offset may then lie before the record that is meant, never after it.

    Args:
        time_ms: milliseconds since 1970.
        seen: what the partition's leader said; None: it has none.
    """
    if seen is None:
        return Resolved(Quality.NO_LEADER)
    bounds, at, first = seen.bounds, seen.at, seen.first
    if bounds.start >= bounds.end or (at is None and seen.latest is None):
        return Resolved(Quality.EMPTY)
    if at is None:
        hidden = bounds.start > 0 and seen.latest is not None and seen.latest.timestamp_ms >= time_ms
        return Resolved(Quality.BEFORE_LOG_START, bounds.start) if hidden else Resolved(Quality.AFTER_END)
    if at.offset >= bounds.end:
        return Resolved(Quality.AFTER_END)
    if at.offset < bounds.start or (bounds.start > 0 and (first is None or at.offset <= first.offset)):
        late = timedelta(milliseconds=max(0, first.timestamp_ms - time_ms) if first else 0)
        return Resolved(Quality.BEFORE_LOG_START, max(at.offset, bounds.start), late)
    return Resolved(Quality.EXACT, at.offset)


def resolve_offset(offset: int, bounds: LogBounds | None) -> Resolved:
    """What a given offset means on one partition; `late` is not known for one before the log start."""
    if bounds is None:
        return Resolved(Quality.NO_LEADER)
    if offset > bounds.end:
        return Resolved(Quality.AFTER_END)
    if offset < bounds.start:
        return Resolved(Quality.BEFORE_LOG_START, bounds.start)
    return Resolved(Quality.EXACT, offset)


@dataclass(frozen=True, slots=True)
class Move:
    """One partition of a stream that is to be rewound: where its work stands, and where it shall begin again.

    `target` equals `now` where the partition keeps its position.
    """

    partition: TopicPartition
    now: int
    target: int
    quality: Quality
    late: timedelta = timedelta()

    @property
    def records(self) -> int:
        """Offsets to read again; no more records than that."""
        return self.now - self.target


@dataclass(frozen=True, slots=True)
class Moves:
    """A stream's moves by partition, and why they may not be made; one sentence for each reason."""

    moves: tuple[Move, ...]
    refusals: tuple[str, ...] = ()


def moves_of(record: WorkRecord, resolved: Mapping[TopicPartition, Resolved], policy: Policy) -> Moves:
    """What a rewind moves.

    Args:
        record: the sink's record of work.
        resolved: every partition that the stream's topics have now, with what the wish means there.
        policy: what to do with partitions whose log begins too late.

    Returns:
        A move for each partition with work on record. One without is read from its beginning by the next start, rewound
        or not.
    """
    moves: list[Move] = []
    refusals: list[str] = list(_recreated(record, resolved))
    for partition, answer in sorted(resolved.items()):
        now = record.next_offsets.get(partition)
        if now is None:
            continue
        if refusal := _refusal(partition, now, answer, policy):
            refusals.append(refusal)
            continue
        target = now if answer.offset is None else answer.offset
        moves.append(Move(partition, now, target, answer.quality, answer.late))
    return Moves(tuple(moves), tuple(refusals))


def _recreated(record: WorkRecord, resolved: Mapping[TopicPartition, Resolved]) -> Iterator[str]:
    ids = {partition.topic: partition.topic_id for partition in resolved}
    on_record: dict[str, set[str]] = {}
    for partition in record.next_offsets:
        on_record.setdefault(partition.topic, set()).add(partition.topic_id)
    for topic, known in sorted(on_record.items()):
        if topic in ids and ids[topic] not in known:
            yield f"{topic} was deleted and created again: the record of work is about the former topic"


def _refusal(partition: TopicPartition, now: int, answer: Resolved, policy: Policy) -> str:
    if answer.quality is Quality.NO_LEADER:
        return f"{partition} has no leader: the offset of the time is unknown"
    if answer.quality is Quality.BEFORE_LOG_START and policy is Policy.FAIL:
        by = f" by {answer.late}" if answer.late else ""
        return f"{partition}: the log begins{by} later, at offset {answer.offset}: earlier records have expired"
    if answer.offset is not None and answer.offset > now:
        return (
            f"{partition}: the target {answer.offset} is ahead of the record of work, which ends at {now}: "
            f"offsets {now} to {answer.offset - 1} would be skipped"
        )
    return ""


class WrongTimeError(ValueError):
    """A text that names no moment, or not exactly one."""


def parse_time(text: str, now: datetime) -> datetime:
    """The moment that a text names, in UTC: `2026-03-29T12:00+02:00`, `2026-03-29 10:00Z` or `... 12:00 Europe/Berlin`.

    Raises:
        WrongTimeError: it is no time, has no zone, lies in the future, or a change of the clocks leaves it out or has
            it twice.
    """
    words = text.strip()
    date_and_time, _, zone = words.rpartition(" ")
    named = zone if date_and_time and (zone[:1].isalpha() and zone != "Z") else ""
    try:
        read = datetime.fromisoformat(date_and_time if named else words)
    except ValueError as error:
        raise WrongTimeError(f"`{words}` is not a time; write for instance 2026-03-29T12:00+02:00") from error
    if named:
        read = _in_zone(read, named, words)
    if read.tzinfo is None:
        raise WrongTimeError(f"`{words}` has no zone; add Z, an offset (+02:00) or a name (Europe/Berlin)")
    try:
        moment = read.astimezone(UTC)
    except OverflowError as error:
        raise WrongTimeError(f"`{words}` is not within the years 1 to 9999 of UTC") from error
    if moment > now:
        raise WrongTimeError(f"`{words}` is in the future: {moment:%Y-%m-%d %H:%M:%S} UTC")
    return moment


def parse_window(since: str | None, until: str | None, now: datetime) -> tuple[datetime, datetime] | None:
    """The window between two moments as `parse_time` takes them; None where neither is given.

    Raises:
        WrongTimeError: one of them is missing, or names no moment, or the window ends before it begins.
    """
    if since is None and until is None:
        return None
    if since is None or until is None:
        raise WrongTimeError("a window needs a start and an end: give both, or neither")
    began, ended = parse_time(since, now), parse_time(until, now)
    if ended <= began:
        raise WrongTimeError(f"the window ends before it begins: `{since}` is not before `{until}`")
    return began, ended


def _in_zone(read: datetime, name: str, words: str) -> datetime:
    if read.tzinfo is not None:
        raise WrongTimeError(f"`{words}` names two zones")
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise WrongTimeError(f"the time zone `{name}` is unknown on this machine") from error
    earlier, later = (read.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if earlier.utcoffset() == later.utcoffset():
        return earlier
    if earlier.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != read:
        raise WrongTimeError(f"`{words}` does not exist: the clocks skip it")
    both = " or ".join(_iso(moment) for moment in (earlier, later))
    raise WrongTimeError(f"`{words}` occurs twice, because the clocks go back: write {both}")


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def parse_offsets(text: str) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition from lines `topic,partition,offset`, as Kafka's own `--from-file` reads them.

    Raises:
        WrongTimeError: a line is not of that form, or names a partition again.
    """
    found: dict[tuple[str, int], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        parts = [part.strip().strip('"') for part in line.split(",")]
        if len(parts) != 3 or not parts[0] or not all(part.isascii() and part.isdigit() for part in parts[1:]):
            raise WrongTimeError(f"line {number} is not `topic,partition,offset`")
        key = (parts[0], int(parts[1]))
        if key in found:
            raise WrongTimeError(f"line {number} names {key[0]}/{key[1]} again")
        found[key] = int(parts[2])
    if not found:
        raise WrongTimeError("the file names no partition")
    return found


def disorder(timestamps_ms: Sequence[int]) -> timedelta:
    """By how much at most a record is older than one before it, over timestamps in the order of their offsets."""
    latest, worst = None, 0
    for timestamp in timestamps_ms:
        if latest is not None:
            worst = max(worst, latest - timestamp)
        latest = timestamp if latest is None else max(latest, timestamp)
    return timedelta(milliseconds=worst)


def expected_duration(
    records: int, *, rows_per_second: float, records_per_batch: int, trigger: timedelta, start: timedelta
) -> timedelta | None:
    """How long reading so many records again takes at a measured rate; None where none was measured.

    A batch that is not full waits for the rest of the trigger's interval, full ones follow at once.
    """
    if rows_per_second <= 0:
        return None
    wait = trigger if records % max(records_per_batch, 1) else timedelta()
    return start + timedelta(seconds=records / rows_per_second) + wait
