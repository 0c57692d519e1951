"""Rounds of kills of a loaded stream, and what must hold after them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from support.drills.crashes import Drill, Order, dying_supervisor
from support.drills.plain_table import table
from support.drills.points import CLAIM, DRAIN
from support.drills.sampler import Sampler

BATCHES_AHEAD = 20


def keep_loaded(drill: Drill, batches: int = BATCHES_AHEAD) -> None:
    """Produce more where the stream would come to the topic's end before the next kill is over."""
    end = sum(drill.project.ends().values())
    if end - drill.done() < batches * drill.project.batch:
        drill.project.produce(batches * drill.project.batch, first=end)


def one_round(
    drill: Drill, point: str, victim: str, start_point: str | None = None, start_victim: str | None = None
) -> None:
    """Kill a victim in a running stream, then perhaps one while it starts again, and wait until the stream recovers."""
    drill.forget_failures()
    claiming = Order(CLAIM)
    if point == DRAIN:
        blows = [drill.hit_while_draining(victim)]
        drill.eventually(lambda: not drill.apps(), what="the end of what was stopping")
        drill.order(*([claiming] if start_point == CLAIM else []))
        drill.forget_failures()
    else:
        blows = [drill.hit(point, victim, *([claiming] if start_point == CLAIM else []))]
    if start_point == CLAIM:
        blows.append(drill.hit_while_claiming(claiming, str(start_victim)))
    elif start_point:
        blows.append(dying_supervisor(drill.project, start_point))
    drill.recovered(blows)


def deal(
    drill: Drill,
    rounds: Sequence[Any],
    capsys: pytest.CaptureFixture[str],
    *,
    sampler: Sampler | None = None,
    batches_ahead: int = BATCHES_AHEAD,
) -> None:
    """Start a stream, deal all blows, print what they did, and hold that they lost or doubled no record.

    A sampler looks at group and record of work meanwhile, five times a second; what it saw must hold too.
    """
    try:
        drill.start()
        drill.eventually(drill.running, what="the first start")
        with sampler or nullcontext():
            for one in rounds:
                keep_loaded(drill, batches_ahead)
                one_round(drill, *one)
            if sampler:
                sampler.long_enough(drill)
        drill.must_be_complete()
    finally:
        report(drill, capsys, sampler.report() if sampler else "")
    assert {hit.result for hit in drill.hits} == {"ok"}
    if sampler:
        sampler.must_hold()


def report(drill: Drill, capsys: pytest.CaptureFixture[str], more: str = "") -> None:
    """Print what the blows did."""
    with capsys.disabled():
        rows = [
            (h.point, h.victim, h.batch, h.running and f"{h.running:.1f}", f"{h.batch_after:.1f}", h.result)
            for h in drill.hits
        ]
        columns = ("point", "victim", "batch in flight", "s to running", "s to next batch", "result")
        print(table(f"kills of a loaded stream, {len(rows)} hits", columns, rows))
        print(more)
