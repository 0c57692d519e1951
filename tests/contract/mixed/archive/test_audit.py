"""Audits of archives that a tee made: each fault is named with exit 1 and an alarm, and over once it is mended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.audits.findings import BreachKind, Depth
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.declaration.pipeline import Backup
from millrace.embedded.stack import Stack
from millrace.errors import RefusedError
from millrace.usecases.archive import audits
from millrace.usecases.archive.audits import Kept, exit_code_of
from support.archive.audits.worlds import AuditWorld, archive_by_tee
from support.archive.faults import FAULTS, Told
from support.archive.small_archive import PARTITIONS, Archive
from support.archive.tees import Topics
from support.stack.control_databases import Databases

FOR_EVER = "-1"  # records of 2023 would be deleted by the broker's first sweep


@pytest.fixture(scope="module")
def topics(idle_stack: Stack) -> Topics:
    from support.stack.embedded import start

    return Topics(start(idle_stack, "kafka", "s3", "postgres"))


@pytest.fixture(scope="module")
def spoiled(topics: Topics, control_databases: Databases) -> tuple[AuditWorld, Archive]:
    name = topics.make("spoiled", partitions=PARTITIONS, retention_ms=FOR_EVER)
    world = AuditWorld.of(topics, control_databases, name)
    return world, archive_by_tee(world, name)


def world_of(topics: Topics, databases: Databases, name: str, **more: object) -> AuditWorld:
    return AuditWorld.of(topics, databases, name, **more)


def code(kept: Kept) -> int:
    return exit_code_of([kept.audit])


def lines(kept: Kept) -> list[str]:
    return [str(breach) for breach in kept.audit.breaches]


FIRST_TIER = ("deleted", "dropped", "swapped", "stale")
"""contract/s3/archive/test_faults.py holds all faults against the proof itself, in the first tier."""


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(fault, id=fault.__name__, marks=() if fault.__name__ in FIRST_TIER else pytest.mark.full)
        for fault in FAULTS
    ],
)
def test_a_fault_is_red_with_its_name_until_it_is_mended(
    spoiled: tuple[AuditWorld, Archive], spoil: Callable[[Archive], Told]
) -> None:
    world, archive = spoiled
    here, name = archive.incarnation, archive.incarnation.topic
    whole, manifests = world.contents(here), list(archive.manifests)
    assert code(world.audit(name, Depth.DEEP)) == 0
    told = spoil(archive)
    for depth in (Depth.DEEP, Depth.SHALLOW):
        red = world.audit(name, Depth.ALL if told.deep_only and depth is Depth.DEEP else depth)
        assert code(red) == 1
        assert red.audit.verdict is Verdict.BROKEN
        assert any(told.key in line and told.about in line for line in lines(red)), lines(red)
        assert not told.also or any(told.also in line for line in lines(red))
        assert world.open_alarms(here)["backup.broken"]
    archive.manifests[:] = manifests
    world.put_back(here, whole)
    green = world.audit(name)
    assert (code(green), lines(green)) == (0, [])
    assert world.open_alarms(here) == {}


def test_what_is_proven_leaves_a_summary_evidence_and_a_page(spoiled: tuple[AuditWorld, Archive]) -> None:
    world, archive = spoiled
    kept = world.audit(archive.incarnation.topic, Depth.ALL)
    found = kept.audit
    assert (found.verdict, found.records, found.looked.read_objects) == (Verdict.PROVEN, 72, 8)
    assert (found.looked.compared_objects, found.looked.compared_records) == (8, 72)
    assert found.summary or world.audit(archive.incarnation.topic).audit.looked.from_sequence == found.sequence
    page = world.store.get(kept.page)
    assert page is not None
    assert archive.incarnation.topic in page.decode()
    assert world.store.get(kept.evidence) is not None


def test_what_is_gone_for_good_is_acknowledged_and_nothing_else(
    spoiled: tuple[AuditWorld, Archive],
) -> None:
    world, archive = spoiled
    here, name = archive.incarnation, archive.incarnation.topic
    whole = world.contents(here)
    platform, backed = world.topics.platform, world.backed(name)
    with pytest.raises(RefusedError, match="no fault to acknowledge"):
        audits.acknowledge_loss(platform, backed, here, PartitionSpan(0, 0, 1000), actor="cli:ann", reason="why not")
    archive.delete(archive.key(2, 1))
    assert code(world.audit(name, Depth.DEEP)) == 1
    asked = audits.acknowledge_loss(
        platform, backed, here, PartitionSpan(1, 0, 10**9), actor="cli:ann", reason="deleted by hand"
    )
    assert asked == [PartitionSpan(1, 20, 30)]
    green = world.audit(name, Depth.DEEP)
    assert (code(green), green.audit.forgiven) == (0, 1)
    archive.delete(archive.key(3, 1))
    again = world.audit(name, Depth.DEEP)
    assert code(again) == 1
    assert archive.key(3, 1) in lines(again)[0]
    assert len(lines(again)) == 1
    world.put_back(here, whole)
    assert code(world.audit(name, Depth.DEEP)) == 0
    [entry] = platform.control.log.list(subject=world.app.qualified_name)
    assert (entry.action, entry.actor) == ("backup.acknowledge", "cli:ann")


def test_a_loss_is_red_until_the_tee_has_written_that_somebody_knows(
    topics: Topics, control_databases: Databases
) -> None:
    name = topics.make("trimmed", partitions=1)
    world = world_of(topics, control_databases, name)
    tee = world.tee()
    topics.produce(name, 0, [b"a", b"b"])
    world.archive_all(tee)
    topics.produce(name, 0, [b"c"] * 8)
    topics.trim(name, 0, 6)
    here = world.here(name)
    red = world.audit(name)
    assert lines(red)[0] == "partition 0 [2, 6) is lost: deleted before it was read"
    assert code(red) == 1
    said = world.open_alarms(here)[AlarmKind.BACKUP_LOST]
    world.archive_all(tee)
    assert world.open_alarms(here)[AlarmKind.BACKUP_LOST] == said, "audit and app mean one alarm, in the same words"
    asked = audits.acknowledge_loss(
        topics.platform, world.backed(name), here, PartitionSpan(0, 0, 100), actor="cli:ann", reason="a short retention"
    )
    assert asked == [PartitionSpan(0, 2, 6)]
    assert code(world.audit(name)) == 1, "only the chain forgives what the chain has lost"
    tee.round()
    assert code(world.audit(name)) == 0
    assert world.open_alarms(here) == {}


def test_what_waits_is_late_once_it_was_seen_for_longer_than_it_may_wait(
    topics: Topics, control_databases: Databases
) -> None:
    name = topics.make("late", partitions=1, retention_ms=FOR_EVER)
    backup = Backup(every=timedelta(0), max_lag=timedelta(0))
    world = world_of(topics, control_databases, name, backup=backup)
    tee = world.tee()
    topics.produce(name, 0, [b"a"])
    world.archive_all(tee)
    topics.produce(name, 0, [b"b"], timestamp=1)
    young = world.audit(name)
    assert (code(young), young.audit.verdict) == (0, Verdict.PENDING)
    late = world.audit(name)
    assert (code(late), late.audit.count(BreachKind.LATE)) == (1, 1)
    assert lines(late)[0].startswith("partition 0 [1, 2) is not archived, and was in the log at ")
    assert set(world.open_alarms(world.here(name))) == {"backup.late"}
    world.archive_all(tee)
    assert code(world.audit(name)) == 0
    assert world.open_alarms(world.here(name)) == {}


def test_what_waited_when_its_topic_was_deleted_stays_red(topics: Topics, control_databases: Databases) -> None:
    name = topics.make("deleted", partitions=1)
    world = world_of(topics, control_databases, name)
    topics.produce(name, 0, [b"a"])
    world.archive_all(world.tee())
    topics.produce(name, 0, [b"b", b"c"])
    here = world.here(name)
    assert code(world.audit(name)) == 0
    topics.delete(name)
    for _ in range(2):
        red = world.audit(name, topic_id=here.topic_id)
        assert code(red) == 1
        assert "[1, 3) is lost" in lines(red)[0]
    topics.make("deleted", partitions=1)
    assert {here.topic_id, topics.topic_id(name)} == {
        each.topic_id for each in audits.incarnations(topics.platform, world.backed(name))
    }
    asked = audits.acknowledge_loss(
        topics.platform, world.backed(name), here, PartitionSpan(0, 0, 9), actor="cli:ann", reason="it was a test"
    )
    assert asked == [PartitionSpan(0, 1, 3)]
    assert code(world.audit(name, topic_id=here.topic_id)) == 0
    assert code(world.audit(name)) == 0


def test_a_chain_whose_end_was_deleted_halts_the_tee_and_is_begun_again_when_somebody_knows(
    topics: Topics, control_databases: Databases
) -> None:
    name = topics.make("cut", partitions=1)
    world = world_of(topics, control_databases, name)
    tee = world.tee()
    for value in (b"a", b"b", b"c"):
        topics.produce(name, 0, [value])
        world.archive_all(tee)
    here = world.here(name)
    assert code(world.audit(name)) == 0  # and a summary names the head
    head = world.kept[-1].audit.sequence
    deleted = [here.manifest_key(sequence) for sequence in (head - 1, head)]
    world.store.delete(deleted)
    topics.produce(name, 0, [b"d"])
    tee.round()
    assert "is missing" in tee.halted[here]
    assert not world.store.get(here.manifest_key(head + 1)), "nothing is written behind the gap"
    red = world.audit(name)
    assert code(red) == 1
    assert set(world.open_alarms(here)) >= {"backup.broken", AlarmKind.BACKUP_HALTED}
    restarted = world.tee()
    restarted.round()
    assert here in restarted.halted
    backed = world.backed(name)
    with pytest.raises(RefusedError, match=f"the last faulty manifest is {head}"):
        audits.acknowledge_chain(topics.platform, backed, here, head + 1, actor="cli:ann", reason="too far")
    audits.acknowledge_chain(topics.platform, backed, here, head, actor="cli:ann", reason="deleted by hand")
    world.archive_all(restarted)
    assert restarted.halted == {}
    green = world.audit(name, Depth.ALL)
    assert (code(green), lines(green), green.audit.records) == (0, [], 4)
    assert world.open_alarms(here) == {}
    assert code(world.audit(name)) == 0


def test_an_archive_that_was_deleted_whole_and_begun_anew_is_red(topics: Topics, control_databases: Databases) -> None:
    name = topics.make("anew", partitions=1)
    world = world_of(topics, control_databases, name)
    topics.produce(name, 0, [b"a", b"b"])
    world.archive_all(world.tee())
    here = world.here(name)
    assert code(world.audit(name)) == 0
    world.store.delete([info.key for info in world.store.list(here.prefix)])
    world.group.commits.clear()
    world.archive_all(world.tee())
    for _ in range(2):
        red = world.audit(name)
        assert code(red) == 1
        assert "knew of it" in lines(red)[0]


def test_the_auditor_writes_nothing_into_an_archive_that_is_not_there(
    topics: Topics, control_databases: Databases
) -> None:
    name = topics.make("never", partitions=1)
    world = world_of(topics, control_databases, name)
    topics.produce(name, 0, [b"a"])
    kept = world.audit(name)
    assert (code(kept), kept.audit.verdict, kept.audit.sequence) == (0, Verdict.PENDING, -1)
    assert list(world.store.list(world.here(name).prefix)) == []
