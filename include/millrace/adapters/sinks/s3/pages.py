"""Write the pages of a dataset's chain: 1,000 manifests each, for who reads the chain from its beginning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import THREADS
from millrace.adapters.sinks.s3.chain import corrupt
from millrace.domain.chain.head import Head
from millrace.domain.sinks.dataset.manifest import Manifest
from millrace.domain.sinks.dataset.names import MANIFESTS_A_PAGE, Dataset
from millrace.ports.objects import ObjectStore

PAGE_BYTES = 32 << 20
"""A larger page is not written: manifests of so many objects are read one by one, some at a time."""
_PAGES_LOOKED_AT = 10  # the last ones, when pages are written: one that could not be is written later


def write_pages(store: ObjectStore, dataset: Dataset, head: Head) -> None:
    """Write the last pages of a chain, where they are missing and would not be larger than `PAGE_BYTES`.

    Args:
        store: where it lies.
        dataset: whose chain it is.
        head: its last manifest.

    Raises:
        CorruptArchiveError: a manifest is missing, or does not follow the one before it.
    """
    end = (head.sequence + 1) // MANIFESTS_A_PAGE
    for number in range(max(0, end - _PAGES_LOOKED_AT), end):
        key = dataset.page_key(number)
        if store.head(key) is None and (page := _page(store, dataset, number, head)) is not None:
            store.create(key, page)


def _page(store: ObjectStore, dataset: Dataset, number: int, head: Head) -> bytes | None:
    """Return the bytes of a page; None where they are too many."""
    begin, last = number * MANIFESTS_A_PAGE, (number + 1) * MANIFESTS_A_PAGE - 1
    listed = store.list(dataset.manifests, after=dataset.manifest_key(begin - 1) if begin else "")
    if sum(info.size_bytes for info in islice(listed, MANIFESTS_A_PAGE)) > PAGE_BYTES:
        return None
    keys = [dataset.manifest_key(sequence) for sequence in range(begin, last + 1)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="manifests") as pool:
        found = list(pool.map(store.get, keys))
    lines, sha256 = list[bytes](), ""
    for key, line in zip(keys, found, strict=True):
        if line is None:
            raise corrupt(key, "the manifest is missing, but later ones exist")
        if sha256 and decode(line, Manifest, key).previous != sha256:
            raise corrupt(key, "it does not follow the one before it")
        lines.append(line)
        sha256 = sha256_of(line)
    if sha256 != (head.sha256 if last == head.sequence else _previous(store, dataset, last + 1)):
        raise corrupt(dataset.manifest_key(last), "it has other bytes than when it was written")
    return b"".join(lines)


def _previous(store: ObjectStore, dataset: Dataset, sequence: int) -> str:
    """Return the SHA-256 that a manifest names of the one before it; empty where the manifest is missing."""
    key = dataset.manifest_key(sequence)
    data = store.get(key)
    return "" if data is None else decode(data, Manifest, key).previous
