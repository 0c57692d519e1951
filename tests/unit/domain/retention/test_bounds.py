"""Bounds of a log, out of settings and rates; and what breaks them, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.groups.snapshots import LogSample
from millrace.domain.retention.bounds import Bound, BreachKind, bound, breaches, clean_bytes, span
from millrace.domain.retention.flow import flow, steady, weight_of
from millrace.domain.retention.headroom import Danger, Rule, danger
from millrace.domain.retention.settings import BrokerSettings, LogSettings, log_settings

MIB = 1 << 20
HOUR, DAY, MINUTE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=1)
BEGAN = datetime(2026, 11, 2, 8, tzinfo=UTC)
BROKER = BrokerSettings(MINUTE * 5)
SETTINGS = LogSettings(time=DAY, segment_time=DAY * 7, segment_bytes=100 * MIB)


def test_a_record_stays_for_retention_its_segments_time_and_one_interval() -> None:
    rate = steady(100 * MIB / 3_600)  # a segment an hour
    found = bound(SETTINGS, BROKER, rate)
    assert (found.age, found.age_by, found.by) == (DAY + HOUR + MINUTE * 5, Rule.TIME, Rule.TIME)
    assert found.log_bytes == pytest.approx(rate.mean * (DAY + HOUR + MINUTE * 5).total_seconds())
    assert found.disk_bytes == pytest.approx(rate.mean * (DAY + HOUR + MINUTE * 6).total_seconds())
    assert found.segments == 26


def test_the_rule_that_bites_first_bounds_bytes_and_age() -> None:
    rate = steady(100 * MIB / 3_600)
    found = bound(replace(SETTINGS, size_bytes=300 * MIB), BROKER, rate)
    assert (found.by, found.age_by) == (Rule.SIZE, Rule.SIZE)
    assert found.log_bytes == pytest.approx(400 * MIB + rate.mean * 300)
    assert found.age == HOUR * 4 + MINUTE * 5
    large = bound(replace(SETTINGS, size_bytes=300_000 * MIB), BROKER, rate)
    assert (large.by, large.age_by) == (Rule.TIME, Rule.TIME)


def test_what_is_slow_holds_records_as_long_as_a_segment_is_not_rolled() -> None:
    assert span(SETTINGS, steady(0)) == span(SETTINGS, None) == SETTINGS.segment_time
    assert bound(SETTINGS, BROKER, steady(0)).age == DAY * 8 + MINUTE * 5
    nothing = bound(SETTINGS, BROKER, None)
    assert (nothing.log_bytes, nothing.age) == (None, DAY * 8 + MINUTE * 5)
    assert nothing.why


def test_without_a_limit_there_is_no_bound_and_a_reason() -> None:
    found = bound(replace(SETTINGS, time=None), BROKER, steady(5))
    assert (found.log_bytes, found.age, found.why) == (None, None, "it keeps everything")


def test_compaction_bounds_bytes_by_what_was_clean_and_no_age() -> None:
    settings = replace(SETTINGS, deletes=False, compacts=True, dirty_ratio=0.5)
    found = bound(settings, BROKER, steady(1), clean_bytes=1_000 * MIB)
    assert (found.log_bytes, found.age, found.by) == (2_100 * MIB, None, Rule.COMPACTION)
    assert bound(settings, BROKER, steady(1)).why
    both = bound(replace(settings, deletes=True), BROKER, steady(1))
    assert (both.age, both.log_bytes, both.why != "") == (None, None, True)
    by_size = bound(replace(settings, deletes=True, size_bytes=10 * MIB), BROKER, steady(0))
    assert (by_size.age, by_size.by, by_size.log_bytes) == (None, Rule.SIZE, 110 * MIB)


def sample(minute: int, start: int, end: int, size: int | None) -> LogSample:
    return LogSample(BEGAN + MINUTE * minute, start, end, size)


def test_a_log_is_clean_when_it_shrank_and_kept_its_start() -> None:
    assert clean_bytes([sample(0, 0, 10, 100), sample(1, 0, 20, 200)]) is None
    grown = [sample(0, 0, 10, 100), sample(1, 0, 20, 60), sample(2, 0, 30, 160), sample(3, 0, 31, 70)]
    assert clean_bytes(grown) == 70
    assert clean_bytes([sample(0, 0, 10, 100), sample(1, 5, 20, 60), sample(2, 5, 20, None)]) is None


def named(found: Bound, settings: LogSettings = SETTINGS, **seen: object) -> list[tuple[BreachKind, bool]]:
    usual = {"size_bytes": 0, "age": DAY, "youngest": timedelta(0), "grows": True}
    return [(each.kind, each.wrong) for each in breaches(settings, found, partition=0, **{**usual, **seen})]


def test_what_breaks_a_bound_is_named() -> None:
    found = bound(SETTINGS, BROKER, steady(100 * MIB / 3_600))
    assert found.log_bytes is not None
    assert named(found) == []
    assert named(found, youngest=-HOUR, age=DAY * 9) == [(BreachKind.FUTURE, True)]
    assert named(found, youngest=DAY * 9_000, age=DAY * 10_000) == [(BreachKind.PAST, True)]
    assert named(found, age=DAY * 3) == [(BreachKind.AGE, True)]
    assert named(found, age=DAY * 3, grows=None) == [(BreachKind.AGE, True)]
    assert named(found, age=DAY * 3, grows=False) == [(BreachKind.AGE, True)]
    assert named(found, size_bytes=int(found.log_bytes) + 1) == [(BreachKind.SIZE, True)]
    assert named(found, size_bytes=int(found.log_bytes) + 1, grows=False) == [(BreachKind.IDLE, False)]
    assert named(found, youngest=-MINUTE, age=DAY) == []
    assert named(found, replace(SETTINGS, deletes=False), age=DAY * 900) == []


def test_an_idle_partition_may_hold_records_of_any_age_until_they_are_all_old() -> None:
    idle = bound(SETTINGS, BROKER, None)
    assert named(idle, age=DAY * 7, youngest=DAY / 2, grows=False) == []


def points(*ends: int | None, every: timedelta = MINUTE) -> list[tuple[datetime, int | None]]:
    return [(BEGAN + every * index, end) for index, end in enumerate(ends)]


def test_the_flow_is_measured_over_times_as_long_as_is_kept() -> None:
    found = flow(points(0, 600, 600, 600, 600, 1_200, 1_200, 1_200, 1_200))
    assert found is not None
    assert (found.burst, found.mean, found.over) == (10.0, 1_200 / 480, MINUTE * 8)
    assert (found.peak(MINUTE * 4), found.peak(MINUTE), found.peak(DAY)) == (600 / 240, 10.0, 1_200 / 480)


def test_the_longest_time_in_which_so_much_came() -> None:
    quiet = flow(points(0, 600, 600, 600, 600, 1_200, 1_800))
    assert quiet is not None
    assert quiet.longest(0) == MINUTE * 3
    assert quiet.longest(300) == MINUTE * 3.5
    assert quiet.longest(600) == MINUTE * 4
    assert quiet.longest(1_800) is None
    even = steady(5.0).longest(5.0 * 60)
    assert even == MINUTE


def test_nothing_is_known_of_one_moment_and_a_log_that_goes_back_has_not_grown() -> None:
    assert flow(points(5)) is None
    assert flow(points(None, 5, None)) is None
    back = flow(points(100, 40, 50))
    assert back is not None
    assert back.mean == 10 / 120


def test_an_offset_weighs_what_it_did_at_most_while_nothing_was_deleted() -> None:
    assert weight_of([sample(0, 0, 10, 100), sample(1, 0, 20, 1_100), sample(2, 5, 30, 99_999)]) == 100.0
    assert weight_of([sample(0, 0, 10, None), sample(1, 0, 20, 100), sample(2, 0, 20, 100)]) is None


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=40), st.integers(1, 90), st.integers(0, 20_000))
def test_no_time_that_is_longer_than_the_longest_had_as_little(grown: list[int], minutes: int, amount: int) -> None:
    total, ends = 0, [0]
    for each in grown:
        total += each
        ends.append(total)
    found = flow(points(*ends))
    assert found is not None
    assert 0 <= found.peak(MINUTE * minutes) <= found.burst + 1e-9
    longest = found.longest(amount)
    if longest is None:
        assert total <= amount
        return
    for first, start in enumerate(ends):
        for last in range(first, len(ends)):
            if MINUTE * (last - first) > longest + timedelta(seconds=1):
                assert ends[last] - start > amount


def lived(came: list[tuple[datetime, float]], settings: LogSettings) -> Iterator[tuple[datetime, timedelta, float]]:
    """Kafka's own rules, looked at every five minutes: when, how old the oldest record is, and how many bytes."""
    segments: list[tuple[datetime, datetime, float]] = []
    at, index = came[0][0], 0
    while at < came[-1][0]:
        at += MINUTE * 5
        while index < len(came) and came[index][0] <= at:
            when, size = came[index]
            index += 1
            full = not segments or segments[-1][2] + size > settings.segment_bytes
            if full or when - segments[-1][0] > settings.segment_time:
                segments.append((when, when, 0.0))
            segments[-1] = (segments[-1][0], when, segments[-1][2] + size)
        while segments and settings.time is not None and at - segments[0][1] > settings.time:
            segments.pop(0)
        if segments:
            yield at, at - segments[0][0], sum(size for _, _, size in segments)


def test_quiet_nights_and_weekends_break_no_bound() -> None:
    """Three and a half segments a working day; the one that is open on Friday evening spans the weekend."""
    settings = LogSettings(time=DAY * 7, segment_time=DAY * 7, segment_bytes=1 << 30)
    monday = datetime(2026, 1, 5, tzinfo=UTC)
    hourly = 3.5 * (1 << 30) / 8
    busy = [monday + HOUR * n for n in range(24 * 7 * 4)]
    busy = [at for at in busy if at.weekday() < 5 and 9 <= at.hour < 17]
    came = [(at + MINUTE * m, hourly / 60) for at in busy for m in range(60)]
    ends = [(monday + HOUR * n, int(hourly * sum(at < monday + HOUR * n for at in busy))) for n in range(24 * 7 * 4)]
    for at, age, size in lived(came, settings):
        if at - monday > DAY * 15 and not at.minute:
            found = bound(settings, BROKER, flow([point for point in ends if at - DAY * 7 <= point[0] <= at]))
            assert found.age is not None
            assert found.log_bytes is not None
            assert age <= found.age, at
            assert size <= found.log_bytes, at


@pytest.mark.parametrize(
    ("window", "left", "expected"),
    [
        (DAY * 7, HOUR * 17, Danger.WARNING),
        (DAY * 7, HOUR * 16, Danger.ALARM),  # a tenth is 16.8 hours
        (DAY * 7, HOUR * 42, Danger.NONE),
        (HOUR, MINUTE * 14, Danger.ALARM),  # a quarter of an hour is more than a tenth
        (HOUR, MINUTE * 15, Danger.NONE),
        (MINUTE * 10, MINUTE * 5 - timedelta(seconds=1), Danger.ALARM),  # half of it is less than a quarter of an hour
        (MINUTE * 10, MINUTE * 5, Danger.NONE),
        (None, MINUTE * 14, Danger.ALARM),
        (None, MINUTE * 16, Danger.NONE),
    ],
)
def test_how_near_a_deletion_is(window: timedelta | None, left: timedelta, expected: Danger) -> None:
    assert danger(left, window) is expected


def test_settings_are_read_as_kafka_writes_them() -> None:
    assert log_settings({}) == LogSettings()
    values = {
        "cleanup.policy": "compact, delete",
        "retention.ms": "-1",
        "retention.bytes": "5",
        "segment.ms": str(2**63 - 1),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "true",
    }
    found = log_settings(values)
    assert (found.deletes, found.compacts, found.time, found.size_bytes) == (True, True, None, 5)
    assert (found.by_append_time, found.unclean_election, found.limited) == (True, True, True)
    assert found.segment_time > DAY * 365 * 1_000
    assert not log_settings({"cleanup.policy": "compact"}).limited
