"""A chain with which nobody can go on halts its own topic, and what people said of it is not lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from millrace.adapters.archive.chain import ChainWriter, put_summary
from millrace.adapters.archive.cutting import Copied
from millrace.domain.alarms import UNKNOWN, Extent
from millrace.domain.archive.acknowledgement import Acknowledgement
from millrace.domain.archive.chain import Writer
from millrace.domain.archive.expiry import Expiry
from millrace.domain.archive.manifest import Kind, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import Read
from millrace.domain.archive.tiling import ObservedLog, Tiling
from millrace.domain.declaration import Backup, BackupApp, Topic
from millrace.domain.groups import Committed
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds
from millrace.runtime.backup.parts import HALTED, LOST, Parts
from millrace.runtime.backup.tee import Tee
from support.audits import NOON
from support.chains import read_chain
from support.fakes_objects import MemoryStore

A, B = Incarnation("shop.a", "A" * 22), Incarnation("shop.b", "B" * 22)
AT_ONCE = Backup(every=timedelta(0), max_lag=timedelta(0), keep=timedelta(0))


@dataclass
class World:
    """Two topics with ten offsets each, and an app whose copier only notes what it is asked for."""

    store: MemoryStore = field(default_factory=MemoryStore)
    ids: dict[str, str] = field(default_factory=lambda: {A.topic: A.topic_id, B.topic: B.topic_id})
    starts: dict[str, int] = field(default_factory=lambda: {A.topic: 0, B.topic: 0})
    now: datetime = NOON
    asked: list[Acknowledgement] = field(default_factory=list)
    expiries: list[Expiry] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    alarms: dict[tuple[str, str], str | None] = field(default_factory=dict)
    extents: dict[tuple[str, str], Extent] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    commits: dict[tuple[str, int], Committed] = field(default_factory=dict)

    def look(self, topics: Collection[str]) -> Mapping[str, ObservedLog]:
        self.now += timedelta(seconds=1)
        return {t: ObservedLog(self.now, self.ids[t], {0: LogBounds(self.starts[t], 10)}) for t in topics}

    def copy(self, reads: Sequence[Read]) -> Sequence[Copied]:
        self.copied += [read.partition.topic for read in reads]
        return []

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], Committed]:
        keys = {(partition.topic, partition.partition) for partition in partitions}
        return {key: commit for key, commit in self.commits.items() if key in keys}

    def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self.commits |= {(partition.topic, partition.partition): each for partition, each in commits.items()}

    def _taken(self, identity: int) -> None:
        self.taken.append(identity)
        self.asked = [one for one in self.asked if one.identity != identity]

    def tee(self, epoch: int = 1) -> Tee:
        topics = tuple(Topic(name, "shop", partitions=1, backup=AT_ONCE) for name in (A.topic, B.topic))
        given: dict[str, Any] = {
            "app": BackupApp("shop", topics),
            "store": self.store,
            "look": self.look,
            "copier": self,
            "committed": self.committed,
            "commit": self.commit,
            "writer": Writer(epoch, f"i{epoch}"),
            "asked": lambda: list(self.asked),
            "taken": self._taken,
            "expiries": lambda: list(self.expiries),
            "expired": lambda identity, reached: None,
            "breach": self._breach,
            "step": lambda text: None,
            "clock": lambda: self.now,
        }
        return Tee(Parts(**given))

    def _breach(self, kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        self.alarms[kind, subject] = detail
        self.extents[kind, subject] = extent


@pytest.mark.parametrize("cause", ["acknowledged", "lost"])
def test_a_head_that_was_deleted_halts_its_own_topic_and_no_other(cause: str) -> None:
    world = World()
    tee = world.tee()
    tee.round()
    assert world.copied == [A.topic, B.topic]
    del world.store.objects[max(key for key in world.store.objects if key.startswith(A.manifests))]
    if cause == "lost":
        world.starts[A.topic] = 4
    else:
        world.asked = [Acknowledgement(1, "shop.backup", A, PartitionSpan(0, 0, 5), None, "ann", "seen")]
    world.copied.clear()
    for _ in range(2):
        tee.round()
    assert "is gone" in tee.halted[A]
    assert world.alarms[HALTED, str(A)]
    assert world.extents[HALTED, str(A)] == Extent(fault="corrupt")
    assert world.copied == [B.topic] * 2
    assert world.taken == []


def test_the_alarm_of_lost_offsets_says_how_many_there_are_each_time_it_is_said() -> None:
    world = World()
    tee = world.tee()
    for start in (4, 9):
        tee.round()
        world.starts[A.topic] = start
        tee.round()
        assert world.extents[LOST, str(A)] == Extent(start)
        assert f"{start} offsets are not in the archive" in (world.alarms[LOST, str(A)] or "")


def test_a_former_chain_that_another_app_wrote_on_holds_up_nothing() -> None:
    world = World()
    former = Incarnation(A.topic, "C" * 22)
    ChainWriter.take_over(
        world.store,
        Tiling(former),
        Writer(9, "another app's"),
        lambda: ObservedLog(world.now, former.topic_id, {0: LogBounds(0, 10)}),
    )
    tee = world.tee()
    world.asked = [Acknowledgement(1, "shop.backup", former, PartitionSpan(0, 0, 5), None, "ann", "seen")]
    world.expiries = [Expiry(1, "shop.backup", former, 5, "ann", "old")]
    for _ in range(2):
        tee.round()
    assert world.copied == [A.topic, B.topic] * 2
    assert (world.taken, world.alarms.get((HALTED, str(former)))) == ([], None)


def test_what_is_known_of_a_topic_that_is_gone_is_written_where_the_end_of_its_chain_is_gone_too() -> None:
    world = World()
    tiling = Tiling(A)
    chain = ChainWriter.take_over(world.store, tiling, Writer(1, "z"), lambda: world.look([A.topic])[A.topic])
    chain.append(Kind.LOOK, world.look([A.topic])[A.topic])
    put_summary(world.store, tiling)
    del world.store.objects[A.manifest_key(1)]
    world.ids[A.topic] = "C" * 22
    tee = world.tee(5)
    tee.round()
    lost = Acknowledgement(8, "shop.backup", A, PartitionSpan(0, 0, 10), None, "ann", "lost")
    world.asked = [lost]
    for _ in range(2):
        tee.round()
    assert (world.taken, A in tee.halted) == ([], True)
    world.asked = [lost, Acknowledgement(7, "shop.backup", A, None, 1, "ann", "deleted by hand")]
    for _ in range(2):
        tee.round()
    assert sorted(world.taken) == [7, 8]
    assert [manifest.kind for manifest in read_chain(world.store, A)][-1] is Kind.ACKNOWLEDGEMENT
    assert A not in tee.halted
