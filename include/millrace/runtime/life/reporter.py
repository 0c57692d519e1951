"""What a running stream tells people in the control database: its progress and its alarms.

Neither counts for correctness: a stream runs on without the control database, and says so once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import structlog

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.streams.control import BatchSecond, StreamProgress
from millrace.errors import MillraceError

log = structlog.get_logger()

LONGEST_HISTORY = 900  # seconds that are kept while the control database is away

Said = tuple[str | None, Extent]
"""What an alarm is to say; no text: it is over."""
Save = Callable[[StreamProgress, Sequence[BatchSecond]], object]


class Reporter:
    """Saves progress and alarms from a thread of its own, latest wins; of batches in between their sums are kept.

    Args:
        save: saves progress, and the seconds of history up to it; may fail, then the next one is tried.
        set_alarm: opens the stream's alarm of a kind with a text and an extent, or closes it (no text); where it fails
            it is tried again with the next progress.
    """

    def __init__(self, save: Save, set_alarm: Callable[[AlarmKind, str | None, Extent], object]) -> None:
        self._save = save
        self._set_alarm = set_alarm
        self._alarms: dict[AlarmKind, Said] = {}  # as they are to be, by kind
        self._alarms_set: dict[AlarmKind, Said] = {}  # a kind that is missing: a former epoch may have left one open
        self._alarm_waits = False
        self._waiting: StreamProgress | None = None
        self._history: dict[datetime, BatchSecond] = {}  # what is not saved yet, and the present second
        self._condition = threading.Condition()
        self._closing = False
        self._failing: set[str] = set()  # what was said not to be saved, so that it is said once
        self._thread = threading.Thread(target=self._save_latest, name="reporter", daemon=True)
        self._thread.start()

    def progress(self, progress: StreamProgress, steps: Mapping[str, float]) -> None:
        """Save this progress soon, unless a later one comes first; `steps` are the seconds of the batch's steps."""
        with self._condition:
            self._remember(BatchSecond.of(progress, steps))
            self._waiting = progress
            self._condition.notify()

    def alarm(self, kind: AlarmKind, detail: str | None, extent: Extent = UNKNOWN) -> None:
        """Have the stream's alarm of this kind say this, or be closed."""
        with self._condition:
            self._alarms[kind] = (detail, extent)
            self._alarm_waits = True
            self._condition.notify()

    def close(self) -> None:
        """Save what waits, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout=10)

    def _remember(self, batch: BatchSecond) -> None:
        before = self._history.pop(batch.at, None)
        self._history[batch.at] = before.with_one_more(batch) if before else batch
        while len(self._history) > LONGEST_HISTORY:
            del self._history[next(iter(self._history))]

    def _forget(self, saved: Sequence[BatchSecond]) -> None:
        """Keep of what was saved only what a batch was added to meanwhile, and the last: its second may not be over."""
        with self._condition:
            for second in saved[:-1]:
                if self._history.get(second.at) is second:
                    del self._history[second.at]

    def _save_latest(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._waiting is not None or self._alarm_waits)
                progress, self._waiting = self._waiting, None
                alarms, self._alarm_waits = dict(self._alarms), False
                closing = self._closing
            if progress is not None:
                self._try_to_save(progress)
            for kind, said in alarms.items():
                if kind not in self._alarms_set or self._alarms_set[kind] != said:
                    self._try_to_set(kind, said)
            if closing:
                return

    def _try_to_set(self, kind: AlarmKind, said: Said) -> None:
        if self._tried("alarm_not_set", lambda: self._set_alarm(kind, *said)):
            self._alarms_set[kind] = said

    def _try_to_save(self, progress: StreamProgress) -> None:
        with self._condition:
            history = list(self._history.values())
        if self._tried("progress_not_saved", lambda: self._save(progress, history)):
            self._forget(history)

    def _tried(self, otherwise: str, act: Callable[[], object]) -> bool:
        """Do it; where it fails say so, once until it has worked again."""
        try:
            act()
        except Exception as error:  # one that nobody thought of must not end the thread, and with it all that it tells
            if otherwise not in self._failing:
                log.warning(otherwise, error=str(error), exc_info=not isinstance(error, MillraceError))
            self._failing.add(otherwise)
            return False
        self._failing.discard(otherwise)
        return True
