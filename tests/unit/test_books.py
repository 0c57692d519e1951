from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.books import Expectation, Fate, Fault, SourceAt, StoredRow, balance

COLUMNS = ("customer", "amount")
GOOD = SourceAt("shop.purchases", 2, 17)
BAD = SourceAt("shop.purchases", 0, 3)
OTHER = SourceAt("shop.purchases", 1, 0)
EXPECTED = {
    GOOD: Expectation(Fate.ROW, ("00001", 11)),
    BAD: Expectation(Fate.QUARANTINE),
    OTHER: Expectation(Fate.EITHER),
}
ROWS = [StoredRow(GOOD, ("00001", 11)), StoredRow(OTHER, ("anything", 0))]


def faults(rows: list[StoredRow], quarantined: list[SourceAt]) -> list[tuple[str, Fault]]:
    return [(str(found.source), found.fault) for found in balance(EXPECTED, rows, quarantined, COLUMNS)]


def test_books_that_balance() -> None:
    assert faults(ROWS, [BAD]) == []
    assert faults(ROWS[:1], [BAD, OTHER]) == []


def test_a_deleted_row_is_named() -> None:
    assert faults(ROWS[1:], [BAD]) == [("shop.purchases/2@17", Fault.LOST)]


def test_a_doubled_row_is_named() -> None:
    assert faults([*ROWS, ROWS[0]], [BAD]) == [("shop.purchases/2@17", Fault.DOUBLED)]
    assert faults([*ROWS, ROWS[1]], [BAD]) == [("shop.purchases/1@0", Fault.DOUBLED)]


def test_a_changed_row_is_named_with_what_changed() -> None:
    (found,) = balance(EXPECTED, [StoredRow(GOOD, ("00001", 12)), ROWS[1]], [BAD], COLUMNS)
    assert str(found) == "shop.purchases/2@17: changed: amount is 12, should be 11"


def test_a_row_and_an_entry_in_quarantine_are_one_too_many() -> None:
    assert faults(ROWS, [BAD, GOOD]) == [("shop.purchases/2@17", Fault.DOUBLED)]


def test_a_good_record_in_quarantine_and_a_bad_one_in_the_sink_are_named() -> None:
    assert faults(ROWS[1:], [BAD, GOOD]) == [("shop.purchases/2@17", Fault.MISPLACED)]
    assert faults([*ROWS, StoredRow(BAD, ("x", 1))], []) == [("shop.purchases/0@3", Fault.MISPLACED)]


def test_a_row_of_a_record_that_is_not_there_is_named() -> None:
    beyond = SourceAt("shop.purchases", 2, 18)
    assert faults([*ROWS, StoredRow(beyond, ("00001", 11))], [BAD]) == [("shop.purchases/2@18", Fault.UNKNOWN)]


def test_one_lost_and_one_doubled_do_not_cancel_out() -> None:
    assert len(faults([ROWS[0], ROWS[0]], [BAD])) == 2


@given(st.lists(st.sampled_from([*ROWS, StoredRow(BAD, ("x", 1))])), st.lists(st.sampled_from([GOOD, BAD, OTHER])))
def test_no_finding_means_each_source_once(rows: list[StoredRow], quarantined: list[SourceAt]) -> None:
    places = sorted([row.source for row in rows] + quarantined)
    balanced = places == sorted(EXPECTED) and BAD in quarantined and GOOD not in quarantined
    assert (faults(rows, quarantined) == []) == balanced
