"""A dataset as its readers see it: the rows that count, each once, as one manifest left them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from hashlib import sha256

import pyarrow as pa

from millrace.adapters.chain.ends import believed_epoch, last_manifest, last_summary
from millrace.adapters.sinks.s3.chain import read_chain, stream_of
from millrace.adapters.sinks.s3.objects import read_rows, without
from millrace.domain.sinks.dataset.coverage import Coverage
from millrace.domain.sinks.dataset.history import History
from millrace.domain.sinks.dataset.manifest import DataObject, Kind, Manifest
from millrace.domain.sinks.dataset.names import EVENT_DATE, NO_DATE, Dataset
from millrace.domain.sinks.dataset.snapshot import DataFile, DatasetSnapshot
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore


class DatasetReader:
    """Reads a dataset, also while its stream writes.

    Guarantees: a snapshot has each row that counted when its last manifest was written, once, and no other.
    Does not guarantee: that memory does not grow: a snapshot holds an entry for each object of the dates that are
    asked for, and each manifest of the chain is read for it.

    Args:
        store: the bucket.
        dataset: which.
    """

    def __init__(self, store: ObjectStore, dataset: Dataset) -> None:
        self._store = store
        self._dataset = dataset

    def newest_epoch(self, stream: str) -> int:
        """Return the epoch of a stream that writes it, by its last manifest; 0 where there is none.

        An epoch that no stream reaches by starting is logged and left out: a start above it would leave no room for
        those to come. The stream that meets that manifest is fenced.
        """
        last = last_manifest(self._store, self._dataset, Manifest)
        if last is None or last.stream != stream:
            return 0
        return believed_epoch(last.epoch, dataset=str(self._dataset), stream=stream)

    def snapshot(self, first: date | None = None, last: date | None = None) -> DatasetSnapshot | None:
        """The dataset as it is now; None where no stream has ever written it.

        Args:
            first: the first event date to look at; None: from the beginning.
            last: the last one; None: to the end. Rows without a date are there where both are None.

        Raises:
            CorruptArchiveError: a manifest is missing, or is not what it was; or a summary names later ones.
            UnreachableError: the store does not answer.
        """
        stream = self._stream()
        if stream is None:
            return None
        history, found = History(stream), list[tuple[int, DataObject]]()

        def tell(manifest: Manifest) -> None:
            if manifest.kind is Kind.DATA:
                found.extend((manifest.timeline, one) for one in manifest.objects if _within(one.date, first, last))

        summed_up = last_summary(self._store, self._dataset)  # before the chain, which may grow
        read_chain(self._store, self._dataset, history, tell)
        if history.head.sequence < summed_up:
            raise CorruptArchiveError(
                f"the chain ends at manifest {history.head.sequence}, but a summary names manifest {summed_up}",
                where=self._dataset.manifests,
                next_step="find out who deleted manifests: some rows are invisible without them",
            )
        coverage = Coverage(history.timelines)
        files = []
        for timeline, one in found:
            rest = coverage.rest(timeline, one)
            if rest is not None:
                key = self._dataset.object_key(one.date, one.sha256)
                files.append(DataFile(key, timeline, one, tuple(sorted(rest))))
        return DatasetSnapshot(
            self._dataset, history, tuple(sorted(files, key=lambda file: (file.written.date, file.key)))
        )

    def _stream(self) -> str | None:
        """Return whose dataset it is, or None where nobody has written it.

        Raises:
            CorruptArchiveError: the first manifest is gone, and others are there.
        """
        here = self._dataset
        if stream := stream_of(self._store, here):
            return stream
        listed = (info.key for of in (here.manifests, here.pages, here.summaries) for info in self._store.list(of))
        if not any(here.sequence_of(key) is not None for key in listed):
            return None
        # A stream's first epoch may have written it between these two looks.
        if stream := stream_of(self._store, here):
            return stream
        raise CorruptArchiveError(
            "the manifest is missing, but later ones exist",
            where=here.manifest_key(0),
            next_step="find out who deleted manifests: some rows are invisible without them",
        )

    def rows(self, snapshot: DatasetSnapshot) -> Iterator[pa.Table]:
        """The rows of a snapshot that count, object by object, each with its `event_date` (null: it has none).

        Raises:
            CorruptArchiveError: an object is missing, or is not what its manifest names.
        """
        for file in snapshot.files:
            data = self._store.get(file.key)
            if data is None or sha256(data).hexdigest() != file.written.sha256:
                raise CorruptArchiveError(
                    "the object is missing" if data is None else "the object has other bytes than its manifest names",
                    where=file.key,
                    next_step="find out who deleted or changed objects of the dataset. If the topic still has the "
                    "records, stop the stream, reset its group to before them, and start it: it writes them again",
                )
            rows = without(read_rows(file.key, data), file.covered)
            day = None if file.written.date == NO_DATE else date.fromisoformat(file.written.date)
            yield rows.append_column(EVENT_DATE, pa.repeat(pa.scalar(day, pa.date32()), len(rows)))


def _within(day: str, first: date | None, last: date | None) -> bool:
    if day == NO_DATE:
        return first is None and last is None
    return (first is None or first.isoformat() <= day) and (last is None or day <= last.isoformat())
