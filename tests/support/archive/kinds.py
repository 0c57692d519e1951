"""Both kinds of chain, an archive's and a dataset's, for what their one writer promises of either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import put_summary, resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, encode
from millrace.adapters.sinks.s3.chain import read_chain
from millrace.adapters.sinks.s3.writer import DatasetWriter
from millrace.domain.archive.manifest import Kind as ArchiveKind
from millrace.domain.archive.manifest import Manifest as ArchiveManifest
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Head, Writer
from millrace.domain.sinks.batch import Identity
from millrace.domain.sinks.dataset.history import History, Summary
from millrace.domain.sinks.dataset.manifest import Kind as DatasetKind
from millrace.domain.sinks.dataset.manifest import Manifest as DatasetManifest
from millrace.domain.sinks.dataset.manifest import Span
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.ports.objects import ObjectStore
from support.archive.chains import HERE, entry, log

AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
OFFSETS = 10
"""Of each manifest that a test appends."""


class ArchiveChains:
    """An archive's chain; each manifest brings an object of ten offsets."""

    manifest_key = staticmethod(HERE.manifest_key)
    summary_key = staticmethod(HERE.summary_key)

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        """Called once the chain was read, before the takeover is made."""

    def take_over(self, store: ObjectStore, epoch: int, instance: str = "one") -> ArchiveWriter:
        def look() -> ObservedLog:
            self.meanwhile()
            return log((0, 10**6))

        return ArchiveWriter.take_over(store, resume(store, HERE), Writer(epoch, instance), look)

    def append(self, writer: ArchiveWriter) -> None:
        partition = writer.tiling.partitions.get(0)
        first = partition.next if partition else 0
        writer.append(ArchiveKind.DATA, log((0, 10**6)), objects=[entry(first, first + OFFSETS)])

    def append_out_of_turn(self, writer: ArchiveWriter) -> None:
        writer.append(ArchiveKind.TAKEOVER, log((0, 10**6)))

    def sum_up(self, store: ObjectStore, writer: ArchiveWriter) -> str:
        return put_summary(store, writer.tiling)

    def head(self, store: ObjectStore) -> Head:
        """The head by a reader, who must find no fault."""
        tiling = Tiling(HERE)
        read_on(store, tiling)
        assert not tiling.problems.found
        return tiling.head

    def changed(self, data: bytes) -> bytes:
        """Return another manifest that fits in the same place."""
        manifest = decode(data, ArchiveManifest, "")
        return encode(replace(manifest, at=manifest.at + timedelta(seconds=1)))


class DatasetChains:
    """A dataset's chain; each manifest is a batch of ten offsets without rows."""

    def __init__(self) -> None:
        self.dataset = Dataset("lake/purchases")
        self.partition = TopicPartition("purchases", "A" * 22, 0)
        self.manifest_key = self.dataset.manifest_key
        self.summary_key = self.dataset.summary_key
        self.meanwhile: Callable[[], object] = lambda: None

    def take_over(self, store: ObjectStore, epoch: int, instance: str = "one") -> DatasetWriter:
        def clock() -> datetime:
            self.meanwhile()
            return AT

        writer = DatasetWriter(store, self.dataset, Identity("shop.purchases", epoch, instance), clock)
        writer.take_over()
        return writer

    def append(self, writer: DatasetWriter) -> None:
        """The timeline first, then batches."""
        done = writer.history.timelines.get(1, {}).get(self.partition)
        first = done[1] if done else 0
        kind, next_ = (DatasetKind.DATA, first + OFFSETS) if done else (DatasetKind.TIMELINE, 0)
        writer.append(kind, timeline=1, spans=[Span.of(OffsetRange(self.partition, first, next_))])

    def append_out_of_turn(self, writer: DatasetWriter) -> None:
        writer.append(DatasetKind.TAKEOVER)

    def sum_up(self, store: ObjectStore, writer: DatasetWriter) -> str:
        key = self.summary_key(writer.history.head.sequence)
        store.create(key, encode(Summary.of(writer.history)))
        return key

    def head(self, store: ObjectStore) -> Head:
        history = History("shop.purchases")
        read_chain(store, self.dataset, history)
        return history.head

    def changed(self, data: bytes) -> bytes:
        manifest = decode(data, DatasetManifest, "")
        return encode(replace(manifest, at=manifest.at + timedelta(seconds=1)))
