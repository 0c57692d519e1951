"""Restores of archives in memory into topics in memory: whatever ends a try, the next goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.adapters.archive.reading import ArchiveReader
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.restore.records import Restored
from millrace.domain.archive.selection import Selection
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import FencedError, UnreachableError
from millrace.usecases.archive.restore import Request, Restore, RestoreProgress
from millrace.usecases.archive.restore_run import Phase, RestoreReport
from support.archive.read_back import CountingStore, MemoryArchive
from support.archive.restores.real import Object, archive, plain_records
from support.fakes.platform import PartsPlatform

HERE = Incarnation("shop.purchases", "C" * 22)


class Killed(BaseException):
    """Here the process dies."""


class MemoryTopic:
    """A topic in memory that is open for restores; dies, as its process would, before or after its n-th write."""

    def __init__(self, partitions: int = 2) -> None:
        self.topic_id = "D" * 22
        self.partitions = partitions
        self.logs: dict[int, list[TopicRecord]] = {number: [] for number in range(partitions)}
        self.dies_at = 0
        self.before = False
        self.writes = 0
        self.is_exact = False
        self.meanwhile: list[Restored] = []  # what somebody else writes while clients are changed
        self.holders: dict[str, MemoryTarget] = {}  # who may write, by transactional id

    def open(self, transactional_id: str) -> MemoryTarget:
        self.writes, self.is_exact = 0, False
        return MemoryTarget(self, transactional_id)

    def put(self, partition: int, value: bytes) -> None:
        self.logs[partition].append(TopicRecord(partition, len(self.logs[partition]), None, value))

    def append(self, records: Sequence[Restored]) -> None:
        for one in records:
            log = self.logs[one.partition]
            offset = log[-1].offset + 1 if log else 0
            log.append(TopicRecord(one.partition, offset, one.key, one.value, one.headers, one.timestamp_ms))

    def values(self) -> dict[int, list[bytes | None]]:
        return {number: [record.value for record in log] for number, log in self.logs.items()}

    def observed(self) -> ObservedTopic:
        return ObservedTopic("back", self.topic_id, self.partitions, 1, {"retention.ms": "-1"}, {})


class MemoryTarget:
    """The topic, open for one restore: fenced by its transactional id, as a broker would."""

    def __init__(self, topic: MemoryTopic, transactional_id: str) -> None:
        self._topic = topic
        self._transactional_id = transactional_id
        self._seen: dict[int, int] = {}
        self._is_exact = False

    def glance(self) -> Iterator[TopicRecord]:
        for log in self._topic.logs.values():
            yield from log

    def fence(self) -> None:
        self._topic.holders[self._transactional_id] = self

    def look(self, *, anew: bool = False) -> Iterator[TopicRecord]:
        if anew:
            self._seen.clear()
        for number, log in self._topic.logs.items():
            fresh = [record for record in log if record.offset >= self._seen.get(number, 0)]
            if fresh:
                self._seen[number] = fresh[-1].offset + 1
            yield from fresh

    def takes(self, records: Sequence[Restored]) -> bool:
        return self._is_exact or all(record.timestamp_ms != 0 for record in records)

    def become_exact(self) -> None:
        self._is_exact = self._topic.is_exact = True
        self._topic.append(self._topic.meanwhile)
        self.fence()

    def write(self, records: Sequence[Restored]) -> None:
        topic = self._topic
        if topic.holders[self._transactional_id] is not self:
            raise self.taken_over()
        topic.writes += 1
        if topic.dies_at == topic.writes and topic.before:
            raise Killed
        topic.append(records)
        if topic.dies_at == topic.writes:
            raise Killed

    def taken_over(self) -> FencedError:
        return FencedError("another restore")


class Logged:
    """An action log."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.is_away = False

    def append(self, **entry: Any) -> None:
        if self.is_away:
            raise UnreachableError("the control database does not answer")
        self.entries.append(entry)


class World:
    """One archive, one topic, any number of tries."""

    def __init__(self, store: CountingStore, topic: MemoryTopic) -> None:
        self.store = store
        self.topic = topic
        self.log = Logged()
        self.told: list[str] = []
        self.phases: list[RestoreProgress] = []
        self.meanwhile: Callable[[RestoreProgress], object] = lambda progress: None

    def restore_target(self, into: str, transactional_id: str, *_: object) -> AbstractContextManager[MemoryTarget]:
        return nullcontext(self.topic.open(transactional_id))

    def killed(self, at: int, **more: Any) -> None:
        """A try that dies after so many transactions."""
        self.topic.dies_at = at
        with pytest.raises(Killed):
            self.restore(**more)
        self.topic.dies_at = 0

    def expire(self, objects: int) -> None:
        """Let the first objects of the chain go; they lie there still."""
        found: list[ObjectEntry] = []
        ArchiveReader(self.store).look_through(HERE, found.append)
        MemoryArchive(self.store, HERE, "", None).expire(*found[:objects])

    def at(self, records: int, act: Callable[[], object]) -> None:
        """Do something once, when so many records have been restored."""

        def meanwhile(progress: RestoreProgress) -> None:
            if progress.phase is Phase.RESTORING and progress.records >= records:
                self.meanwhile = lambda later: None
                act()

        self.meanwhile = meanwhile

    def restore(self, selection: Selection | None = None, **more: Any) -> RestoreReport:
        platform: Any = PartsPlatform(
            archive_reader=lambda connection: ArchiveReader(self.store),
            kafka_topics=lambda connection: SimpleNamespace(observe=lambda names: {"back": self.topic.observed()}),
            control=SimpleNamespace(log=self.log),
            kafka_restore_target=self.restore_target,
        )
        given = {"topic": HERE.topic, "into": "back", "selection": selection or Selection()} | more
        request = Request(actor="cli:ann", reason="they want it", **given)
        return Restore(platform, request, self.told.append, self._note).run()

    def _note(self, progress: RestoreProgress) -> None:
        self.phases.append(progress)
        self.meanwhile(progress)


def world(objects: Sequence[Object], partitions: int = 2, **more: Any) -> World:
    store = CountingStore()
    archive(store, HERE, 2, objects, **more)
    return World(store, MemoryTopic(partitions))


def two_partitions(count: int = 20) -> list[Object]:
    return [(p, plain_records(first, 5)) for first in range(0, count, 5) for p in (0, 1)]


def values(objects: Sequence[Object], partition: int) -> list[bytes | None]:
    return [record.value for number, records in objects for record in records if number == partition]
