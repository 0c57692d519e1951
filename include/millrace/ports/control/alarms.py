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
        """Open an alarm, or update the open one as `domain/alarms/life.py` decides.

        Returns:
            True if people have to hear of it.
        """
        ...

    def close(self, kind: str, subject: str, *, opened_before: datetime | None = None) -> bool:
        """Close the open alarm of this kind and subject; return True if there was one.

        Args:
            kind: a word, for callers that close what `list` returned.
            subject: the affected part.
            opened_before: leave an alarm open that was opened later.
        """
        ...

    def list(self, *, only_open: bool = True, only_untold: bool = False, limit: int = 200) -> tuple[Alarm, ...]:
        """Return alarms, newest first."""
        ...

    def count_open(self) -> int:
        """Return how many alarms are open, acknowledged ones too."""
        ...

    def get(self, identity: int) -> Alarm:
        """Return the alarm of this number.

        Raises:
            UsageError: there is none.
        """
        ...

    def acknowledge(self, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
        """Record who acknowledges an alarm, here and in the action log; return it, and True for the first time.

        Raises:
            UsageError: there is no alarm of this number.
        """
        ...

    def raise_due(self, limit: int = 1000) -> int:
        """Raise the alarms again that grew within an hour of their last notification, after that hour.

        Returns:
            How many.
        """
        ...

    def record_round(self, read: Alarm, failures: Mapping[str, str], *, skipped: Collection[str] = ()) -> Alarm:
        """Record the result of one round of an alarm's notifiers, and return the alarm with it."""
        ...
