from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.alarms.outage import (
    OUTAGE_AFTER,
    PAGE_EVERY,
    RETRY_EVERY,
    UNWATCHED_AFTER,
    Message,
    Outage,
    Page,
    decide,
)

NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)
LOOK = timedelta(seconds=10)
BOTH = ("log", "webhook")


def look(
    state: Outage, answered: bool, now: datetime, *, failed: tuple[str, ...] = (), names: tuple[str, ...] = BOTH
) -> tuple[Outage, Message | None, tuple[str, ...]]:
    """One look and its calls."""
    found = decide(state, answered, now, names)
    after = found.state
    if found.message is Message.OUTAGE:
        after = after.paged(found.notifiers, now).ended([name for name in failed if name in found.notifiers], now)
    return after, found.message, found.notifiers


def paged(
    state: Outage, start: datetime, looks: int, *, answered: bool = False, failed: tuple[str, ...] = ()
) -> tuple[Outage, list[tuple[timedelta, Message, tuple[str, ...]]]]:
    """Some looks ten seconds apart, and the messages with their times."""
    told = []
    for number in range(looks):
        state, message, names = look(state, answered, start + number * LOOK, failed=failed)
        if message:
            told.append((number * LOOK, message, names))
    return state, told


def test_a_restart_of_the_database_pages_nobody() -> None:
    state, told = paged(Outage(), NOW, 6)
    assert told == []
    _, told = paged(state, NOW + 6 * LOOK, 3, answered=True)
    assert told == []


def test_an_outage_is_told_after_a_minute_and_every_quarter_of_an_hour() -> None:
    _, told = paged(Outage(), NOW, 200)
    expected = [OUTAGE_AFTER, OUTAGE_AFTER + PAGE_EVERY, OUTAGE_AFTER + 2 * PAGE_EVERY]
    assert told == [(at, Message.OUTAGE, BOTH) for at in expected]


def test_people_who_were_told_hear_once_that_it_is_over() -> None:
    state, _ = paged(Outage(), NOW, 8)
    state, told = paged(state, NOW + 8 * LOOK, 3, answered=True)
    assert told == [(timedelta(), Message.OVER, BOTH)]
    assert decide(state, True, NOW + timedelta(days=1), BOTH).message is None


def test_a_database_that_comes_and_goes_is_told_once_in_a_quarter_of_an_hour() -> None:
    state, _ = paged(Outage(), NOW, 7)
    state, _ = paged(state, NOW + 7 * LOOK, 1, answered=True)
    _, told = paged(state, NOW + 8 * LOOK, 100)
    assert told == [(OUTAGE_AFTER + PAGE_EVERY - 8 * LOOK, Message.OUTAGE, BOTH)]


def test_a_notifier_that_failed_is_called_again_after_a_minute_and_the_other_is_not() -> None:
    state, told = paged(Outage(), NOW, 13, failed=("webhook",))
    assert told == [
        (OUTAGE_AFTER, Message.OUTAGE, BOTH),
        (OUTAGE_AFTER + RETRY_EVERY, Message.OUTAGE, ("webhook",)),
    ]
    _, told = paged(state, NOW + 13 * LOOK, 1, answered=True)
    assert told == [(timedelta(), Message.OVER, ("log",))]


def test_a_call_that_was_cut_off_may_have_delivered_and_waits_a_quarter_of_an_hour() -> None:
    state, _ = paged(Outage(), NOW, 6)
    at = NOW + OUTAGE_AFTER
    killed = decide(state, False, at, BOTH).state.paged(BOTH, at)
    _, told = paged(killed, at + LOOK, 100)
    assert [moment for moment, _, _ in told] == [PAGE_EVERY - LOOK]


def test_a_start_after_a_night_without_a_watch_gives_the_database_its_minute() -> None:
    state, _ = paged(Outage(), NOW, 3)
    morning = NOW + timedelta(hours=9)
    state, told = paged(state, morning, 6)
    assert told == []
    assert state.since == morning
    told_before, _ = paged(Outage(), NOW, 8)
    state, told = paged(told_before, morning, 7)
    assert told == [(OUTAGE_AFTER, Message.OUTAGE, BOTH)]
    assert state.since == NOW


def test_a_clock_that_was_set_back_leaves_no_time_in_the_future() -> None:
    state, _ = paged(Outage(), NOW, 8)
    back = NOW - timedelta(days=1)
    _, told = paged(state, back, 100)
    assert [moment for moment, _, _ in told] == [PAGE_EVERY]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(1, int(UNWATCHED_AFTER.total_seconds())),
            st.sets(st.sampled_from(BOTH)),
        ),
        max_size=150,
    ),
    st.integers(0, 200),
)
def test_never_twice_in_a_quarter_of_an_hour_and_never_silent_for_longer(
    looks: list[tuple[bool, int, set[str]]], down: int
) -> None:
    now, state = NOW, Outage()
    delivered: dict[str, list[datetime]] = {name: [] for name in BOTH}
    down_since: datetime | None = None
    steps = [*looks, *((False, 10, set[str]()) for _ in range(down))]
    for answered, seconds, failed in steps:
        now += timedelta(seconds=seconds)
        state, message, names = look(state, answered, now, failed=tuple(failed))
        down_since = None if answered else down_since or now
        for name in names if message is Message.OUTAGE else ():
            if name not in failed:
                assert all(now - before >= PAGE_EVERY for before in delivered[name])
                delivered[name].append(now)
        if not any(step[2] for step in steps) and down_since:  # nothing fails
            heard = max([down_since - PAGE_EVERY, *delivered["log"]])  # silent since then, or since the outage began
            assert now - heard <= PAGE_EVERY + OUTAGE_AFTER + timedelta(seconds=seconds)


def test_pages_of_a_notifier_that_is_declared_no_more_are_no_longer_called() -> None:
    state = Outage(NOW, NOW, NOW, {"gone": Page(NOW)})
    assert decide(state, False, NOW + OUTAGE_AFTER, ("log",)).notifiers == ("log",)
    assert decide(state, True, NOW + OUTAGE_AFTER, ("log",)).message is None
