"""When an open alarm is raised again, and when its notifiers are tried again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import UNKNOWN, Extent, Notified
from millrace.domain.alarms.life import (
    AGAIN_AFTER,
    FAULTS_KNOWN,
    acknowledged,
    growth,
    has_grown,
    in_words,
    raised_if_due,
    seen_again,
    told,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LOST, HEADROOM, DIED = "backup.lost", "reader.headroom", "stream.died"


def opened(extent: Extent = UNKNOWN, kind: str = LOST) -> Alarm:
    return Alarm(1, kind, "orders", "as first seen", NOON, None, None, extent=extent)


def told_of(extent: Extent, kind: str = LOST) -> Alarm:
    """An alarm that people heard of at noon, as bad as this."""
    alarm = opened(extent, kind)
    return told(alarm, alarm, {"log": ""}, NOON)


def look(alarm: Alarm, extent: Extent, minutes: float) -> Alarm:
    return seen_again(alarm, f"{in_words(alarm.kind, extent)} seen", extent, NOON + minutes * MINUTE)


@pytest.mark.parametrize(
    ("kind", "known", "seen", "grown"),
    [
        (LOST, 10, 99, False),
        (LOST, 10, 100, True),
        (LOST, 10, 9, False),
        (LOST, 0, 1, True),
        (LOST, 0, 0, False),
        (LOST, None, 9_000_000, False),
        (LOST, 10, None, False),
        (HEADROOM, 600, 61, False),
        (HEADROOM, 600, 60, True),
        (HEADROOM, 600, 6000, False),
        (HEADROOM, 5, 0, True),
        (HEADROOM, 0, 0, False),
        ("nobody.declared", 1, 10, True),
    ],
)
def test_a_measure_has_grown_when_it_is_ten_times_as_bad(
    kind: str, known: float | None, seen: float | None, grown: bool
) -> None:
    assert has_grown(kind, Extent(known), Extent(seen)) is grown


@pytest.mark.parametrize(
    ("known", "seen", "grown"),
    [
        ("a", "b", True),
        ("a", "a", False),
        ("", "b", False),
        ("a", "", False),
        ("a, b", "b", False),
        ("a, b", "b, a", False),
        ("missing", "doubled, missing", True),
        ("doubled, missing", "missing", False),
    ],
)
def test_a_fault_that_people_do_not_know_has_grown_unless_one_side_is_unknown(
    known: str, seen: str, grown: bool
) -> None:
    assert has_grown(DIED, Extent(fault=known), Extent(fault=seen)) is grown


@pytest.mark.parametrize(
    ("kind", "first", "second"), [(DIED, "failed (1)", "unreachable (17)"), ("stream.stuck", "batch", "no batch")]
)
def test_faults_that_alternate_are_raised_once_each_and_keep_their_acknowledgement(
    kind: str, first: str, second: str
) -> None:
    alarm = told_of(Extent(fault=first), kind)
    for hours in range(2, 50, 2):
        alarm = look(alarm, Extent(fault=second if hours % 4 else first), 60 * hours)
        if alarm.told_at is None:
            alarm = told(alarm, alarm, {"log": ""}, NOON + timedelta(hours=hours))
            alarm = acknowledged(alarm, "cli:ann", "known", NOON + timedelta(hours=hours))
    assert (alarm.raised, alarm.acknowledged_by) == (2, "cli:ann")
    assert look(alarm, Extent(fault="a third"), 60 * 60).raised == 3


def test_an_acknowledgement_covers_the_faults_that_were_known_before() -> None:
    alarm = look(told_of(Extent(fault="a"), DIED), Extent(fault="b"), 5)
    alarm = acknowledged(alarm, "cli:ann", "both", NOON + 6 * MINUTE)
    for hours, fault in enumerate("abab", start=2):
        alarm = look(alarm, Extent(fault=fault), 60 * hours)
    assert (alarm.raised, alarm.raise_at, alarm.known.fault) == (1, None, "a, b")


def test_a_fault_that_is_new_is_named_beside_the_known_ones() -> None:
    known, seen = Extent(fault="failed (1), missing"), Extent(fault="doubled, missing")
    assert growth("books.unbalanced", known, seen) == "new fault doubled, known: failed (1), missing"


def test_the_faults_that_people_know_are_bounded_and_the_newest_is_among_them() -> None:
    alarm = told_of(Extent(fault="x0"), DIED)
    for number in range(1, 100):
        alarm = look(alarm, Extent(fault=f"x{number}"), 60 * 2 * number)
        assert alarm.raised == number + 1
        alarm = told(alarm, alarm, {"log": ""}, NOON + timedelta(hours=2 * number))
        assert f"x{number}" in alarm.known.fault.split(", ")
    assert len(alarm.known.fault.split(", ")) == FAULTS_KNOWN


def test_a_larger_loss_after_the_hour_is_raised_at_once_and_loses_its_acknowledgement() -> None:
    alarm = acknowledged(told_of(Extent(10)), "cli:ann", "looking at it", NOON)
    raised = look(alarm, Extent(9_000_000), 61)
    assert (raised.raised, raised.told_at, raised.acknowledged_at) == (2, None, None)
    assert raised.detail == "9,000,000 offsets seen"
    assert growth(LOST, raised.known, raised.extent) == "from 10 to 9,000,000 offsets"


def test_a_larger_loss_within_the_hour_waits_for_it_though_nobody_looks_again() -> None:
    alarm = look(told_of(Extent(10)), Extent(9_000_000), 5)
    assert (alarm.raised, alarm.detail, alarm.raise_at) == (1, "9,000,000 offsets seen", NOON + AGAIN_AFTER)
    assert raised_if_due(alarm, NOON + 59 * MINUTE) == alarm
    assert raised_if_due(alarm, NOON + 60 * MINUTE).raised == 2


def test_an_acknowledged_alarm_that_grows_within_the_hour_keeps_its_acknowledgement_until_then() -> None:
    alarm = look(acknowledged(told_of(Extent(10)), "cli:ann", "looking at it", NOON), Extent(100), 5)
    assert alarm.acknowledged_by == "cli:ann"
    assert raised_if_due(alarm, NOON + 60 * MINUTE).acknowledged_by is None


def test_a_slow_creep_is_raised_when_it_is_ten_times_what_people_heard() -> None:
    alarm = told_of(Extent(10))
    for hours, measure in enumerate((30, 60, 99), start=2):
        alarm = look(alarm, Extent(measure), 60 * hours)
        assert alarm.raised == 1
    assert look(alarm, Extent(100), 360).raised == 2


def test_a_loss_that_falls_and_grows_back_is_not_raised() -> None:
    alarm = told_of(Extent(1000))
    for hour, measure in enumerate((1, 1000, 2, 5000), start=2):
        alarm = look(alarm, Extent(measure), 60 * hour)
    assert (alarm.raised, alarm.raise_at, alarm.extent) == (1, None, Extent(5000))


def test_an_alarm_that_waits_to_be_raised_shows_the_worst_that_was_seen() -> None:
    alarm = look(told_of(Extent(10)), Extent(9_000_000), 5)
    for minutes, measure in ((10, 11), (15, 500), (20, None)):
        alarm = look(alarm, Extent(measure), minutes)
        assert alarm.detail == "9,000,000 offsets seen"
    assert look(alarm, Extent(10_000_000), 25).detail == "10,000,000 offsets seen"


def test_what_nobody_heard_of_yet_grows_without_being_raised_again() -> None:
    alarm = look(opened(Extent(10)), Extent(9_000_000), 1)
    assert (alarm.raised, alarm.raise_at, alarm.extent) == (1, None, Extent(9_000_000))
    assert look(alarm, Extent(10), 2).extent == Extent(9_000_000)


def test_an_alarm_of_an_older_release_takes_the_first_measure_for_known() -> None:
    old = replace(opened(), told_at=NOON, known_at=NOON)
    first = look(old, Extent(50, "x"), 120)
    assert (first.raised, first.known) == (1, Extent(50, "x"))
    assert look(first, Extent(500, "x"), 121).raised == 2


def test_an_alarm_that_was_acknowledged_untold_is_raised_as_soon_as_it_grows() -> None:
    alarm = acknowledged(opened(Extent(10)), "cli:ann", "looking at it", NOON)
    assert look(alarm, Extent(99), 1).raised == 1
    assert look(alarm, Extent(100), 1).raised == 2


def test_an_acknowledgement_covers_the_loss_that_waited_to_be_raised() -> None:
    alarm = acknowledged(look(told_of(Extent(10)), Extent(9_000_000), 5), "cli:ann", "all of it", NOON + 6 * MINUTE)
    assert raised_if_due(alarm, NOON + 600 * MINUTE) == alarm
    assert look(alarm, Extent(89_000_000), 700).raised == 1
    assert look(alarm, Extent(90_000_000), 700).raised == 2


def test_a_database_whose_clock_was_set_back_delays_an_alarm_by_an_hour_at_most() -> None:
    alarm = replace(told_of(Extent(10)), known_at=NOON + timedelta(days=3))
    assert look(alarm, Extent(100), 1).raise_at == NOON + 61 * MINUTE


extents = some.builds(Extent, some.none() | some.integers(0, 10**9), some.sampled_from(["", "a", "b", "c"]))


@given(some.sampled_from([LOST, HEADROOM, DIED]), some.lists(some.tuples(some.integers(1, 40), extents), max_size=60))
def test_however_a_breach_flaps_people_hear_of_it_once_an_hour_at_most(
    kind: str, looks: list[tuple[int, Extent]]
) -> None:
    alarm, now = told_of(Extent(10, "a"), kind), NOON
    heard = [NOON]
    for minutes, extent in looks:
        now += minutes * MINUTE
        alarm = raised_if_due(seen_again(alarm, "text", extent, now), now)
        if alarm.told_at is None:
            alarm = told(alarm, alarm, {"log": ""}, now)
            heard.append(now)
    assert all(later - earlier >= AGAIN_AFTER for earlier, later in pairwise(heard))


@given(some.lists(some.sets(some.sampled_from("abcd")), max_size=60))
def test_however_faults_alternate_people_hear_at_most_once_of_each(looks: list[set[str]]) -> None:
    alarm = told_of(Extent(fault="a"), DIED)
    for hour, faults in enumerate(looks, start=1):
        alarm = look(alarm, Extent(fault=", ".join(faults)), 60 * hour)
        if alarm.told_at is None:
            alarm = told(alarm, alarm, {"log": ""}, NOON + timedelta(hours=hour))
    assert alarm.raised <= 4
    assert set(alarm.known.fault.split(", ")) == {"a"}.union(*looks)


@given(some.lists(some.tuples(some.integers(0, 40), some.integers(0, 10**9)), min_size=1, max_size=40))
def test_no_loss_ten_times_as_large_as_people_heard_is_forgotten(looks: list[tuple[int, int]]) -> None:
    alarm, now = told_of(Extent(10)), NOON
    heard, worst = 10.0, 0
    for minutes, measure in looks:
        now += minutes * MINUTE
        alarm = look(alarm, Extent(measure), (now - NOON) / MINUTE)
        worst = max(worst, measure)
        if alarm.told_at is None:
            alarm, heard = told(alarm, alarm, {"log": ""}, now), max(heard, alarm.extent.measure or 0)
    alarm = raised_if_due(alarm, now + AGAIN_AFTER)
    if alarm.told_at is None:
        heard = max(heard, alarm.extent.measure or 0)
    assert worst < 10 * heard


# Notifiers


def test_a_notifier_that_fails_is_tried_after_1_5_and_30_minutes_and_then_given_up() -> None:
    alarm, now = opened(Extent(10)), NOON
    pauses = []
    for _ in range(3):
        alarm = told(alarm, alarm, {"log": "", "pager": "OSError"}, now)
        assert (alarm.told_at, alarm.known) == (None, Extent(10))
        assert alarm.retry_at is not None
        pauses.append((alarm.retry_at - now) / MINUTE)
        now = alarm.retry_at
    alarm = told(alarm, alarm, {"pager": "OSError"}, now)
    assert pauses == [1, 5, 30]
    assert (alarm.told_at, alarm.retry_at) == (now, None)
    assert alarm.notified == (
        Notified("log", told=True, called=3),
        Notified("pager", failed=4, error="OSError", called=4),
    )


def test_a_retry_that_delivers_ends_the_tries() -> None:
    alarm = told(opened(), opened(), {"pager": "OSError"}, NOON)
    alarm = told(alarm, alarm, {"pager": ""}, NOON + MINUTE)
    assert (alarm.told_at, alarm.notified) == (NOON + MINUTE, (Notified("pager", told=True, failed=1, called=2),))


def test_a_loss_that_no_notifier_could_deliver_is_known_to_nobody() -> None:
    alarm = told(opened(Extent(10)), opened(Extent(10)), {"pager": "OSError"}, NOON)
    alarm = look(alarm, Extent(9_000_000), 1)
    assert (alarm.raise_at, alarm.detail) == (None, "9,000,000 offsets seen")
    assert told(alarm, alarm, {"pager": ""}, NOON + MINUTE).known == Extent(9_000_000)


def test_a_loss_that_grew_while_people_were_told_is_raised_after_the_hour() -> None:
    read = opened(Extent(10))
    now = look(read, Extent(9_000_000), 0)
    after = told(now, read, {"log": ""}, NOON)
    assert (after.known, after.extent, after.raise_at) == (Extent(10), Extent(9_000_000), NOON + AGAIN_AFTER)


def test_a_loss_that_grew_before_a_retry_is_raised_for_those_who_heard_of_it_before() -> None:
    alarm = told(opened(Extent(10)), opened(Extent(10)), {"log": "", "pager": "OSError"}, NOON)
    alarm = look(alarm, Extent(9_000_000), 0.5)
    alarm = told(alarm, alarm, {"pager": ""}, NOON + MINUTE)
    assert alarm.told_at == NOON + MINUTE
    again = raised_if_due(alarm, NOON + AGAIN_AFTER)
    assert (again.raised, again.told_at, again.notified) == (2, None, ())


def test_an_alarm_that_was_raised_again_while_it_was_told_is_told_again() -> None:
    read = told(opened(Extent(10)), opened(Extent(10)), {"log": "", "pager": "OSError"}, NOON)
    raised = look(read, Extent(9_000_000), 61)
    assert told(raised, read, {"pager": ""}, NOON + 61 * MINUTE) == raised


def test_two_rounds_at_once_count_as_one_try() -> None:
    read = opened()
    first = told(read, read, {"pager": "OSError"}, NOON)
    second = told(first, read, {"pager": "TimeoutError"}, NOON)
    assert second.notified == (Notified("pager", failed=1, error="OSError", called=1),)


def test_a_notifier_that_is_declared_no_more_is_not_waited_for() -> None:
    alarm = told(opened(), opened(), {"pager": "OSError"}, NOON)
    alarm = told(alarm, alarm, {"log": ""}, NOON + MINUTE)
    assert (alarm.told_at, alarm.notified) == (NOON + MINUTE, (Notified("log", told=True, called=1),))
