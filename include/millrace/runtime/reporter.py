"""What a running stream tells people about itself: a status file, and in the control database its progress and alarm.

Neither counts for correctness: a stream runs on without the control database, and says so once.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import structlog

from millrace.domain.control import StreamProgress
from millrace.errors import MillraceError

log = structlog.get_logger()

STATUS_SCHEMA = "millrace.stream-status/1"


class Phase(StrEnum):
    """What a driver is doing."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


class Reporter:
    """Writes the status file at once; saves progress and alarm from a thread of its own, latest wins.

    Args:
        status_file: where the status goes, replaced as a whole.
        save: saves progress; may fail, then the next one is tried.
        set_alarm: opens the stream's alarm with this text, or closes it; where it fails it is tried again with the
            next progress.
    """

    def __init__(
        self, status_file: Path, save: Callable[[StreamProgress], object], set_alarm: Callable[[str | None], object]
    ) -> None:
        self._status_file = status_file
        self._writing = threading.Lock()  # a batch ends in another thread than the one that drains
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

    def phase(self, phase: Phase, *, batch_id: int | None = None, error: str | None = None) -> None:
        """Write the status file."""
        document = {
            "schema": STATUS_SCHEMA,
            "phase": phase.value,
            "batch_id": batch_id,
            "at": datetime.now(UTC).isoformat(),
            "error": error,
        }
        temporary = self._status_file.with_suffix(".new")
        with self._writing:
            temporary.write_text(json.dumps(document), encoding="utf-8")
            os.replace(temporary, self._status_file)

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
