"""What a task of a batch writes a dataset's rows with: an object for each event date, named by its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import msgspec
import pyarrow as pa

from millrace.adapters.s3.store import S3Store
from millrace.adapters.sinks.row_sources import sources_of
from millrace.adapters.sinks.s3.objects import TIMELINE, by_date, conform, must_be_of, without_sources, write_object
from millrace.adapters.sinks.value_ranges import unheld_rows
from millrace.domain.sinks.batch import TaskResult
from millrace.domain.sinks.dataset.manifest import DataObject
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.topics.offsets import OffsetRange, Source
from millrace.errors import (
    DeclarationError,
    MillraceError,
    SinkFailedError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.ports.objects import ObjectStore
from millrace.settings import S3Settings

HELD_BYTES = 64 << 20
"""What the rows take in memory that a task holds back, at most, beside one block of them; and once more, by date."""
_THREADS = 8
_RECEIPT = msgspec.json.Decoder(tuple[DataObject, ...])


@contextmanager
def told_as_a_sink() -> Iterator[None]:
    """Tell in a sink's words that an object store does not answer; what else is wrong stays what it is."""
    try:
        yield
    except SinkUnreachableError:
        raise
    except UnreachableError as error:
        raise SinkUnreachableError(error.what, where=error.where, next_step=error.next_step, code=error.code) from error


@contextmanager
def _told_as_a_task() -> Iterator[None]:
    """Tell whatever an object store says in a sink's words: a task has no others."""
    try:
        with told_as_a_sink():
            yield
    except (SinkUnreachableError, DeclarationError):
        raise
    except MillraceError as error:
        raise SinkFailedError(error.what, where=error.where, next_step=error.next_step, code=error.code) from error


ATTEMPTS, READ_SECONDS = 4, 10
"""Of a request to the store: who is silent for longer than both together is away, and that is less than the
`AWAY_SECONDS` by which `runtime.stream.batch.tries` tells a store that stays away from one that was there meanwhile."""


def open_store(settings: S3Settings) -> ObjectStore:
    """The bucket, for a stream that writes to it."""
    return S3Store(settings, attempts=ATTEMPTS, read_seconds=READ_SECONDS)


_store = cache(open_store)
"""One a process: it keeps its connections."""


def objects_of(receipt: str) -> tuple[DataObject, ...]:
    """What a task says it has written."""
    return _RECEIPT.decode(receipt)


@dataclass(frozen=True, slots=True)
class ObjectsWriter:
    """Writes the rows that a task is given (`TaskWriter`).

    Args:
        settings: the bucket.
        dataset: where in it.
        timeline: the timeline of the batch.
        ranges: the batch's.
        schema: of the objects.
        event_date: the column whose date names the folders.
        held_bytes: what the rows take that it holds back, before it writes them.
    """

    settings: S3Settings
    dataset: Dataset
    timeline: int
    ranges: tuple[OffsetRange, ...]
    schema: pa.Schema
    event_date: str
    held_bytes: int = HELD_BYTES

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Write blocks as `SinkStore.rows_writer` says; where none comes, nobody connects.

        What a task that fails has written stays: another try may have given the same object a place in a manifest.

        Raises:
            DeclarationError: a row names a source that is not of the batch, or two have one source and ordinal.
            SinkUnreachableError: the store does not answer.
            SinkFailedError: it refuses.
        """
        held, bytes_held, written = list[pa.RecordBatch](), 0, list[DataObject]()
        refused: dict[Source, str] = {}
        with _told_as_a_task():
            for block in blocks:
                held.append(self._conformed(block, refused))
                bytes_held += held[-1].nbytes
                if bytes_held > self.held_bytes:
                    written += self._write(held, refused)
                    held, bytes_held = [], 0
            written += self._write(held, refused)
        rows_written = sum(one.rows for one in written)
        return TaskResult(rows_written, refused, msgspec.json.encode(written).decode() if written else "")

    def _conformed(self, block: pa.RecordBatch, refused: dict[Source, str]) -> pa.RecordBatch:
        """Return a block as it is written, and note the sources of rows with a value that no sink takes."""
        timeline = pa.array([self.timeline], pa.int32()).take(pa.array([0] * len(block), pa.int32()))
        block = conform(block.append_column(TIMELINE, timeline), self.schema)
        wrong = unheld_rows(block.schema.names, block.columns)
        if wrong:
            for source, why in zip(sources_of(block, list(wrong)), wrong.values(), strict=True):
                refused.setdefault(source, why)
        return block

    def _write(self, held: list[pa.RecordBatch], refused: Mapping[Source, str]) -> list[DataObject]:
        """Write what is held, but for rows of sources that are refused, an object a date."""
        rows = without_sources(pa.Table.from_batches(held, self.schema), refused)
        if not len(rows):
            return []
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="objects") as pool:
            return list(pool.map(self._put, by_date(rows, self.event_date)))

    def _put(self, dated: tuple[str, pa.Table]) -> DataObject:
        date, rows = dated
        data, written = write_object(date, rows)
        must_be_of(self.ranges, written.held, written.rows)
        _store(self.settings).create(self.dataset.object_key(date, written.sha256), data)
        return written
