"""Evidence of audits in the object store, beside the archive: what each found, for machines and for people.

    audit/TOPIC/TOPIC_ID/DEPTH/TIME-HASH.json
    audit/TOPIC/TOPIC_ID/DEPTH/TIME-HASH.html

TIME is when the audit began, so that a listing is in its order; HASH begins the SHA-256 of the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.adapters.archive.documents import decode, encode, sha256_of
from millrace.domain.archive.audit import Audit, Depth
from millrace.domain.archive.names import Incarnation
from millrace.errors import CorruptArchiveError
from millrace.ports import ObjectStore

ROOT = "audit/"
_NAME = re.compile(r"([0-9]{8}T[0-9]{12}Z)-([0-9a-f]{16})\.json")
_RECENT = timedelta(days=3)
_TIME = "%Y%m%dT%H%M%S%fZ"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last audits of an incarnation, and the keys of evidence that cannot be read: it was changed."""

    last: Audit | None
    last_deep: Audit | None
    unreadable: tuple[str, ...] = ()


class EvidenceStore:
    """Evidence in one bucket: created once, never written over, deleted by nobody here.

    Args:
        store: the bucket.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def key(self, audit: Audit) -> str:
        """Where an audit's JSON lies."""
        at = audit.at.strftime(_TIME)
        return f"{_folder(audit.incarnation, audit.depth)}{at}-{sha256_of(encode(audit))[:16]}.json"

    def put(self, audit: Audit, page: str) -> tuple[str, str]:
        """Keep what an audit found; the keys of its JSON and of its page. The page first: the JSON is the memory.

        Raises:
            UnreachableError: the store does not answer; the same again.
        """
        key = self.key(audit)
        page_key = f"{key.removesuffix('.json')}.html"
        self._store.create(page_key, page.encode())
        self._store.create(key, encode(audit))
        return key, page_key

    def topic_ids(self, topic: str) -> Iterator[str]:
        """The ids of a topic that were ever audited."""
        return self._store.folders(f"{ROOT}{topic}/")

    def remembered(self, here: Incarnation, now: datetime) -> Remembered:
        """The last audits.

        Raises:
            UnreachableError: the store does not answer.
        """
        unreadable: list[str] = []
        shallow = self._last(here, Depth.SHALLOW, now, unreadable)
        deep = _newer(self._last(here, depth, now, unreadable) for depth in (Depth.DEEP, Depth.ALL))
        return Remembered(_newer((shallow, deep)), deep, tuple(unreadable))

    def _last(self, here: Incarnation, depth: Depth, now: datetime, unreadable: list[str]) -> Audit | None:
        folder = _folder(here, depth)
        recent = f"{folder}{(now - _RECENT).strftime(_TIME)}"
        keys = self._keys(folder, recent) or self._keys(folder, "")
        for key in reversed(keys):
            data = self._store.get(key)
            if data is None:
                continue  # a listing may show what is not there
            try:
                audit = decode(data, Audit, key)
            except CorruptArchiveError:
                unreadable.append(key)
                continue
            if self.key(audit) == key:
                return audit
            unreadable.append(key)
        return None

    def _keys(self, folder: str, after: str) -> list[str]:
        listed = (info.key for info in self._store.list(folder, after=after))
        return [key for key in listed if _NAME.fullmatch(key[len(folder) :])]


def _newer(audits: Collection[Audit | None] | Iterator[Audit | None]) -> Audit | None:
    return max((audit for audit in audits if audit), key=lambda audit: audit.at, default=None)


def _folder(here: Incarnation, depth: Depth) -> str:
    return f"{ROOT}{here.topic}/{here.topic_id}/{depth}/"
