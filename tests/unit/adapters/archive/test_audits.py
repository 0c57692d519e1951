"""Audits in a row over one archive: what is red stays red until it is mended or somebody knows, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.archive.audits.evidence import EvidenceStore
from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import SUMMARIES_KEPT, forget_false_summaries
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import MOST_NAMED, Audit, Breach, BreachKind, Depth, EndSeen, counted
from millrace.domain.archive.audits.memory import Claim
from millrace.domain.archive.audits.turn import DAYS, Turn, is_deep_due
from millrace.domain.archive.manifest import Kind
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.waiting import ends_beyond, late
from millrace.domain.chain.head import Writer
from millrace.errors import CorruptArchiveError
from support.archive.audits.in_memory import END, HERE, NOON, Audits, said
from support.archive.small_archive import Archive
from support.fakes.objects import MemoryStore


def test_a_whole_archive_is_proven_summed_up_once_and_gone_on_from() -> None:
    world = Audits()
    first = world.audit()
    assert (first.verdict, first.is_green, first.records) == (Verdict.PROVEN, True, 72)
    assert first.summary == HERE.summary_key(4)
    second = world.audit()
    assert (second.is_green, second.summary, second.looked.from_sequence, second.looked.objects) == (True, "", 4, 0)
    deep = world.audit(Depth.DEEP)
    assert (deep.looked.objects, deep.looked.read_objects, deep.looked.compared_records) == (8, 8, 72)
    assert deep.is_green


def test_what_waits_is_late_once_an_audit_saw_it_longer_ago_than_max_lag() -> None:
    world = Audits(ends=(END, END + 3))
    young = world.audit()
    assert (young.verdict, young.is_green) == (Verdict.PENDING, True)
    assert young.deletable_in_seconds == 7200
    old = world.audit()
    assert old.count(BreachKind.LATE) == 1
    assert said(old)[0].startswith(
        "partition 1 [40, 43) is not archived, and was in the log at 2026-11-24 12:00:00 UTC"
    )
    world.max_lag = timedelta(hours=3)
    assert world.audit().is_green


@pytest.mark.parametrize("gone", [True, False])
def test_what_only_an_audit_saw_is_lost_until_somebody_knows(gone: bool) -> None:
    world = Audits(ends=(END, END + 3))
    assert world.audit().is_green
    world.gone, world.ends = gone, (END, END)
    for _ in range(3):
        assert "partition 1 [40, 43) is lost: an audit saw it, and" in said(world.audit())[0]
    world.known = Known({1: Spans([(40, 42)])})
    [rest] = world.audit().breaches
    assert (rest.first, rest.next) == (42, 43)
    world.known = Known({1: Spans([(0, 100)])})
    assert world.audit().is_green


def test_what_was_cut_off_and_filled_anew_stays_red() -> None:
    world = Audits(ends=(END, END + 3))
    world.audit()
    world.ends = (END, END)
    world.audit()
    world.ends = (END, END + 9)
    world.max_lag = timedelta(days=1)
    for _ in range(2):
        assert "cut off the log" in said(world.audit())[0]


@pytest.mark.parametrize("by", ["evidence", "commits"])
def test_an_archive_that_was_deleted_and_begun_anew_is_red_until_somebody_knows(by: str) -> None:
    world = Audits()
    head = world.audit()
    for key in [key for key in world.objects if by == "commits" or key.startswith(HERE.prefix)]:
        del world.objects[key]
    world.claims = [Claim(head.sequence, head.sha256, "the commits")] if by == "commits" else []
    Archive(world.archive.store, HERE, "", None).build()
    del world.objects[HERE.manifest_key(4)]  # it has not come so far yet
    world.max_lag = timedelta(days=1)
    for _ in range(3):
        red = world.audit()
        assert f"manifest {head.sequence}: " in said(red)[0]
        assert not red.summary
    world.known = Known(sequence=head.sequence)
    assert [breach for breach in world.audit().breaches if breach.kind is BreachKind.BROKEN] == []


def test_a_head_that_was_deleted_is_red_until_it_is_put_back() -> None:
    world = Audits()
    world.audit()
    key = HERE.manifest_key(4)
    kept = world.objects.pop(key)
    assert world.audit().count(BreachKind.BROKEN)
    assert world.audit().count(BreachKind.BROKEN)
    world.objects[key] = kept
    assert world.audit().is_green


def test_a_fault_behind_a_summary_is_told_by_shallow_audits_once_it_was_found() -> None:
    world = Audits()
    world.audit(Depth.DEEP)
    key = world.archive.key(1, 0)
    kept = world.objects[key]
    world.objects[key] = kept[:-9] + bytes(9)
    assert world.audit().is_green, "a shallow audit does not read"
    assert not world.audit(Depth.ALL).is_green
    for _ in range(2):
        red = world.audit()
        assert all(key in line for line in said(red))
        assert red.looked.read_objects == 1
    world.objects[key] = kept
    assert world.audit().is_green
    assert world.audit().looked.from_sequence == 4


def test_a_difference_to_kafka_stays_until_it_was_compared_again() -> None:
    world = Audits()
    record = world.in_log[0, 12]
    world.in_log[0, 12] = replace(record, value=b"another one")
    red = world.audit(Depth.DEEP)
    assert said(red) == [f"{world.archive.key(1, 0)}: the value is another one in Kafka [12, 13) of partition 0"]
    world.in_log[0, 12] = record
    world.starts = (20, 0)
    assert said(world.audit()) == said(red), "Kafka has lost these offsets, nobody can tell any more"
    world.starts = (0, 0)
    assert world.audit().is_green
    world.in_log[0, 12] = replace(record, value=b"another one")
    world.audit(Depth.ALL)
    world.known = Known(faults=frozenset(said(red)))
    assert world.audit().is_green


def test_records_that_only_one_side_has_are_named() -> None:
    world = Audits()
    del world.in_log[1, 3]
    world.in_log[1, 18] = replace(world.in_log[1, 17], offset=18)
    found = [line.partition(": ")[2] for line in said(world.audit(Depth.ALL))]
    assert found == [
        "the archive has a record, and Kafka has none [3, 4) of partition 1",
        "Kafka has a record, and the archive has none [18, 19) of partition 1",
    ]


def test_evidence_that_was_changed_is_named_and_that_is_gone_is_not_missed() -> None:
    world = Audits()
    world.audit()
    [key] = [key for key in world.objects if key.startswith("audit/") and key.endswith(".json")]
    world.objects[key] = world.objects[key].replace(b'"forgiven":0', b'"forgiven":1')
    assert said(world.audit()) == [f"{key}: the evidence of an earlier audit was changed"]
    for key in [key for key in world.objects if key.startswith("audit/")]:
        del world.objects[key]
    assert world.audit().is_green


def test_an_acknowledgement_forgives_neither_what_the_chain_calls_lost_nor_what_is_late() -> None:
    world = Audits(starts=(END + 5, 0), ends=(END + 9, END + 3))
    world.known = Known({0: Spans([(0, 1000)]), 1: Spans([(0, 1000)])}, 1000)
    world.audit()
    red = world.audit()
    assert (red.count(BreachKind.LOST), red.count(BreachKind.LATE)) == (1, 2)


def test_ten_summaries_are_kept() -> None:
    world = Audits()
    tiling = Tiling(HERE)
    read_on(world.archive.store, tiling)
    chain = ArchiveWriter.take_over(world.archive.store, tiling, Writer(2, "two"), world.log)
    for _ in range(SUMMARIES_KEPT + 5):
        chain.append(Kind.LOOK, world.log())
        assert world.audit().summary
    assert len([key for key in world.objects if key.startswith(HERE.summaries)]) == SUMMARIES_KEPT


def test_no_manifest_is_written_behind_one_that_was_deleted() -> None:
    world = Audits()
    tiling = Tiling(HERE)
    read_on(world.archive.store, tiling)
    chain = ArchiveWriter.take_over(world.archive.store, tiling, Writer(2, "two"), world.log)
    del world.objects[HERE.manifest_key(5)]
    with pytest.raises(CorruptArchiveError, match="is missing"):
        chain.append(Kind.LOOK, world.log())
    assert HERE.manifest_key(6) not in world.objects


def test_only_summaries_of_manifests_that_are_known_to_be_gone_are_forgotten() -> None:
    store = MemoryStore()
    tiling = Tiling(HERE)
    Archive(store, HERE, "", None).build()
    read_on(store, tiling)
    for sequence in (3, 4, 5, 7, 8):
        store.objects[HERE.summary_key(sequence)] = b""
    forget_false_summaries(store, tiling, 7)
    assert [s for s in range(10) if HERE.summary_key(s) in store.objects] == [3, 4, 8]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.text("0123456789abcdef", min_size=8, max_size=8))
def test_each_object_is_read_once_in_thirty_days_and_what_is_new_at_once(gaps: list[int], sha256: str) -> None:
    at, read = NOON, 0
    for gap in gaps:
        turn = Turn.since(at, 5, at + timedelta(days=gap))
        read += turn.has(5, sha256)
        assert turn.has(6, sha256)
        at += timedelta(days=gap)
    whole = sum(gaps) // DAYS
    assert whole <= read <= whole + 1
    assert Turn.since(None, -1, at).has(0, sha256)


def test_a_deep_audit_is_due_a_day_after_the_last() -> None:
    assert is_deep_due(None, NOON)
    assert not is_deep_due(NOON, NOON + timedelta(hours=23))
    assert is_deep_due(NOON, NOON + timedelta(hours=23, minutes=45))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100)), max_size=200), st.integers(0, 100))
def test_of_ends_the_first_moment_beyond_an_offset_is_kept(seen: list[tuple[int, int]], offset: int) -> None:
    given_ends = [EndSeen(NOON + timedelta(minutes=at), end) for at, end in seen]
    kept = ends_beyond(offset, given_ends)
    assert len(kept) <= 48
    beyond = [one.at for one in given_ends if one.end > offset]
    assert (kept[0].at if kept else None) == min(beyond, default=None)
    if kept:
        found = late(0, (offset, 101), kept[0].at, NOON + timedelta(minutes=600), timedelta(minutes=300))
        assert (found is not None) == any(at < NOON + timedelta(minutes=300) for at in beyond)


def test_an_audit_reads_back_as_it_was_written_and_names_a_thousand_breaches_at_most() -> None:
    audit = Audits().audit()
    assert decode(encode(audit), Audit, "k") == audit
    assert EvidenceStore(MemoryStore()).key(audit).endswith(f"-{sha256_of(encode(audit))[:16]}.json")
    named, counts = counted([Breach(BreachKind.BROKEN, str(n)) for n in range(5000)] + [Breach(BreachKind.LOST, "x")])
    assert (len(named), named[0].text, dict(counts)[BreachKind.BROKEN]) == (MOST_NAMED, "x", 5000)
