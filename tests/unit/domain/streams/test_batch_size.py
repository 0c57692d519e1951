"""A sink that takes too long gets smaller batches, and larger ones again once it does not."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.streams.batch_size import BatchSize

LONG, SHORT = timedelta(seconds=121), timedelta(seconds=120)


def after(size: BatchSize, merge: timedelta, times: int) -> BatchSize:
    for _ in range(times):
        size = size.after(merge)
    return size


def test_a_long_merge_halves_the_bound_and_twenty_others_double_it() -> None:
    size = BatchSize.of(100_000).after(LONG)
    assert size.records == 50_000
    assert size.notice == "batches of at most 50,000 records instead of 100,000: a merge took longer than 120 s"
    assert after(size, SHORT, 19).records == 50_000
    assert after(size, SHORT, 20) == BatchSize.of(100_000)
    assert BatchSize.of(100_000).notice == ""


def test_a_long_merge_among_short_ones_begins_the_count_anew() -> None:
    size = after(BatchSize.of(100_000).after(LONG), SHORT, 19).after(LONG)
    assert size.records == 25_000
    assert after(size, SHORT, 19).records == 25_000
    assert after(size, SHORT, 40).records == 100_000


def test_the_bound_has_a_floor_which_a_smaller_declaration_lowers() -> None:
    assert after(BatchSize.of(100_000), LONG, 30).records == 1_000
    assert after(BatchSize.of(300), LONG, 30) == BatchSize.of(300)


@given(st.integers(1, 10_000_000), st.lists(st.booleans(), max_size=200))
def test_the_bound_never_leaves_its_limits(declared: int, merges: list[bool]) -> None:
    size = BatchSize.of(declared)
    for long in merges:
        size = size.after(LONG if long else SHORT)
        assert min(1_000, declared) <= size.records <= declared
