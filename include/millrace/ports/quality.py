"""Quality checks and their evidence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol

from millrace.domain.quality.holding import Asked, Found


class QualityChecker(Protocol):
    """Holds rules against tables of one database."""

    def hold(self, asked: Asked) -> Found:
        """Hold rules against the rows of some ranges, all as they are at one moment.

        Raises:
            UnreachableError: the database does not answer, or went away meanwhile.
        """
        ...


class QualityEvidence(Protocol):
    """Evidence in one bucket: created once, never written over, deleted when it is old."""

    def put(self, key: str, data: bytes) -> None:
        """Keep a document; the same again changes nothing.

        Raises:
            UnreachableError: the store does not answer.
            ObjectExistsError: there is another of this key.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """A document; None where it is not there.

        Raises:
            UnreachableError: the store does not answer.
        """
        ...

    def keys(self, stream: str) -> Iterator[str]:
        """The keys of a stream's evidence, oldest first."""
        ...

    def expire(self, stream: str, keep: timedelta, now: datetime) -> int:
        """Delete what is older, the oldest first, a thousand at once at most; how many went.

        Raises:
            UnreachableError: the store does not answer; the same again.
        """
        ...
