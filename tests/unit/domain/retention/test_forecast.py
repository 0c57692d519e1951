"""How large a topic will be: against lives of topics that know it, and what holds of every forecast."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.retention.forecasts.errors import Comparison, compare, errors
from millrace.domain.retention.forecasts.estimates import (
    HORIZONS,
    Estimate,
    Forecast,
    Full,
    Limits,
    Now,
    Shown,
    forecast,
    full_in,
    keeps,
    size_cap,
    size_for,
    size_reaches,
)
from millrace.domain.retention.inflow import Band, Growth, Inflow, Point, measure
from millrace.domain.retention.settings import LogSettings
from support.checks.tiers import examples
from support.retention.topic_histories import DAY, HOUR, NOW, Kind, Limited, Lived, live

SEEDS = examples(9)
UNLIMITED = LogSettings(time=None)
GIGABYTE = 1_000_000_000


@cache
def lives(kind: Kind, seeds: int = SEEDS) -> Sequence[tuple[Lived, Forecast]]:
    found = [live(kind, limited, seed) for limited in Limited for seed in range(seeds)]
    return [(one, forecast(one.points, one.settings, one.now, NOW)) for one in found]


def hits(kind: Kind) -> list[bool]:
    return [
        estimate.low <= truth <= estimate.high
        for lived, told in lives(kind)
        for estimate, truth in zip(told.estimates, lived.truth, strict=True)
    ]


def test_the_truth_lies_within_the_band() -> None:
    assert len(Kind) * len(Limited) * SEEDS >= examples(200)
    by_kind = {kind: hits(kind) for kind in Kind}
    assert all(len(own) == len(Limited) * SEEDS * len(HORIZONS) for own in by_kind.values())
    found = [hit for own in by_kind.values() for hit in own]
    assert sum(found) >= 0.9 * len(found)
    assert [kind for kind, own in by_kind.items() if sum(own) < 0.8 * len(own)] == []


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FIRST_DAY])
def test_a_band_says_something(kind: Kind) -> None:
    """A band as wide as twice what is expected says little more than that there will be something.

    Half of that is what a limit of time alone leaves open where a segment may last as long as the limit. The first day
    of a topic is left out: nobody knows more of it.
    """
    for index, most in enumerate((0.5, 1.0, 2.0)):
        told = [one.estimates[index] for _, one in lives(kind)]
        assert median((one.high - one.low) / one.expected for one in told) < most
    off = [
        compare(estimate, truth).error
        for lived, one in lives(kind)
        for estimate, truth in zip(one.estimates, lived.truth, strict=True)
    ]
    assert median(abs(error) for error in off) < 0.1


def test_growth_is_measured_where_there_is_any() -> None:
    within = [
        one.growth.a_day.low <= lived.growth <= one.growth.a_day.high
        for lived, one in lives(Kind.LINEAR, seeds=9)
        if one.growth is not None
    ]
    assert sum(within) >= 0.9 * len(within) > 20


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WEEKLY])
def test_the_inflow_of_now_lies_within_its_band_however_much_days_differ(kind: Kind) -> None:
    found = [live(kind, Limited.NOT, seed, noise=0.3) for seed in range(examples(40))]
    levels = [inflow.level for one in found if (inflow := measure(one.points)) is not None]
    within = [level.low <= one.rate <= level.high for one, level in zip(found, levels, strict=True)]
    assert sum(within) >= 0.8 * len(within)


@pytest.mark.parametrize("kind", [Kind.STEP_UP, Kind.STEP_DOWN, Kind.FLAT, Kind.CHANGED])
def test_neither_a_step_nor_another_retention_is_taken_for_growth(kind: Kind) -> None:
    taken = [one for _, one in lives(kind) if one.growth is not None and abs(one.growth.a_day.expected) > 0.003]
    assert len(taken) <= 2


def test_the_days_of_the_week_are_told_apart() -> None:
    lived = live(Kind.WEEKLY, Limited.NOT, 1)
    inflow = measure(lived.points)
    assert inflow is not None
    assert len(inflow.weekly) == 7
    assert max(inflow.weekly[5:]) < min(inflow.weekly[:5])
    flat = measure(live(Kind.FLAT, Limited.NOT, 1).points)
    assert flat is not None
    assert flat.weekly == ()


def steady(days: float, a_day: float = GIGABYTE, every: timedelta = HOUR) -> list[Point]:
    count = int(days * DAY / every)
    return [Point(NOW - (count - n) * every, int(n * a_day * (every / DAY) / 100), 100.0) for n in range(count + 1)]


def test_a_steady_topic_by_its_limits() -> None:
    points = steady(30)
    segments = {"segment_bytes": 1_000_000, "segment_time": HOUR}
    weekly = forecast(points, LogSettings(time=timedelta(days=7), **segments), Now(7 * GIGABYTE, 2), NOW)
    assert [one.days for one in weekly.estimates] == [7, 30, 90]
    assert all(one.expected == pytest.approx(7 * GIGABYTE, rel=0.01) for one in weekly.estimates)
    forever = forecast(points, UNLIMITED, Now(30 * GIGABYTE, 2), NOW)
    assert [one.expected / GIGABYTE for one in forever.estimates] == pytest.approx([37, 60, 120], rel=0.01)
    sized = LogSettings(time=None, size_bytes=20 * GIGABYTE, **segments)
    small = forecast(points, sized, Now(30 * GIGABYTE, 2), NOW)
    assert [one.expected / GIGABYTE for one in small.estimates] == pytest.approx([37, 40, 40], rel=0.01)
    skewed = forecast(points, sized, Now(30 * GIGABYTE, 2, (0.9, 0.1)), NOW)
    assert skewed.estimates[-1].expected / GIGABYTE == pytest.approx(20 + 12, rel=0.01)


def test_a_segment_stays_until_its_last_record_is_old() -> None:
    settings = LogSettings(time=timedelta(days=7), segment_time=timedelta(days=2))
    week = forecast(steady(30), settings, Now(8 * GIGABYTE, 2), NOW).estimates[1]
    assert [size / GIGABYTE for size in (week.low, week.expected, week.high)] == pytest.approx([7, 8, 9], rel=0.05)
    full = forecast(steady(30), LogSettings(time=timedelta(days=7)), Now(8 * GIGABYTE, 2), NOW).estimates[1]
    assert full.high / GIGABYTE == pytest.approx(9, rel=0.1), "a segment is full after two days"


def test_days_in_a_gap_are_not_taken_for_measured() -> None:
    points = steady(40)
    gap = [point for point in points if not 10 * DAY < NOW - point.at < 20 * DAY]
    whole, holey = measure(points), measure(gap)
    assert whole is not None
    assert holey is not None
    assert whole.growth.days - holey.growth.days == 11
    sparse = measure(steady(40, every=4 * DAY))
    assert sparse is not None
    assert (sparse.growth.days, sparse.growth.why) == (0, "seen with too many gaps")
    assert sparse.level.expected == pytest.approx(GIGABYTE)


def test_of_a_topic_of_some_days_whole_days_count_back_from_now() -> None:
    """Its busy hours would count more often than its quiet ones."""
    began = NOW - 36 * HOUR
    busy = [12 * HOUR, 24 * HOUR, 36 * HOUR]  # a million in the first and third half day, nothing in the second
    points = [Point(began, 0, 1.0)] + [
        Point(began + hours, ends, 1.0) for hours, ends in zip(busy, (10**6, 10**6, 2 * 10**6), strict=True)
    ]
    inflow = measure(points)
    assert inflow is not None
    assert inflow.level.expected == pytest.approx(10**6)
    assert inflow.level.low < 0.7 * 10**6 < 1.4 * 10**6 < inflow.level.high


def test_what_comes_in_by_the_days_of_the_week() -> None:
    monday = datetime(2026, 11, 23, 18, tzinfo=UTC)
    growth = Growth(Band(0.0, 0.0, 0.0), 30)
    mondays = Inflow(monday, Band(90.0, 100.0, 110.0), growth, 0.0, (7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert mondays.total(0, 3).expected == pytest.approx(700 / 4)
    assert mondays.total(6.25, 7.25).expected == pytest.approx(700)
    assert mondays.total(3, 3) == Band(0.0, 0.0, 0.0)
    even = Inflow(monday, Band(90.0, 100.0, 110.0), growth, 0.0)
    assert even.total(0, 10) == Band(pytest.approx(900), pytest.approx(1000), pytest.approx(1100))
    hours = even.total(1, 1.25)
    assert hours.low < 25 * 0.7 < 25 * 1.3 < hours.high, "six hours may be the busiest of the day"


def test_a_band_is_never_a_point() -> None:
    inflow = measure(steady(30))
    assert inflow is not None
    assert inflow.level.low < 0.98 * GIGABYTE < 1.02 * GIGABYTE < inflow.level.high


def test_what_was_cut_does_not_come_back_when_the_retention_is_raised() -> None:
    told = forecast(steady(60), LogSettings(time=timedelta(days=30), segment_bytes=1), Now(2 * GIGABYTE, 1), NOW)
    assert [one.expected / GIGABYTE for one in told.estimates] == pytest.approx([9, 30, 30], rel=0.01)


def test_what_is_young_says_so_and_takes_what_is_declared() -> None:
    young = forecast(steady(0.5), UNLIMITED, Now(GIGABYTE // 2, 1), NOW)
    older = forecast(steady(2.5), UNLIMITED, Now(GIGABYTE * 5 // 2, 1), NOW)
    grown = forecast(steady(30), UNLIMITED, Now(GIGABYTE * 30, 1), NOW, declared=0.0)
    assert young.growth is not None
    assert (young.growth.days, young.growth.why) == (0, "seen for 0 whole days")
    widths = [one.estimates[0].high - one.estimates[0].low for one in (young, older, grown)]
    assert widths == sorted(widths, reverse=True)
    declared = forecast(steady(0.5), UNLIMITED, Now(GIGABYTE // 2, 1), NOW, declared=0.01)
    assert declared.growth is not None
    assert (declared.growth.a_day.expected, declared.growth.days, declared.growth.as_declared) == (0.01, 0, None)
    assert declared.estimates[-1].expected > young.estimates[-1].expected
    assert grown.growth is not None
    assert grown.growth.as_declared
    boasted = forecast(steady(30), UNLIMITED, Now(GIGABYTE * 30, 1), NOW, declared=0.05)
    assert boasted.growth is not None
    assert boasted.growth.as_declared is False


def test_what_cannot_be_told_is_not_told() -> None:
    for points in ([], steady(0.01)):
        told = forecast(points, UNLIMITED, Now(0, 1), NOW)
        assert (told.estimates, told.why) == ((), "watched for less than an hour")
    compacted = forecast(steady(30), LogSettings(compacts=True), Now(GIGABYTE, 1), NOW)
    assert compacted.estimates == ()
    assert "keys" in compacted.why
    silent = forecast(steady(30, a_day=0), LogSettings(), Now(0, 1), NOW)
    assert [one.high for one in silent.estimates] == [0, 0, 0]


def test_the_retention_by_size_that_holds_some_days() -> None:
    told = forecast(steady(30), UNLIMITED, Now(GIGABYTE * 30, 4), NOW)
    size = size_for(told, 10, busiest=0.4)
    assert size is not None
    assert size.expected == pytest.approx(4 * GIGABYTE, rel=0.01)
    assert size.low <= size.expected <= size.high
    unknown = forecast([], UNLIMITED, Now(0, 1), NOW)
    assert size_for(unknown, 10, 1.0) is None


def told(size: int, *expected: int, high: int = 0) -> Forecast:
    estimates = tuple(
        Estimate(horizon.days, NOW + horizon, 0, one, one + high)
        for horizon, one in zip(HORIZONS, expected, strict=True)
    )
    return Forecast(NOW, size, Band(1, 1, 1), Growth(Band(0, 0, 0)), Limits(None, None, 1), estimates)


def test_when_a_disk_is_full() -> None:
    grows, stays = told(100, 170, 400, 1000), told(50, 50, 50, 50)
    assert full_in(35, [(grows, 1.0), (stays, 1.0)]) == Full(3.5, 3.5)
    assert full_in(35, [(grows, 0.5)]) == Full(7.0, 7.0)
    assert full_in(1000, [(grows, 1.0)]) == Full(100.0, 100.0)
    assert full_in(100, [(stays, 1.0)]) == Full(None, None)
    assert full_in(10**9, [(grows, 1.0)]) == Full(None, None)
    assert full_in(0, [(stays, 1.0)]) == Full(0.0, 0.0)
    found = full_in(100, [(told(50, 50, 50, 50, high=200), 1.0)])
    assert found == Full(3.5, None)
    assert full_in(5, [(forecast([], UNLIMITED, Now(1, 1), NOW), 1.0)]) == Full(None, None)


def test_whether_a_limit_of_age_is_kept() -> None:
    year = timedelta(days=365)
    settings = LogSettings(time=timedelta(days=30), segment_time=timedelta(days=7))
    by_time = keeps(year, settings, timedelta(days=31))
    assert (by_time.kept, by_time.by) == (True, Shown.TIME)
    assert not keeps(timedelta(days=36), settings, timedelta(days=31)).kept  # a segment may keep it for a week more
    older = keeps(year, settings, timedelta(days=366))
    assert (older.kept, older.by) == (False, Shown.OLDEST)
    sized = LogSettings(time=None, size_bytes=10 * GIGABYTE)
    reach = size_reaches(forecast(steady(30), sized, Now(GIGABYTE, 1), NOW), sized)
    assert reach is not None
    assert 11 < reach < 12
    by_size = keeps(year, sized, None, size_days=reach)
    assert (by_size.kept, by_size.by) == (True, Shown.SIZE)
    nothing = keeps(3_650 * DAY, UNLIMITED, 5 * DAY)
    assert (nothing.kept, nothing.by) == (False, Shown.NOTHING)
    assert nothing.text == "no time limit deletes its records; its oldest record is 5.0 d old so far"
    assert keeps(year, LogSettings(time=timedelta.max), None).kept is False
    assert keeps(year, LogSettings(deletes=False, compacts=True), None).by is Shown.NOTHING


def test_former_forecasts_beside_what_happened() -> None:
    estimate = Estimate(7, NOW, 80, 110, 120)
    assert compare(estimate, 100) == Comparison(7, pytest.approx(0.1), True)
    assert not compare(estimate, 79).within
    past = [Comparison(30, 0.5, False), Comparison(7, -0.2, True), Comparison(7, 0.1, True), Comparison(7, 0.4, False)]
    week, month = errors(past)
    assert (week.days, week.error, week.within, week.count) == (7, 0.2, 2, 3)
    assert (month.days, month.error, month.within, month.count) == (30, 0.5, 0, 1)
    assert errors([]) == ()


HOPS = st.lists(
    st.tuples(st.sampled_from([0.02, 0.5, 1.0, 1.0, 1.0, 5.0]), st.integers(0, 10**9), st.floats(0, 5_000)),
    max_size=60,
)
SETTINGS = st.builds(
    LogSettings,
    time=st.none() | st.timedeltas(timedelta(0), timedelta(days=400)) | st.just(timedelta.max),
    size_bytes=st.none() | st.integers(0, 10**12),
    segment_time=st.timedeltas(timedelta(milliseconds=1), timedelta(days=30)),
    segment_bytes=st.integers(14, 1 << 31),
    deletes=st.booleans(),
)
DECLARED = st.none() | st.floats(-0.1, 0.1)


@given(
    hops=HOPS,
    settings=SETTINGS,
    size=st.integers(0, 10**13),
    partitions=st.integers(1, 50),
    declared=DECLARED,
    late=st.booleans(),
)
def test_what_holds_of_every_forecast(
    hops: list[tuple[float, int, float]],
    settings: LogSettings,
    size: int,
    partitions: int,
    declared: float | None,
    late: bool,
) -> None:
    points, at, ends = [], datetime(2026, 1, 1, 7, tzinfo=UTC), 0
    for hop, records, record_bytes in hops:
        at, ends = at + hop * DAY, ends + records
        points.append(Point(at, ends, record_bytes))
    made_at = at + timedelta(days=late)
    found = forecast(points, settings, Now(size, partitions), made_at, declared)
    assert found == forecast(tuple(points), settings, Now(size, partitions), made_at, declared)
    assert bool(found.estimates) != bool(found.why)
    cap = size_cap(settings, partitions)
    for estimate in found.estimates:
        assert 0 <= estimate.low <= estimate.expected <= estimate.high
        assert cap is None or estimate.high <= cap
    if found.growth is not None:
        assert found.growth.a_day.low <= found.growth.a_day.expected <= found.growth.a_day.high
        holds = size_for(found, 30, 1 / partitions)
        assert holds is not None
        assert 0 <= holds.low <= holds.expected <= holds.high
    sooner = full_in(10**9, [(found, 1.0)])
    assert sooner.expected is None or (sooner.earliest is not None and sooner.earliest <= sooner.expected)
