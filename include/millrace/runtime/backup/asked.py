"""What people ask of a backup, as the control database has it: one that does not answer holds up no round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

from millrace.domain.streams.control import Claim
from millrace.errors import MillraceError, UnreachableError
from millrace.runtime.backup.pause import Pause

log = structlog.get_logger()

_Request = TypeVar("_Request")


class Asked(Generic[_Request]):
    """Asks what is asked for.

    Args:
        waiting: asks the control database.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, waiting: Callable[[], Sequence[_Request]], clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = waiting
        self._pause = Pause(clock)

    def now(self) -> Sequence[_Request]:
        """What is asked for and not done; nothing where the database did not answer within the last minute."""
        if self._pause.goes_on:
            return ()
        try:
            return self._waiting()
        except MillraceError as error:
            self._pause.begin()
            log.warning("not_asked", error=str(error))
            return ()


class Claimants:
    """Asks which instance claimed an epoch. Many topics may meet one fence while the database is away.

    Args:
        claimed: asks the control database.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, claimed: Callable[[int], Claim | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._claimed = claimed
        self._pause = Pause(clock)
        self._last = ""

    def of(self, epoch: int) -> str | None:
        """Return the instance that claimed an epoch; None where nobody did.

        Raises:
            UnreachableError: the database does not answer, or did not within the last minute.
        """
        if self._pause.goes_on:
            raise UnreachableError(self._last)
        try:
            claim = self._claimed(epoch)
        except UnreachableError as error:
            self._pause.begin()
            self._last = error.what
            raise
        return claim.instance if claim is not None else None
