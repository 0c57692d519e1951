"""How often one batch is tried, and how long it waits in between, where its sink says no for a while.

A batch may be tried again at any point: the sink's record of work says what of it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from millrace.errors import SinkExhaustedError, SinkRolledBackError, SinkUnreachableError

AWAY_SECONDS = 60.0  # a failover, a restart; who stays away longer is waited for by supervision, with its alarms
_MOST_ROLLBACKS = 10
_MOST_ABSENCES = 10
_LONGEST_PAUSE = 5.0


class Tries:
    """The tries of one batch.

    Args:
        clock: seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_since: float | None = None
        self._last_seen_away = 0.0
        self._absences = 0
        self._rollbacks = 0

    def pause_after(self, error: Exception) -> float | None:
        """How many seconds to wait before the batch is tried again; None where trying again cannot help."""
        if isinstance(error, SinkUnreachableError):
            return self._pause_away()
        self._away_since = None
        if isinstance(error, SinkExhaustedError):
            return _LONGEST_PAUSE
        if isinstance(error, SinkRolledBackError) and self._rollbacks < _MOST_ROLLBACKS:
            self._rollbacks += 1
            return float(min(0.05 * 2**self._rollbacks, _LONGEST_PAUSE))
        return None

    def _pause_away(self) -> float | None:
        """A try that lasted long before it failed found the sink there: its end is another absence."""
        now = self._clock()
        if self._away_since is None or now - self._last_seen_away >= AWAY_SECONDS:
            self._away_since = now
            self._absences += 1
        self._last_seen_away = now
        given_up = self._absences > _MOST_ABSENCES or now - self._away_since >= AWAY_SECONDS
        return None if given_up else 1.0
