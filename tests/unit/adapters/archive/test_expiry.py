"""What expires and what is deleted: due and nothing else, in portions, whatever fails in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.archive.collecting import Collector
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode
from millrace.domain.archive.expiry import Collectable, Done, Expiry, expired_to, has_expired
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import Backup, BackupApp, Topic
from millrace.errors import (
    ChainFencedError,
    CorruptArchiveError,
    FencedError,
    MillraceError,
    RefusedError,
    UnreachableError,
)
from millrace.runtime.backup import expiring
from millrace.runtime.backup.chains import TopicChain
from millrace.runtime.backup.expiring import Chains, Expirer
from support.archive.chains import AT, HERE, Losing, entry, log, read, read_chain
from support.archive.small_archive import PARTITIONS, ROUNDS, Archive, records
from support.fakes.objects import WRITTEN, MemoryStore

HOUR = timedelta(hours=1)
OLD = WRITTEN + HOUR


@dataclass
class World:
    """A chain with a manifest an hour, some of which bring an object, and the app that keeps it."""

    store: MemoryStore = field(default_factory=MemoryStore)
    brings: tuple[bool, ...] = (True,) * 10
    keep: timedelta | None = timedelta(0)
    now: datetime = AT + 100 * HOUR
    epoch: int = 0
    done: dict[int, Done] = field(default_factory=dict)
    halted: bool = False
    seen: bool = True
    asked: list[Expiry] = field(default_factory=list)

    def __post_init__(self) -> None:
        chain, end = self.take_over(), 0
        for number, brings in enumerate(self.brings):
            end += 10 * brings
            objects = [entry(end - 10, end)] if brings else []
            chain.writer.append(
                Kind.DATA if brings else Kind.LOOK, log((0, end), at=AT + number * HOUR), objects=objects
            )

    def take_over(self) -> TopicChain:
        self.epoch += 1
        look = log((0, 10 * sum(self.brings)), at=AT)
        writer = Writer(self.epoch, f"i{self.epoch}")
        return TopicChain(ArchiveWriter.take_over(self.store, Tiling(HERE), writer, lambda: look), look)

    def expirer(self) -> Expirer:
        backup = Backup(every=timedelta(0), max_lag=timedelta(0), keep=self.keep)
        app = BackupApp("shop", (Topic(HERE.topic, "shop", partitions=1, backup=backup),))
        parts: Any = SimpleNamespace(
            app=app, store=self.store, clock=lambda: self.now, step=lambda text: None, expired=self._expired
        )
        return Expirer(parts, lambda chain, kind, seen, **more: chain.writer.append(kind, seen, **more))

    def _expired(self, identity: int, done: Done) -> None:
        self.done[identity] = done
        self.asked = [one for one in self.asked if one.identity != identity]

    def ask(self, sequence: int) -> None:
        self.asked.append(Expiry(len(self.asked) + len(self.done) + 1, "shop.backup", HERE, sequence, "ann", "old"))

    def rounds(self, most: int = 100) -> int:
        """Rounds until nothing is asked for, each with a new epoch after something was lost; how many."""
        chain, expirer = self.take_over(), self.expirer()
        for number in range(most):
            if not self.asked:
                return number
            try:
                if chain.writer.unsettled:
                    chain.writer.settle()
                expirer.expire(self.asked, self.chains(chain))
                expirer.tell()
                if number % 3 == 2:
                    chain, expirer = self.take_over(), self.expirer()
            except UnreachableError:  # of a takeover
                chain, expirer = self.take_over(), self.expirer()
        raise AssertionError(f"after {most} rounds {self.asked} is not done")

    def chains(self, chain: TopicChain | None, error: MillraceError | None = None) -> Chains:
        """The app's chains, one of which it keeps, or that cannot be had."""

        def chain_of(here: Incarnation) -> TopicChain | None:
            if error is not None:
                raise error
            return chain

        def meet_fence(here: Incarnation, error: ChainFencedError) -> None:
            raise error  # another instance claimed the epoch

        found: Any = SimpleNamespace(
            is_halted=lambda here: self.halted,
            is_seen=lambda here: self.seen,
            is_kept=lambda here: True,
            chain_of=chain_of,
            halt=lambda here, why: setattr(self, "halted", True),
            meet_fence=meet_fence,
        )
        return found  # type: ignore[no-any-return]

    def expired(self) -> list[tuple[int, int]]:
        """The ranges that expired, in order."""
        return list(read(self.store).partitions[0].expired)

    def manifests(self, kind: Kind) -> list[Manifest]:
        return [manifest for manifest in read_chain(self.store) if manifest.kind is kind]


def test_what_is_older_than_keep_expires_and_nothing_else() -> None:
    world = World(keep=timedelta(hours=95))  # at 100 hours what was archived in the first five
    world.ask(10)
    world.rounds()
    assert world.expired() == [(0, 60)]
    assert world.done == {1: Done(6)}
    [manifest] = world.manifests(Kind.EXPIRY)
    assert (manifest.by, manifest.reason) == ("ann", "old")


def test_an_expiry_waits_while_no_broker_tells_of_its_topic() -> None:
    world = World(keep=timedelta(hours=95), seen=False)
    world.ask(10)
    expirer = world.expirer()
    expirer.expire(world.asked, world.chains(None))
    expirer.tell()
    assert (world.done, len(world.asked)) == ({}, 1)
    world.seen = True
    world.rounds()
    assert world.expired() == [(0, 60)]


def test_a_topic_that_is_kept_for_ever_loses_nothing() -> None:
    world = World(keep=None)
    world.ask(10)
    world.rounds()
    assert world.manifests(Kind.EXPIRY) == []


def test_nothing_expires_beyond_what_was_asked_for() -> None:
    world = World()
    world.ask(3)
    world.rounds()
    world.ask(5)
    world.rounds()
    assert world.expired() == [(0, 50)]
    assert [len(manifest.objects) for manifest in world.manifests(Kind.EXPIRY)] == [3, 2]


def test_a_clock_that_went_back_ends_what_is_due() -> None:
    world = World()
    world.now = AT + 4 * HOUR
    world.keep = timedelta(0)
    world.ask(10)
    world.rounds()
    assert world.expired() == [(0, 50)]


@pytest.mark.parametrize("lost", [(), *[(n,) for n in range(12, 20)], *[(-n,) for n in range(12, 20)], (13, -15)])
def test_portions_come_to_all_that_is_due_whatever_is_lost(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    monkeypatch.setattr(expiring, "MOST_OBJECTS", 2)
    monkeypatch.setattr(expiring, "READ_A_ROUND", 3)
    world = World(store=Losing(*lost), brings=(True, False, True, True, True, False, True, True))
    world.ask(8)
    world.rounds()
    assert world.expired() == [(0, 60)]
    assert read(world.store).problems.total == 0
    assert all(len(manifest.objects) <= 2 for manifest in world.manifests(Kind.EXPIRY))
    assert sum(len(manifest.objects) for manifest in world.manifests(Kind.EXPIRY)) == 6


def test_nothing_expires_by_a_chain_with_which_something_is_wrong() -> None:
    world = World()
    del world.store.objects[HERE.manifest_key(4)]
    world.ask(10)
    world.rounds()
    assert world.done == {1: Done(-1, "the chain has a fault: manifest 4: it is missing")}
    assert world.manifests(Kind.EXPIRY) == []


def test_a_chain_that_cannot_be_had_holds_up_no_other() -> None:
    world = World()
    chain, expirer = world.take_over(), world.expirer()
    world.ask(3)
    for error in (UnreachableError("away"), RefusedError("no right to read it"), CorruptArchiveError("cut off")):
        expirer.expire(world.asked, world.chains(chain, error))
    assert world.halted
    world.halted = False
    with pytest.raises(FencedError):
        expirer.expire(world.asked, world.chains(chain, ChainFencedError(9, "i9", "a newer epoch")))
    assert world.expired() == []
    expirer.expire(world.asked, world.chains(chain))
    assert world.expired() == [(0, 30)]


def test_an_expiry_of_a_chain_that_no_app_keeps_ends_with_its_reason() -> None:
    world = World()
    world.ask(3)
    expirer = world.expirer()
    expirer.expire(world.asked, world.chains(None))
    expirer.tell()
    assert world.done == {1: Done(-1, "the app keeps no such chain")}


def test_what_waits_has_its_turn_after_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "READ_A_ROUND", 1)
    world = World()
    world.halted = True
    expirer, turns = world.expirer(), []
    world.asked = [Expiry(number, "shop.backup", HERE, 3, "ann", "old") for number in range(1, 4)]
    for _ in range(4):
        expirer.expire(world.asked, world.chains(None))
        turns.append(expirer._last)
    assert turns == [1, 2, 3, 1]


@given(brings=st.lists(st.booleans(), max_size=30), expired=st.integers(0, 30), last=st.integers(-1, 40))
def test_where_expired_objects_end_is_found_by_bisection(brings: list[bool], expired: int, last: int) -> None:
    world = World(brings=tuple(brings))
    world.ask(expired)
    world.rounds()
    tiling = read(world.store)
    reads: list[int] = []

    def of(number: int) -> Manifest | None:
        reads.append(number)
        data = world.store.get(HERE.manifest_key(number))
        return None if data is None else decode(data, Manifest, "")

    found = expired_to(of, tiling, last)
    data = [(m.sequence, all(has_expired(tiling, each) for each in m.objects)) for m in world.manifests(Kind.DATA)]
    assert all(gone for sequence, gone in data if sequence <= found)
    behind = [gone for sequence, gone in data if found < sequence <= last]
    assert not behind or not behind[0]


# What is deleted


class Refusing(MemoryStore):
    """Keeps some objects, whatever it is told."""

    keeps: frozenset[str] = frozenset()

    def delete(self, keys: Collection[str]) -> Mapping[str, str]:
        refused = {key: "AccessDenied" for key in keys if key in self.keeps}
        super().delete([key for key in keys if key not in refused])
        return refused


@pytest.fixture
def archive() -> Archive:
    """Two rounds of four have expired."""
    built = Archive(Refusing(), HERE, "", None).build()
    chain = ArchiveWriter.take_over(built.store, Tiling(HERE), Writer(2, "two"), built.log)
    gone = [built.entry(number, partition) for number in range(2) for partition in range(PARTITIONS)]
    chain.append(Kind.EXPIRY, built.log(), objects=gone, by="ann", reason="old")
    return built


def objects(archive: Archive) -> dict[str, bytes]:
    assert isinstance(archive.store, MemoryStore)
    return archive.store.objects


def looked(archive: Archive, grace: timedelta = HOUR) -> tuple[Collector, Collectable]:
    collector = Collector(archive.store, lambda topic: archive.log())
    return collector, collector.look(HERE, None, AT + grace, HOUR)


def begun() -> None:
    """The action log, to which nothing is written here."""


def parquet(archive: Archive) -> set[str]:
    return {key for key in objects(archive) if key.endswith(".parquet")}


def put_orphan(archive: Archive, first: int, next_: int) -> str:
    """An object that a writer that died has left."""
    given = [one for one in records(0, first) if one.offset < next_]
    written = archive.written(given, 0, first, next_)
    key = HERE.object_key(written.entry.name)
    objects(archive)[key] = written.data
    return key


def test_expired_objects_go_and_the_rest_is_proven(archive: Archive) -> None:
    kept = {archive.key(number, partition) for number in range(2, ROUNDS) for partition in range(PARTITIONS)}
    collector, seen = looked(archive)
    counted = collector.delete_expired(seen, OLD, None)
    assert (counted.objects, len(parquet(archive))) == (4, 8)
    done = collector.delete_expired(seen, OLD, begun)
    assert (done.objects, done.size_bytes, done.kept, done.young) == (4, counted.size_bytes, 0, 0)
    assert parquet(archive) == kept
    found = archive.inspect(deep=True).coverage
    assert (found.verdict, [part.records for part in found.partitions]) == (Verdict.PROVEN, [18, 18])
    assert collector.delete_expired(seen, OLD, begun).objects == 0


def test_what_is_young_stays_and_so_does_that_of_which_nobody_knows(archive: Archive) -> None:
    collector, seen = looked(archive)
    assert isinstance(archive.store, MemoryStore)
    archive.store.modified[archive.key(0, 0)] = OLD
    archive.store.modified[archive.key(0, 1)] = None  # type: ignore[assignment]
    done = collector.delete_expired(seen, OLD, begun)
    assert (done.objects, done.young) == (2, 2)
    assert {archive.key(0, 0), archive.key(0, 1)} <= parquet(archive)


def test_orphans_go_that_lie_wholly_below_the_chains_end(archive: Archive) -> None:
    below, in_expired = put_orphan(archive, 30, 37), put_orphan(archive, 10, 15)
    beyond, across = put_orphan(archive, 40, 50), put_orphan(archive, 35, 45)
    foreign = f"{HERE.partition(0)}notes.txt"
    objects(archive)[foreign] = b"mine"
    collector, seen = looked(archive)
    assert seen.problems.total == 0
    assert collector.delete_orphans(seen, WRITTEN, begun).young == 2
    assert collector.delete_orphans(seen, OLD, begun).objects == 2
    assert not {below, in_expired} & objects(archive).keys()
    assert len(parquet(archive)) == 8 + 2
    again = put_orphan(archive, 10, 15)  # since the archive was looked at
    assert collector.delete_expired(seen, OLD, begun).objects == 5
    assert again not in objects(archive)
    assert {beyond, across, foreign} <= objects(archive).keys()


def test_what_expired_within_the_grace_stays(archive: Archive) -> None:
    collector, seen = looked(archive, HOUR - timedelta(seconds=1))
    assert (collector.delete_expired(seen, OLD, begun).objects, len(parquet(archive))) == (0, 8)


def test_an_orphan_that_may_be_the_only_copy_stays() -> None:
    """Below where the chain begins, in a range that is lost, or where something is wrong with the chain."""
    archive = Archive(MemoryStore(), HERE, "", None)
    chain = ArchiveWriter.take_over(archive.store, Tiling(HERE), Writer(1, "one"), lambda: log((10, 10), (0, 0)))
    chain.append(Kind.DATA, log((30, 40), (0, 0)), objects=[archive.put(records(0, 30), 0, 30)])
    orphans = {put_orphan(archive, 0, 10), put_orphan(archive, 10, 20), put_orphan(archive, 20, 30)}
    copies = put_orphan(archive, 30, 35)
    chain.append(
        Kind.ACKNOWLEDGEMENT, log((30, 40), (0, 0)), acknowledged=[PartitionSpan(0, 10, 30)], by="ann", reason="known"
    )
    collector = Collector(archive.store, lambda topic: log((30, 40), (0, 0)))
    seen = collector.look(HERE, None, AT + 100 * HOUR, HOUR)
    assert (seen.problems.total, seen.orphans.total) == (0, 4)
    assert collector.delete_orphans(seen, OLD, begun).objects == 1
    assert orphans <= objects(archive).keys()
    assert copies not in objects(archive)
    again = put_orphan(archive, 30, 35)
    del objects(archive)[HERE.manifest_key(1)]
    assert collector.delete_orphans(collector.look(HERE, None, AT + 100 * HOUR, HOUR), OLD, begun).objects == 0
    assert again in objects(archive)


def test_nothing_is_deleted_by_a_chain_that_is_another_one_now(archive: Archive) -> None:
    collector, seen = looked(archive)
    head = HERE.manifest_key(seen.tiling.head.sequence)
    for data in (None, b"{}"):
        objects(archive).pop(head) if data is None else objects(archive).update({head: data})
        with pytest.raises(CorruptArchiveError):
            collector.delete_expired(seen, OLD, begun)
    assert len(parquet(archive)) == 8


def test_what_a_store_keeps_is_named(archive: Archive) -> None:
    assert isinstance(archive.store, Refusing)
    archive.store.keeps = frozenset({archive.key(0, 0)})
    collector, seen = looked(archive)
    done = collector.delete_expired(seen, OLD, begun)
    assert (done.objects, done.kept, done.refused) == (3, 1, {archive.key(0, 0): "AccessDenied"})


def test_what_is_due_is_told_until_it_has_expired(archive: Archive) -> None:
    collector = Collector(archive.store, lambda topic: archive.log())
    for keep, sequence, offsets in ((None, -1, 0), (HOUR, -1, 0), (timedelta(0), ROUNDS, 40)):
        seen = collector.look(HERE, keep, AT, HOUR)
        assert (seen.due.sequence, seen.due.offsets(seen.tiling)) == (sequence, offsets), keep


def test_an_object_entry_is_expired_with_its_whole_range(archive: Archive) -> None:
    tiling = looked(archive)[1].tiling
    one: ObjectEntry = archive.entry(1, 0)
    assert has_expired(tiling, one)
    assert not has_expired(tiling, archive.entry(2, 0))
