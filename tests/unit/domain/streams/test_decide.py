from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.domain.streams.supervision import (
    GRACE,
    LONGEST_BACKOFF,
    SETTLING,
    Adopt,
    Attempt,
    Desired,
    DesiredState,
    Drain,
    ExitReason,
    GiveUp,
    Kill,
    LivingApp,
    Nothing,
    Observed,
    Start,
    StreamState,
    Wait,
    backoff,
    decide,
    state_of,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RUNNING = Desired(DesiredState.RUNNING, epoch=3, changed_at=NOW - timedelta(days=1))
STOPPED = replace(RUNNING, state=DesiredState.STOPPED)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def ended(epoch: int, code: int | None, *, ago: float, ran: float = 30) -> Attempt:
    """An attempt that ended `ago` seconds ago, having run `ran` seconds."""
    end = NOW - seconds(ago)
    return Attempt(epoch, end - seconds(ran), answered=True, ended_at=end, exit_code=code)


def after(*attempts: Attempt) -> Observed:
    return Observed(attempts=attempts)


@pytest.mark.parametrize(
    ("desired", "observed", "action"),
    [
        pytest.param(None, Observed([LivingApp(3)]), Nothing("never started"), id="nobody wants anything"),
        pytest.param(RUNNING, Observed(), Start(4), id="wanted and not there"),
        pytest.param(RUNNING, Observed([LivingApp(3)]), Adopt(3), id="wanted and there"),
        pytest.param(RUNNING, Observed([LivingApp(2)]), Adopt(2), id="an epoch was raised and never submitted"),
        pytest.param(STOPPED, Observed([LivingApp(3)]), Drain(3), id="stop"),
        pytest.param(STOPPED, Observed(), Nothing("stopped as desired"), id="stopped"),
        pytest.param(STOPPED, Observed([LivingApp(3, NOW - GRACE)]), Kill(3), id="grace over"),
        pytest.param(
            RUNNING, Observed([LivingApp(3, NOW - GRACE)]), Kill(3), id="started again while it hangs in stop"
        ),
        pytest.param(RUNNING, Observed([LivingApp(3), LivingApp(2)]), Drain(2), id="two epochs: the older drains"),
        pytest.param(
            RUNNING, Observed([LivingApp(3), LivingApp(2, NOW - GRACE)]), Kill(2), id="two epochs: the older is killed"
        ),
        pytest.param(RUNNING, Observed([LivingApp(3)], declared=False), Adopt(3), id="undeclared and running"),
        pytest.param(STOPPED, Observed([LivingApp(3)], declared=False), Drain(3), id="undeclared, operator's stop"),
        pytest.param(RUNNING, after(ended(3, 1, ago=5)), Start(4), id="backoff over"),
        pytest.param(RUNNING, after(ended(7, 1, ago=5)), Start(8), id="never an epoch that was tried"),
    ],
)
def test_next_step(desired: Desired | None, observed: Observed, action: object) -> None:
    assert decide(desired, observed, NOW) == action


def test_an_undeclared_stream_is_not_started() -> None:
    assert isinstance(decide(RUNNING, Observed(declared=False), NOW), Nothing)


def test_a_draining_app_is_waited_for_until_its_grace_is_over() -> None:
    asked = NOW - seconds(10)
    action = decide(STOPPED, Observed([LivingApp(3, asked)]), NOW)
    assert action == Wait(asked + GRACE, "epoch 3 finishes its batch")


@pytest.mark.parametrize(("failures", "wait"), [(0, 0), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (500, 300)])
def test_backoff_doubles_from_five_seconds_to_five_minutes(failures: int, wait: int) -> None:
    assert backoff(failures) == seconds(wait)


def test_failures_in_a_row_are_waited_for_longer() -> None:
    observed = after(ended(3, 1, ago=1), ended(2, 17, ago=60), ended(1, 1, ago=120))
    action = decide(RUNNING, observed, NOW)
    assert isinstance(action, Wait)
    assert action.backoff
    assert action.until == NOW - seconds(1) + seconds(20)
    assert action.why == "it ended 3 times in a row, last with failed (1)"


def test_ten_minutes_of_running_forget_what_was_before() -> None:
    before = [ended(epoch, 1, ago=2000 - epoch) for epoch in range(1, 9)]
    action = decide(replace(RUNNING, epoch=9), after(ended(9, 1, ago=1, ran=600), *before), NOW)
    assert isinstance(action, Wait)
    assert action.until == NOW - seconds(1) + seconds(5)


def test_an_operators_start_forgets_what_was_before() -> None:
    observed = after(ended(3, ExitReason.DATA_LOSS, ago=1), ended(2, 1, ago=60))
    assert decide(replace(RUNNING, backoff_reset_at=NOW), observed, NOW) == Start(4)


@pytest.mark.parametrize(
    "reason", [ExitReason.RECREATED, ExitReason.REFUSED, ExitReason.DATA_LOSS, ExitReason.DECLARATION]
)
def test_what_will_not_go_away_is_given_up_at_once_and_for_ever(reason: ExitReason) -> None:
    for ago in (0, 10_000_000):
        action = decide(RUNNING, after(ended(3, reason, ago=ago)), NOW)
        assert isinstance(action, GiveUp)
        assert action.reason is reason


def test_what_is_said_of_a_refusal_is_true_of_any() -> None:
    action = decide(RUNNING, after(ended(3, ExitReason.REFUSED, ago=1)), NOW)
    assert isinstance(action, GiveUp)
    assert action.why == "it was refused; an operator has to decide: read its log"


@pytest.mark.parametrize(
    "reason",
    [ExitReason.STOPPED, ExitReason.CLAIM_LOST, ExitReason.FENCED, ExitReason.MEMBERSHIP_LOST, ExitReason.UNREACHABLE],
)
def test_what_may_go_away_is_tried_again_with_a_higher_epoch(reason: ExitReason) -> None:
    assert isinstance(decide(RUNNING, after(ended(3, reason, ago=1)), NOW), Wait)
    assert decide(RUNNING, after(ended(3, reason, ago=6)), NOW) == Start(4)


def test_only_accepting_ends_a_recreated_stream() -> None:
    observed = after(ended(3, ExitReason.RECREATED, ago=100))
    assert decide(replace(RUNNING, accept_recreated=True), observed, NOW) == Start(4)


def test_an_unanswered_submit_is_settled_before_the_next() -> None:
    unanswered = Attempt(3, NOW - seconds(1))
    action = decide(RUNNING, after(unanswered), NOW)
    assert isinstance(action, Wait)
    assert action.until == unanswered.submitted_at + SETTLING
    assert not action.backoff
    late = replace(unanswered, submitted_at=NOW - SETTLING)
    assert decide(RUNNING, after(late), NOW) == Start(4)


@pytest.mark.parametrize(
    ("desired", "observed", "state"),
    [
        (RUNNING, Observed([LivingApp(3, phase="running")]), StreamState.RUNNING),
        (RUNNING, Observed([LivingApp(3, phase="starting")]), StreamState.STARTING),
        (RUNNING, Observed([LivingApp(3)]), StreamState.STARTING),
        (RUNNING, Observed([LivingApp(3, phase="running")], declared=False), StreamState.UNDECLARED),
        (STOPPED, Observed([LivingApp(3, phase="running")]), StreamState.DRAINING),
        (STOPPED, Observed([LivingApp(3, NOW, phase="running")]), StreamState.DRAINING),
        (STOPPED, Observed(), StreamState.STOPPED),
        (None, Observed(), StreamState.STOPPED),
        (RUNNING, Observed(), StreamState.STARTING),
        (RUNNING, Observed(declared=False), StreamState.UNDECLARED),
        (RUNNING, after(ended(3, 1, ago=1)), StreamState.BACKING_OFF),
        (RUNNING, after(ended(3, 13, ago=1)), StreamState.RECREATED),
        (RUNNING, after(ended(3, 16, ago=1)), StreamState.GIVEN_UP),
        (RUNNING, after(Attempt(3, NOW)), StreamState.STARTING),
    ],
)
def test_state_for_people(desired: Desired | None, observed: Observed, state: StreamState) -> None:
    assert state_of(observed, decide(desired, observed, NOW)) is state


def test_the_longest_backoff_is_reached_and_kept() -> None:
    assert max(backoff(number) for number in range(1000)) == LONGEST_BACKOFF
