"""An object store in memory, for what is decided above it and for scale."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime

from millrace.errors import ObjectExistsError
from millrace.ports.objects import Creation, ObjectInfo

WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryStore:
    """An `ObjectStore` over a dictionary, safe for threads. A test may read and change `objects` behind its back.

    All was written in 2026's first hour, but for what is in `modified`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes) -> Creation:
        with self._lock:
            if key not in self.objects:
                self.objects[key] = data
                return Creation.CREATED
            there = self.objects[key]
        if there == data:
            return Creation.WAS_THERE
        raise ObjectExistsError(
            f"the object {key} exists with other bytes: {len(there)} bytes exist, {len(data)} should be written",
            where="memory",
            next_step="find out who wrote it before you do anything else; the object was not overwritten",
        )

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def get_range(self, key: str, first: int, next: int) -> bytes | None:
        data = self.objects.get(key)
        return None if data is None else data[first : max(first, next)]

    def head(self, key: str) -> ObjectInfo | None:
        data = self.objects.get(key)
        return None if data is None else self._info(key, data)

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        while page := self._keys(prefix, after)[:page_size]:  # as a real one: each page shows what is there by then
            yield from [self._info(key, data) for key in page if (data := self.objects.get(key)) is not None]
            after = page[-1]

    def _info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), self.modified.get(key, WRITTEN))

    def folders(self, prefix: str) -> Iterator[str]:
        rests = [key.removeprefix(prefix) for key in self._keys(prefix, "")]
        yield from dict.fromkeys(rest.partition("/")[0] for rest in rests if "/" in rest)

    def delete(self, keys: Collection[str]) -> Mapping[str, str]:
        for key in keys:
            self.objects.pop(key, None)
        return {}

    def prove_create_only(self) -> None:
        """Nothing to prove: `create` is all there is."""

    def _keys(self, prefix: str, after: str) -> list[str]:  # type: ignore[valid-type]
        with self._lock:
            keys = [key for key in self.objects if key.startswith(prefix)]
        return sorted((key for key in keys if key.encode() > after.encode()), key=str.encode)
