"""Write a dataset's chain, with the summaries and pages that others read it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from millrace.adapters.chain.documents import encode
from millrace.adapters.chain.ends import summed_up
from millrace.adapters.chain.writer import ChainWriter
from millrace.adapters.sinks.s3.chain import Told, corrupt, must_be_of, read_chain, resume, stream_of
from millrace.adapters.sinks.s3.pages import write_pages
from millrace.domain.chain.head import Head, Writer
from millrace.domain.sinks.batch import Identity
from millrace.domain.sinks.dataset.history import History, Summary
from millrace.domain.sinks.dataset.manifest import ColumnEntry, DataObject, Kind, Manifest, Span
from millrace.domain.sinks.dataset.names import MANIFESTS_A_PAGE, Dataset
from millrace.errors import MillraceError
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()


class _StreamChain:
    """A dataset's chain and its stream's history (`ReadChain`): a manifest that cannot be read is an error."""

    def __init__(
        self, store: ObjectStore, dataset: Dataset, history: History, *, promised: int = -1, has_first: bool = False
    ) -> None:
        self.history = history
        self.summed_up_to = history.head.sequence
        self._store = store
        self._dataset = dataset
        self._promised = promised
        self._has_first = has_first

    @property
    def chained(self) -> Dataset:
        return self._dataset

    @property
    def head(self) -> Head:
        return self.history.head

    def promised(self) -> int:
        return self._promised

    def read_on(self, tell: Told) -> None:
        read_chain(self._store, self._dataset, self.history, tell)
        if self.head.sequence >= 0 and not self._has_first:  # a page or a summary may have stood in for it
            if stream_of(self._store, self._dataset) is None:
                raise corrupt(self._dataset.manifest_key(0), "the manifest is missing, but later ones exist")
            self._has_first = True

    def fault(self, manifest: Manifest) -> str:
        return self.history.fault(manifest)

    def add(self, manifest: Manifest, sha256: str) -> None:
        self.history.add(manifest, sha256)


class DatasetWriter:
    """The one writer of a dataset's chain (see `ChainWriter`).

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
        self._store = store
        self._dataset = dataset
        self._identity = identity
        self._clock = clock
        self._go_by(_StreamChain(store, dataset, History(identity.stream)))

    def _go_by(self, chain: _StreamChain) -> None:
        self._chain = chain
        self._writer = ChainWriter(self._store, chain, Writer(self._identity.epoch, self._identity.instance))

    @property
    def history(self) -> History:
        """The chain up to its head."""
        return self._chain.history

    def take_over(self) -> None:
        """Begin an epoch: write its takeover at the chain's first free place.

        Raises:
            ChainFencedError, CorruptArchiveError, UnreachableError: as `ChainWriter.take_over` says.
            RefusedError: the dataset is another stream's.
        """
        me, first = self._identity, stream_of(self._store, self._dataset)
        must_be_of(self._dataset, first, me.stream)
        summaries = summed_up(self._store, self._dataset)
        history = resume(self._store, self._dataset, me.stream, summaries)
        promised = max(summaries, default=-1)
        self._go_by(_StreamChain(self._store, self._dataset, history, promised=promised, has_first=first is not None))
        self._writer.take_over(lambda: self._following(Kind.TAKEOVER))
        self._tidy_up()

    def read_on(self) -> None:
        """Read what has been written since.

        Raises:
            ChainFencedError, CorruptArchiveError, UnreachableError: as `ChainWriter.settle` says.
        """
        self._writer.settle()

    def settle(self) -> None:
        """Read on, but only where an answer was lost.

        Raises:
            ChainFencedError: another writer has taken over, as far as this is known.
            CorruptArchiveError, UnreachableError: as `ChainWriter.settle` says.
        """
        if self._writer.unsettled:
            self._writer.settle()
        self._writer.check()

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
            ChainFencedError, CorruptArchiveError, ObjectExistsError, RefusedError, UnreachableError, ValueError: as
                `ChainWriter.append` says.
        """
        self._writer.append(
            lambda: self._following(
                kind,
                timeline=timeline,
                spans=tuple(sorted(spans, key=lambda span: (span.topic_id, span.partition))),
                objects=tuple(sorted(objects)),
                columns=tuple(columns),
                event_date=event_date,
            )
        )
        if (self.history.head.sequence + 1) % MANIFESTS_A_PAGE == 0:
            self._tidy_up()

    def _following(self, kind: Kind, **said: Any) -> Manifest:
        head, me = self.history.head, self._identity
        return Manifest(
            sequence=head.sequence + 1,
            previous=head.sha256,
            stream=me.stream,
            epoch=me.epoch,
            instance=me.instance,
            kind=kind,
            at=self._clock(),
            **said,
        )

    def _tidy_up(self) -> None:
        """Write what others read the chain by: a summary, and pages. The chain alone says the same."""
        head = self.history.head
        try:
            if head.sequence - self._chain.summed_up_to >= MANIFESTS_A_PAGE:
                summary = Summary.of(self.history)
                self._store.create(self._dataset.summary_key(summary.sequence), encode(summary))
                self._chain.summed_up_to = summary.sequence
            write_pages(self._store, self._dataset, head)
        except MillraceError as error:
            log.warning("not_summed_up", dataset=str(self._dataset), error=str(error))
