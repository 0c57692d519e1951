"""Evidence of checks of quality in the object store: what each found, for machines and for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from millrace.domain.quality.evidence import folder_of, moment_of
from millrace.ports.objects import ObjectStore

MOST_DELETED = 1_000
_NAME = re.compile(r"([0-9]{8}T[0-9]{12}Z)-([0-9a-f]{16})\.(json|html)")


class QualityEvidence:
    """Evidence in one bucket: created once, never written over, deleted when it is old.

    Args:
        store: the bucket.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, key: str, data: bytes) -> None:
        """Keep a document; the same again changes nothing.

        Raises:
            UnreachableError: the store does not answer.
            ObjectExistsError: there is another of this key.
        """
        self._store.create(key, data)

    def get(self, key: str) -> bytes | None:
        """A document; None where it is not there.

        Raises:
            UnreachableError: the store does not answer.
        """
        return self._store.get(key)

    def keys(self, stream: str) -> Iterator[str]:
        """The keys of a stream's evidence, oldest first."""
        folder = folder_of(stream)
        listed = (info.key for info in self._store.list(folder))
        yield from (key for key in listed if _NAME.fullmatch(key[len(folder) :]))

    def expire(self, stream: str, keep: timedelta, now: datetime) -> int:
        """Delete what is older, the oldest first, a thousand at once at most; how many went.

        Raises:
            UnreachableError: the store does not answer; the same again.
        """
        before = moment_of(now - keep)
        old: list[str] = []
        for key in self.keys(stream):
            if key.rpartition("/")[2] >= before or len(old) >= MOST_DELETED:
                break
            old.append(key)
        return len(old) - len(self._store.delete(old)) if old else 0
