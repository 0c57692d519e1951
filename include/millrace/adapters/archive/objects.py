"""An object of the archive, format version 1: one Parquet file with the records of one range of a partition's offsets.

The same records are always the same bytes, in whatever batches they come; of another version of Arrow's library the
bytes may be others. Every page has a checksum. What the file is said to hold stands in its footer, which has none: the
SHA-256 that the manifest and the object's key name is what vouches for the whole.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.adapters.archive.columns import (
    SCHEMA,
    Content,
    conform,
    disorder,
    gaps,
    grouped,
    records_of,
    spans_of,
    to_batch,
    unknown_type,
)
from millrace.domain.archive.manifest import MOST, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError, RefusedError

__all__ = [
    "FORMAT",
    "Difference",
    "ReadObject",
    "WrittenObject",
    "differences",
    "read_object",
    "to_batch",
    "write_object",
]

FORMAT = 1
_GROUP_BYTES = 8 << 20  # a reader holds one row group at a time, and no page is larger
_MILLRACE = "millrace."
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["timestamp_type", "headers.list.element.name"],
    "write_statistics": ["offset", "timestamp_ms"],
    "write_page_checksum": True,
    "store_schema": False,
}


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """The bytes of an object, and what the manifest has to say of it."""

    data: bytes
    entry: ObjectEntry


@dataclass(frozen=True, slots=True)
class Difference:
    """What is wrong with the offsets `first <= offset < next` of an object."""

    first: int
    next: int
    what: str

    def __str__(self) -> str:
        return f"[{self.first}, {self.next}): {self.what}"


@dataclass(frozen=True, slots=True)
class ReadObject:
    """What an object holds. `range` is what its own footer says; `table` has the schema of the format."""

    range: OffsetRange
    table: pa.Table
    size_bytes: int
    sha256: str

    def records(self) -> Iterator[ArchivedRecord]:
        """Its records in the order of their offsets."""
        return records_of(self.table)

    def described(self) -> ObjectEntry:
        """The entry that a manifest should have for it, computed anew from its content and its bytes."""
        return _entry(self.range, _content(self.table), self.size_bytes, self.sha256)


def write_object(range: OffsetRange, batches: Iterable[pa.RecordBatch]) -> WrittenObject:
    """The object of these offsets with these records; a range without records is one, too.

    The batches have the columns of the format in their order (large and view types of Arrow are taken as well), and
    are read once. Memory is for the result twice, for one batch, and for a group of records (8 MiB, or one record) a
    few times.

    Raises:
        RefusedError: the range is empty or of no partition there is, the columns are others, the offsets do not rise or
            lie outside the range, or Kafka has no such type of timestamp. Names the offset. No object is returned.
    """
    try:
        metadata = _metadata(range)
    except ValueError as error:
        raise _refused(range, str(error)) from error
    content, sink, last = Content(), io.BytesIO(), None
    with pq.ParquetWriter(sink, SCHEMA, **_OPTIONS) as writer:
        writer.add_key_value_metadata(metadata)  # that of a schema is not written without Arrow's own schema
        for group in grouped(_conformed(range, batches), _GROUP_BYTES):
            if wrong := disorder(group["offset"], range.first, range.next, last) or unknown_type(group):
                raise _refused(range, wrong)
            content.add(group)
            writer.write_batch(group)
            last = content.spans[-1][1] - 1
    data = sink.getvalue()
    return WrittenObject(data, _entry(range, content, len(data), hashlib.sha256(data).hexdigest()))


def read_object(data: bytes) -> ReadObject:
    """What an object holds: whole, with its offsets rising and inside the range that it names.

    Does not guarantee that they are the records that were written: the headers of pages and the footer have no
    checksum. Whoever knows the SHA-256 compares it first, or asks `differences`.

    Raises:
        CorruptArchiveError: the bytes are not such an object, or one that only a later version of Millrace can read.
    """
    found = _opened(data)
    if wrong := disorder(_offsets(found.table), found.range.first, found.range.next):
        raise _corrupt(wrong, where=str(found.range))
    return found


def differences(entry: ObjectEntry, incarnation: Incarnation, data: bytes) -> list[Difference]:
    """How an object's bytes differ from what a manifest of this incarnation says of them; empty: in nothing.

    Names each range of offsets that is missing, too many, held twice or out of order. Raises nothing, whatever the
    bytes are.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    found = []
    if (sha256, len(data)) != (entry.sha256, entry.size_bytes):
        found.append(f"{len(data)} bytes of SHA-256 {sha256}, not {entry.size_bytes} bytes of {entry.sha256}")
    try:
        held = _opened(data)
    except CorruptArchiveError as error:
        return [Difference(entry.first, entry.next, what) for what in [*found, error.what]]
    named = TopicPartition(incarnation.topic, incarnation.topic_id, entry.partition)
    if held.range != (meant := OffsetRange(named, entry.first, entry.next)):
        found.append(f"the object says it is of {_long(held.range)}, not of {_long(meant)}")
    misplaced = list(_misplaced(entry, _offsets(held.table)))
    if not misplaced:
        found += _otherwise(entry, held)
    return [*(Difference(entry.first, entry.next, what) for what in found), *misplaced]


def _misplaced(entry: ObjectEntry, offsets: pa.Array) -> Iterator[Difference]:
    """Where the offsets are not those of the entry."""
    distinct = offsets.unique().sort()
    held, meant = Spans(spans_of(distinct)), Spans(gaps(entry.holes, entry.first, entry.next))
    for first, next_ in meant.minus(held):
        yield Difference(first, next_, "missing: the manifest counts these records, the object has them not")
    for first, next_ in held.minus(meant):
        yield Difference(first, next_, "extra: the object has records that the manifest does not count")
    if len(distinct) < len(offsets):
        counts = offsets.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).sort()
        for first, next_ in spans_of(twice):
            yield Difference(first, next_, "doubled: the object has these offsets more than once")
    if len(offsets) > 1:
        falls = pc.less(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
        for first, next_ in spans_of(offsets.slice(1).filter(falls).unique().sort()):
            yield Difference(first, next_, "out of order: comes after a greater offset")


def _otherwise(entry: ObjectEntry, held: ReadObject) -> Iterator[str]:
    """What else of the entry is not so, of an object with the right offsets."""
    found = _content(held.table)  # no entry can be made of it where the file names another range
    if (digest := found.digest()).content != entry.digest.content:
        yield f"other records: their digest is {digest.content}, not {entry.digest.content}"
    elif digest != entry.digest:
        yield "the same records, but at other offsets: some have changed places"
    times, meant = (found.min_timestamp_ms, found.max_timestamp_ms), (entry.min_timestamp_ms, entry.max_timestamp_ms)
    if times != meant:
        yield f"timestamps from {times[0]} to {times[1]} ms, not from {meant[0]} to {meant[1]} ms"


def _opened(data: bytes) -> ReadObject:
    """An object whose file is well, whatever its offsets are.

    Raises:
        CorruptArchiveError: its file is not well.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False)
        named = _range_of(file.metadata.metadata or {})
        if not file.schema_arrow.equals(SCHEMA):
            raise ValueError(f"the columns are {_one_line(file.schema_arrow)}, not {_one_line(SCHEMA)}")
        groups = [file.read_row_group(index, use_threads=False) for index in range(file.num_row_groups)]
        table = pa.concat_tables([SCHEMA.empty_table(), *groups]).replace_schema_metadata(None)
        table.validate(full=True)
        if wrong := unknown_type(table):
            raise ValueError(wrong)
    except CorruptArchiveError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        why = " ".join(str(error).split())[:500]  # some of Arrow's have line breaks, and pieces of the file
        raise _corrupt(f"not an object of an archive, or a damaged one: {why}") from error
    return ReadObject(named, table, len(data), hashlib.sha256(data).hexdigest())


def _metadata(range: OffsetRange) -> dict[str, str]:
    """What an object says of itself.

    Raises:
        ValueError: no partition has this range.
    """
    partition = range.partition
    Incarnation(partition.topic, partition.topic_id)
    if not (0 <= partition.partition < 1 << 31 and 0 <= range.first < range.next <= MOST):
        raise ValueError("no offsets, or not of a partition")
    said = {"format": FORMAT, "topic": partition.topic, "topic_id": partition.topic_id}
    said |= {"partition": partition.partition, "first": range.first, "next": range.next}
    return {f"{_MILLRACE}{name}": str(value) for name, value in said.items()}


def _range_of(metadata: dict[bytes, bytes]) -> OffsetRange:
    """What an object says it is of.

    Raises:
        ValueError: it does not say so, or says what cannot be.
        CorruptArchiveError: it is of another version.
    """
    said = {name.decode(): value.decode() for name, value in metadata.items()}
    version = said.get(f"{_MILLRACE}format")
    if version is None:
        raise ValueError("its metadata does not say the format of Millrace")
    if version != str(FORMAT):
        raise _corrupt(
            f"an object of format {version[:20]!r}; this Millrace reads format {FORMAT}",
            next_step="read it with the Millrace that wrote it, or upgrade this one",
        )
    topic, topic_id, partition, first, next_ = (
        said.get(f"{_MILLRACE}{name}", "") for name in ("topic", "topic_id", "partition", "first", "next")
    )
    range = OffsetRange(TopicPartition(topic, topic_id, int(partition)), int(first), int(next_))
    if not _metadata(range).items() <= said.items():
        raise ValueError("numbers in its metadata are not written as Millrace writes them")
    return range


def _content(table: pa.Table) -> Content:
    content = Content()
    for batch in table.to_batches():
        content.add(batch)
    return content


def _entry(range: OffsetRange, content: Content, size_bytes: int, sha256: str) -> ObjectEntry:
    return ObjectEntry(
        partition=range.partition.partition,
        first=range.first,
        next=range.next,
        count=content.count,
        holes=tuple(gaps(content.spans, range.first, range.next)),
        min_timestamp_ms=content.min_timestamp_ms,
        max_timestamp_ms=content.max_timestamp_ms,
        size_bytes=size_bytes,
        sha256=sha256,
        digest=content.digest(),
    )


def _offsets(table: pa.Table) -> pa.Array:
    column = table["offset"].combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks or [pa.array([], pa.int64())])


def _conformed(range: OffsetRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            yield conform(batch)
        except (ValueError, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise _refused(range, str(error)) from error


def _refused(range: OffsetRange, why: str) -> RefusedError:
    return RefusedError(
        f"these records cannot be written to an object: {why}",
        where=str(range),
        next_step="read the range again, and report the error if it repeats; nothing was written",
    )


def _corrupt(what: str, *, where: str = "", next_step: str = "") -> CorruptArchiveError:
    return CorruptArchiveError(
        what, where=where, next_step=next_step or "compare the object with a copy of the same key; do not move it"
    )


def _long(range: OffsetRange) -> str:
    return f"{range} of topic id {range.partition.topic_id}"


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)[:1000]
