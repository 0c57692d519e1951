"""The records that a transform fails on are found by halving, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.streams.failing import FailingBound, Outcome, Search, find_failing, find_one


def fails_on(bad: Collection[int]) -> Callable[[range], str | None]:
    def failure_of(piece: range) -> str | None:
        first = next((number for number in piece if number in bad), None)
        return None if first is None else f"raised on {first}"

    return failure_of


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)))))
def test_every_failing_record_is_found_with_its_own_reason(drawn: tuple[int, set[int]]) -> None:
    count, bad = drawn
    found = find_failing(count, fails_on(bad), most=300, suspicious=None)
    if bad:
        assert found == Search(Outcome.FOUND, {number: f"raised on {number}" for number in bad})
    else:
        assert found == Search(Outcome.PASSES)


def test_one_failing_record_among_many_takes_a_try_for_each_halving() -> None:
    tries = []

    def failure_of(piece: range) -> str | None:
        tries.append(len(piece))
        return fails_on({150_000})(piece)

    assert find_failing(200_000, failure_of).failing.keys() == {150_000}
    assert len(tries) <= 2 * 18 + 3
    assert max(tries[1:]) <= 100_000


@pytest.mark.parametrize(("bad", "most", "outcome"), [(100, 100, Outcome.FOUND), (101, 100, Outcome.TOO_MANY)])
def test_more_failing_records_than_the_bound_end_the_search(bad: int, most: int, outcome: Outcome) -> None:
    assert find_failing(1_000, fails_on(set(range(0, bad * 7, 7))), most=most).outcome is outcome


@pytest.mark.parametrize("count", [10, 150, 1_000_000])
def test_records_are_not_blamed_where_each_of_them_fails(count: int) -> None:
    tries = []

    def failure_of(piece: range) -> str | None:
        tries.append(piece)
        return "raised" if piece else None

    assert find_failing(count, failure_of).outcome is Outcome.WITHOUT
    assert len(tries) < 300
    assert find_one(count, failure_of).outcome is Outcome.WITHOUT


def test_a_few_records_may_all_fail_and_those_of_a_job_too() -> None:
    assert find_failing(9, fails_on(range(9))).failing.keys() == set(range(9))
    assert find_failing(100, fails_on(range(100)), suspicious=None).failing.keys() == set(range(100))


def test_a_transform_that_fails_without_a_record_is_not_searched() -> None:
    tries = []

    def failure_of(piece: range) -> str | None:
        tries.append(len(piece))
        return "the table of rates is gone"

    assert find_failing(1_000, failure_of).outcome is Outcome.WITHOUT
    assert find_one(1_000, failure_of).outcome is Outcome.WITHOUT
    assert tries == [1_000, 0, 1_000, 0]


def test_pieces_that_fail_for_their_size_are_no_failing_records() -> None:
    found = find_failing(100_000, lambda piece: "the worker exited" if len(piece) > 400 else None)
    assert found == Search(Outcome.NOT_ALONE)


def test_many_failing_records_are_told_with_one_of_them() -> None:
    found = find_failing(100_000, fails_on(range(0, 100_000, 3)))
    assert found == Search(Outcome.TOO_MANY, {0: "raised on 0"})


@given(st.integers(1, 300), st.data())
def test_one_failing_record_is_found_where_one_will_do(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    every = count >= 10 and all(count * part // 10 in bad for part in range(10))
    found = find_one(count, fails_on(bad))
    if every:
        assert found == Search(Outcome.WITHOUT)
        return
    assert found == (Search(Outcome.FOUND, {min(bad): f"raised on {min(bad)}"}) if bad else Search(Outcome.PASSES))


def test_a_bound_that_is_spent_lets_no_record_pass() -> None:
    assert find_failing(1, fails_on({0}), most=0).outcome is Outcome.TOO_MANY
    assert find_failing(5, fails_on({0}), most=0).outcome is Outcome.TOO_MANY


@given(st.integers(2, 60), st.data())
def test_records_that_fail_together_alone_are_not_blamed(count: int, data: st.DataObject) -> None:
    pair = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    for search in (find_failing, find_one):
        assert search(count, lambda piece: "raised" if pair <= set(piece) else None) == Search(Outcome.NOT_ALONE)


def test_a_failure_that_does_not_come_again_is_no_records() -> None:
    answers = iter(["raised", None, None, None])
    assert find_failing(2, lambda piece: next(answers)).outcome is Outcome.NOT_ALONE
    assert find_failing(0, fails_on(set())).outcome is Outcome.PASSES


def test_more_records_than_twenty_halvings_reach_are_not_searched() -> None:
    assert find_failing(2**20 + 1, fails_on({0})).outcome is Outcome.TOO_LARGE
    assert find_one(2**20 + 1, fails_on({0})).outcome is Outcome.TOO_LARGE
    assert find_failing(2**20, fails_on({0})).failing == {0: "raised on 0"}


def test_what_was_spent_comes_back_after_an_hour() -> None:
    now = [0.0]
    bound = FailingBound(100, timedelta(hours=1), clock=lambda: now[0])
    bound.spend(60)
    now[0] = 1800.0
    bound.spend(40)
    assert bound.left == 0
    now[0] = 3601.0
    assert bound.left == 60
