"""An app's heartbeat in the control database: other hosts see by it that the app is alive, and where."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from millrace.domain.streams.hosts import HEARTBEAT_EVERY
from millrace.errors import MillraceError

log = structlog.get_logger()

_CLOSES_WITHIN_SECONDS = 3.0


class Heartbeat:
    """Gives a heartbeat every ten seconds from a thread of its own, and a last one as the app ends.

    A control database that does not answer holds nothing up and is logged once.

    Args:
        beat: gives one heartbeat.
    """

    def __init__(self, beat: Callable[[], object]) -> None:
        self._beat = beat
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Give the first heartbeat soon, and then one after another."""
        self._thread.start()

    def close(self) -> None:
        """Give the last heartbeat, and end the thread."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_CLOSES_WITHIN_SECONDS)

    def _run(self) -> None:
        while True:
            is_last = self._closing.is_set()
            self._try()
            if is_last:
                return
            self._closing.wait(HEARTBEAT_EVERY.total_seconds())

    def _try(self) -> None:
        try:
            self._beat()
            self._failing = False
        except Exception as error:  # an error that nobody thought of must not end the thread
            if not self._failing:
                log.warning("heartbeat_not_saved", error=str(error), exc_info=not isinstance(error, MillraceError))
            self._failing = True
