"""Alarms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Protocol

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind


class Alarms(Protocol):
    """Open and past alarms; at most one open per kind and subject."""

    def open(self, kind: AlarmKind, subject: str, detail: str, extent: Extent = UNKNOWN) -> bool:
        """Open an alarm, or hold the open one against what is seen now; `domain/alarms/life.py` decides."""
        ...

    def close(self, kind: str, subject: str, *, opened_before: datetime | None = None) -> bool:
        """Close the open alarm of this kind and subject; whether there was one."""
        ...

    def list(self, *, only_open: bool = True, only_untold: bool = False, limit: int = 200) -> tuple[Alarm, ...]:
        """Return alarms, newest first."""
        ...

    def count_open(self) -> int:
        """Return how many alarms are open, acknowledged ones too."""
        ...

    def get(self, identity: int) -> Alarm:
        """The alarm of this number.

        Raises:
            UsageError: there is none.
        """
        ...

    def acknowledge(self, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
        """Note who has taken an alarm up, here and in the action log; the alarm, and whether nobody had before.

        Raises:
            UsageError: there is no alarm of this number.
        """
        ...

    def raise_due(self, limit: int = 1000) -> int:
        """Raise the alarms again that grew within the hour after people heard of them, once that hour is over."""
        ...

    def record_round(self, read: Alarm, failures: Mapping[str, str], *, skipped: Collection[str] = ()) -> Alarm:
        """Note what came of one round of an alarm's notifiers; the alarm as it is then."""
        ...
