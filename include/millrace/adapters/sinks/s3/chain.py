"""A dataset's chain in the object store: read from a summary, from pages or one by one, and written by one epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import structlog

from millrace.adapters.archive.chain import THREADS, Link, links
from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.domain.sinks.batch import Identity
from millrace.domain.sinks.dataset.history import Head, History, Summary
from millrace.domain.sinks.dataset.manifest import ColumnEntry, DataObject, Kind, Manifest, Span
from millrace.domain.sinks.dataset.names import MANIFESTS_A_PAGE, Dataset
from millrace.errors import (
    CorruptArchiveError,
    FencedError,
    MillraceError,
    ObjectExistsError,
    RefusedError,
)
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()

PAGE_BYTES = 32 << 20
"""A larger page is not written: manifests of so many objects are read one by one, some at a time."""
_PAGES_LOOKED_AT = 10  # the last ones, when pages are written: one that could not be is written later
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
        raise _corrupt(link.key, "it is missing, and later ones are there")
    manifest = decode(link.data, Manifest, link.key)
    try:
        history.add(manifest, sha256_of(link.data))
    except ValueError as error:
        raise _corrupt(link.key, str(error)) from error
    tell(manifest)


def resume(store: ObjectStore, dataset: Dataset, stream: str) -> History:
    """What is known of a chain by its last summary that can be read; nothing where there is none.

    Raises:
        CorruptArchiveError: the manifest that it names is missing, or has other bytes.
        RefusedError: the dataset is another stream's.
    """
    listed = (dataset.sequence_of(info.key) for info in store.list(dataset.summaries))
    for sequence in sorted((found for found in listed if found is not None), reverse=True):
        key = dataset.summary_key(sequence)
        data = store.get(key)
        if data is None:
            continue
        try:
            summary = decode(data, Summary, key)
        except CorruptArchiveError as error:
            log.warning("summary_left_aside", key=key, error=str(error))
            continue
        manifest = store.get(dataset.manifest_key(summary.sequence))
        if manifest is None or sha256_of(manifest) != summary.sha256:
            what = "is missing: the chain was cut off" if manifest is None else "has other bytes than then"
            raise _corrupt(key, f"it sums up the chain to manifest {summary.sequence}, which {what}")
        _must_be_of(dataset, summary.stream, stream)
        return summary.history()
    return History(stream)


def last_summary(store: ObjectStore, dataset: Dataset) -> int:
    """The last manifest that a summary names, by a listing; -1 where none does."""
    listed = (dataset.sequence_of(info.key) for info in store.list(dataset.summaries))
    return max((found for found in listed if found is not None), default=-1)


def stream_of(store: ObjectStore, dataset: Dataset) -> str | None:
    """Whose dataset it is, by its first manifest; None where there is none."""
    key = dataset.manifest_key(0)
    data = store.get(key)
    return None if data is None else decode(data, Manifest, key).stream


def _must_be_of(dataset: Dataset, found: str | None, stream: str) -> None:
    if found is not None and found != stream:
        raise RefusedError(
            f"the dataset {dataset} is of the stream {found}",
            where=f"stream {stream}",
            next_step="declare another `prefix`: a dataset has one stream, and its history is that stream's",
        )


class DatasetChain:
    """The one writer of a dataset's chain: an epoch that has taken it over.

    Guarantees: a manifest that was acknowledged is the next of the one chain there is; an older epoch, or another
    instance of this one, writes none after `take_over` has returned, also one that was stopped meanwhile.

    Args:
        store: where it lies; it writes over nothing.
        dataset: whose chain it is.
        identity: who writes.
        clock: the present, in UTC.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: Dataset,
        identity: Identity,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.history = History(identity.stream)
        self._store = store
        self._dataset = dataset
        self._identity = identity
        self._clock = clock
        self._summed_up = -1
        self._unsettled = False  # whether nobody knows if the last manifest was written

    def take_over(self) -> None:
        """Begin an epoch: write its takeover at the chain's first free place.

        Raises:
            FencedError: the chain has this epoch of another instance, or a newer one.
            CorruptArchiveError: the chain cannot be read.
            RefusedError: it is another stream's.
        """
        me = self._identity
        first = stream_of(self._store, self._dataset)
        _must_be_of(self._dataset, first, me.stream)
        self.history = resume(self._store, self._dataset, me.stream)
        self._summed_up = self.history.head.sequence
        refused_at: Head | None = None
        while True:
            read_chain(self._store, self._dataset, self.history)
            head = self.history.head
            if first is None and head.sequence >= 0 and (first := stream_of(self._store, self._dataset)) is None:
                raise _corrupt(self._dataset.manifest_key(0), "it is missing, and later ones are there")
            if (head.epoch, head.instance) == (me.epoch, me.instance):
                break
            if head.epoch >= me.epoch:
                raise self._fenced(head.epoch)
            if head == refused_at:
                raise self._blind()
            try:
                self._write(Kind.TAKEOVER)
            except ObjectExistsError:
                refused_at = head
            else:
                break
        self._unsettled = False
        self._tidy_up()

    def read_on(self) -> None:
        """Take in what has been written since.

        Raises:
            FencedError: somebody else has taken over.
        """
        read_chain(self._store, self._dataset, self.history)
        self._unsettled = False
        self._check()

    def settle(self) -> None:
        """Read on, where an answer was lost.

        Raises:
            FencedError: somebody else has taken over, as far as this is known.
        """
        if self._unsettled:
            self.read_on()
        self._check()

    def append(
        self,
        kind: Kind,
        *,
        timeline: int = 0,
        spans: Sequence[Span] = (),
        objects: Sequence[DataObject] = (),
        columns: Sequence[ColumnEntry] = (),
        event_date: str = "",
    ) -> None:
        """Write the next manifest; its objects are in the store already.

        Raises:
            FencedError: somebody else has taken over.
            ObjectExistsError: another manifest of this instance came in between, and was read: plan again.
            UnreachableError: the store does not answer; `settle`.
            ValueError: it cannot be the next one.
        """
        self.settle()
        self._stop_at_changed_head()
        before = self.history.head
        try:
            self._write(
                kind,
                timeline=timeline,
                spans=tuple(sorted(spans, key=lambda span: (span.topic_id, span.partition))),
                objects=tuple(sorted(objects)),
                columns=tuple(columns),
                event_date=event_date,
            )
        except ObjectExistsError:
            self.read_on()
            if self.history.head == before:
                raise self._blind() from None
            raise
        if (self.history.head.sequence + 1) % MANIFESTS_A_PAGE == 0:
            self._tidy_up()

    def _write(self, kind: Kind, **said: Any) -> None:
        head, me = self.history.head, self._identity
        manifest = Manifest(
            sequence=head.sequence + 1,
            previous=head.sha256,
            stream=me.stream,
            epoch=me.epoch,
            instance=me.instance,
            kind=kind,
            at=self._clock(),
            **said,
        )
        if fault := self.history.fault(manifest):
            raise ValueError(fault)
        data, key = encode(manifest), self._dataset.manifest_key(manifest.sequence)
        decode(data, Manifest, key)  # what cannot be read again must not be written
        self._unsettled = True
        try:
            self._store.create(key, data)
        except ObjectExistsError:
            self._unsettled = False
            raise
        self._unsettled = False
        self.history.add(manifest, sha256_of(data))

    def _tidy_up(self) -> None:
        """Write what others read the chain by: a summary, and pages. The chain alone says the same."""
        head = self.history.head
        try:
            if head.sequence - self._summed_up >= MANIFESTS_A_PAGE:
                summary = Summary.of(self.history)
                self._store.create(self._dataset.summary_key(summary.sequence), encode(summary))
                self._summed_up = summary.sequence
            write_pages(self._store, self._dataset, head)
        except MillraceError as error:
            log.warning("not_summed_up", dataset=str(self._dataset), error=str(error))

    def _check(self) -> None:
        head, me = self.history.head, self._identity
        if (head.epoch, head.instance) != (me.epoch, me.instance):
            raise self._fenced(head.epoch)

    def _stop_at_changed_head(self) -> None:
        """Stop where the last manifest is gone, or another one: what is written behind it would hide that for ever."""
        head = self.history.head
        key = self._dataset.manifest_key(head.sequence)
        data = self._store.get(key)
        if data is None or sha256_of(data) != head.sha256:
            raise CorruptArchiveError(
                f"the chain's last manifest, {head.sequence}, {'is gone' if data is None else 'has other bytes now'}",
                where=key,
                next_step="look for who deleted or changed manifests; nothing is written behind them",
            )

    def _blind(self) -> CorruptArchiveError:
        return CorruptArchiveError(
            f"the store refuses manifest {self.history.head.sequence + 1}, and has none of this number",
            where=self._dataset.manifests,
            next_step="look at the store: what is there must be readable",
        )

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"epoch {epoch} of another instance writes the dataset, epoch {self._identity.epoch} may no longer",
            where=self._dataset.manifests,
            next_step="nothing where it is the newer one; otherwise see which other process runs this stream",
        )


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
    """What a page is to hold; None where that is too much."""
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
            raise _corrupt(key, "it is missing, and later ones are there")
        if sha256 and decode(line, Manifest, key).previous != sha256:
            raise _corrupt(key, "it does not follow the one before it")
        lines.append(line)
        sha256 = sha256_of(line)
    if sha256 != (head.sha256 if last == head.sequence else _previous(store, dataset, last + 1)):
        raise _corrupt(dataset.manifest_key(last), "it has other bytes than when it was written")
    return b"".join(lines)


def _previous(store: ObjectStore, dataset: Dataset, sequence: int) -> str:
    """What a manifest that is there says of the one before it."""
    key = dataset.manifest_key(sequence)
    data = store.get(key)
    return "" if data is None else decode(data, Manifest, key).previous


def _corrupt(key: str, what: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        what,
        where=key,
        next_step="look for who deleted or changed objects there; nothing is written behind it",
    )
