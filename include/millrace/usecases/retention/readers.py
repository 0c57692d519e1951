"""For each reader of a cluster, how long what it has not read stays in its topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import BackupApp
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Partition, Snapshot
from millrace.domain.retention import readers
from millrace.domain.retention.headroom import Danger
from millrace.domain.retention.readers import Position, Room
from millrace.domain.retention.settings import log_settings
from millrace.domain.streams.supervision import DesiredState
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.usecases.declaration.lookup import declared_groups
from millrace.usecases.groups.listing import FETCH, what_it_is
from millrace.usecases.retention.measured import RATES_OVER, Measured

if TYPE_CHECKING:
    from millrace.domain.declaration.pipeline import App, Environment
    from millrace.ports.platform import Platform

MOST_LOOKED_UP = 2_000  # positions whose time is looked for in the snapshots: those with the most unread
MOST_READ = 200  # positions of which a record is read in one look
READ_WITHIN = timedelta(seconds=10)  # for all of them: snapshots of other clusters wait
AGAIN_AFTER = timedelta(minutes=10)  # a record that could not be read
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader: a stream, a backup, or a consumer group of somebody else's.

    Attributes:
        group: its consumer group.
        what: what it is for people; empty where it is somebody else's.
        declared: whether a sound declaration has an app with this group.
        rooms: a partition each, the one with the least time left first.
    """

    group: str
    what: str
    declared: bool
    rooms: Sequence[Room]

    @property
    def danger(self) -> Danger:
        """The worst of its partitions'."""
        return min((room.danger for room in self.rooms), key=readers.WORST_FIRST.index, default=Danger.NONE)

    @property
    def unread(self) -> int:
        """Offsets that it has not read."""
        return sum(room.unread for room in self.rooms)

    @property
    def lost(self) -> int:
        """Offsets that were deleted before it read them."""
        return sum(room.position.lost for room in self.rooms)

    @property
    def left(self) -> timedelta | None:
        """Until the first unread record of all may be deleted; None: never, or nobody knows."""
        return min((room.left for room in self.rooms if room.left is not None), default=None)


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of one cluster, the one in the greatest danger first.

    Attributes:
        kafka: the Connection that leads to it.
        snapshot: what all of this was read from.
        readers: them.
        not_known: what could not be looked up, a line each.
        declared: the groups that sound declarations have, seen or not.
    """

    kafka: str
    snapshot: Snapshot
    readers: Sequence[Reader]
    not_known: Sequence[str] = ()
    declared: Collection[str] = ()


Key = tuple[str, int, int]
"""A topic's id, the number of one of its partitions, and an offset."""


@dataclass(slots=True)
class Memory:
    """What former looks found out by topic id, partition and offset; of a reader that stands still it stays the same.

    Attributes:
        stamps: timestamps of records that were read.
        nothing: the log's end where no record was found up to there, only what transactions leave.
        failed: when it was last tried in vain to read a record.
        appended: when the record came at the earliest; None where that was before all snapshots.
    """

    stamps: dict[Key, int] = field(default_factory=dict)
    nothing: dict[Key, int] = field(default_factory=dict)
    failed: dict[Key, datetime] = field(default_factory=dict)
    appended: dict[Key, datetime | None] = field(default_factory=dict)

    def keep(self, used: Collection[Key]) -> None:
        """Forget all others."""
        wanted = set(used)
        self.stamps = {key: value for key, value in self.stamps.items() if key in wanted}
        self.nothing = {key: value for key, value in self.nothing.items() if key in wanted}
        self.failed = {key: value for key, value in self.failed.items() if key in wanted}
        self.appended = {key: value for key, value in self.appended.items() if key in wanted}


def look(
    platform: Platform,
    kafka: str,
    environment: Environment,
    *,
    snapshot: Snapshot | None = None,
    group: str | None = None,
    memory: Memory | None = None,
) -> Readers:
    """How long what each reader has not read stays. Changes nothing.

    Rates and the times at which records came are those of the snapshots that are kept. Without the control database
    they are not known: then records are read, and limits by size are held against what is there alone.

    Args:
        platform: the adapters.
        kafka: the cluster's Connection.
        environment: which readers are watched.
        snapshot: of the cluster now; default: it is taken.
        group: only this one, watched or not; default: all that are.
        memory: of former looks.

    Raises:
        UnreachableError: no broker answers.
    """
    seen = snapshot or platform.kafka.cluster(kafka).take()
    declared = declared_groups(platform.settings.root, kafka)
    history = Measured(platform, kafka, seen)
    names = [group] if group is not None else _watched(seen, declared, environment, history)
    positions = [
        position
        for name in names
        for position in readers.positions(
            seen, name, backup=isinstance(declared.get(name), BackupApp), declared=name in declared
        )
    ]
    not_known: list[str] = []
    forgotten = _forgotten(platform, seen, {name: declared[name] for name in names if name in declared}, not_known)
    positions += forgotten
    rooms = _rooms(platform, kafka, seen, positions, history, memory or Memory(), not_known)
    by_group: dict[str, list[Room]] = {name: [] for name in names}
    for room in rooms:
        by_group[room.position.group].append(room)
    found = [
        _reader(seen, name, declared.get(name), own) for name, own in by_group.items() if own or name in seen.groups
    ]
    return Readers(kafka, seen, sorted(found, key=_order), [*history.not_known, *not_known], frozenset(declared))


def _forgotten(platform: Platform, seen: Snapshot, declared: Mapping[str, App], not_known: list[str]) -> list[Position]:
    """Where apps of ours go on of which the cluster has no commit, as once these have expired, or before the first.

    An app that was never started reads nothing. One that ran goes on at its record of work, of which there is a copy.
    """
    groups = {name: seen.groups.get(name) for name in declared}
    silent = {name for name, group in groups.items() if group is not None and group.commits is None}
    absent = [name for name, group in groups.items() if name not in silent and not (group and group.commits)]
    if not absent or seen.faults:  # a group may be where nobody answers
        return []
    try:
        streams = platform.control.streams
        wanted = {one.stream for one in streams.all_desired() if one.state is DesiredState.RUNNING}
        ran = {one.stream: one.positions for one in streams.all_progress()}
    except UnreachableError as error:
        not_known.append(f"apps of which the cluster has no commits: {error.what}")
        return []
    found = []
    for name in absent:
        app = declared[name]
        if app.qualified_name not in wanted and app.qualified_name not in ran:
            continue
        for topic in app.reads:
            there = seen.topics.get(topic)
            for number, log in enumerate(there.logs if there else ()):
                if there is not None and log is not None:
                    done = ran.get(app.qualified_name, {}).get(f"{topic}/{number}", log.start)
                    at = done if log.start <= done <= log.end else log.start
                    found.append(Position(name, TopicPartition(topic, there.topic_id, number), at))
    return found


def _rooms(
    platform: Platform,
    kafka: str,
    seen: Snapshot,
    positions: Sequence[Position],
    history: Measured,
    memory: Memory,
    not_known: list[str],
) -> list[Room]:
    behind = [position for position in positions if _unread(seen, position)]
    flows = history.flows({position.partition.topic for position in behind}, RATES_OVER)
    most = sorted(behind, key=lambda position: -_unread(seen, position))[:MOST_LOOKED_UP]
    appended = _appended(most, history, memory)
    settings = {name: log_settings(topic.settings) for name, topic in seen.topics.items() if topic.settings}
    rooms = readers.rooms(seen, positions, flows, appended, memory.stamps)
    memory.keep([_key(position) for position in positions])
    doubted = [each for each in readers.in_doubt(rooms, settings) if not _is_settled(seen, each, memory)]
    asked = sorted(doubted, key=lambda each: memory.failed.get(_key(each), _NEVER))[:MOST_READ]
    if asked:
        _read(platform, kafka, seen, asked, memory, not_known)
        rooms = readers.rooms(seen, positions, flows, appended, memory.stamps)
    waiting = {_key(each) for each in doubted if not _is_settled(seen, each, memory)} - memory.failed.keys()
    return [_settled(seen, room, memory, waiting) for room in rooms]


def _appended(
    positions: Sequence[Position], history: Measured, memory: Memory
) -> Mapping[TopicPartition, Mapping[int, datetime]]:
    """When the first unread records came; only those are looked up of which it is not remembered."""
    asked = [position for position in positions if _key(position) not in memory.appended]
    if (answer := history.appended(asked)) is not None:
        for position in asked:
            memory.appended[_key(position)] = answer.get(position.partition, {}).get(position.offset)
    found: dict[TopicPartition, dict[int, datetime]] = {}
    for position in positions:
        if (at := memory.appended.get(_key(position))) is not None:
            found.setdefault(position.partition, {})[position.offset] = at
    return found


def _read(
    platform: Platform,
    kafka: str,
    seen: Snapshot,
    asked: Sequence[Position],
    memory: Memory,
    not_known: list[str],
) -> None:
    """Read the timestamps of the first records at these positions or after them, in one go for all partitions.

    Of two readers of one partition that stand at different offsets the second has its turn in the next look.
    """
    here: dict[Partition, Position] = {}
    for position in asked:
        here.setdefault((position.partition.topic, position.partition.partition), position)
    spans = {at: (position.offset, _stable(seen, position)) for at, position in here.items()}
    read = platform.kafka.records(kafka).first_records(spans, READ_WITHIN)
    for at, position in here.items():
        key = _key(position)
        if at not in read.found:
            memory.failed[key] = seen.at
            not_known.append(f"{position.partition} at {position.offset:,}: {read.why(*at)}")
            continue
        memory.failed.pop(key, None)
        stamp = read.found[at]
        if stamp is None:
            memory.nothing[key] = spans[at][1]
        else:
            memory.stamps[key] = stamp


def _is_settled(seen: Snapshot, position: Position, memory: Memory) -> bool:
    """Whether it is known what stands at a position, or that it could not be read a moment ago."""
    key = _key(position)
    failed = memory.failed.get(key)
    tried = failed is not None and seen.at - failed < AGAIN_AFTER and failed != seen.at
    return tried or key in memory.stamps or memory.nothing.get(key) == _stable(seen, position)


def _settled(seen: Snapshot, room: Room, memory: Memory, waiting: Collection[Key]) -> Room:
    """The same, but for what has nothing unread other than what transactions leave, and what waits to be read."""
    key, log = _key(room.position), _log(seen, room.position)
    if log is not None and memory.nothing.get(key) == log.stable == log.end:
        return Room(room.position, 0)
    if key in waiting and not room.why:
        return replace(room, danger=Danger.NONE, why="its record is read in one of the next looks")
    return room


def _log(seen: Snapshot, position: Position) -> LogSeen | None:
    return seen.log((position.partition.topic, position.partition.partition))


def _stable(seen: Snapshot, position: Position) -> int:
    log = _log(seen, position)
    return position.offset if log is None else log.stable


def _key(position: Position) -> Key:
    return position.partition.topic_id, position.partition.partition, position.offset


def _unread(seen: Snapshot, position: Position) -> int:
    log = _log(seen, position)
    return max(0, log.end - position.offset) if log else 0


def _watched(seen: Snapshot, declared: Mapping[str, App], environment: Environment, history: Measured) -> list[str]:
    """The groups that count as readers: ours, and others that have committed lately and are not to be ignored."""
    others = [name for name in seen.groups if name not in declared and not _is_ignored(name, environment)]
    empty = [name for name in others if not seen.groups[name].members and seen.groups[name].commits]
    gone = history.resting(empty, seen.at - environment.readers_within)
    return sorted({*declared, *(name for name in others if name not in gone)})


def _is_ignored(name: str, environment: Environment) -> bool:
    return name.startswith(FETCH) or any(fnmatchcase(name, pattern) for pattern in environment.ignored_readers)


def _reader(seen: Snapshot, name: str, app: App | None, rooms: Sequence[Room]) -> Reader:
    ordered = sorted(
        rooms,
        key=lambda room: (
            readers.WORST_FIRST.index(room.danger),
            room.left if room.left is not None else timedelta.max,
        ),
    )
    group = seen.groups.get(name) or GroupSeen(name, GroupType.UNKNOWN, "")
    return Reader(name, what_it_is(group, app), app is not None, ordered)


def _order(reader: Reader) -> tuple[int, timedelta, str]:
    left = reader.left if reader.left is not None else timedelta.max
    return readers.WORST_FIRST.index(reader.danger), left, reader.group


def worst(found: Readers) -> Iterator[tuple[Reader, Room]]:
    """Every partition that is in danger, the greatest first."""
    rows = [(reader, room) for reader in found.readers for room in reader.rooms if room.danger is not Danger.NONE]
    yield from sorted(
        rows, key=lambda row: (readers.WORST_FIRST.index(row[1].danger), row[1].left or timedelta(0), row[0].group)
    )
