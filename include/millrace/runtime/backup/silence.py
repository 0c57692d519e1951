"""An alarm where topics or partitions of a backup give no answer for longer than a leader takes to move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from datetime import datetime, timedelta

import structlog

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.formats.shortened import shortened
from millrace.runtime.backup.parts import SayBreach

log = structlog.get_logger()

TOLD_AFTER = timedelta(minutes=5)
_NAMED = 5


class Silence:
    """Remembers what gives no answer, and since when.

    Args:
        app: PIPELINE.backup, the alarm's subject.
        say: opens or closes the alarm.
        clock: the present, in UTC.
    """

    def __init__(self, app: str, say: SayBreach, clock: Callable[[], datetime]) -> None:
        self._app = app
        self._say = say
        self._clock = clock
        self._since: dict[str, datetime] = {}
        self._told: str | None = ""  # nobody knows what a former epoch has left

    def heard(self, silent: Mapping[str, str]) -> str:
        """Take in what a round did not get an answer from; return it in words, empty where all answered.

        Args:
            silent: why each topic or partition gave no answer.
        """
        now = self._clock()
        if silent.keys() - self._since.keys():
            log.warning("no_answer", count=len(silent), first=_text(silent))
        self._since = {name: self._since.get(name, now) for name in silent}
        late = {name: why for name, why in silent.items() if now - self._since[name] >= TOLD_AFTER}
        if late:
            self._tell(f"{_text(late)}; they gave no answer for {TOLD_AFTER // timedelta(minutes=1)} minutes", late)
        elif not silent or self._told:  # what a former epoch told stays until all answer
            self._tell(None, ())
        return _text(silent)

    def _tell(self, text: str | None, late: Sized) -> None:
        if text != self._told:
            self._told = text
            self._say(AlarmKind.BACKUP_SILENT, self._app, text, Extent(len(late)) if late else UNKNOWN)


def _text(silent: Mapping[str, str]) -> str:
    """Name the first of them in words; the rest is a number."""
    if not silent:
        return ""
    named = shortened([f"{name} ({silent[name]})" for name in sorted(silent)], _NAMED)
    return f"not archived until they answer: {named}"
