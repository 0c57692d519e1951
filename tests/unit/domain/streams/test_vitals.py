from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace.domain.streams.supervision import (
    GRACE,
    Adopt,
    Desired,
    DesiredState,
    Drain,
    Kill,
    LivingApp,
    Observed,
    Restart,
    StreamState,
    Stuck,
    Wait,
    decide,
    state_of,
)
from millrace.domain.streams.vitals import Vitals, trouble

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RUNNING = Desired(DesiredState.RUNNING, epoch=3, changed_at=NOW - timedelta(days=1))
STOPPED = Desired(DesiredState.STOPPED, epoch=3, changed_at=NOW)
BOUND = timedelta(minutes=2)
LATE, EARLY = BOUND + timedelta(seconds=1), BOUND - timedelta(seconds=1)
STEP: dict[str, Any] = {"step": "batch 9: merge", "step_since": NOW}


@pytest.mark.parametrize("bound", [BOUND, timedelta(hours=1)])
@pytest.mark.parametrize(
    ("named", "more", "restart", "words"),
    [
        ("silent", {}, True, "its driver does not answer; its last report: batch 9: merge since 12:00:00 UTC"),
        ("jvm_silent", {}, True, "Spark's JVM does not answer its driver: batch 9: merge since 12:00:00 UTC"),
        ("starting_for", {}, True, "it does not finish its start: batch 9: merge since 12:00:00 UTC"),
        ("batch_for", {}, False, "batch 9: merge since 12:00:00 UTC"),
        ("behind_for", {"behind": 1200}, False, "no batch begins, and 1,200 records wait: batch 9: merge since"),
        ("behind_for", {"behind": None}, False, "no batch begins, and an unknown number of records wait: batch 9"),
    ],
)
def test_each_sign_has_the_bound_and_its_own_words(
    named: str, more: dict[str, Any], restart: bool, words: str, bound: timedelta
) -> None:
    vitals = {**STEP, **more, "bound": bound}
    assert trouble(Vitals(**vitals, **{named: bound})) is None
    found = trouble(Vitals(**vitals, **{named: bound + timedelta(seconds=1)}))
    assert found is not None
    assert found.restart is restart
    assert found.why.startswith(words)


def test_a_start_that_waits_for_a_lock_is_left_alone_too() -> None:
    found = trouble(Vitals(starting_for=LATE, step="prepare the sink", waits_for="a lock of pid 12"))
    assert found is not None
    assert not found.restart


@pytest.mark.parametrize("asked", [True, False])
def test_one_that_ends_of_itself_and_does_not_is_ended(asked: bool) -> None:
    app = LivingApp(3, NOW if asked else None, "draining", Vitals(ending_for=LATE, step="rest after batch 9"))
    action = decide(RUNNING, Observed(apps=[app]), NOW)
    assert isinstance(action, Kill if asked else Restart)


def test_one_that_drains_and_is_stuck_is_seen_to_be() -> None:
    seen = Observed(apps=[LivingApp(3, None, "draining", Vitals(batch_for=LATE, waits_for="a lock of pid 12"))])
    assert state_of(seen, decide(RUNNING, seen, NOW)) is StreamState.STUCK


def test_a_stream_of_long_batches_is_given_five_times_the_longest_of_them() -> None:
    usual = Vitals(longest_batch=timedelta(minutes=10), batch_for=timedelta(minutes=50))
    assert trouble(usual) is None
    assert trouble(Vitals(longest_batch=timedelta(minutes=10), batch_for=timedelta(minutes=51))) is not None
    silent = Vitals(longest_batch=timedelta(minutes=10), silent=LATE)
    assert trouble(silent) is not None, "its heartbeat does not wait for its batches"


def test_what_it_waits_for_is_said_and_the_text_stays_the_same_while_nothing_changes() -> None:
    told = {
        found.why
        for seconds in range(130, 200)
        if (found := trouble(Vitals(**STEP, waits_for="a lock of pid 7", batch_for=timedelta(seconds=seconds))))
    }
    assert told == {"batch 9: merge since 12:00:00 UTC, waits for a lock of pid 7"}


def app(stopping: datetime | None = None, **vitals: Any) -> Observed:
    return Observed([LivingApp(3, stopping, "running", Vitals(**STEP, **vitals))])


def test_who_does_not_answer_is_started_again_and_who_waits_is_not() -> None:
    assert decide(RUNNING, app(silent=EARLY), NOW) == Adopt(3)
    action = decide(RUNNING, app(silent=LATE), NOW)
    assert isinstance(action, Restart)
    assert state_of(app(silent=LATE), action) is StreamState.STUCK
    action = decide(RUNNING, app(batch_for=LATE), NOW)
    assert isinstance(action, Stuck)
    assert state_of(app(batch_for=LATE), action) is StreamState.STUCK


def test_no_app_is_ended_that_nobody_could_start_again() -> None:
    observed = Observed([LivingApp(3, None, "running", Vitals(silent=LATE))], declared=False)
    assert isinstance(decide(RUNNING, observed, NOW), Stuck)


def test_a_stop_is_not_waited_for_where_nobody_can_hear_it() -> None:
    assert decide(STOPPED, app(silent=LATE), NOW) == Drain(3), "it is asked first"
    asked = NOW - timedelta(seconds=2)
    action = decide(STOPPED, app(asked, silent=LATE), NOW)
    assert isinstance(action, Kill)
    assert "does not answer" in action.why
    action = decide(STOPPED, app(asked, batch_for=LATE, waits_for="a lock of pid 7"), NOW)
    assert isinstance(action, Wait)
    assert action.until == asked + GRACE
    assert action.why == "epoch 3 finishes its batch: batch 9: merge since 12:00:00 UTC, waits for a lock of pid 7"


def test_an_app_that_says_nothing_this_version_understands_is_taken_to_get_on() -> None:
    assert decide(RUNNING, Observed([LivingApp(3, phase="running")]), NOW) == Adopt(3)
