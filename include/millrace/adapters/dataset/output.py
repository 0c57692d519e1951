"""What a task of a batch writes a dataset's rows with: an object for each event date, named by its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.dataset.objects import (
    SOURCES,
    TIMELINE,
    by_date,
    conform,
    must_be_of,
    undated,
    without_sources,
    write_object,
)
from millrace.adapters.s3.store import S3Store
from millrace.domain.dataset.manifest import DataObject
from millrace.domain.dataset.names import Dataset
from millrace.domain.offsets import OffsetRange, Source
from millrace.domain.sinks import TaskResult
from millrace.errors import (
    DeclarationError,
    MillraceError,
    SinkFailedError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.ports import ObjectStore
from millrace.settings import S3Settings

HELD_BYTES = 64 << 20
"""What the rows take in memory that a task holds back, at most, beside one block of them."""
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
        raise SinkUnreachableError(error.what, where=error.where, next_step=error.next_step) from error


@contextmanager
def _told_as_a_task() -> Iterator[None]:
    """Tell whatever an object store says in a sink's words: a task has no others."""
    try:
        with told_as_a_sink():
            yield
    except (SinkUnreachableError, DeclarationError):
        raise
    except MillraceError as error:
        raise SinkFailedError(error.what, where=error.where, next_step=error.next_step) from error


@cache
def _store(settings: S3Settings) -> ObjectStore:
    """One a process: it keeps its connections."""
    return S3Store(settings)


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
        held_bytes: what the rows take that it holds back, before it writes the largest dates.
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
        held, written = _Held(), list[DataObject]()
        refused: dict[Source, str] = {}
        with _told_as_a_task():
            for block in blocks:
                for date, rows in self._dated(block, refused):
                    held.add(date, rows)
                if held.bytes > self.held_bytes:
                    written += self._write(held.largest(held.bytes - self.held_bytes // 2))
            written += self._write(held.largest(held.bytes))
        rows_written = sum(one.rows for one in written)
        return TaskResult(rows_written, refused, msgspec.json.encode(written).decode() if written else "")

    def _dated(self, block: pa.RecordBatch, refused: dict[Source, str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each date; those of a source that has a row of no year that there is are refused."""
        timeline = pa.array([self.timeline], pa.int32()).take(pa.array([0] * len(block), pa.int32()))
        block = conform(block.append_column(TIMELINE, timeline), self.schema)
        beyond = undated(block, self.event_date)
        if pc.any(beyond).as_py():
            named = block.filter(beyond).select(SOURCES[:3]).to_pylist()
            why = f"the date of `{self.event_date}` is not of the years 1 to 9999"
            fresh: Mapping[Source, str] = {tuple(source.values()): why for source in named}
            refused |= fresh
            block = without_sources(block, fresh)
        if len(block):
            yield from by_date(block, self.event_date)

    def _write(self, dated: list[tuple[str, list[pa.RecordBatch]]]) -> list[DataObject]:
        if not dated:
            return []
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="objects") as pool:
            return list(pool.map(self._put, dated))

    def _put(self, dated: tuple[str, list[pa.RecordBatch]]) -> DataObject:
        date, batches = dated
        rows = pa.Table.from_batches(batches, self.schema)
        data, written = write_object(date, rows)
        must_be_of(self.ranges, written.held, written.rows)
        _store(self.settings).create(self.dataset.object_key(date, written.sha256), data)
        return written


@dataclass(slots=True)
class _Held:
    """Rows that wait for more of their date."""

    bytes: int = 0
    _batches: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def add(self, date: str, rows: pa.RecordBatch) -> None:
        self._batches.setdefault(date, []).append(rows)
        self._sizes[date] = self._sizes.get(date, 0) + rows.nbytes
        self.bytes += rows.nbytes

    def largest(self, bytes: int) -> list[tuple[str, list[pa.RecordBatch]]]:
        """Take out the dates that have most, until they have so much together; as good as all at the end."""
        taken = []
        for date in sorted(self._sizes, key=lambda date: (-self._sizes[date], date)):
            if bytes <= 0:
                break
            bytes -= (size := self._sizes.pop(date))
            self.bytes -= size
            taken.append((date, self._batches.pop(date)))
        return taken
