"""An alarm before records are lost: where what is not archived may soon be deleted."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.retention.headroom import LEAST_HEADROOM, Headroom
from millrace.errors import MillraceError
from millrace.runtime.backup.parts import SayBreach
from millrace.runtime.backup.pause import Pause

log = structlog.get_logger()

_AGAIN_SECONDS = 30.0


class Doom:
    """Asks how long what waits stays in its log, where a backup does not keep up.

    Args:
        app: PIPELINE.backup, the alarm's subject.
        measure: asks the brokers.
        say: opens or closes the alarm.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(
        self,
        app: str,
        measure: Callable[[], Headroom | None],
        say: SayBreach,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._measure = measure
        self._say = say
        self._pause = Pause(clock)
        self._told: str | None = ""  # nobody knows what a former epoch has left

    def look(self, *, keeps_up: bool, complete: bool = True) -> None:
        """Look, at most twice a minute, unless the backup keeps up: then nothing is doomed.

        Args:
            keeps_up: whether all that is due is archived.
            complete: whether every partition can be measured. Where one gives no answer, no alarm is over.
        """
        if keeps_up:
            self._tell(None)
        elif not self._pause.goes_on:
            try:
                found = self._measure()
            except MillraceError as error:
                log.warning("headroom_not_known", error=str(error))
                return
            finally:
                self._pause.begin(_AGAIN_SECONDS)
            if found and found.left < LEAST_HEADROOM:
                self._tell(found)
            elif complete:
                self._tell(None)

    def _tell(self, found: Headroom | None) -> None:
        text = _text(found) if found else None
        if text != self._told:
            self._told = text
            extent = Extent(found.left.total_seconds()) if found else UNKNOWN
            self._say(AlarmKind.BACKUP_DOOMED, self._app, text, extent)


def _text(found: Headroom) -> str:
    unread, left = found.unread, found.left.total_seconds()
    when = f"in {left:,.0f} s" if left else "at any moment"
    return (
        f"{unread.partition} is not archived from offset {unread.first:,} on, and may be deleted {when} ({found.rule})"
    )
