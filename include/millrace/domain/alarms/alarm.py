"""An alarm as the control database has it: a copy for people, and for the notifiers that are called."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from millrace.domain.alarms.extent import UNKNOWN, Extent, Notified


class AlarmStanding(StrEnum):
    """How it stands with an alarm."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"  # its cause is still there, and somebody has taken it up
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A breach. One is open per kind and subject at a time.

    One that somebody acknowledged stays open until its cause is over, and nobody is told of it unless it is raised
    again (`domain/alarms/life.py`), which drops the acknowledgement.

    Attributes:
        told_at: when every notifier had delivered it, or had failed too often; None: some are still to be called.
        extent: how bad it is: the worst seen since it waits to be told or raised again, else as last seen.
        known: how bad people know it to be, with every fault that they heard of; kept over raising it again.
        known_at: when people last heard of it; None: not yet, since it was opened or raised again.
        raised: how often it was raised, its opening included; `raised_at`: when it was last raised again.
        raise_at: when it is to be raised again, for it has grown within the hour after people heard of it.
        retry_at: when notifiers that failed are to be tried again.
        notified: how its notifiers fared since it was last raised.
    """

    identity: int
    kind: str
    subject: str
    detail: str
    opened_at: datetime
    closed_at: datetime | None
    told_at: datetime | None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_reason: str | None = None
    extent: Extent = UNKNOWN
    known: Extent = UNKNOWN
    known_at: datetime | None = None
    raised: int = 1
    raised_at: datetime | None = None
    raise_at: datetime | None = None
    retry_at: datetime | None = None
    notified: tuple[Notified, ...] = ()

    @property
    def is_known(self) -> bool:
        """Return whether people know of it as it was last raised: they heard of it, or somebody acknowledged it."""
        return self.known_at is not None or self.acknowledged_at is not None

    @property
    def due_since(self) -> datetime:
        """Return since when its notifiers should have been called, or from when on they are to be called again."""
        return self.retry_at or self.raised_at or self.opened_at

    @property
    def standing(self) -> AlarmStanding:
        """How it stands with it."""
        if self.closed_at is not None:
            return AlarmStanding.OVER
        return AlarmStanding.OPEN if self.acknowledged_at is None else AlarmStanding.ACKNOWLEDGED
