"""How many rows are usual, and the marks of the last results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.quality.marks import MARKS, marks
from millrace.domain.quality.results import Gain
from millrace.domain.quality.volume import FEWEST, Usual, usual
from support.quality.checks_made import BROKEN, EMPTY, PASSED, UNTRIED, WARNED, made

HOUR = timedelta(hours=1)
MONDAY = datetime(2026, 5, 4, 13, 30, tzinfo=UTC)


def hours(count: int, rows: int = 100) -> list[tuple[datetime, Gain]]:
    """Looks of so many hours before Monday's, the oldest first."""
    return [(MONDAY - n * HOUR, Gain(rows, HOUR)) for n in range(count, 0, -1)]


def test_the_median_of_the_last_twenty_looks_is_usual() -> None:
    history = [*hours(30, 1)[:10], *hours(20)]
    history[-1] = (history[-1][0], Gain(100_000, HOUR))
    assert usual(history, MONDAY, HOUR) == Usual(100.0, "the last 20 looks")


def test_a_look_over_a_long_time_counts_by_its_rate() -> None:
    history = [*hours(6)[:-1], (MONDAY - HOUR, Gain(1000, 10 * HOUR))]
    assert usual(history, MONDAY, HOUR) == Usual(100.0, "the last 6 looks")


def test_with_four_weeks_the_same_hour_of_the_week_is_usual() -> None:
    history = []
    for n in range(24 * 7 * 5, 0, -1):
        at = MONDAY - n * HOUR
        monday_noon = at.weekday() == 0 and (at - HOUR / 2).hour == 13
        history.append((at, Gain(900 if monday_noon else 100, HOUR)))
    assert usual(history, MONDAY, HOUR) == Usual(900.0, "5 Mondays at 13 h UTC")
    assert usual(history[-24 * 7 * 3 :], MONDAY, HOUR) == Usual(100.0, "the last 20 looks")
    assert usual(history, MONDAY, 4 * HOUR) == Usual(100.0, "the last 20 looks")  # which is of no single hour


@pytest.mark.parametrize(
    ("count", "span", "said"),
    [
        (0, HOUR, "so far 0"),
        (FEWEST - 1, HOUR, f"so far {FEWEST - 1}"),
        (9, HOUR / 3, "20.0 minutes say nothing"),
    ],
)
def test_what_nobody_knows_is_said(count: int, span: timedelta, said: str) -> None:
    assert said in str(usual(hours(count), MONDAY, span))


def test_the_band_is_a_share_of_what_the_time_brings() -> None:
    assert Usual(100, "").band(2 * HOUR, 0.5) == (100, 300)
    assert Usual(100, "").band(HOUR, 2.0) == (0, 300)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), min_size=FEWEST, max_size=40))
def test_what_is_usual_lies_among_the_rates_it_is_made_of(gains: list[tuple[int, int]]) -> None:
    history = [(MONDAY - n * HOUR, Gain(rows, timedelta(seconds=span))) for n, (rows, span) in enumerate(gains, 1)][
        ::-1
    ]
    found = usual(history, MONDAY, timedelta(days=365))
    assert isinstance(found, Usual)
    rates = [gain.rows / (gain.span / HOUR) for _, gain in history[-20:]]
    assert min(rates) <= found.rows_per_hour <= max(rates)


def test_the_last_results_of_each_rule_are_a_line_of_marks() -> None:
    history = [made(PASSED, WARNED, UNTRIED), made(EMPTY), made(BROKEN, WARNED)]
    assert marks(history) == {"given": " -·", "mild": "! !", "lost": "  ?"}
    assert marks([]) == {}
    assert len(set(MARKS.values())) == len(MARKS)
