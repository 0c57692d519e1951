"""The seconds of a batch's steps; they pass when the test says so."""

from __future__ import annotations

import pytest

from millrace.domain.streams.control import BATCH_STEPS
from millrace.runtime.life.step_times import StepTimes


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def passes(clock: Clock, times: StepTimes, **steps: float) -> None:
    for step, seconds in steps.items():
        clock.now += seconds
        times.end(step)


def test_each_step_has_the_time_since_the_former_one_ended(clock: Clock) -> None:
    times = StepTimes(clock)
    passes(clock, times, plan=1, copy=2, check=3, merge=4, group=5)
    assert times.steps == {"plan": 1, "copy": 2, "check": 3, "merge": 4, "group": 5}
    assert tuple(times.steps) == BATCH_STEPS
    assert times.total == 15


def test_parts_add_up_and_the_time_between_them_is_the_last_steps(clock: Clock) -> None:
    times = StepTimes(clock)
    passes(clock, times, plan=1, copy=20)
    clock.now += 4
    times.start_over()
    for _ in range(2):
        clock.now += 7  # the plain client reads
        times.begin()
        passes(clock, times, copy=1, check=2, merge=3)
    passes(clock, times, group=5)
    assert times.steps == {"plan": 25, "copy": 2, "check": 4, "merge": 6, "group": 14 + 5}
    assert times.total == sum(times.steps.values())
