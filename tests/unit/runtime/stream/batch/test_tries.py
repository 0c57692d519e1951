"""How long a batch waits for its sink, and when it gives up."""

from __future__ import annotations

import pytest

from millrace.errors import (
    DataLossError,
    FencedError,
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.runtime.stream.batch.tries import AWAY_SECONDS, Tries


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", [SinkFailedError, FencedError, DataLossError, UnreachableError])
def test_what_waiting_cannot_mend_is_not_waited_for(kind: type[MillraceError]) -> None:
    assert Tries().pause_after(kind("no")) is None


def test_a_sink_that_is_away_is_waited_for_until_supervision_does() -> None:
    clock = Clock()
    tries = Tries(clock)
    waited = 0.0
    while (pause := tries.pause_after(SinkUnreachableError("away"))) is not None:
        clock.now += pause
        waited += pause
    assert waited == AWAY_SECONDS


def test_each_absence_is_counted_by_itself() -> None:
    clock = Clock()
    tries = Tries(clock)
    for _ in range(3):
        assert tries.pause_after(SinkUnreachableError("away"))
        clock.now += AWAY_SECONDS - 1
        assert tries.pause_after(SinkRolledBackError("it answered, and asked for the same again"))


def test_a_try_that_lasted_found_the_sink_there_and_does_not_do_so_for_ever() -> None:
    clock, absences = Clock(), 0
    tries = Tries(clock)
    while tries.pause_after(SinkUnreachableError("the connection was ended in the midst of a long copy")):
        clock.now += 10 * AWAY_SECONDS
        absences += 1
    assert absences == 10


def test_rollbacks_are_repeated_more_and_more_slowly_and_not_for_ever() -> None:
    tries = Tries()
    pauses = []
    while (pause := tries.pause_after(SinkRolledBackError("deadlock"))) is not None:
        pauses.append(pause)
    assert pauses == sorted(pauses)
    assert len(pauses) == 10


def test_a_sink_without_room_is_waited_for_as_long_as_it_takes() -> None:
    tries = Tries()
    assert {tries.pause_after(SinkExhaustedError("disk full")) for _ in range(10_000)} == {5.0}
