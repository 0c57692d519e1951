"""What audits remember of one another: nothing that one of them saw is green later by being forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.adapters.archive.audits import inspection
from millrace.adapters.archive.audits.auditor import Auditor
from millrace.adapters.archive.audits.evidence import EvidenceStore
from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import MOST_NAMED, Audit, BreachKind, Depth
from millrace.domain.archive.audits.memory import Claim
from millrace.domain.archive.manifest import Kind, ObjectEntry, PartitionSpan
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.archive.proof.summary import Summary
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.errors import DeclarationError
from millrace.usecases.archive import audits
from millrace.usecases.archive.audit_page import page_of
from support.archive.audits.in_memory import END, HERE, NOON, Audits, said
from support.archive.chains import entry
from support.archive.small_archive import PARTITIONS, Archive, records
from support.fakes.objects import MemoryStore
from support.fakes.platform import PartsPlatform

LONG = timedelta(days=9)


def gone_on(world: Audits, epoch: int = 2) -> ArchiveWriter:
    """A newer epoch that goes on with the chain."""
    tiling = Tiling(HERE)
    read_on(world.archive.store, tiling)
    return ArchiveWriter.take_over(world.archive.store, tiling, Writer(epoch, f"i{epoch}"), world.log)


def archived(world: Audits, partition: int, first: int) -> ObjectEntry:
    """Ten more offsets of a partition get into the archive."""
    brought = world.archive.put(records(partition, first), partition, first)
    gone_on(world).append(Kind.DATA, world.log(), objects=[brought])
    return brought


def spoil(world: Audits, key: str) -> None:
    """Other bytes, as many."""
    world.objects[key] = world.objects[key][:-9] + bytes(9)


def without_archive(**more: Any) -> Audits:
    world = Audits(max_lag=LONG, **more)
    world.objects.clear()
    return world


@pytest.mark.parametrize("ahead", [1, -1])
def test_what_a_long_audit_finds_is_not_forgotten_for_shorter_ones_beside_it(ahead: int) -> None:
    """Whatever their clocks say: the one that ended later knew nothing of the other."""
    world = Audits()
    world.audit(Depth.DEEP)
    spoil(world, world.archive.key(1, 0))
    long = world.auditor().audit(HERE, Depth.ALL, world.max_lag, world.known)
    world.now += timedelta(hours=ahead)
    assert world.audit().is_green
    EvidenceStore(world.archive.store).put(long, page_of(long))
    world.now += timedelta(hours=2)
    for depth in (Depth.SHALLOW, Depth.SHALLOW, Depth.DEEP):
        assert world.archive.key(1, 0) in said(world.audit(depth))[0]


def test_a_chain_begun_anew_that_is_longer_than_the_old_one_stays_red() -> None:
    world = Audits()
    head = world.audit().sequence
    for key in [key for key in world.objects if key.startswith(HERE.prefix)]:
        del world.objects[key]
    anew = Archive(world.archive.store, HERE, "", None)
    tiling = Tiling(HERE)
    chain = ArchiveWriter.take_over(world.archive.store, tiling, Writer(7, "other"), lambda: anew.log(10))
    for first in range(0, END, 10):
        objects = [anew.put(records(number, first), number, first) for number in range(PARTITIONS)]
        chain.append(Kind.DATA, anew.log(first + 10), objects=objects)
    for _ in range(3):
        chain.append(Kind.LOOK, anew.log(END))
    world.claims = [Claim(tiling.head.sequence, tiling.head.sha256, "a commit")]
    for _ in range(3):
        found = world.audit()
        [line] = said(found)
        assert line.startswith(f"manifest {head}: the audit of ")
        assert line.endswith(" knew of it, but it has other bytes now")
        assert not found.summary
    world.known = Known(sequence=head)
    assert world.audit().is_green


def test_what_was_archived_anew_after_a_cut_is_read_by_the_next_deep_audit() -> None:
    world = Audits()
    world.audit(Depth.DEEP)
    for sequence in (2, 3, 4):
        del world.objects[HERE.manifest_key(sequence)]
    for key in [key for key in world.objects if key.startswith(HERE.summaries)]:
        del world.objects[key]
    world.known = Known(sequence=4)
    chain = gone_on(world)
    for first in range(10, END, 10):
        objects = [world.archive.put(records(number, first), number, first) for number in range(PARTITIONS)]
        chain.append(Kind.DATA, world.log(), objects=objects)
    found = world.audit(Depth.DEEP)
    assert (found.looked.read_objects, said(found)) == (8, [])


def test_a_topic_that_was_only_not_to_be_seen_is_not_lost() -> None:
    world = Audits(ends=(END, END + 10), max_lag=LONG)
    world.audit()
    world.gone = True
    assert "the topic was deleted" in said(world.audit())[0]
    world.gone = False
    archived(world, 1, END)
    assert world.audit().is_green


def test_who_knows_of_a_loss_does_not_know_of_what_happens_to_the_offsets_later() -> None:
    world = Audits(ends=(END, END + 10), max_lag=LONG)
    world.audit()
    world.ends = (END, END)
    assert "cut off the log" in said(world.audit())[0]
    world.known = Known({1: Spans([(END, END + 10)])})
    assert world.audit().is_green
    world.ends = (END, END + 10)
    key = HERE.object_key(archived(world, 1, END).name)
    assert world.audit().is_green
    del world.objects[key]
    assert "the object is gone" in said(world.audit(Depth.DEEP))[0]


class Asked:
    """Acknowledges as the command does, without a control database."""

    def __init__(self, world: Audits) -> None:
        self.world = world
        self.rows: list[Any] = []
        backups = SimpleNamespace(
            known=lambda here: self.rows, acknowledge=lambda asked, about: self.rows.extend(asked)
        )
        self.platform: Any = PartsPlatform(
            control=SimpleNamespace(backups=backups), archive_auditor=lambda app, kafka: world.auditor()
        )
        topic = SimpleNamespace(backup=SimpleNamespace(max_lag=world.max_lag))
        app = SimpleNamespace(qualified_name="shop.backup")
        self.backed: Any = SimpleNamespace(app=app, kafka="k", topic=topic)

    def acknowledge(self, first: int, next_: int) -> list[PartitionSpan]:
        span = PartitionSpan(0, first, next_)
        found = audits.acknowledge_loss(self.platform, self.backed, HERE, span, actor="ann", reason="seen")
        self.world.known = Known.of(self.rows)
        return found


def test_who_knows_of_an_objects_fault_does_not_know_of_its_next_one() -> None:
    world = Audits()
    asked, key = Asked(world), world.archive.key(1, 0)
    kept = world.objects.pop(key)
    assert not world.audit().is_green
    assert asked.acknowledge(0, 100) == [PartitionSpan(0, 10, 20)]
    assert world.audit().is_green
    world.objects[key] = kept
    assert world.audit(Depth.ALL).is_green
    spoil(world, key)
    assert key in said(world.audit(Depth.ALL))[0]


def test_offsets_of_which_only_a_foreign_objects_name_speaks_are_not_acknowledged() -> None:
    world = Audits()
    asked = Asked(world)
    world.objects[f"{HERE.prefix}0/{5:020d}-{10**12:020d}-{'a' * 64}.parquet"] = b"junk"
    lost = world.archive.key(2, 0)
    del world.objects[lost]
    assert world.audit().count(BreachKind.BROKEN) == 2
    assert asked.acknowledge(0, 10**13) == [PartitionSpan(0, 20, 30)]
    assert [line for line in said(world.audit()) if lost in line] == []
    assert "no manifest names it" in said(world.audit())[0]


def test_what_expired_before_any_app_began_is_lost() -> None:
    world = without_archive(starts=(0, 0), ends=(100, 100))
    assert world.audit().is_green
    world.starts, world.ends = (100, 100), (200, 100)
    assert said(world.audit()) == [
        f"partition {number} [0, 100) is lost: an audit saw it, and it was deleted before it was archived"
        for number in range(PARTITIONS)
    ]
    world.starts = (200, 100)
    assert "partition 0 [0, 200) is lost" in said(world.audit())[0]
    world.known = Known({0: Spans([(0, 200)]), 1: Spans([(0, 100)])})
    assert world.audit().is_green


def test_a_partition_without_leader_that_no_chain_knows_is_not_forgotten() -> None:
    world = without_archive(ends=(40, 43))
    world.audit()
    whole = world.log
    world.log = lambda: ObservedLog(world.now, HERE.topic_id, {0: LogBounds(0, 40)}, partitions=2)  # type: ignore[method-assign]
    assert world.audit().unseen == (1,)
    world.log = whole  # type: ignore[method-assign]
    world.ends = (40, 5)
    assert said(world.audit())[0].startswith("partition 1 [5, 43) is lost")


def test_more_losses_than_are_named_are_all_remembered() -> None:
    partitions, store, ends = MOST_NAMED + 500, MemoryStore(), {"end": 5}
    now = [NOON]

    def look(topic: str = "") -> ObservedLog:
        return ObservedLog(now[0], HERE.topic_id, dict.fromkeys(range(partitions), LogBounds(0, ends["end"])))

    def audit() -> Audit:
        auditor = Auditor(
            "shop.backup", store, look, lambda *_: iter(()), lambda _: [], lambda *_: None, lambda: now[0]
        )
        found = auditor.audit(HERE, Depth.SHALLOW, LONG, Known())
        EvidenceStore(store).put(found, "")
        now[0] += timedelta(hours=1)
        return found

    audit()
    ends["end"] = 0
    assert audit().count(BreachKind.LOST) == partitions
    ends["end"] = 9
    chain = ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), look)
    chain.append(Kind.DATA, look(), objects=[entry(0, 9, number) for number in range(partitions)])
    for _ in range(2):
        assert audit().count(BreachKind.LOST) == partitions


def test_what_an_audit_knew_is_not_carried_for_ever() -> None:
    world = Audits()
    spoil(world, key := world.archive.key(1, 0))
    whole = Audits().objects[key]
    assert not world.audit(Depth.DEEP).is_green
    world.objects[key] = whole
    found = [world.audit(Depth.SHALLOW) for _ in range(12)]
    assert all(audit.is_green for audit in found)
    assert [audit.looked.from_sequence >= 0 for audit in found] == [False] + [True] * 11, "the first one walks it all"


def test_evidence_of_another_version_is_left_aside() -> None:
    world = Audits()
    world.audit()
    for change in ((b'"version":1', b'"version":2'), (b'"forgiven":0,', b'"forgiven":0,"later":1,')):
        key = max(key for key in world.objects if key.startswith("audit/") and key.endswith(".json"))
        data = world.objects.pop(key).replace(*change)
        world.objects[f"{key[: key.rindex('-')]}-{sha256_of(data)[:16]}.json"] = data
        assert world.audit().is_green


def test_more_faults_than_are_named_are_acknowledged_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_TOLD", 2)
    world = Audits()
    gone = [world.archive.key(number, 0) for number in range(4)]
    for key in gone:
        del world.objects[key]
    asked = Asked(world)
    asked.acknowledge(0, END)
    assert [line for line in said(world.audit(Depth.DEEP)) if gone[0] in line or gone[1] in line] == []
    for _ in range(2):
        world.audit(Depth.DEEP)
        if not world.audit(Depth.DEEP).is_green:
            asked.acknowledge(0, END)
    found = world.audit(Depth.DEEP)
    assert (found.is_green, found.forgiven, found.summary) == (True, 4, "")


def test_what_a_former_chain_had_archived_is_not_forgotten_with_it() -> None:
    world = Audits()
    head = world.audit().sequence
    for key in [key for key in world.objects if key.startswith((HERE.manifests, HERE.summaries))]:
        del world.objects[key]
    world.known = Known(sequence=head)
    world.starts = (END, END)
    chain = ArchiveWriter.take_over(world.archive.store, Tiling(HERE), Writer(2, "two"), world.log)
    lost = [
        f"partition {number} [0, {END}) is lost: an audit saw it, and the chain that had it archived is another one now"
        for number in range(PARTITIONS)
    ]
    for _ in range(2):
        assert said(world.audit()) == lost
    assert chain.tiling.head.sequence == 0
    world.known = Known(dict.fromkeys(range(PARTITIONS), Spans([(0, END)])), head)
    assert world.audit().is_green


def test_changed_evidence_is_red_until_its_key_is_gone() -> None:
    world = Audits(ends=(END, END + 3), max_lag=LONG)
    world.audit()
    world.ends = (END, END)
    lost = said(world.audit())
    world.audit()
    key = max(key for key in world.objects if key.startswith("audit/") and key.endswith(".json"))
    world.objects[key] = world.objects[key].replace(b'"forgiven":0', b'"forgiven":1')
    for depth in (Depth.SHALLOW, Depth.SHALLOW, Depth.DEEP, Depth.SHALLOW):
        found = said(world.audit(depth))
        assert [line for line in found if "evidence of an earlier audit was changed" in line], depth
        assert lost[0] in found, "the audit before it still knows"
    del world.objects[key]
    assert said(world.audit()) == lost


@pytest.mark.parametrize("gone", [False, True])
def test_a_topic_that_is_made_again_during_an_audit_differs_in_nothing(gone: bool) -> None:
    world = Audits()
    looks: list[Callable[[], ObservedLog]] = [world.log]
    other = ObservedLog(NOON, "B" * 22, dict.fromkeys(range(PARTITIONS), LogBounds(0, END)))
    world.log = lambda: looks.pop()() if looks else other  # type: ignore[method-assign]
    world.in_log = {at: replace(one, value=b"another topic's") for at, one in world.in_log.items()}
    if gone:

        def read(*_: object) -> Any:
            raise DeclarationError("there is no such topic")

        world.read = read  # type: ignore[method-assign]
    found = world.audit(Depth.ALL)
    assert said(found) == []
    assert found.looked.compared_objects == 0


def test_a_summary_that_says_something_else_than_the_chain_is_a_fault() -> None:
    world = Audits(ends=(END, END + 3), max_lag=LONG)
    key = world.audit().summary
    summary = decode(world.objects[key], Summary, key)
    other = replace(summary.partitions[1], next=END + 3, records=summary.partitions[1].records + 3)
    world.objects[key] = encode(replace(summary, partitions=(summary.partitions[0], other)))
    for depth in (Depth.ALL, Depth.SHALLOW):
        assert said(world.audit(depth)) == [f"{key}: this summary differs from the chain"]
    del world.objects[key]
    assert world.audit().is_green


def test_strays_by_the_thousand_have_no_object_read() -> None:
    world = Audits()
    for number in range(MOST_NAMED + 1):
        world.objects[f"{HERE.manifests}zz{number}"] = b""
    assert not world.audit().is_green
    again = world.audit()
    assert (again.looked.read_objects, again.is_green) == (0, False)
