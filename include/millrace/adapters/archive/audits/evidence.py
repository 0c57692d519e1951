"""Evidence of audits in the object store, beside the archive: what each found, for machines and for people.

    audit/TOPIC/TOPIC_ID/DEPTH/TIME-HASH.json
    audit/TOPIC/TOPIC_ID/DEPTH/TIME-HASH.html

TIME is when the audit began, so that a listing is in its order; HASH begins the SHA-256 of the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from millrace.adapters.chain.documents import encode, parse, sha256_of
from millrace.domain.archive.audits.findings import Audit, Depth
from millrace.domain.archive.audits.memory import Memory, Remembered
from millrace.domain.archive.names import Incarnation
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore

ROOT = "audit/"
_NAME = re.compile(r"([0-9]{8}T[0-9]{12}Z)-([0-9a-f]{16})\.json")
_RECENT = timedelta(days=3)
_AT_ONCE = 4
_TIME = "%Y%m%dT%H%M%S%fZ"


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
        """What earlier audits remember.

        Raises:
            UnreachableError: the store does not answer.
        """
        changed: list[str] = []
        found = {depth: self._recent(here, depth, now, changed) for depth in Depth}
        memory = Memory.of({key: audit for each in found.values() for key, audit in each.items()}, changed)
        still = tuple(key for key in memory.changed if key in changed or self._is_changed(key))
        deep = [*found[Depth.DEEP].values(), *found[Depth.ALL].values()]
        last_deep = max(deep, key=lambda audit: audit.at, default=None)
        return Remembered(replace(memory, changed=still), last_deep)

    def _recent(self, here: Incarnation, depth: Depth, now: datetime, changed: list[str]) -> dict[str, Audit]:
        """The last audits of a depth, as many as may have been under way at once, the newest first."""
        folder = _folder(here, depth)
        recent = f"{folder}{(now - _RECENT).strftime(_TIME)}"
        keys = self._keys(folder, recent) or self._keys(folder, "")
        found: dict[str, Audit] = {}
        for key in reversed(keys):
            if len(found) >= _AT_ONCE:
                break
            if (audit := self._read(key)) is not None:
                found[key] = audit
            elif self._is_changed(key):  # a listing may show what is not there
                changed.append(key)
        return found

    def _read(self, key: str) -> Audit | None:
        """The audit of a key; None where it is gone, has other bytes, or another version of Millrace wrote it."""
        data = self._store.get(key)
        if data is None or not _is_named(data, key):
            return None
        try:
            return parse(data, Audit, key)
        except CorruptArchiveError:
            return None

    def _is_changed(self, key: str) -> bool:
        data = self._store.get(key)
        return data is not None and not _is_named(data, key)

    def _keys(self, folder: str, after: str) -> list[str]:
        listed = (info.key for info in self._store.list(folder, after=after))
        return [key for key in listed if _NAME.fullmatch(key[len(folder) :])]


def _is_named(data: bytes, key: str) -> bool:
    """Whether these are the bytes that a key was made for."""
    named = _NAME.fullmatch(key.rpartition("/")[2])
    return named is not None and sha256_of(data)[:16] == named[2]


def _folder(here: Incarnation, depth: Depth) -> str:
    return f"{ROOT}{here.topic}/{here.topic_id}/{depth}/"
