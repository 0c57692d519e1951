"""The reporting of batches: the step a batch is at, its waits, and its result; for people, never for correctness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from millrace.domain.formats.undeclared import UndeclaredFields, names_to_show
from millrace.domain.sinks.batch import BatchCounts
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import MillraceError
from millrace.runtime.life.pulse import Pulse
from millrace.runtime.life.step_times import StepTimes
from millrace.runtime.stream.inputs import Read

log = structlog.get_logger()

_IN_SINK = frozenset({"plan", "copy", "merge"})


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch.

    Attributes:
        truncated: records of which a timestamp was cut to microseconds.
        undeclared: fields of the records that no schema names.
        steps: seconds of each step: `plan`, `copy` (read, decode, transform, stage), `check` (topic ids), `merge` (the
            sink's transaction), `group` (the commit).
    """

    batch_id: int
    rows_in: int
    truncated: int
    undeclared: UndeclaredFields
    counts: BatchCounts
    seconds: float
    steps: Mapping[str, float]
    positions: Mapping[TopicPartition, int]


class BatchReporting:
    """Reports the batch at hand; it knows its number from `batch`.

    Args:
        pulse: the driver's heartbeat.
        on_report: takes the result of each batch.
        on_wait: called with the cause before each wait for the sink, and with None once a batch went through.
    """

    def __init__(
        self,
        pulse: Pulse,
        on_report: Callable[[BatchReport], None],
        on_wait: Callable[[MillraceError | None], None],
    ) -> None:
        self._pulse = pulse
        self._on_report = on_report
        self._on_wait = on_wait
        self._batch_id = -1

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[None]:
        """Report a batch in flight; all else is about that one."""
        self._batch_id = batch_id
        with self._pulse.batch(batch_id):
            yield

    def at(self, step: str) -> None:
        """Report that a step begins."""
        self._pulse.at(f"batch {self._batch_id}: {step}", in_sink=step in _IN_SINK)

    def waits(self, error: MillraceError) -> None:
        """Report that the batch waits for the sink before it is tried again."""
        log.warning("sink_waited_for", batch=self._batch_id, error=str(error))
        self._pulse.at(f"batch {self._batch_id}: pause before it is tried again")
        self._pulse.waits_for(f"the sink: {error.what}")
        self._on_wait(error)

    def went_through(self) -> None:
        """Report that the sink has taken the batch."""
        self._on_wait(None)

    def done(self, read: Read, counts: BatchCounts, times: StepTimes, positions: Mapping[TopicPartition, int]) -> None:
        """Report the result of the batch."""
        self._on_report(
            BatchReport(
                batch_id=self._batch_id,
                rows_in=read.records,
                truncated=read.truncated,
                undeclared=names_to_show(read.undeclared),
                counts=counts,
                seconds=times.total,
                steps=times.steps,
                positions=positions,
            )
        )

    def ready(self) -> None:
        """Report that the next batch may begin."""
        self._pulse.ready()
