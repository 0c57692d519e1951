"""How long each step of a batch, or of a round, takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from millrace.domain.streams.control import BATCH_STEPS

_FIRST, *_, _LAST = BATCH_STEPS


class StepTimes:
    """The seconds of each step (`BATCH_STEPS`) of one batch, or of a round of a backup, from now on.

    Steps follow one another: each begins where the former ended. A step that comes again adds to its time. All steps
    together are the whole time.

    Args:
        clock: seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._since = clock()
        self._seconds = dict.fromkeys(BATCH_STEPS, 0.0)

    def begin(self) -> None:
        """Begin a step now; the time between it and the former one counts for the last step."""
        self.end(_LAST)

    def end(self, step: str) -> None:
        """End a step and begin the next one."""
        now = self._clock()
        self._seconds[step] += now - self._since
        self._since = now

    def start_over(self) -> None:
        """Do all steps but the first again; the time until now counts for that one."""
        self._since = self._clock()
        self._seconds = dict.fromkeys(BATCH_STEPS, 0.0) | {_FIRST: self._since - self._began}

    @property
    def total(self) -> float:
        """The seconds from the beginning to the end of the step that ended last."""
        return self._since - self._began

    @property
    def steps(self) -> Mapping[str, float]:
        """The seconds of each step."""
        return dict(self._seconds)
