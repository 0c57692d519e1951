"""Read the manifests of a chain in their order, or only its end, beside a writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from millrace.ports.objects import ObjectStore

THREADS = 16
_AHEAD = 4 * THREADS
_AHEAD_BYTES = 32 << 20
_MISSING_EACH = 100  # missing manifests that are asked for one by one


class Chained(Protocol):
    """The keys of a chain, whose manifests are numbered from 0."""

    @property
    def manifests(self) -> str:
        """The beginning of every manifest's key."""
        ...

    @property
    def summaries(self) -> str:
        """The beginning of every summary's key."""
        ...

    def manifest_key(self, sequence: int) -> str:
        """Return the key of a manifest."""
        ...

    def sequence_of(self, key: str) -> int | None:
        """Return the sequence in the key of a manifest or summary, or None where it is the key of neither."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """A manifest as it lies in the store; `data` is None where one is missing, or several up to this one."""

    sequence: int
    key: str
    data: bytes | None


def links(
    store: ObjectStore, chained: Chained, after: int = -1, stranger: Callable[[str], object] = lambda key: None
) -> Iterator[Link]:
    """The manifests beyond a sequence, in order, until there is none behind the last.

    Listings only tell what can be fetched ahead, at most 32 MiB together unless one alone is larger: some stores leave
    objects out while others are written (s3proxy over a folder, tried). What decides is whether the next one is there.

    Args:
        store: where they lie.
        chained: what the chain is of.
        after: the last sequence that is known.
        stranger: told the key of each object among the manifests that is none.
    """
    last = after
    while True:
        for found in _listed(store, chained, last, stranger):
            yield from _between(store, chained, last, found.sequence)
            last = found.sequence
            yield found
        key = chained.manifest_key(last + 1)
        data = store.get(key)
        if data is None:
            return
        last, stranger = last + 1, lambda key: None  # the next listing shows the same ones again
        yield Link(last, key, data)


def _listed(store: ObjectStore, chained: Chained, after: int, stranger: Callable[[str], object]) -> Iterator[Link]:
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
    ahead: deque[tuple[int, str, int, Future[bytes | None]]] = deque()
    held = 0
    try:
        start = chained.manifest_key(after) if after >= 0 else ""
        for info in store.list(chained.manifests, after=start):
            sequence = chained.sequence_of(info.key)
            if sequence is None:
                stranger(info.key)
                continue
            ahead.append((sequence, info.key, info.size_bytes, pool.submit(store.get, info.key)))
            held += info.size_bytes
            while len(ahead) > _AHEAD or (held > _AHEAD_BYTES and len(ahead) > 1):
                held -= ahead[0][2]
                yield from _taken(*ahead.popleft())
        while ahead:
            yield from _taken(*ahead.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _taken(sequence: int, key: str, _: int, data: Future[bytes | None]) -> Iterator[Link]:
    """A manifest that was fetched ahead. One that is not there after all is missing if another one follows it."""
    if (found := data.result()) is not None:
        yield Link(sequence, key, found)


def _between(store: ObjectStore, chained: Chained, last: int, found: int) -> Iterator[Link]:
    """Yield the manifests between two listed ones; a missing one has no data."""
    for sequence in range(last + 1, min(found, last + 1 + _MISSING_EACH)):
        key = chained.manifest_key(sequence)
        yield Link(sequence, key, store.get(key))
    if found > last + 1 + _MISSING_EACH:
        yield Link(found - 1, chained.manifest_key(found - 1), None)
