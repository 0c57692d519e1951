"""A backup's alarms: kept until the control database has taken them, which no round waits for twice in a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import structlog

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.errors import MillraceError
from millrace.runtime.backup.pause import Pause

log = structlog.get_logger()


class Alarms(Protocol):
    """Where alarms are kept."""

    def open(self, kind: AlarmKind, subject: str, detail: str, extent: Extent) -> bool:
        """Open one, or hold the open one against this."""
        ...

    def close(self, kind: AlarmKind, subject: str) -> bool:
        """Close the open one."""
        ...


class Breaches:
    """Opens and closes alarms, the latest word of each.

    Args:
        alarms: where they are kept.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, alarms: Alarms, clock: Callable[[], float] = time.monotonic) -> None:
        self._alarms = alarms
        self._pause = Pause(clock)
        self._waiting: dict[tuple[AlarmKind, str], tuple[str | None, Extent]] = {}

    def say(self, kind: AlarmKind, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        """Have the alarm of this kind and subject say this; None: it is over."""
        self._waiting[kind, subject] = (detail, extent)

    def flush(self) -> None:
        """Put down what waits; where that fails it is tried again by a later call."""
        if not self._waiting or self._pause.goes_on:
            return
        try:
            for (kind, subject), (detail, extent) in list(self._waiting.items()):
                if detail is None:
                    self._alarms.close(kind, subject)
                else:
                    self._alarms.open(kind, subject, detail, extent)
                del self._waiting[kind, subject]
        except MillraceError as error:
            self._pause.begin()
            log.warning("alarm_not_set", waiting=len(self._waiting), error=str(error))
