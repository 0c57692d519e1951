"""Readers of the results of streams, by Connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.settings import Settings
from millrace.wiring.objects import ObjectAdapters

if TYPE_CHECKING:
    from millrace.adapters.postgres.activity import ActivityReader
    from millrace.adapters.quality.checker import QualityChecker
    from millrace.adapters.sinks.fence import FenceReader
    from millrace.adapters.sinks.postgres.books import SinkBooks
    from millrace.adapters.sinks.postgres.reader import SinkReader
    from millrace.adapters.sinks.s3.reading import DatasetReader
    from millrace.domain.declaration.pipeline import S3Sink, Sink
    from millrace.wiring.sinks import EpochReader

BOOKS_SECONDS = 600  # for one statement about a million offsets: in a table whose key was dropped it reads all rows


@dataclass(frozen=True)
class SinkAdapters:
    """The results of streams (`ports.platform.Sinks`)."""

    settings: Settings
    objects: ObjectAdapters

    def tables(self, connection: str) -> SinkReader:
        """Return a reader of a sink's database."""
        from millrace.adapters.sinks.postgres.reader import SinkReader

        return SinkReader(self.settings.postgres(connection))

    def hasty_tables(self, connection: str) -> SinkReader:
        """Return the same for a page or a check of declarations."""
        from millrace.adapters.postgres.connection import PAGE_TIME
        from millrace.adapters.sinks.postgres.reader import SinkReader

        seconds = PAGE_TIME.total_seconds()
        return SinkReader(self.settings.postgres(connection), statement_seconds=seconds, connect_seconds=2)

    def books(self, connection: str) -> SinkBooks:
        """Return the books in a sink's database."""
        from millrace.adapters.sinks.postgres.books import SinkBooks

        return SinkBooks(self.settings.postgres(connection), statement_seconds=BOOKS_SECONDS)

    def fences(self, connection: str) -> FenceReader:
        """Return the fences in a sink's database."""
        from millrace.adapters.sinks.fence import FenceReader

        return FenceReader(self.settings.postgres(connection))

    def dataset(self, sink: S3Sink) -> DatasetReader:
        """Return a reader of the dataset that a stream writes to."""
        from millrace.wiring.sinks import dataset_reader

        return dataset_reader(self.objects.store(sink.store), sink)

    def epochs(self, sink: Sink) -> Mapping[str, EpochReader]:
        """Return readers of epochs that a sink keeps beside its fence, by Connection."""
        from millrace.wiring.sinks import sink_epochs

        return sink_epochs(self.settings, sink)

    def checker(self, connection: str) -> QualityChecker:
        """Return the checker of rules on tables of a sink's database."""
        from millrace.adapters.quality.checker import QualityChecker

        return QualityChecker(self.settings.postgres(connection))

    def activity(self, connection: str) -> ActivityReader:
        """Return the readings that the stream over the coordinator's log keeps."""
        from millrace.adapters.postgres.activity import ActivityReader

        return ActivityReader(self.settings.postgres(connection))
