"""Which objects a deep audit reads: those that came since the last one, and of the others each once in thirty days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = 30
DEEP_EVERY = timedelta(days=1)
_HOURLY = timedelta(hours=1)
_EPOCH_DAY = datetime(1970, 1, 1).toordinal()


def is_deep_due(last: datetime | None, now: datetime) -> bool:
    """Whether an hourly audit looks deep now: it is the first, or the next would come later than a day after the last.

    Args:
        last: when the last deep audit began; None: there was none.
        now: when this one begins.
    """
    return last is None or now - last > DEEP_EVERY - _HOURLY / 2


@dataclass(frozen=True, slots=True)
class Turn:
    """What is due.

    Attributes:
        after: the manifest that the last deep audit ended with; what came later was never read.
        slots: of the thirty parts that the SHA-256 of objects fall into, those that are due.
    """

    after: int
    slots: frozenset[int]

    @classmethod
    def since(cls, last: datetime | None, after: int, now: datetime) -> Turn:
        """All that is due after a deep audit, also where days were left out.

        Args:
            last: when the last deep audit began; None: everything is due.
            after: the manifest it ended with.
            now: when this one begins.
        """
        if last is None:
            return cls(-1, frozenset(range(DAYS)))
        days = range(_day(last) + 1, _day(now) + 1)
        return cls(after, frozenset(day % DAYS for day in days[-DAYS:]))

    def has(self, sequence: int, sha256: str) -> bool:
        """Whether an object is due, by its manifest and the SHA-256 in its name."""
        return sequence > self.after or int(sha256[:8], 16) % DAYS in self.slots


def _day(at: datetime) -> int:
    return at.toordinal() - _EPOCH_DAY
