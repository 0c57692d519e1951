"""A topic, its producer and one reader, lived second by second, with snapshots of them and the truth beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import (
    GroupSeen,
    GroupType,
    History,
    LogSeen,
    LogSeries,
    Member,
    Partition,
    Snapshot,
    TopicSeen,
)
from millrace.domain.groups.status import GroupReading, judge

BEGAN = datetime(2026, 11, 2, 8, tzinfo=UTC)
TOPIC = "orders"
GROUP = "billing"


@dataclass
class Log:
    """One partition's log: when each offset was appended, in seconds since the world began."""

    appended: list[int] = field(default_factory=list)
    start: int = 0
    markers: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return len(self.appended)

    def append(self, count: int, second: int, *, marker: bool = False) -> None:
        self.appended += [second] * count
        if marker:
            self.markers.add(self.end)
            self.appended.append(second)


@dataclass
class Reader:
    """A reader that takes so many records a second and commits every so many seconds what it has read.

    It begins at 0. As librdkafka does, it commits the offset after its last record, never one after a marker.
    """

    per_second: int = 1_000
    commit_every: int = 5
    alive: bool = True  # it reads; one that hangs is in the group and does not
    member: bool = True
    assigns: bool = False  # it reads without being a member
    position: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)

    def read(self, logs: list[Log], second: int) -> None:
        if not (self.alive and (self.member or self.assigns)):
            return
        for number, log in enumerate(logs):
            at = max(self.position.get(number, 0), log.start)
            self.position[number] = min(log.end, at + self.per_second)
        if second % self.commit_every == 0:
            for number, at in self.position.items():
                while at and at - 1 in logs[number].markers:
                    at -= 1
                if at:
                    self.committed[number] = at

    def go_back(self, number: int, offset: int) -> None:
        self.position[number] = self.committed[number] = offset


@dataclass
class World:
    """What lives; `snapshots` grow by one every `every` seconds, but for the seconds in `missing`."""

    produce: Callable[[World, int], None]
    reader: Reader = field(default_factory=Reader)
    logs: list[Log] = field(default_factory=lambda: [Log()])
    every: int = 60
    missing: range = range(0)
    events: dict[int, Callable[[World], None]] = field(default_factory=dict)
    second: int = 0
    snapshots: list[tuple[int, Snapshot]] = field(default_factory=list)

    def live(self, seconds: int) -> Iterator[tuple[int, GroupReading]]:
        """Live on; how the group is judged at each snapshot, with the second."""
        for _ in range(seconds):
            if event := self.events.get(self.second):
                event(self)
            self.produce(self, self.second)
            self.reader.read(self.logs, self.second)
            if self.second % self.every == 0 and self.second not in self.missing:
                self.snapshots.append((self.second, self._snapshot()))
                yield self.second, self.reading()
            self.second += 1

    def _snapshot(self) -> Snapshot:
        logs = tuple(LogSeen(log.start, log.end, log.end) for log in self.logs)
        own = tuple((TOPIC, number) for number in range(len(self.logs)))
        members = (Member("m-1", "billing", "10.0.0.1", partitions=own),) if self.reader.member else ()
        commits = {(TOPIC, number): Committed(offset) for number, offset in self.reader.committed.items()}
        group = GroupSeen(GROUP, GroupType.CLASSIC, "Stable" if members else "Empty", "range", members, commits)
        at = BEGAN + timedelta(seconds=self.second)
        return Snapshot(at, "cluster", {TOPIC: TopicSeen("id", logs)}, {GROUP: group})

    def history(self) -> History:
        return history_of([snapshot for _, snapshot in self.snapshots])

    def reading(self) -> GroupReading:
        newest = self.snapshots[-1][1]
        return judge(newest.groups[GROUP], newest, self.history())

    def behind(self) -> timedelta:
        """How long the oldest record that is not committed has been there, by the truth."""
        found = [self.second]
        for number, log in enumerate(self.logs):
            at = max(self.reader.committed.get(number, 0), log.start)
            while at in log.markers:
                at += 1
            if at < log.end:
                found.append(log.appended[at])
        return timedelta(seconds=self.second - min(found))


def history_of(snapshots: list[Snapshot]) -> History:
    """The history that these snapshots are: a plain model of what the control database gives back."""
    newest = snapshots[-1]
    partitions: list[Partition] = [
        (topic, number) for topic, seen in newest.topics.items() for number in range(len(seen.logs))
    ]
    logs = {}
    for partition in partitions:
        own = newest.topics[partition[0]].topic_id
        seen = [
            one.log(partition) if partition[0] in one.topics and one.topics[partition[0]].topic_id == own else None
            for one in snapshots
        ]
        logs[partition] = LogSeries(
            [log.start if log else None for log in seen],
            [log.end if log else None for log in seen],
            [log.stable if log else None for log in seen],
        )
    commits: dict[str, dict[Partition, list[int | None]]] = {}
    members: dict[str, list[int | None]] = {}
    for index, one in enumerate(snapshots):
        for name, group in one.groups.items():
            counts = members.setdefault(name, [None] * len(snapshots))
            counts[index] = None if group.members is None else len(group.members)
            for partition, commit in (group.commits or {}).items():
                series = commits.setdefault(name, {}).setdefault(partition, [None] * len(snapshots))
                series[index] = commit.offset
    return History([one.at for one in snapshots], logs, commits, members)
