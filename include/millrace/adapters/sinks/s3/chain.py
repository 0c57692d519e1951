"""Read a dataset's chain: from a summary, from pages or manifest by manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import Link, links
from millrace.domain.sinks.dataset.history import History, Summary
from millrace.domain.sinks.dataset.manifest import Manifest
from millrace.domain.sinks.dataset.names import MANIFESTS_A_PAGE, Dataset
from millrace.errors import Code, CorruptArchiveError, RefusedError
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()

Told = Callable[[Manifest], object]


def read_chain(store: ObjectStore, dataset: Dataset, history: History, tell: Told = lambda manifest: None) -> None:
    """Take the rest of a chain into a history, to its head, page by page where it begins.

    Args:
        store: where it lies.
        dataset: whose chain it is.
        history: what is known of it.
        tell: told of each manifest, in order.

    Raises:
        CorruptArchiveError: a manifest is missing, is not what it was, or cannot follow.
    """
    pages = _pages(store, dataset) if history.head.sequence < 0 else set()
    while True:
        number, at = divmod(history.head.sequence + 1, MANIFESTS_A_PAGE)
        if at == 0 and number in pages:
            pages.discard(number)
            _take_page(store, dataset, history, number, tell)
        elif not _take_links(store, dataset, history, pages, tell):
            return


def _pages(store: ObjectStore, dataset: Dataset) -> set[int]:
    """The pages that a listing shows, by number; what is in none is read one by one."""
    listed = (dataset.sequence_of(info.key) for info in store.list(dataset.pages))
    return {last // MANIFESTS_A_PAGE for last in listed if last is not None}


def _take_page(store: ObjectStore, dataset: Dataset, history: History, number: int, tell: Told) -> None:
    """Take in a page, as far as it is what follows; the manifests themselves say the rest."""
    key = dataset.page_key(number)
    for sequence, line in enumerate((store.get(key) or b"").splitlines(keepends=True), number * MANIFESTS_A_PAGE):
        try:
            _take(history, Link(sequence, f"{key} (manifest {sequence})", line), tell)
        except CorruptArchiveError as error:
            log.warning("page_left_aside", key=key, error=str(error))
            return


def _take_links(store: ObjectStore, dataset: Dataset, history: History, pages: set[int], tell: Told) -> bool:
    """Take in manifests one by one, to the next page or the end; whether there may be more."""
    for link in links(store, dataset, history.head.sequence):
        if link.data is None:  # a listing may have left out more than `links` asks for
            key = dataset.manifest_key(history.head.sequence + 1)
            link = Link(history.head.sequence + 1, key, store.get(key))
            _take(history, link, tell)
            return True
        _take(history, link, tell)
        number, at = divmod(history.head.sequence + 1, MANIFESTS_A_PAGE)
        if at == 0 and number in pages:
            return True
    return False


def _take(history: History, link: Link, tell: Told) -> None:
    if link.data is None:
        raise corrupt(link.key, "the manifest is missing, but later ones exist")
    manifest = decode(link.data, Manifest, link.key)
    try:
        history.add(manifest, sha256_of(link.data))
    except ValueError as error:
        raise corrupt(link.key, str(error)) from error
    tell(manifest)


def resume(store: ObjectStore, dataset: Dataset, stream: str, summaries: Sequence[int]) -> History:
    """Return the chain up to its last summary that can be read; an empty one where there is none.

    Args:
        store: where it lies.
        dataset: whose chain it is.
        stream: whose dataset it should be.
        summaries: the sequences that summaries name (`summed_up`).

    Raises:
        CorruptArchiveError: the manifest that it names is missing, or has other bytes.
        RefusedError: the dataset is another stream's.
    """
    for sequence in sorted(summaries, reverse=True):
        key = dataset.summary_key(sequence)
        data = store.get(key)
        if data is None:
            continue
        try:
            summary = decode(data, Summary, key)
        except CorruptArchiveError as error:
            log.warning("summary_left_aside", key=key, error=str(error))
            continue
        if summary.sequence != sequence:
            log.warning("summary_left_aside", key=key, error=f"it names manifest {summary.sequence}")
            continue
        manifest = store.get(dataset.manifest_key(sequence))
        if manifest is None or sha256_of(manifest) != summary.sha256:
            what = "is missing: the chain was cut off" if manifest is None else "has other bytes now"
            raise corrupt(key, f"the summary covers the chain up to manifest {sequence}, but that manifest {what}")
        must_be_of(dataset, summary.stream, stream)
        return summary.history()
    return History(stream)


def stream_of(store: ObjectStore, dataset: Dataset) -> str | None:
    """Return the stream that the first manifest of a dataset names; None where there is no manifest."""
    key = dataset.manifest_key(0)
    data = store.get(key)
    return None if data is None else decode(data, Manifest, key).stream


def must_be_of(dataset: Dataset, found: str | None, stream: str) -> None:
    """Raise RefusedError where a dataset is of another stream than this one."""
    if found is not None and found != stream:
        raise RefusedError(
            f"dataset {dataset} belongs to stream {found}",
            where=f"stream {stream}",
            next_step="declare another `prefix`: a dataset and its history belong to one stream",
            code=Code.INVALID_DECLARATION,
        )


def corrupt(key: str, what: str) -> CorruptArchiveError:
    """Return the error of a chain that cannot be read at this key."""
    return CorruptArchiveError(
        what,
        where=key,
        next_step="find out who deleted or changed objects there; Millrace writes nothing behind it",
    )
