"""Which records are made again, and what is said of rows that are not as the app makes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.quality.ranges import Work
from millrace.domain.quality.recompute import (
    Difference,
    Likeness,
    Made,
    Recomputed,
    Row,
    Tally,
    compared,
    readable,
    sampled,
)
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition

P0, P1 = (TopicPartition("t", "id", number) for number in (0, 1))
FORMER = TopicPartition("t", "former", 0)


def at(offset: int) -> SourceAt:
    return SourceAt("t", 0, offset)


@st.composite
def ranges(draw: st.DrawFn) -> list[OffsetRange]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        first = 0
        for gap, length in draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 300)), min_size=1, max_size=3)):
            found.append(OffsetRange(TopicPartition("t", "id", number), first + gap, first + gap + length))
            first += gap + length
    return found


@given(ranges(), st.integers(1, 400), st.integers(0, 1000))
def test_a_sample_lies_in_what_there_is_in_order_and_is_about_as_large_as_asked(
    there: list[OffsetRange], count: int, seed: int
) -> None:
    found = sampled(there, count, Random(seed))
    whole = {(r.partition, offset) for r in there for offset in range(r.first, r.next)}
    chosen = [(r.partition, offset) for r in found for offset in range(r.first, r.next)]
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= whole
    assert all(found)
    if len(whole) <= count:
        assert set(chosen) == whole
    else:
        assert count <= len(chosen) < count + 20
    assert sampled(there, count, Random(seed)) == found


def test_every_place_is_as_likely_as_any_other() -> None:
    there = [OffsetRange(P0, 0, 200), OffsetRange(P1, 1000, 1800)]  # 10 places and 40
    drawn = Counter(r.partition for seed in range(2000) for r in sampled(there, 20, Random(seed)))
    assert drawn.total() == 2000
    assert 300 < drawn[P0] < 500


def test_what_can_be_read_was_worked_on_and_is_in_the_log() -> None:
    work = [Work(1, P0, 0, 100), Work(1, P1, 10, 20), Work(2, P1, 40, 60), Work(1, FORMER, 0, 500)]
    bounds = {P0: LogBounds(30, 1000), P1: LogBounds(0, 50)}
    assert readable(work, bounds) == (
        OffsetRange(P0, 30, 100),
        OffsetRange(P1, 10, 20),  # nobody has read from 20 to 40
        OffsetRange(P1, 40, 50),  # the log was cut behind its record of work
    )
    assert readable(work, {P0: LogBounds(100, 100)}) == ()


BOTH = Row(at(0), made=True, stored=True, count=2)
MADE = Row(at(0), made=True, stored=False)
STORED = Row(at(0), made=False, stored=True)


@pytest.mark.parametrize(
    ("rows", "bad", "quarantined", "differences"),
    [
        ([BOTH], {}, {}, [None]),
        ([replace(BOTH, columns=("a", "b"))], {}, {}, [Difference.CHANGED]),
        ([MADE], {}, {}, [Difference.UNSTORED]),
        ([STORED], {}, {}, [Difference.UNMADE]),
        ([BOTH, MADE], {}, {}, [None, Difference.UNSTORED]),  # of two rows of a record one is missing
        ([STORED], {at(0): "not_json"}, {}, [Difference.BAD]),
        ([], {at(0): "not_json"}, {}, [Difference.BAD]),
        ([], {at(0): "not_json"}, {at(0): "not_json"}, [None]),
        ([], {at(0): "not_json"}, {at(0): "wrong_type"}, [Difference.OTHER_RULE]),
        ([MADE], {}, {at(0): "not_json"}, [Difference.GOOD]),
        ([], {}, {at(0): "not_json"}, [Difference.GOOD]),  # the transform leaves it out
        ([MADE], {}, {at(0): "sink_refused"}, [None]),  # whether a trigger would refuse it again is not known
        ([], {}, {at(0): "sink_refused"}, [Difference.GOOD]),
        ([], {at(0): "sink_refused"}, {at(0): "sink_refused"}, [None]),
        ([], {}, {}, []),  # dropped
    ],
)
def test_what_is_said_of_a_record(
    rows: list[Row],
    bad: dict[SourceAt, str],
    quarantined: dict[SourceAt, str],
    differences: list[Difference | None],
) -> None:
    found = list(compared(Made({at(0): 5}, bad, rows, quarantined)))
    assert [one.difference for one in found] == differences
    assert {(one.source, one.timestamp_ms) for one in found} <= {(at(0), 5)}


def test_what_is_stored_of_an_offset_that_holds_no_record_is_counted_and_not_judged() -> None:
    made = Made({at(5): 1}, {}, [replace(STORED, count=3), Row(at(5), made=True, stored=True)], {at(1): "not_json"})
    assert [(one.source, one.difference) for one in compared(made)] == [(at(5), None)]
    tally = Tally()
    tally.add(made)
    assert (tally.unjudged, tally.compared, tally.alike, tally.apart()) == (4, 1, 1, ())


DAY = 86_400_000


def of_days(days: dict[int, tuple[str, ...]], counts: dict[int, int]) -> Made:
    """A row or several of each of ten records, of one day each."""
    rows = [
        Row(at(day), made=True, stored=True, columns=days.get(day, ()), count=counts.get(day, 1)) for day in range(10)
    ]
    return Made({at(day): day * DAY for day in range(10)}, {}, rows, {})


def test_a_column_that_differs_says_from_when_to_when_and_how_many_are_alike_around_it() -> None:
    tally = Tally()
    tally.add(of_days({3: ("amount",), 5: ("amount", "month"), 6: ("amount",)}, {}))
    amount, month = tally.apart()
    assert (tally.compared, tally.alike) == (10, 7)
    assert (amount.column, amount.rows, amount.named) == ("amount", 3, (at(3), at(5), at(6)))
    assert (amount.since, amount.until) == (datetime(1970, 1, 4, tzinfo=UTC), datetime(1970, 1, 7, tzinfo=UTC))
    assert (amount.before, amount.between, amount.after) == (3, 1, 3)
    assert (month.column, month.rows, month.before, month.between, month.after) == ("month", 1, 5, 0, 4)


def test_rows_that_differ_alike_are_counted_together() -> None:
    tally = Tally()
    tally.add(of_days({3: ("amount",), 6: ("amount",)}, {0: 10, 3: 1000, 4: 7, 9: 5}))
    (amount,) = tally.apart()
    assert (tally.compared, tally.alike, amount.rows) == (1028, 27, 1001)
    assert (amount.before, amount.between, amount.after) == (12, 8, 7)


def test_of_many_that_differ_the_first_are_named_and_those_without_a_time_are_counted() -> None:
    tally = Tally()
    places = [at(offset) for offset in reversed(range(100))]
    tally.add(Made(dict.fromkeys(places), {}, [Row(place, made=False, stored=True) for place in places], {}))
    tally.add(Made({at(200): 1 << 62}, {}, [Row(at(200), made=True, stored=False)], {}))
    unmade, unstored = tally.apart()
    assert (unmade.rows, unmade.named, unmade.since) == (100, tuple(map(at, range(5))), None)
    assert (unstored.rows, unstored.since, unstored.until) == (1, None, None)


def test_the_verdict() -> None:
    assert Recomputed(offsets=5).likeness is Likeness.NOTHING
    assert Recomputed(offsets=5, records=5).likeness is Likeness.ALIKE  # the transform leaves all of them out
    assert Recomputed(records=5, compared=5, alike=5, idle=("old",)).likeness is Likeness.ALIKE
    assert Recomputed(records=5, compared=5, alike=5, lacking=("new",)).likeness is Likeness.DIFFERENT
    assert Recomputed(records=5, compared=5, alike=5, retyped=("a is text",)).likeness is Likeness.DIFFERENT
    tally = Tally()
    tally.add(Made({at(0): 0}, {at(0): "not_json"}, [], {}))
    assert Recomputed(records=1, compared=1, apart=tally.apart()).likeness is Likeness.DIFFERENT


def test_thousands_of_partitions_are_no_matter() -> None:
    work = [Work(1, TopicPartition("t", "id", number), 0, 3) for number in range(5_000)]
    there = readable(work, {row.partition: LogBounds(0, 3) for row in work})
    assert len(there) == 5_000
    assert sum(map(len, sampled(there, 1_000, Random(1)))) in (1000, 1001, 1002)
