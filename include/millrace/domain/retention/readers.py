"""How long what each reader has not read yet stays in its topic, by partition, out of one look at a cluster.

A reader's oldest unread record may be deleted from `retention.ms` after its timestamp on, or as soon as the log holds
`retention.bytes` without it. Kafka deletes whole segments, so it really goes up to one segment, one check interval and
one delete delay later: what is said here is the earliest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, PlannedMove
from millrace.domain.groups.snapshots import GroupSeen, LogSeen, Partition, Snapshot, TopicSeen
from millrace.domain.retention.flow import Flow
from millrace.domain.retention.headroom import Danger, Limits, Rule, Unread, danger, headroom
from millrace.domain.retention.settings import LogSettings, log_settings
from millrace.domain.topics.offsets import TopicPartition

WORST_FIRST = (Danger.ALARM, Danger.WARNING, Danger.NONE)

Stamps = Mapping[tuple[str, int, int], int]
"""Timestamps of records, in milliseconds since 1970, by topic id, partition and offset."""


@dataclass(frozen=True, slots=True)
class FirstRecords:
    """The first records from some offsets on, by topic and partition.

    Attributes:
        found: their timestamps, in milliseconds since 1970; None where there is none below the end, or it has none.
        failed: why one could not be read. What is in neither was not read in time.
    """

    found: Mapping[Partition, int | None]
    failed: Mapping[Partition, str]

    def why(self, topic: str, partition: int) -> str:
        """Why nothing is known of one."""
        return self.failed.get((topic, partition), "it was not read in time")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader goes on in a partition; `lost`: how many offsets before that were deleted unread."""

    group: str
    partition: TopicPartition
    offset: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """What a reader has not read of one partition, and how long that stays.

    Attributes:
        position: where it goes on.
        unread: how many offsets it has not read.
        left: until the first of them may be deleted; None: never, or nobody knows, and `why` says so.
        rule: by which limit.
        window: how long the topic keeps by that limit; None where nobody knows.
        danger: how near that is.
        why: why nothing is known; empty where it is known, or nothing is unread.
    """

    position: Position
    unread: int
    left: timedelta | None = None
    rule: Rule | None = None
    window: timedelta | None = None
    danger: Danger = Danger.NONE
    why: str = ""


def positions(snapshot: Snapshot, name: str, *, backup: bool = False, declared: bool = False) -> Iterator[Position]:
    """Where a group goes on in each partition that it has committed; of our own apps also in those that are new.

    What it committed of a topic that was made again since is of no partition that is there; a commit beyond a log's end
    is not its position, for nobody knows where it goes on.

    Args:
        snapshot: what was seen.
        name: the group's.
        backup: whether it keeps a backup: what its commits call archived counts, not what they committed.
        declared: whether an app of ours has it, which begins new partitions of its topics at their first record.
    """
    group = snapshot.groups.get(name)
    if group is None or not group.commits:
        return
    topics = sorted({topic for topic, _ in group.commits})
    for topic in topics:
        seen = snapshot.topics.get(topic)
        for number, log in enumerate(seen.logs if seen else ()):
            if seen is None or log is None:
                continue
            offset = _offset(group, (topic, number), seen, backup=backup)
            here = TopicPartition(topic, seen.topic_id, number)
            if offset is not None and offset <= log.end:
                yield Position(name, here, max(offset, log.start), max(0, log.start - offset))
            elif offset is None and declared:
                yield Position(name, here, log.start)


def _offset(group: GroupSeen, partition: Partition, seen: TopicSeen, *, backup: bool) -> int | None:
    commit = (group.commits or {}).get(partition)
    if commit is None:
        return None
    if backup:
        said = BackupMetadata.decode(commit.metadata)
        return said.offset if said is not None and said.topic_id == seen.topic_id else None
    text = commit.metadata  # most readers write none
    own = (CommitMetadata.decode(text) or PlannedMove.decode(text)) if text else None
    return commit.offset if own is None or own.topic_id == seen.topic_id else None


def rooms(
    snapshot: Snapshot,
    found: Sequence[Position],
    flows: Mapping[Partition, Flow],
    appended: Mapping[TopicPartition, Mapping[int, datetime]],
    stamps: Stamps,
) -> list[Room]:
    """How long what is unread stays, for each position.

    Args:
        snapshot: what was seen.
        found: the positions.
        flows: offsets that came into each partition in the last hour, weighed by the bytes that one takes.
        appended: for some positions, when the record there was appended at the earliest.
        stamps: the timestamps of some records, as they were read.
    """
    settings = {name: log_settings(seen.settings) for name, seen in snapshot.topics.items() if seen.settings}
    made = []
    for position in found:
        here = position.partition
        log = snapshot.log((here.topic, here.partition))
        if log is None:
            continue
        flow = flows.get((here.topic, here.partition))
        since = appended.get(here, {}).get(position.offset)
        stamp = stamps.get((here.topic_id, here.partition, position.offset))
        own = settings.get(here.topic)
        if own is None:
            made.append(Room(position, log.end - position.offset, why="the topic's settings are not known"))
        else:
            first_ms = _first(position, log, since, stamp, own, flow)
            made.append(_room(position, log, own, flow, first_ms, snapshot.at))
    return made


def _first(
    position: Position,
    log: LogSeen,
    appended: datetime | None,
    stamp: int | None,
    settings: LogSettings,
    flow: Flow | None,
) -> int | None:
    """The first unread record's timestamp, or the least that it can be by what is known.

    Where records come dated back, as with times of events or out of a mirror, it is taken to be dated back as far as
    the youngest one was when the log last grew.
    """
    if stamp is not None:
        return stamp
    if position.offset == log.start and log.first_ms is not None:
        return log.first_ms
    if appended is None:
        return None
    came_ms = int(appended.timestamp() * 1000)
    if log.last_ms is None or settings.by_append_time:
        return came_ms
    grew_ms = _last_growth_ms(flow)
    dated_back = max(0, grew_ms - log.last_ms) if grew_ms is not None else 0
    return min(came_ms - dated_back, log.last_ms)


def _last_growth_ms(flow: Flow | None) -> int | None:
    """The last moment at which the log had not grown to where it is, in milliseconds since 1970; None: it has not."""
    if flow is None:
        return None
    newest = flow.points[-1][1]
    before = [at for at, end in flow.points if end < newest]
    return int(before[-1].timestamp() * 1000) if before else None


def _room(
    position: Position, log: LogSeen, settings: LogSettings, flow: Flow | None, first_ms: int | None, now: datetime
) -> Room:
    unread = log.end - position.offset
    if unread <= 0:
        return Room(position, 0)
    if not settings.limited and not settings.compacts:
        return Room(position, unread)
    size = log.size_bytes / (log.end - log.start) if log.size_bytes and log.end > log.start else 0.0
    size = max(size, flow.weight if flow else 0.0)  # what came last may be larger than what was there
    rate = flow.burst / flow.weight * size if flow else 0.0
    waiting = Unread(position.partition, position.offset, first_ms, size * unread, rate)
    limits = Limits(settings.time, settings.size_bytes) if settings.deletes else Limits()
    now_ms = int(now.timestamp() * 1000)
    choices = []
    if (by_limits := headroom(waiting, limits, now_ms)) is not None:
        window = settings.time if by_limits.rule is Rule.TIME else _window(settings.size_bytes, rate)
        level = danger(by_limits.left, window)
        choices.append(Room(position, unread, by_limits.left, by_limits.rule, window, level))
    if settings.compacts and first_ms is not None:  # markers of deleted keys go, values do not
        kept = headroom(waiting, Limits(time=settings.tombstones), now_ms)
        if kept is not None:
            level = danger(kept.left, settings.tombstones)
            level = Danger.WARNING if level is Danger.ALARM else level  # it misses that a key was deleted, if one was
            choices.append(Room(position, unread, kept.left, Rule.TOMBSTONES, settings.tombstones, level))
    if not choices:
        return Room(position, unread, why=_not_known(settings, first_ms, flow))
    return min(choices, key=lambda room: (WORST_FIRST.index(room.danger), room.left))


def _not_known(settings: LogSettings, first_ms: int | None, flow: Flow | None) -> str:
    """Why nobody can tell when an unread record may be deleted; empty where it never is."""
    if settings.deletes and settings.time is not None and first_ms is None:
        return "the age of its first unread record is unknown"
    if settings.deletes and settings.size_bytes is not None and flow is None:
        return "the rate of records is not known yet"
    return ""


def _window(size_bytes: int | None, rate: float) -> timedelta | None:
    if size_bytes is None or rate <= 0:
        return None
    return timedelta(seconds=min(size_bytes / rate, timedelta.max.total_seconds() / 2))


def _by_date(settings: LogSettings | None) -> bool:
    return settings is not None and (settings.compacts or (settings.deletes and settings.time is not None))


def in_doubt(made: Sequence[Room], settings: Mapping[str, LogSettings]) -> list[Position]:
    """The positions whose first record's own timestamp decides: those near deletion, and those nobody knows of.

    Those with the least time left come first.
    """
    asked = [
        room
        for room in made
        if room.unread and _by_date(settings.get(room.position.partition.topic))
        if room.why or (room.rule in (Rule.TIME, Rule.TOMBSTONES) and room.danger is not Danger.NONE)
    ]
    return [room.position for room in sorted(asked, key=lambda room: (room.left or timedelta(0), -room.unread))]
