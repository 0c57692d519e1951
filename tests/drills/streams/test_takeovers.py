"""A driver that was stopped, forgotten or doubled, and the one that runs instead: the older one leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from support.drills.plain_table import table
from support.drills.takeovers import (
    BETWEEN_BATCHES,
    IN_TRANSACTION,
    INSIDE_COPY,
    intruders,
    late_writer,
    stopped_and_woken,
    two_of_one_epoch,
)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["mode: append", "mode: upsert, key: [id]"], ids=["append", "upsert"])
def test_a_driver_that_was_taken_over_writes_nothing(
    make_drill: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_drill(3_000, mode=mode)
    new = make_drill.second(old)
    old.start()
    old.eventually(old.all_done, what="the first records")
    lines = []
    wrong: list[str] = []
    for where in (BETWEEN_BATCHES, INSIDE_COPY, IN_TRANSACTION) * 3:
        seconds, ended, found = stopped_and_woken(old, new, where)
        lines.append((where, f"{seconds:.1f}", ended, "; ".join(found) or "ok"))
        wrong += found
        old, new = new, old
    found = late_writer(old, new)
    lines.append(("late writer", "", "", "; ".join(found) or "ok"))
    wrong += found
    old, new = new, old
    twin = make_drill.second(old)
    for name, scenario, other in (("intruders", intruders, new), ("two of one epoch", two_of_one_epoch, twin)):
        found = scenario(old, other)
        lines.append((name, "", "", "; ".join(found) or "ok"))
        wrong += found
    with capsys.disabled():
        print(table("takeovers", ("stopped", "seconds to the takeover", "ended", "result"), lines))
    assert wrong == []
    assert old.project.sink_sources() == old.project.topic_sources()
