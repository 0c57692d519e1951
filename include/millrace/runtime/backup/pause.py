"""A pause after which a server is asked again, so that one that is away holds up no round."""

from __future__ import annotations

from collections.abc import Callable

AGAIN_SECONDS = 60.0


class Pause:
    """A pause that begins when a server did not answer.

    Args:
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = 0.0

    @property
    def goes_on(self) -> bool:
        """Return whether the server is not to be asked yet."""
        return self._clock() < self._until

    def begin(self, seconds: float = AGAIN_SECONDS) -> None:
        """Begin a pause now."""
        self._until = self._clock() + seconds
