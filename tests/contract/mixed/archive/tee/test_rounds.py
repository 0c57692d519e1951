"""A backup's rounds on the real broker and the real store: what lies in the log lies in the archive, or is named."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.looks import Looks
from millrace.adapters.archive.summaries import resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.manifest import Kind, Manifest, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.partition import Cause, Label
from millrace.domain.archive.proof.tiling import LogsSeen
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import Backup
from millrace.domain.groups.commits import BackupMetadata, Committed
from millrace.domain.streams.position import LogBounds
from millrace.embedded.stack import Stack
from millrace.errors import DataLossError, FencedError, MillraceError, PartFailedError, RefusedError
from millrace.runtime.backup.tee import Tee
from support.archive.chains import what_is_wrong
from support.archive.tees import TeeWorld, Topics

LOST, HALTED = AlarmKind.BACKUP_LOST, AlarmKind.BACKUP_HALTED


@pytest.fixture
def topics(kafka: Stack, s3: Stack) -> Topics:
    return Topics(kafka)


def world_of(topics: Topics, *names: str, **more: object) -> TeeWorld:
    return TeeWorld(topics, names, topics.platform.objects.store(), **more)  # type: ignore[arg-type]


def here(world: TeeWorld, name: str, topic_id: str = "") -> Incarnation:
    return Incarnation(name, topic_id or world.topics.topic_id(name))


def manifests(world: TeeWorld, name: str, topic_id: str = "") -> list[Manifest]:
    chain = links(world.store, here(world, name, topic_id))
    return [decode(link.data, Manifest, link.key) for link in chain if link.data is not None]


def lost(world: TeeWorld, name: str, topic_id: str = "") -> list[tuple[int, int, int, Cause]]:
    """What the proof says is lost: partition, first, next, cause."""
    covered = world.inspect(name, topic_id).coverage.partitions
    tiles = [tile for one in covered for tile in one.tiles if tile.label is Label.LOST]
    return [(tile.partition, tile.first, tile.next, tile.cause) for tile in tiles]


def test_what_is_in_the_log_is_archived_and_the_group_is_told(topics: Topics) -> None:
    name = topics.make(partitions=3)
    world = world_of(topics, name)
    topics.produce(name, 0, [b"a", b"b", None], key=b"k", headers=[("h", b"1"), ("h", None)])
    topics.produce(name, 1, [b"c"])
    tee = world.next_epoch()
    done = tee.round()
    assert (done.records, done.objects, done.waiting, done.behind) == (4, 2, 4, False)
    found = world.inspect(name)
    assert found.coverage.verdict is Verdict.PROVEN, what_is_wrong(found.coverage)
    assert [part.records for part in found.coverage.partitions] == [3, 1, 0]
    head = found.coverage
    for (_, number), commit in world.group.commits.items():
        said = BackupMetadata.decode(commit.metadata)
        assert said is not None
        assert (said.sequence, said.sha256, said.offset) == (head.sequence, head.sha256, commit.offset)
        assert commit.offset == {0: 3, 1: 1, 2: 0}[number]


def test_an_idle_topic_costs_no_manifest(topics: Topics) -> None:
    name = topics.make()
    world = world_of(topics, name)
    topics.produce(name, 0, [b"a"])
    tee = world.next_epoch()
    world.archive_all(tee)
    before = len(manifests(world, name))
    for _ in range(3):
        assert tee.round().objects == 0
    assert len(manifests(world, name)) == before == 2  # the takeover, and the record


def test_what_is_young_and_small_waits(topics: Topics) -> None:
    name = topics.make()
    world = world_of(topics, name, backup=Backup(every=timedelta(hours=1), max_lag=timedelta(hours=2)))
    tee = world.next_epoch()
    assert tee.round().objects == 0
    topics.produce(name, 0, [b"a"])
    assert tee.round().objects == 1  # nobody knows yet what its records weigh
    topics.produce(name, 0, [b"b"])
    done = tee.round()
    assert (done.objects, done.waiting) == (0, 1)


def test_transactions_are_archived_as_far_as_they_are_decided(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    topics.transaction(name, 0, [b"kept", b"kept too"], commit=True)  # offsets 0 to 2: two records and a marker
    topics.transaction(name, 0, [b"dropped"], commit=False)  # 3 and 4
    producer = topics.open_transaction(name, 0, [b"open"])
    topics.produce(name, 0, [b"behind it"])
    tee = world.next_epoch()
    assert tee.round().records == 2
    (covered,) = world.inspect(name).coverage.partitions
    assert (covered.archived_to, covered.records, covered.holes) == (5, 2, 3)
    producer.commit_transaction(30)
    topics.until_end(name, 0, 8)
    world.archive_all(tee)
    found = world.inspect(name)
    assert found.coverage.verdict is Verdict.PROVEN
    assert found.coverage.partitions[0].records == 4


def test_a_range_of_markers_only_is_archived_as_absent(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    topics.transaction(name, 0, [b"dropped"], commit=False)
    done = world.archive_all(world.next_epoch())
    assert (done.records, done.objects) == (0, 1)
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN


def test_what_the_log_lost_before_it_was_read_is_named_and_the_rest_goes_on(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    tee = world.next_epoch()
    topics.produce(name, 0, [b"a", b"b"])
    world.archive_all(tee)
    topics.produce(name, 0, [b"c"] * 8)
    topics.trim(name, 0, 6)
    world.archive_all(tee)
    assert lost(world, name) == [(0, 2, 6, Cause.UNREAD)]
    assert world.inspect(name).coverage.partitions[0].archived_to == 10
    assert "[2, 6) lost: deleted before it was read" in str(world.breaches[LOST, str(here(world, name))])
    assert Kind.LOOK in [manifest.kind for manifest in manifests(world, name)]
    world.acknowledge(name, PartitionSpan(0, 0, 10))
    world.acknowledge(name, PartitionSpan(7, 0, 10))  # of a partition that it never had
    tee.round()
    assert world.asked == []
    assert world.breaches[LOST, str(here(world, name))] is None
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN


def test_a_log_that_lost_all_that_waited_is_named_too(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    tee = world.next_epoch()
    tee.round()
    topics.produce(name, 0, [b"a"] * 5)
    topics.trim(name, 0, 5)
    tee.round()
    assert lost(world, name) == [(0, 0, 5, Cause.UNREAD)]
    assert world.group.commits[name, 0].offset == 5  # nothing is there to be read
    before = len(manifests(world, name))
    tee.round()
    assert len(manifests(world, name)) == before  # told once
    world.acknowledge(name, PartitionSpan(0, 0, 5))
    for _ in range(3):
        tee.round()
    assert len(manifests(world, name)) == before + 1
    assert world.breaches[LOST, str(here(world, name))] is None
    topics.produce(name, 0, [b"b"])
    world.archive_all(tee)
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN


def test_new_partitions_are_archived_from_their_beginning(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    tee = world.next_epoch()
    topics.produce(name, 0, [b"a"])
    world.archive_all(tee)
    topics.grow(name, 3)
    topics.produce(name, 2, [b"b"] * 3)
    world.archive_all(tee)
    found = world.inspect(name).coverage
    assert found.verdict is Verdict.PROVEN
    assert [part.records for part in found.partitions] == [1, 0, 3]


@pytest.mark.parametrize("away", [False, True], ids=["while the app runs", "while it is away"])
def test_a_topic_made_anew_begins_a_chain_and_the_unread_tail_of_the_former_is_lost(topics: Topics, away: bool) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name, backup=Backup(every=timedelta(hours=1), max_lag=timedelta(hours=2)))
    tee = world.next_epoch()
    topics.produce(name, 0, [b"a"])
    tee.round()
    topics.produce(name, 0, [b"b"] * 4)
    assert tee.round().objects == 0  # seen, and young
    former = topics.topic_id(name)
    topics.delete(name)
    if not away:
        tee.round()  # it has no name now
    topics.make(partitions=1)
    topics.produce(name, 0, [b"new"])
    if away:
        tee = world.next_epoch()
    tee.round()
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN
    ended = manifests(world, name, former)[-1]
    assert (ended.kind, ended.gone) == (Kind.LOOK, True)
    # The end that was seen is in the chain where the app lived to write it down.
    expected = [] if away else [(0, 1, 5, Cause.RECREATED)]
    assert lost(world, name, former) == expected
    assert bool(world.breaches.get((LOST, str(here(world, name, former))))) is not away
    if not away:
        world.acknowledge(name, PartitionSpan(0, 1, 5), topic_id=former)
        tee.round()
        assert (world.asked, world.breaches[LOST, str(here(world, name, former))]) == ([], None)


def test_what_is_written_of_a_topic_that_was_deleted_is_the_last_look_at_it(topics: Topics) -> None:
    name = topics.make(partitions=2)
    world = world_of(topics, name, backup=Backup(every=timedelta(0), max_lag=timedelta(hours=2)))
    copier = world.copier(world.store)

    class Grows:
        def copy(self, reads):  # type: ignore[no-untyped-def]
            copied = copier.copy(reads)
            topics.produce(name, 0, [b"c"] * 3)
            return copied

    tee = world.next_epoch(copier=Grows())
    for number in range(2):
        topics.produce(name, number, [b"a" * 1_000])
    tee.round()
    topics.produce(name, 0, [b"b" * 1_000] * 9_000)  # large enough to be due
    topics.produce(name, 1, [b"d"])  # seen, and neither large nor old
    done = tee.round()
    assert (done.objects, done.waiting) == (1, 9_004)
    former = topics.topic_id(name)
    topics.delete(name)
    tee.round()
    topics.make(partitions=2)
    tee.round()
    assert lost(world, name, former) == [(0, 9_004, 9_007, Cause.RECREATED), (1, 1, 2, Cause.RECREATED)]
    assert not [each for each in what_is_wrong(world.inspect(name, former).coverage) if "cut off" in each]


def test_a_topic_that_is_gone_for_good_is_told_and_one_that_comes_back_is_not(topics: Topics) -> None:
    name = topics.make(partitions=1)
    now = [datetime.now(UTC)]
    looks = Looks(topics.platform.kafka.logs(), topics.platform.kafka.topics(), clock=lambda: now[0])
    world = world_of(topics, name, backup=Backup(every=timedelta(hours=1), max_lag=timedelta(hours=2)))
    tee = world.next_epoch(look=looks.look_around)
    topics.produce(name, 0, [b"a"])
    tee.round()
    topics.produce(name, 0, [b"b"] * 4)
    tee.round()
    subject = str(here(world, name))
    topics.delete(name)
    tee.round()
    assert world.breaches[LOST, subject] is None  # no broker may tell of it yet
    now[0] += timedelta(minutes=6)
    tee.round()
    assert "4 offsets are not in the archive" in str(world.breaches[LOST, subject])


def test_a_halted_chain_of_a_topic_that_is_gone_can_be_acknowledged(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    topics.produce(name, 0, [b"a"] * 5)
    world.archive_all(world.next_epoch())
    topics.trim(name, 0, 5)
    former = topics.topic_id(name)
    subject = str(here(world, name))

    def shortened(names: Collection[str]) -> LogsSeen:
        found = world.look(names).logs
        return LogsSeen({each: replace(log, bounds={0: LogBounds(0, 3)}) for each, log in found.items()})

    world.next_epoch(look=shortened).round()
    assert world.breaches[HALTED, subject]
    topics.delete(name)
    topics.make(partitions=1)
    tee = world.next_epoch()
    tee.round()
    world.acknowledge(name, PartitionSpan(0, 3, 5), topic_id=former)
    tee.round()
    assert (world.asked, world.breaches[HALTED, subject], world.breaches[LOST, subject]) == ([], None, None)


def test_a_log_that_ends_below_the_archive_halts_its_topic_and_no_other(topics: Topics) -> None:
    name, other = topics.make(partitions=1), topics.make("other", partitions=1)
    world = world_of(topics, name, other)
    for each in (name, other):
        topics.produce(each, 0, [b"a"] * 5)

    def shortened(names: Collection[str]) -> LogsSeen:
        logs = dict(world.look(names).logs)
        if name in logs:
            logs[name] = replace(logs[name], bounds={0: LogBounds(0, 3)})
        return LogsSeen(logs)

    world.archive_all(world.next_epoch())
    tee = world.next_epoch(look=shortened)
    topics.produce(other, 0, [b"b"])
    assert tee.round().records == 1
    assert [halted.topic for halted in tee.halted] == [name]
    assert f"{name}/0 [3, 5) diverged" in str(world.breaches[HALTED, str(here(world, name))])
    before = manifests(world, name)
    assert before[-1].kind is Kind.LOOK
    topics.produce(name, 0, [b"c"])
    tee.round()
    assert manifests(world, name) == before
    # The next epoch reads in the chain what was seen, though the log shows nothing of it any more.
    again = world.next_epoch()
    again.round()
    assert [halted.topic for halted in again.halted] == [name]
    world.acknowledge(name, PartitionSpan(0, 3, 5))
    world.archive_all(again)
    assert (again.halted, world.asked, world.breaches[HALTED, str(here(world, name))]) == ({}, [], None)
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN


def test_a_chain_that_was_cut_off_is_not_written_on(topics: Topics) -> None:
    name, other = topics.make(partitions=1), topics.make("other", partitions=1)
    world = world_of(topics, name, other)
    tee = world.next_epoch()
    for _ in range(3):
        topics.produce(name, 0, [b"a"])
        topics.produce(other, 0, [b"a"])
        world.archive_all(tee)
    world.store.delete([here(world, name).manifest_key(3)])
    commits = dict(world.group.commits)
    tee = world.next_epoch()
    topics.produce(other, 0, [b"b"])
    assert tee.round().records == 1
    assert tee.halted.keys() == {here(world, name)}
    assert "name manifest 3, but the chain ends at manifest 2" in str(world.breaches[HALTED, str(here(world, name))])
    assert [manifest.sequence for manifest in manifests(world, name)] == [0, 1, 2]
    assert world.group.commits[name, 0] == commits[name, 0]  # still the evidence
    world.acknowledge(name, sequence=2)  # of too little
    tee.round()
    assert tee.halted.keys() == {here(world, name)}
    world.acknowledge(name, sequence=3)
    world.archive_all(tee)
    assert (tee.halted, world.asked) == ({}, [])
    assert world.inspect(name).coverage.verdict is Verdict.PROVEN
    world.archive_all(again := world.next_epoch())
    assert again.halted == {}


def test_a_head_that_nobody_claimed_halts_its_topic_and_the_next_start_goes_on_above_it(topics: Topics) -> None:
    names = [topics.make(suffix, partitions=1) for suffix in ("damaged", "sound")]
    world = world_of(topics, *names)
    damaged, sound = names
    tee = world.next_epoch()
    for name in names:
        topics.produce(name, 0, [b"a"])
    world.archive_all(tee)
    tiling, look = resume(world.store, here(world, damaged)), lambda: world.look([damaged]).logs[damaged]
    ArchiveWriter.take_over(world.store, tiling, Writer(57, "another installation's"), look)
    for name in names:
        topics.produce(name, 0, [b"b"])
    world.archive_all(tee)
    told = world.breaches[HALTED, str(here(world, damaged))] or ""
    assert "epoch 57, instance another installation's, that no start claimed" in told
    assert [manifest.epoch for manifest in manifests(world, damaged)][-1] == 57
    assert world.inspect(sound).coverage.verdict is Verdict.PROVEN
    world.epoch = 57
    world.archive_all(world.next_epoch())
    assert world.breaches[HALTED, str(here(world, damaged))] is None
    assert world.inspect(damaged).coverage.verdict is Verdict.PROVEN


def test_a_group_that_somebody_moved_is_committed_again(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    topics.produce(name, 0, [b"a"] * 5)
    world.archive_all(world.next_epoch())
    for moved in (Committed(1), Committed(5), None):
        world.group.commits = {} if moved is None else {(name, 0): moved}
        world.next_epoch().round()
        commit = world.group.commits[name, 0]
        said = BackupMetadata.decode(commit.metadata)
        assert commit.offset == 5
        assert said is not None
        assert said.epoch == world.epoch
    assert world.inspect(name).coverage.partitions[0].records == 5


def test_an_acknowledgement_counts_by_a_look_that_is_no_older_than_the_chain(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    topics.produce(name, 0, [b"a"] * 3)
    world.archive_all(world.next_epoch())
    world.acknowledge(name, PartitionSpan(0, 0, 1))

    def grows(names: Collection[str]) -> LogsSeen:
        found = world.look(names)
        topics.produce(name, 0, [b"b"])  # so that the takeover's look, a moment later, sees more
        return found

    world.next_epoch(look=grows).round()
    assert what_is_wrong(world.inspect(name).coverage) == []


def test_a_former_epoch_that_wakes_up_late_ends_and_leaves_no_manifest(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    old = world.next_epoch()
    topics.produce(name, 0, [b"a"] * 3)
    world.archive_all(old)
    topics.produce(name, 0, [b"b"] * 3)
    parts = world.parts()  # of the second epoch

    class SleepsAfterItsObject:
        def copy(self, reads):  # type: ignore[no-untyped-def]
            copied = world.copier(world.store).copy(reads)
            topics.produce(name, 0, [b"c"])
            world.archive_all(world.next_epoch())
            return copied

    sleeper = Tee(replace(parts, copier=SleepsAfterItsObject()))
    with pytest.raises(FencedError):
        sleeper.round()
    found = world.inspect(name)
    assert found.coverage.verdict is Verdict.PROVEN
    assert found.coverage.partitions[0].records == 7
    kinds = [(manifest.epoch, manifest.kind) for manifest in manifests(world, name)]
    assert kinds == [(1, Kind.TAKEOVER), (1, Kind.DATA), (2, Kind.TAKEOVER), (3, Kind.TAKEOVER), (3, Kind.DATA)]


@pytest.mark.parametrize("error", [DataLossError("gone"), PartFailedError("Spark"), RefusedError("a record")], ids=str)
def test_a_partition_that_cannot_be_read_holds_up_no_other(topics: Topics, error: MillraceError) -> None:
    name, other = topics.make(partitions=2), topics.make("other", partitions=1)
    world = world_of(topics, name, other)
    for each in (name, other):
        topics.produce(each, 0, [b"a"] * 5)

    topics.produce(name, 1, [b"a"] * 3)

    class Refuses:
        def copy(self, reads):  # type: ignore[no-untyped-def]
            if any((read.partition.topic, read.partition.partition) == (name, 0) for read in reads):
                raise error
            return world.copier(world.store).copy(reads)

    done = world.next_epoch(copier=Refuses()).round()
    assert (done.failure, done.records) == (error, 8)
    assert world.inspect(other).coverage.verdict is Verdict.PROVEN
    found = world.inspect(name).coverage
    assert (found.verdict, [part.records for part in found.partitions]) == (Verdict.PENDING, [0, 3])


def test_a_topic_that_is_not_there_yet_is_waited_for(topics: Topics) -> None:
    world = world_of(topics, topics.name())
    tee = world.next_epoch()
    assert tee.round().waiting == 0
    name = topics.make(partitions=1)
    topics.produce(name, 0, [b"a"])
    assert tee.round().records == 1


def test_a_chain_is_read_on_by_who_has_not_written_it(topics: Topics) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    for number in range(4):
        topics.produce(name, 0, [b"a"])
        world.archive_all(world.next_epoch())
        tiling = resume(world.store, here(world, name))
        read_on(world.store, tiling)
        assert tiling.partitions[0].next == number + 1
