"""How bad a breach is, and how the notifiers of an alarm fared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Extent:
    """How bad a breach is.

    Attributes:
        measure: in the unit of its kind (`domain/alarms/kinds.py`); None where nobody knows it, or the kind has none.
        fault: the kind of fault in a short, stable word, such as an exit reason; never with a time in it. Several stand
            with commas between them, in any order. Empty where nobody knows it, or the kind has none.
    """

    measure: float | None = None
    fault: str = ""


UNKNOWN = Extent()
RETRY_AFTER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30))
"""The pauses before the second, third and fourth try of a notifier that fails."""


@dataclass(frozen=True, slots=True)
class Notified:
    """How one notifier fared with an alarm since it was last raised.

    Attributes:
        name: the notifier's.
        told: it has delivered the alarm.
        failed: in how many rounds it failed; a round that skipped it counts too.
        error: the class of its last error, without its text: that may hold a secret.
        called: how often it was really called.
    """

    name: str
    told: bool = False
    failed: int = 0
    error: str = ""
    called: int = 0

    @property
    def is_due(self) -> bool:
        """Return whether it is to be tried again."""
        return not self.told and self.failed <= len(RETRY_AFTER)
