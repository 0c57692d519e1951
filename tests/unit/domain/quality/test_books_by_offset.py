"""Books by offset: ranges are sets of offsets, a witness settles a doubt, and what does not balance is said once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.quality import books
from millrace.domain.quality import witness as witness_module
from millrace.domain.quality.books import (
    Balance,
    Doubt,
    Entry,
    Fault,
    Finding,
    Part,
    Reconciliation,
    Sums,
    judged,
    skipped,
    together,
)
from millrace.domain.quality.ranges import Mark, Work
from millrace.domain.quality.witness import Witness
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

A, B = (TopicPartition("t", "id", number) for number in range(2))
END = 30  # no offset of a property test reaches it


def offsets(spans: Iterable[Span]) -> set[int]:
    return {offset for first, next_ in spans for offset in range(first, next_)}


def ranges(found: set[int]) -> tuple[Span, ...]:
    firsts = sorted(offset for offset in found if offset - 1 not in found)
    nexts = sorted(offset + 1 for offset in found if offset + 1 not in found)
    return tuple(zip(firsts, nexts, strict=True))


def as_spans(found: set[int]) -> Spans:
    return Spans(ranges(found))


SPANS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=6)
SETS = SPANS.map(offsets)


@given(SETS, SETS)
def test_shared_offsets_are_in_both_and_are_counted(left: set[int], right: set[int]) -> None:
    shared = Spans(ranges(left)).both(Spans(ranges(right)))
    assert shared == Spans(ranges(left & right))
    assert shared.offsets == len(left & right)


WORK = st.builds(
    lambda timeline, partition, first, length: Work(timeline, partition, first, first + length),
    st.integers(1, 3),
    st.sampled_from((A, B)),
    st.integers(0, END),
    st.integers(0, 8),
)


@given(st.lists(WORK, max_size=6), st.integers(0, END), st.integers(0, END))
def test_skipped_is_what_no_timeline_has_read(work: list[Work], first: int, length: int) -> None:
    read = offsets((row.first, row.next) for row in work if row.partition == A)
    looked = OffsetRange(A, first, first + length)
    assert skipped(work, looked) == as_spans(set(range(first, first + length)) - read)


def doubt(*absent: Span, gaps: int | None) -> Doubt:
    return Doubt(OffsetRange(A, 0, END), Spans(absent), gaps)


def witness(knows: Iterable[Span] = (), holes: Iterable[Span] = ()) -> Witness:
    """One that has looked at the log itself."""
    return Witness(Spans(knows), Spans(holes), Spans(knows))


@st.composite
def doubts(draw: st.DrawFn) -> Doubt:
    absent = draw(SETS)
    return doubt(*ranges(absent), gaps=draw(st.none() | st.integers(0, len(absent))))


@st.composite
def witnesses(draw: st.DrawFn) -> Witness:
    knows = draw(SETS)
    return witness(ranges(knows), ranges(draw(SETS) & knows))


@given(doubts(), witnesses())
def test_a_witness_is_enough_with_as_many_holes_as_gaps_or_where_it_knows_all(doubted: Doubt, seen: Witness) -> None:
    absent = offsets(doubted.absent)
    holes = absent & offsets(seen.holes)
    enough = absent <= offsets(seen.knows) if doubted.gaps is None else len(holes) >= doubted.gaps
    assert seen.is_enough_for(doubted) == enough
    assert (seen.judge(doubted) is None) == enough


@given(SETS.filter(bool), witnesses(), st.data())
def test_what_a_witness_cannot_tell_is_unwitnessed(absent: set[int], seen: Witness, data: st.DataObject) -> None:
    forgotten = {data.draw(st.sampled_from(sorted(absent)))}
    knows, holes = offsets(seen.knows) - forgotten, offsets(seen.holes) - forgotten
    unknown, sure = absent - knows, len(absent & holes)
    gaps = data.draw(st.none() | st.integers(sure + 1, sure + len(unknown)))
    found = witness(ranges(knows), ranges(holes)).judge(doubt(*ranges(absent), gaps=gaps))
    assert found is not None
    assert (found.fault, found.partition, found.spans) == (Fault.UNWITNESSED, A, ranges(unknown))
    assert (found.offsets, found.ranges) == (len(unknown), len(found.spans))


@given(SETS.filter(bool), SETS, SETS, st.data())
def test_too_few_holes_where_all_is_known_are_records_that_were_not_read(
    absent: set[int], more: set[int], empty: set[int], data: st.DataObject
) -> None:
    knows = absent | more
    holes = (empty & knows) - {data.draw(st.sampled_from(sorted(absent)))}
    sure = len(absent & holes)
    gaps = data.draw(st.integers(sure + 1, len(absent)))
    found = witness(ranges(knows), ranges(holes)).judge(doubt(*ranges(absent), gaps=gaps))
    assert found is not None
    assert (found.fault, found.partition, found.spans) == (Fault.UNREAD, A, ((0, END),))
    assert (found.offsets, found.ranges) == (gaps - sure, 1)


@given(witnesses(), witnesses())
def test_two_witnesses_know_what_either_knows(one: Witness, other: Witness) -> None:
    both = one + other
    assert both.knows == as_spans(offsets(one.knows) | offsets(other.knows))
    assert both.holes == as_spans(offsets(one.holes) | offsets(other.holes))


def test_two_witnesses_are_enough_where_neither_alone_is() -> None:
    archive, log = witness(((0, 5),), ((2, 4),)), witness(((5, 9),), ((6, 7),))
    doubted = doubt((2, 4), (6, 8), gaps=3)
    for alone in (archive, log):
        found = alone.judge(doubted)
        assert found is not None
        assert found.fault is Fault.UNWITNESSED
    assert (archive + log).judge(doubted) is None


def test_an_offset_that_one_has_as_a_hole_is_one_whatever_the_other_has_there() -> None:
    assert (witness(((0, 9),)) + witness(((4, 5),), ((4, 5),))).judge(doubt((4, 5), gaps=1)) is None


def test_nobody_has_to_be_asked_where_every_offset_held_a_record() -> None:
    assert witness().judge(doubt((0, 9), gaps=0)) is None


def test_the_words_of_a_doubt_say_how_many_nobody_can_tell() -> None:
    seen = witness(((0, 5),), ((2, 4),))
    counted, uncounted = seen.judge(doubt((2, 9), gaps=3)), seen.judge(doubt((2, 9), gaps=None))
    assert counted is not None
    assert uncounted is not None
    assert counted.detail.startswith("1 of them held no record")
    assert uncounted.detail.startswith("any of them may have held no record")


def test_the_words_of_what_was_not_read_say_how_many_held_none() -> None:
    found = witness(((0, 9),), ((2, 4),)).judge(doubt((2, 9), gaps=5))
    assert found is not None
    assert "5 offsets gave no record" in found.detail
    assert "2 hold none, and 0 are unknown" in found.detail


def test_of_a_doubt_the_first_ranges_are_named_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_module, "MOST_NAMED", 2)
    found = witness().judge(doubt((0, 1), (2, 5), (6, 8), (9, 10), gaps=None))
    assert found is not None
    assert (found.spans, found.offsets, found.ranges) == (((0, 1), (2, 5)), 7, 4)


SOUND = Entry(
    first=40, next=50, records=8, sources=5, rows=7, quarantined=2, dropped=1, absent=3, rows_there=7
)  # two of its offsets held no record
CUT = replace(SOUND, records=None, sources=None, rows=None, quarantined=None, dropped=None)


@st.composite
def sound_entries(draw: st.DrawFn) -> Entry:
    first, sources, quarantined, dropped, gaps = (draw(st.integers(0, 5)) for _ in range(5))
    rows = sources + (draw(st.integers(0, 5)) if sources else 0)
    records = sources + quarantined + dropped
    next_ = first + records + gaps
    return Entry(first, next_, records, sources, rows, quarantined, dropped, dropped + gaps, rows)


@given(sound_entries())
def test_a_sound_entry_contradicts_nothing(entry: Entry) -> None:
    assert entry.contradiction == ""
    assert entry.gaps == entry.absent - (entry.dropped or 0)


@given(
    sound_entries(),
    st.sampled_from(("records", "sources", "quarantined", "dropped", "absent")),
    st.sampled_from((-1, 1)),
)
def test_one_number_that_is_one_off_is_a_contradiction(entry: Entry, name: str, off: int) -> None:
    assert replace(entry, **{name: getattr(entry, name) + off}).contradiction


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": 11}, "11 records of 10 offsets"),
        ({"records": 6}, "6 records of 10 offsets, but 3 offsets without a record"),
        ({"sources": 6}, "6 with rows, 2 in quarantine and 3 without a result are not 10 offsets"),
        ({"quarantined": 1}, "5 with rows, 1 in quarantine and 3 without a result are not 10 offsets"),
        ({"dropped": 2}, "2 were dropped, but 8 read minus 5 with rows and 2 in quarantine are 1"),
    ],
)
def test_a_contradiction_names_the_numbers(changes: dict[str, int], said: str) -> None:
    assert SOUND.contradiction == ""
    assert said in replace(SOUND, **changes).contradiction


@given(sound_entries(), st.sets(st.sampled_from(("records", "sources", "rows", "quarantined", "dropped"))))
def test_what_is_not_known_of_a_sound_entry_contradicts_nothing(entry: Entry, unknown: set[str]) -> None:
    assert replace(entry, **dict.fromkeys(unknown)).contradiction == ""


def test_how_many_offsets_of_a_cut_entry_held_no_record_is_not_known() -> None:
    assert CUT.gaps is None
    assert CUT.contradiction == ""


@pytest.mark.parametrize(("records", "sound"), [(6, False), (7, True), (10, True), (11, False)])
def test_a_cut_entry_is_judged_by_its_records_where_they_are_known(records: int, sound: bool) -> None:
    assert (replace(CUT, records=records).contradiction == "") is sound


@pytest.mark.parametrize(("sources", "sound"), [(4, False), (5, True), (6, False)])
def test_an_entry_whose_records_nobody_counted_is_judged_by_its_offsets(sources: int, sound: bool) -> None:
    uncounted = replace(SOUND, records=None, dropped=None, sources=sources)
    assert (uncounted.contradiction == "") is sound


def entry(first: int, next_: int, *, rows: int | None, there: int) -> Entry:
    every = next_ - first
    return Entry(first, next_, every, every, rows, 0, 0, 0, there)


def part(*entries: Entry, findings: Iterable[Finding] = ()) -> Part:
    return Part(OffsetRange(A, 0, END), tuple(findings), entries, ())


def faulty(fault: Fault, *spans: Span, at: TopicPartition | None = A, detail: str = "") -> Finding:
    return Finding(fault, at, spans, len(offsets(spans)), len(spans), detail)


def test_rows_that_nothing_explains_are_too_few_or_too_many() -> None:
    few, many = judged(part(entry(0, 5, rows=1_005, there=9), entry(5, 10, rows=5, there=6)))
    assert few == Finding(Fault.ROWS, A, ((0, 5),), 5, 1, "1,005 rows were written, 9 exist")
    assert many == Finding(Fault.ROWS, A, ((5, 10),), 5, 1, "5 rows were written, 6 exist")


@given(
    st.lists(st.tuples(st.none() | st.integers(5, 7), st.integers(5, 7)), min_size=6, max_size=6),
    st.lists(SETS, max_size=2),
)
def test_rows_are_named_only_where_no_other_finding_is(
    counts: list[tuple[int | None, int]], others: list[set[int]]
) -> None:
    entries = [entry(5 * n, 5 * n + 5, rows=rows, there=there) for n, (rows, there) in enumerate(counts)]
    findings = [faulty(Fault.MISSING, *ranges(other)) for other in others if other]
    elsewhere = set().union(*others)
    unexplained = [
        ((one.first, one.next),)
        for one in entries
        if one.rows not in (None, one.rows_there) and not elsewhere & set(range(one.first, one.next))
    ]
    found = judged(part(*entries, findings=findings))
    assert list(found[: len(findings)]) == findings
    assert [one.spans for one in found[len(findings) :]] == unexplained
    assert {one.fault for one in found[len(findings) :]} <= {Fault.ROWS}


def test_a_finding_that_ends_where_an_entry_begins_explains_nothing_of_it() -> None:
    before, behind = faulty(Fault.MISSING, (0, 5)), faulty(Fault.DOUBLED, (10, 11))
    found = judged(part(entry(5, 10, rows=5, there=4), findings=[before, behind]))
    assert [one.fault for one in found] == [Fault.MISSING, Fault.DOUBLED, Fault.ROWS]


def test_a_finding_with_ranges_that_are_not_named_may_explain_any_entry() -> None:
    cut = replace(faulty(Fault.MISSING, (0, 1)), ranges=2, offsets=7)
    assert judged(part(entry(20, 25, rows=5, there=4), findings=[cut])) == (cut,)


def test_an_entry_that_contradicts_itself_says_so_and_nothing_of_its_rows() -> None:
    wrong = replace(SOUND, dropped=2, rows_there=0)
    (found,) = judged(part(wrong))
    assert found == Finding(Fault.CONTRADICTED, A, ((40, 50),), 10, 1, wrong.contradiction)


def test_a_contradiction_explains_no_rows_of_the_next_entry() -> None:
    found = judged(part(replace(SOUND, dropped=2), entry(50, 55, rows=5, there=4)))
    assert [(one.fault, one.spans) for one in found] == [
        (Fault.CONTRADICTED, ((40, 50),)),
        (Fault.ROWS, ((50, 55),)),
    ]


def test_findings_of_one_kind_and_partition_are_one() -> None:
    found = together(
        [
            faulty(Fault.MISSING, (0, 2), (4, 5)),
            faulty(Fault.MISSING, (0, 1), at=B),
            faulty(Fault.DOUBLED, (7, 8)),
            faulty(Fault.MISSING, (8, 9)),
        ]
    )
    assert found == (
        Finding(Fault.MISSING, A, ((0, 2), (4, 5), (8, 9)), 4, 3),
        Finding(Fault.MISSING, B, ((0, 1),), 1, 1),
        Finding(Fault.DOUBLED, A, ((7, 8),), 1, 1),
    )


def test_a_range_that_goes_on_in_the_next_part_is_one() -> None:
    found = together([faulty(Fault.MISSING, (2, 3), (8, 10)), faulty(Fault.MISSING, (10, 12))])
    assert found == (Finding(Fault.MISSING, A, ((2, 3), (8, 12)), 5, 2),)


def test_of_findings_with_words_the_first_words_are_kept() -> None:
    said = [faulty(Fault.ROWS, (0, 5), detail="one"), faulty(Fault.ROWS, (7, 9), detail="another")]
    [found] = together([faulty(Fault.ROWS, (9, 10)), *said])
    assert found == Finding(Fault.ROWS, A, ((0, 5), (7, 10)), 8, 2, "one; more are like it")
    assert together([found, *said]) == (replace(found, offsets=15, ranges=2),)


def test_findings_are_in_the_order_of_faults_and_then_of_partitions() -> None:
    places = (None, A, B, TopicPartition("t", "id", 10))
    found = together(faulty(fault, (0, 1), at=at) for at in reversed(places) for fault in reversed(Fault))
    assert [(one.fault, one.partition) for one in found] == [(fault, at) for fault in Fault for at in places]


def test_ranges_that_are_not_named_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_NAMED", 3)
    found = together([faulty(Fault.MISSING, (0, 2), (4, 5)), faulty(Fault.MISSING, (7, 8), (9, 11))])
    assert found == (Finding(Fault.MISSING, A, ((0, 2), (4, 5), (7, 8)), 6, 4),)


def test_findings_of_which_no_range_is_named_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_NAMED", 0)
    found = together([faulty(Fault.MISSING, (0, 2), (4, 5)), faulty(Fault.ROWS, (12, 15), detail="why")])
    assert found == (Finding(Fault.MISSING, A, (), 3, 2), Finding(Fault.ROWS, A, (), 3, 1, "why"))


@st.composite
def finding_lists(draw: st.DrawFn) -> list[Finding]:
    """Findings of parts that follow one another, some with ranges that are not named."""
    found = []
    for n in range(draw(st.integers(0, 6))):
        fault, at = draw(st.sampled_from((Fault.MISSING, Fault.ROWS))), draw(st.sampled_from((A, B)))
        spans = ranges({5 * n + offset for offset in draw(st.sets(st.integers(0, 4)))})
        more, detail = draw(st.integers(0, 3)), draw(st.sampled_from(("", "why")))
        found.append(Finding(fault, at, spans, len(offsets(spans)) + more, len(spans) + more, detail))
    return found


@given(finding_lists(), st.integers(0, 12))
def test_whatever_is_found_all_is_counted_and_not_too_much_is_named(findings: list[Finding], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "MOST_NAMED", most)
        found = together(findings)
    places = {(one.fault, one.partition): [] for one in findings}
    for one in findings:
        places[one.fault, one.partition].append(one)
    named = [as_one(parts) for parts in places.values()]
    assert sum(len(one.spans) for one in found) == min(most, sum(map(len, named)))
    assert all(one.spans in [spans[: len(one.spans)] for spans in named] for one in found)
    assert Counter((one.fault, one.partition, one.offsets, one.ranges) for one in found) == Counter(
        (*place, sum(one.offsets for one in parts), ranges_as_one(parts)) for place, parts in places.items()
    )


def as_one(parts: list[Finding]) -> tuple[Span, ...]:
    return ranges(offsets(span for one in parts for span in one.spans))


def ranges_as_one(parts: list[Finding]) -> int:
    return len(as_one(parts)) + sum(one.ranges - len(one.spans) for one in parts)


BEGAN = datetime(2026, 5, 4, 13, 30, tzinfo=UTC)
WHOLE = Mark(1, {A: 1_500, B: 500})
SUMS = Sums(offsets=2_000, rows=3_000, quarantined=50, dropped=30, gaps=20, absent=50)


def run(*findings: Finding, reached: Mark = WHOLE, ends: Mark = WHOLE) -> Reconciliation:
    ended = BEGAN + timedelta(minutes=1)
    return Reconciliation("p.s", BEGAN, ended, reached, ends, ends, sums=SUMS, findings=findings)


@pytest.mark.parametrize("fault", Fault)
def test_one_finding_leaves_books_open_only_where_something_is_not_known(fault: Fault) -> None:
    open_ = fault in (Fault.UNBOOKED, Fault.UNWITNESSED)
    assert run(faulty(fault, (0, 1))).balance is (Balance.OPEN if open_ else Balance.BROKEN)


def test_books_with_one_thing_wrong_and_one_not_known_are_broken() -> None:
    assert run(faulty(Fault.UNBOOKED, (0, 1)), faulty(Fault.MISSING, (1, 2))).balance is Balance.BROKEN


def test_what_was_not_looked_at_waits_for_the_next_run() -> None:
    assert run().left == 0
    assert run(ends=Mark(1, {A: 1_000, B: 470})).left == 530


def test_books_that_balance_say_what_the_offsets_came_to() -> None:
    assert run().balance is Balance.BALANCED
    assert str(run()) == "2,000 offsets: 3,000 rows, 50 in quarantine, 30 dropped, 20 without a record: balanced"


def test_books_that_balance_so_far_say_what_waits() -> None:
    said = str(run(ends=Mark(1, {A: 500, B: 500})))
    assert said.endswith(": balanced; 1,000 offsets wait for the next run")


def test_open_books_say_what_is_not_known() -> None:
    found = run(faulty(Fault.UNBOOKED, (0, 10)), faulty(Fault.UNWITNESSED, (20, 25), detail="why"))
    assert found.balance is Balance.OPEN
    assert str(found).endswith(" 20 without a record: open (unbooked 10, unwitnessed 5)")


def test_broken_books_say_each_fault_once_with_all_its_offsets() -> None:
    found = run(
        faulty(Fault.MISSING, (0, 1_200)),
        faulty(Fault.MISSING, (5, 8), at=B),
        faulty(Fault.UNKEYED, at=None, detail="the table has no key"),
        ends=Mark(1, {A: 1_500, B: 497}),
    )
    assert found.balance is Balance.BROKEN
    assert str(found).endswith(": broken (missing 1,203, unkeyed); 3 offsets wait for the next run")


def test_books_without_a_record_of_work_are_empty_and_no_success() -> None:
    nothing = run(reached=Mark(), ends=Mark())
    assert nothing.balance is Balance.EMPTY
    assert nothing.left == 0
    assert str(nothing) == "nothing was ever written"


def test_more_missing_records_than_nobody_can_tell_of_were_not_read() -> None:
    found = witness(((0, 4),), ()).judge(doubt((0, 5), gaps=5))
    assert found is not None
    assert (found.fault, found.offsets) == (Fault.UNREAD, 4)


def test_a_finding_names_how_many_ranges_there_are_where_it_names_none() -> None:
    assert str(Finding(Fault.MISSING, A, (), 7, 2)) == f"missing: {A} 2 ranges, 7 offsets"
    assert str(Finding(Fault.MISSING, A, ((3, 4),), 1, 1)) == f"missing: {A} [3, 4), 1 offset"


def test_what_is_found_may_be_found_together_with_more() -> None:
    parts = [faulty(Fault.MISSING, (n, n + 1), detail="why" if n % 3 else "") for n in range(0, 20, 2)]
    assert together([*together(parts[:5]), *parts[5:]]) == together(parts)


def test_fewer_rows_than_records_that_became_rows_are_a_contradiction() -> None:
    assert replace(SOUND, rows=4, rows_there=4).contradiction
