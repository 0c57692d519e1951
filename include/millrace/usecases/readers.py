"""For each reader of a cluster, how long what it has not read stays in its topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.declaration import BackupApp
from millrace.domain.headroom import Danger
from millrace.domain.offsets import TopicPartition
from millrace.domain.retention import readers
from millrace.domain.retention.readers import Position, Room
from millrace.domain.retention.settings import log_settings
from millrace.domain.snapshots import Snapshot
from millrace.errors import MillraceError
from millrace.usecases.groups import FETCH, declared_groups, what_it_is
from millrace.usecases.measured import RATES_OVER, Measured

if TYPE_CHECKING:
    from millrace.domain.declaration import App, Environment
    from millrace.wiring import Platform

MOST_LOOKED_UP = 2_000  # positions whose time is looked for in the snapshots: those with the most unread
MOST_READ = 32  # positions of which a record is read in one look
_DANGERS = (Danger.ALARM, Danger.WARNING, Danger.NONE)


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
        return min((room.danger for room in self.rooms), key=_DANGERS.index, default=Danger.NONE)

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
    """

    kafka: str
    snapshot: Snapshot
    readers: Sequence[Reader]
    not_known: Sequence[str] = ()


Key = tuple[str, int, int]
"""A topic's id, the number of one of its partitions, and an offset."""


@dataclass(slots=True)
class Memory:
    """What former looks found out by topic id, partition and offset; of a reader that stands still it stays the same.

    Attributes:
        stamps: timestamps of records that were read.
        nothing: the log's end where no record was found up to there, only what transactions leave.
        appended: when the record came at the earliest; None where that was before all snapshots.
    """

    stamps: dict[Key, int] = field(default_factory=dict)
    nothing: dict[Key, int] = field(default_factory=dict)
    appended: dict[Key, datetime | None] = field(default_factory=dict)

    def keep(self, used: Collection[Key]) -> None:
        """Forget all others."""
        wanted = set(used)
        self.stamps = {key: value for key, value in self.stamps.items() if key in wanted}
        self.nothing = {key: value for key, value in self.nothing.items() if key in wanted}
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
    seen = snapshot or platform.cluster_reader(kafka).take()
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
    rooms = _rooms(platform, kafka, seen, positions, history, memory or Memory(), not_known)
    found = [_reader(seen, name, declared.get(name), rooms) for name in names if name in seen.groups]
    return Readers(kafka, seen, sorted(found, key=_order), [*history.not_known, *not_known])


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
    asked = readers.in_doubt(rooms, settings)
    memory.keep([_key(position) for position in positions])
    for position in [each for each in asked if _key(each) not in memory.stamps][:MOST_READ]:
        _read(platform, kafka, seen, position, memory, not_known)
    if asked:
        rooms = readers.rooms(seen, positions, flows, appended, memory.stamps)
    return [_emptied(seen, room, memory) for room in rooms]


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
    platform: Platform, kafka: str, seen: Snapshot, position: Position, memory: Memory, not_known: list[str]
) -> None:
    """Read the timestamp of the first record at a position or after it, if there is one."""
    here = position.partition
    log = seen.log((here.topic, here.partition))
    if log is None or memory.nothing.get(_key(position)) == log.stable:
        return
    try:
        records = platform.topic_reader(kafka).between(here.topic, here.partition, position.offset, log.stable)
        first = next(islice(records, 1), None)
    except MillraceError as error:
        not_known.append(f"{here} at {position.offset:,}: {error.what}")
        return
    if first is None:
        memory.nothing[_key(position)] = log.stable
    elif first.timestamp_ms is not None:
        memory.stamps[_key(position)] = first.timestamp_ms


def _emptied(seen: Snapshot, room: Room, memory: Memory) -> Room:
    """The same, but for what has nothing unread other than what transactions leave."""
    log = seen.log((room.position.partition.topic, room.position.partition.partition))
    nothing = log is not None and memory.nothing.get(_key(room.position)) == log.stable == log.end
    return Room(room.position, 0) if nothing else room


def _key(position: Position) -> Key:
    return position.partition.topic_id, position.partition.partition, position.offset


def _unread(seen: Snapshot, position: Position) -> int:
    log = seen.log((position.partition.topic, position.partition.partition))
    return max(0, log.end - position.offset) if log else 0


def _watched(seen: Snapshot, declared: Mapping[str, App], environment: Environment, history: Measured) -> list[str]:
    """The groups that count as readers: ours, and others that have committed lately and are not to be ignored."""
    others = [name for name in seen.groups if name not in declared and not _is_ignored(name, environment)]
    empty = [name for name in others if not seen.groups[name].members and seen.groups[name].commits]
    gone = history.resting(empty, seen.at - environment.readers_within)
    return sorted(name for name in seen.groups if name in declared or (name in others and name not in gone))


def _is_ignored(name: str, environment: Environment) -> bool:
    return name.startswith(FETCH) or any(fnmatchcase(name, pattern) for pattern in environment.ignored_readers)


def _reader(seen: Snapshot, name: str, app: App | None, rooms: Sequence[Room]) -> Reader:
    own = [room for room in rooms if room.position.group == name]
    ordered = sorted(own, key=lambda room: (_DANGERS.index(room.danger), room.left or timedelta.max))
    return Reader(name, what_it_is(seen.groups[name], app), app is not None, ordered)


def _order(reader: Reader) -> tuple[int, timedelta, str]:
    return _DANGERS.index(reader.danger), reader.left or timedelta.max, reader.group


def worst(found: Readers) -> Iterator[tuple[Reader, Room]]:
    """Every partition that is in danger, the greatest first."""
    rows = [(reader, room) for reader in found.readers for room in reader.rooms if room.danger is not Danger.NONE]
    yield from sorted(rows, key=lambda row: (_DANGERS.index(row[1].danger), row[1].left or timedelta(0), row[0].group))
