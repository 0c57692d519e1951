"""The drills notice when a guard is gone: each mutant of the driver makes the drill that is meant for it fail.

The first tier runs the same mutants without a Spark driver: streams/test_crashes.py,
sinks/test_promises.py and streams/test_claims.py of tests/contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.drills.crashes import Drill
from support.drills.plain_table import table
from support.drills.points import (
    BEFORE_SINK,
    EPOCH_IGNORED,
    GROUP_FIRST,
    MUTANTS,
    NO_COMPARE_AND_SET,
    NO_FENCE,
    PYTHON,
)
from support.drills.takeovers import intruders, late_writer, two_of_one_epoch

RECORDS = 3_000


def without_fence(make_drill: Any, mutants: tuple[str, ...]) -> list[str]:
    old = _started(make_drill(RECORDS, mutants=mutants))
    return late_writer(old, make_drill.second(old))


def without_compare_and_set(make_drill: Any, mutants: tuple[str, ...]) -> list[str]:
    old = _started(make_drill(RECORDS, mutants=mutants))
    return two_of_one_epoch(old, make_drill.second(old))


def with_group_first(make_drill: Any, mutants: tuple[str, ...]) -> list[str]:
    drill: Drill = make_drill(4 * RECORDS, mutants=mutants)
    drill.start()
    return list(drill.hit(BEFORE_SINK, PYTHON).wrong)


def with_epoch_ignored(make_drill: Any, mutants: tuple[str, ...]) -> list[str]:
    running = _started(make_drill(RECORDS))
    return intruders(running, make_drill.second(running, mutants))


def _started(drill: Drill) -> Drill:
    drill.start()
    drill.eventually(drill.all_done, what="the first records")
    return drill


DRILL_OF: dict[str, Callable[[Any, tuple[str, ...]], list[str]]] = {
    NO_FENCE: without_fence,
    NO_COMPARE_AND_SET: without_compare_and_set,
    GROUP_FIRST: with_group_first,
    EPOCH_IGNORED: with_epoch_ignored,
}


@pytest.mark.full
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_drill_fails_when_a_guard_is_gone(make_drill: Any, mutant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That the same drills pass without mutants, test_takeovers and test_kill_points show."""
    found = DRILL_OF[mutant](make_drill, (mutant,))
    with capsys.disabled():
        print(table(f"mutant: {mutant}", ("what the drill found",), [(line[:180],) for line in found or ["nothing"]]))
    assert found, f"the drill does not notice the mutant `{mutant}`"
