"""What a running stream tells people in the control database: its progress and its alarm.

Neither counts for correctness: a stream runs on without the control database, and says so once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from millrace.domain.control import StreamProgress
from millrace.errors import MillraceError

log = structlog.get_logger()


class Reporter:
    """Saves progress and alarm from a thread of its own, latest wins.

    Args:
        save: saves progress; may fail, then the next one is tried.
        set_alarm: opens the stream's alarm with this text, or closes it; where it fails it is tried again with the
            next progress.
    """

    def __init__(self, save: Callable[[StreamProgress], object], set_alarm: Callable[[str | None], object]) -> None:
        self._save = save
        self._set_alarm = set_alarm
        self._alarm: tuple[str | None] | None = None
        self._alarm_set: tuple[str | None] | None = None  # None is not known: a former epoch may have left one open
        self._alarm_waits = False
        self._waiting: StreamProgress | None = None
        self._condition = threading.Condition()
        self._closing = False
        self._failing: set[str] = set()  # what was said not to be saved, so that it is said once
        self._thread = threading.Thread(target=self._save_latest, name="reporter", daemon=True)
        self._thread.start()

    def progress(self, progress: StreamProgress) -> None:
        """Save this progress soon, unless a later one comes first."""
        with self._condition:
            self._waiting = progress
            self._condition.notify()

    def alarm(self, detail: str | None) -> None:
        """Have the stream's alarm say this, or be closed."""
        with self._condition:
            self._alarm = (detail,)
            self._alarm_waits = True
            self._condition.notify()

    def close(self) -> None:
        """Save what waits, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout=10)

    def _save_latest(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._waiting is not None or self._alarm_waits)
                progress, self._waiting = self._waiting, None
                alarm, self._alarm_waits = self._alarm if self._alarm_waits else None, False
                closing = self._closing
            if progress is not None:
                self._try_to_save(progress)
            if alarm is not None and alarm != self._alarm_set:
                self._try_to_set(alarm)
            if closing:
                return

    def _try_to_set(self, alarm: tuple[str | None]) -> None:
        if self._tried("alarm_not_set", lambda: self._set_alarm(*alarm)):
            self._alarm_set = alarm

    def _try_to_save(self, progress: StreamProgress) -> None:
        self._tried("progress_not_saved", lambda: self._save(progress))

    def _tried(self, otherwise: str, act: Callable[[], object]) -> bool:
        """Do it; where it fails say so, once until it has worked again."""
        try:
            act()
        except MillraceError as error:
            if otherwise not in self._failing:
                log.warning(otherwise, error=str(error))
            self._failing.add(otherwise)
            return False
        self._failing.discard(otherwise)
        return True
