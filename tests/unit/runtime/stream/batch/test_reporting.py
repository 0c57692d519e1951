"""The reporting of batches, used alone: what a driver says of the batch at hand, and what it is given of the result."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from millrace.domain.formats.undeclared import UndeclaredFields
from millrace.domain.sinks.batch import BatchCounts
from millrace.errors import MillraceError, SinkExhaustedError
from millrace.runtime.life.pulse import Pulse
from millrace.runtime.life.step_times import StepTimes
from millrace.runtime.stream.batch.reporting import BatchReport, BatchReporting
from millrace.runtime.stream.inputs import Read
from support.streams.memory_sink import P0


class World:
    def __init__(self, folder: Path) -> None:
        self.pulse = Pulse(folder / "status.json", timedelta(minutes=2))
        self.reports: list[BatchReport] = []
        self.waits: list[MillraceError | None] = []
        self.reporting = BatchReporting(self.pulse, self.reports.append, self.waits.append)

    @property
    def step(self) -> str:
        return self.pulse.doing[1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("step", "in_sink"), [("plan", True), ("copy", True), ("check", False), ("merge", True), ("group", False)]
)
def test_a_step_is_named_with_its_batch_and_whether_it_may_wait_in_the_sink(
    world: World, step: str, in_sink: bool
) -> None:
    with world.reporting.batch(7):
        world.reporting.at(step)
        assert world.step == f"batch 7: {step}"
        assert (world.pulse.in_sink_step is not None) is in_sink
    assert world.step == "rest after batch 7"
    world.reporting.ready()
    assert world.step == "ready for the next batch"


def test_a_wait_for_the_sink_is_told_with_its_cause_until_the_batch_went_through(world: World) -> None:
    full = SinkExhaustedError("disk full", where="the sink")
    with world.reporting.batch(7):
        world.reporting.waits(full)
        assert world.step == "batch 7: pause before it is tried again"
        assert world.pulse._now().waits_for == "the sink: disk full"
        world.reporting.at("plan")
        world.reporting.went_through()
    assert world.waits == [full, None]


def test_a_report_says_what_became_of_a_batch(world: World) -> None:
    times, read, counts = StepTimes(lambda: 1.0), Read(records=10, bad=2, truncated=1), BatchCounts(8, 2)
    with world.reporting.batch(7):
        world.reporting.done(read, counts, times, {P0: 5})
    assert world.reports == [BatchReport(7, 10, 1, UndeclaredFields(), counts, 0.0, times.steps, {P0: 5})]
