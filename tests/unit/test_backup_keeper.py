"""A chain with which nobody can go on halts its own topic, and what people said of it is not lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from millrace.adapters.archive.chain import ChainWriter, put_summary
from millrace.adapters.archive.cutting import Copied
from millrace.domain.archive.acknowledgement import Acknowledgement
from millrace.domain.archive.chain import LARGEST_EPOCH, Writer
from millrace.domain.archive.expiry import Expiry
from millrace.domain.archive.manifest import Kind, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import Read
from millrace.domain.archive.tiling import ObservedLog, Tiling
from millrace.domain.control import Claim
from millrace.domain.declaration import Backup, BackupApp, Topic
from millrace.domain.groups import Committed
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds
from millrace.errors import FencedError, UnreachableError
from millrace.runtime.backup.asked import Claimants
from millrace.runtime.backup.parts import HALTED, Parts
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
    copied: list[str] = field(default_factory=list)
    claims: dict[int, str] = field(default_factory=dict)
    control_is_away: bool = False
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

    def claimed(self, epoch: int) -> str | None:
        if self.control_is_away:
            raise UnreachableError("the control database does not answer")
        return self.claims.get(epoch)

    def archived_by(self, here: Incarnation, epoch: int, instance: str) -> ChainWriter:
        """Let somebody else take a chain over."""
        tiling = Tiling(here)
        look = lambda: ObservedLog(self.now, here.topic_id, {0: LogBounds(0, 10)})  # noqa: E731
        return ChainWriter.take_over(self.store, tiling, Writer(epoch, instance), look)

    def tee(self, epoch: int = 1) -> Tee:
        self.claims[epoch] = f"i{epoch}"
        topics = tuple(Topic(name, "shop", partitions=1, backup=AT_ONCE) for name in (A.topic, B.topic))
        given: dict[str, Any] = {
            "app": BackupApp("shop", topics),
            "store": self.store,
            "look": self.look,
            "copier": self,
            "committed": self.committed,
            "commit": self.commit,
            "writer": Writer(epoch, f"i{epoch}"),
            "claimed": self.claimed,
            "asked": lambda: list(self.asked),
            "taken": self._taken,
            "expiries": lambda: list(self.expiries),
            "expired": lambda identity, reached: None,
            "breach": lambda kind, subject, detail: self.alarms.update({(kind, subject): detail}),
            "step": lambda text: None,
            "clock": lambda: self.now,
        }
        return Tee(Parts(**given))


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
    assert world.copied == [B.topic] * 2
    assert world.taken == []


def test_a_former_chain_that_another_app_wrote_on_holds_up_nothing() -> None:
    world = World()
    former = Incarnation(A.topic, "C" * 22)
    world.archived_by(former, 9, "another app's")
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


# Fences


@pytest.mark.parametrize("meets", ["at its start", "while it runs", "as its own epoch"])
def test_a_head_of_an_epoch_that_nobody_claimed_halts_its_own_topic(meets: str) -> None:
    world = World()
    epoch = 5 if meets == "as its own epoch" else 9
    if meets != "while it runs":
        world.archived_by(A, epoch, "somebody's")
    tee = world.tee(5)
    tee.round()
    if meets == "while it runs":
        world.archived_by(A, epoch, "somebody's")
        world.starts[A.topic] = 4  # a loss, which has to be written down
        tee.round()
    before = sorted(world.store.objects)
    world.copied.clear()
    tee.round()
    assert world.copied == [B.topic]
    assert sorted(world.store.objects) == before
    told = world.alarms[HALTED, str(A)] or ""
    assert f"epoch {epoch}, instance somebody's, that nobody claimed" in told
    assert "`millrace streams stop shop.backup --reason TEXT`, then `start`" in told
    assert world.alarms[HALTED, str(B)] is None
    world.tee(10).round()
    assert world.alarms[HALTED, str(A)] is None


@pytest.mark.parametrize("meets", ["at its start", "while it runs"])
def test_a_head_of_an_epoch_that_another_instance_claimed_ends_the_app(meets: str) -> None:
    world = World(claims={9: "i9"})
    tee = world.tee(5)
    if meets == "while it runs":
        tee.round()
    world.archived_by(A, 9, "i9")
    world.starts[A.topic] = 4
    with pytest.raises(FencedError, match="epoch 9 of another instance"):
        tee.round()
    assert not any(world.alarms.values())


def test_a_fence_waits_for_the_control_database_and_holds_up_no_other_topic() -> None:
    world = World()
    tee = world.tee(5)
    tee.round()
    world.archived_by(A, 9, "i9")
    world.starts[A.topic] = 4
    world.control_is_away = True
    before = sorted(world.store.objects)
    world.copied.clear()
    for _ in range(2):
        tee.round()
    assert world.copied == [B.topic] * 2
    assert (sorted(world.store.objects), tee.halted, any(world.alarms.values())) == (before, {}, False)
    world.control_is_away, world.claims[9] = False, "i9"
    with pytest.raises(FencedError):
        tee.round()


def test_an_app_ends_where_its_start_was_too_low_for_every_chain() -> None:
    """Its start could not ask the bucket. It is started again, and the next start can."""
    world = World()
    for here in (A, B):
        world.archived_by(here, 9, "of a database that is lost")
    with pytest.raises(FencedError):
        world.tee(1).round()
    world.tee(10).round()
    assert world.copied == [A.topic, B.topic]


def test_an_epoch_that_no_start_may_exceed_halts_its_topic_also_where_it_is_the_only_one() -> None:
    world = World()
    for here in (A, B):
        world.archived_by(here, LARGEST_EPOCH + 1, "by hand")
    tee = world.tee(1)
    tee.round()
    assert set(tee.halted) == {A, B}
    assert "remove what was made by hand" in (world.alarms[HALTED, str(A)] or "")


def test_claimants_are_not_asked_twice_in_a_minute_while_the_database_is_away() -> None:
    now, asked, is_away = [0.0], list[int](), [True]

    def claimed(epoch: int) -> Claim | None:
        asked.append(epoch)
        if is_away[0]:
            raise UnreachableError("the control database does not answer")
        return Claim("shop.backup", epoch, "i9", "host", NOON) if epoch == 9 else None

    claimants = Claimants(claimed, lambda: now[0])
    for _ in range(3):
        with pytest.raises(UnreachableError, match="does not answer"):
            claimants.of(9)
    assert asked == [9]
    now[0], is_away[0] = 60.0, False
    assert (claimants.of(9), claimants.of(8)) == ("i9", None)
