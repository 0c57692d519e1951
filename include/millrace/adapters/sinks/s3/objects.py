"""The objects of a dataset: Parquet files, each with rows of one event date, in the order of their sources.

The same rows are always the same bytes, in whatever blocks and order they come; of another version of Arrow's library
the bytes may be others.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.adapters.sinks.row_sources import SOURCE_COLUMNS
from millrace.domain.sinks.dataset.coverage import Covered
from millrace.domain.sinks.dataset.manifest import ColumnEntry, DataObject, Held
from millrace.domain.sinks.dataset.names import EVENT_DATE, NO_DATE
from millrace.domain.topics.offsets import OffsetRange, Source
from millrace.errors import Code, CorruptArchiveError, DeclarationError

TIMESTAMP, TIMELINE = "_timestamp", "_timeline"
_OWN = pa.schema(
    [
        pa.field("_topic_id", pa.string(), nullable=False),
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_ordinal", pa.int32(), nullable=False),
        pa.field(TIMELINE, pa.int32(), nullable=False),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
    ]
)
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "write_page_checksum": True,
    "store_schema": False,
    "row_group_size": 1 << 20,
}
_PLAIN = (
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
    pa.types.is_binary,
    pa.types.is_decimal128,
)
_DAY = 86_400_000_000  # microseconds


def file_schema(columns: pa.Schema, where: str) -> pa.Schema:
    """The schema of the objects for a transform's output.

    Args:
        columns: the output without the source columns.
        where: what gives them, for people.

    Raises:
        DeclarationError: there is none; a column has the name of the folders' one, or one of another but for upper and
            lower case; or Parquet has no plain type for it.
    """
    if not len(columns):
        raise DeclarationError(
            "the app returns no column except the source of the rows",
            where=where,
            next_step="add one in the transform",
            code=Code.WRONG_TRANSFORM,
        )
    seen = {EVENT_DATE: EVENT_DATE}
    for field in columns:
        other = seen.get(field.name.casefold())
        if other is not None:
            taken = "the folders of the dataset have this name" if other == EVENT_DATE else f"column {other} exists too"
            raise DeclarationError(
                f"column {field.name}: {taken}",
                where=where,
                next_step="rename the column in the transform",
                code=Code.WRONG_TRANSFORM,
            )
        seen[field.name.casefold()] = field.name
        if not _is_stored(field.type):
            raise DeclarationError(
                f"column {field.name} is {field.type}, which has no Parquet type",
                where=where,
                next_step=f'return its parts as columns, or text: col("{field.name}").cast("string")',
                code=Code.WRONG_TRANSFORM,
            )
    return pa.schema([*_OWN, *(pa.field(field.name, nullable(field.type)) for field in columns)])


def nullable(type_: pa.DataType) -> pa.DataType:
    """The same type with nothing in it that may not be null: a transform's next version may give a null there."""
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", nullable(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(nullable(type_.key_type), nullable(type_.item_type))
    if pa.types.is_struct(type_):
        fields = (type_.field(index) for index in range(type_.num_fields))
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in fields])
    return type_


def _is_stored(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.unit == "us" and type_.tz in (None, "UTC")
    if pa.types.is_list(type_):
        return _is_stored(type_.value_type)
    if pa.types.is_map(type_):
        return _is_stored(type_.key_type) and _is_stored(type_.item_type)
    if pa.types.is_struct(type_):
        fields = [type_.field(index).type for index in range(type_.num_fields)]
        return bool(fields) and all(map(_is_stored, fields))  # Parquet has no struct of nothing
    return any(is_one(type_) for is_one in _PLAIN)


def conform(block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A block of rows with these columns, in their order and of their types.

    Raises:
        DeclarationError: a row has no source, or an ordinal that is none.
    """
    columns = []
    for field in schema:
        column = block.column(field.name)
        if not field.nullable and column.null_count:
            raise _no_source(f"{column.null_count} rows have a null in `{field.name}`")
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise _no_source(f"`{field.name}` is no {field.type}: {' '.join(str(error).split())[:200]}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _no_source(what: str) -> DeclarationError:
    return DeclarationError(
        what,
        where="the output of the app",
        next_step="keep `_source` unchanged in the transform, and number the rows of one record by `_ordinal`",
        code=Code.WRONG_TRANSFORM,
    )


def entries_of(columns: pa.Schema) -> tuple[ColumnEntry, ...]:
    """The columns as a manifest names them."""
    return tuple(ColumnEntry(field.name, str(nullable(field.type))) for field in columns)


def by_date(rows: pa.Table, event_date: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each event date, in the order of the dates, those without one last; all at once in memory again.

    Args:
        rows: at least one.
        event_date: the column that it is the date of: a date, or a timestamp, whose date in UTC it is.

    Yields:
        The date, as YYYY-MM-DD or `NO_DATE`, and its rows.
    """
    days = _days(rows, event_date)
    first, last = pc.min(days).as_py(), pc.max(days).as_py()
    if first == last and (first is None or not days.null_count):
        yield _spelled(first), rows
        return
    order = pc.sort_indices(days)
    rows = rows.take(order)
    begin = 0
    for entry in pc.run_end_encode(days.take(order)).run_ends.to_pylist():
        yield _spelled(days[order[begin].as_py()].as_py()), rows.slice(begin, entry - begin)
        begin = entry


def _days(rows: pa.Table | pa.RecordBatch, event_date: str) -> pa.Int32Array:
    """The event date of each row, in days since 1970-01-01."""
    column = rows.column(event_date)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int32())
    at = column.cast(pa.int64())
    days = pc.divide(at, _DAY)  # towards 0, also before 1970
    early = pc.less(pc.subtract(at, pc.multiply(days, _DAY)), 0)
    return pc.subtract(days, early.cast(pa.int64())).cast(pa.int32())


def _spelled(days: int | None) -> str:
    return NO_DATE if days is None else pa.scalar(days, pa.int32()).cast(pa.date32()).as_py().isoformat()


def write_object(date: str, rows: pa.Table) -> tuple[bytes, DataObject]:
    """The object of these rows, and what its manifest has to say of it.

    Args:
        date: their event date.
        rows: with the columns of `file_schema`; at least one.

    Raises:
        DeclarationError: two of them have the same source and ordinal.
    """
    rows = rows.sort_by([(name, "ascending") for name in SOURCE_COLUMNS])
    if (twice := _twice(rows)) is not None:
        topic_id, partition, offset, ordinal = twice
        raise DeclarationError(
            f"several rows of partition {partition}, offset {offset} have the ordinal {ordinal}",
            where=f"topic id {topic_id}",
            next_step="add an integer column `_ordinal` in the transform that numbers the rows of one record",
            code=Code.WRONG_TRANSFORM,
        )
    sink = io.BytesIO()
    pq.write_table(rows, sink, **_OPTIONS)
    data = sink.getvalue()
    return data, DataObject(date, hashlib.sha256(data).hexdigest(), len(data), _held(rows))


def _twice(rows: pa.Table) -> tuple[Any, ...] | None:
    """The source and ordinal of a row that another one has as well; the rows are in order."""
    if len(rows) < 2:
        return None
    same: Any = None
    for name in SOURCE_COLUMNS:
        column = rows[name].combine_chunks()
        equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
        same = equal if same is None else pc.and_(same, equal)
    at = pc.index(same, True).as_py()
    return None if at < 0 else tuple(rows[name][at].as_py() for name in SOURCE_COLUMNS)


def _held(rows: pa.Table) -> tuple[Held, ...]:
    of_each = rows.group_by(["_topic_id", "_partition"], use_threads=False).aggregate(
        [("_offset", "min"), ("_offset", "max"), ("_offset", "count")]
    )
    listed = (
        Held(row["_topic_id"], row["_partition"], row["_offset_min"], row["_offset_max"] + 1, row["_offset_count"])
        for row in of_each.to_pylist()
    )
    return tuple(sorted(listed))


def must_be_of(ranges: Sequence[OffsetRange], held: Iterable[Held], rows: int) -> None:
    """Raise where rows name a source that is not of their batch.

    Raises:
        DeclarationError: they do.
    """
    within = {(entry.partition.topic_id, entry.partition.partition): entry for entry in ranges}
    for one in held:
        entry = within.get((one.topic_id, one.partition))
        if entry is None or one.first < entry.first or one.next > entry.next:
            raise DeclarationError(
                f"some of {rows} rows have a `_source` that is not in their batch: partition {one.partition}, offsets "
                f"{one.first} to {one.next - 1}",
                where=f"topic id {one.topic_id}",
                next_step="keep the column `_source` unchanged in the transform",
                code=Code.WRONG_TRANSFORM,
            )


def read_rows(key: str, data: bytes) -> pa.Table:
    """The rows of an object.

    Raises:
        CorruptArchiveError: it is none.
    """
    try:
        return pq.read_table(pa.BufferReader(data), page_checksum_verification=True, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptArchiveError(
            f"the object is damaged, or does not belong to a dataset: {' '.join(str(error).split())[:500]}",
            where=key,
            next_step="find out who changed it; its manifest names the original SHA-256",
        ) from error


def without(rows: pa.Table, covered: Iterable[Covered]) -> pa.Table:
    """Rows but for those of these offsets."""
    for one in covered:
        gone = pc.and_(
            pc.and_(pc.equal(rows["_topic_id"], one.topic_id), pc.equal(rows["_partition"], one.partition)),
            pc.and_(pc.greater_equal(rows["_offset"], one.first), pc.less(rows["_offset"], one.next)),
        )
        rows = rows.filter(pc.invert(gone))
    return rows


def without_sources(rows: pa.Table | pa.RecordBatch, sources: Mapping[Source, str]) -> Any:
    """Rows but for those of these sources."""
    of_each: dict[tuple[str, int], list[int]] = {}
    for topic_id, partition, offset in sources:
        of_each.setdefault((topic_id, partition), []).append(offset)
    for (topic_id, partition), offsets in of_each.items():
        there = pc.and_(
            pc.and_(pc.equal(rows["_topic_id"], topic_id), pc.equal(rows["_partition"], partition)),
            pc.is_in(rows["_offset"], value_set=pa.array(offsets, pa.int64())),
        )
        rows = rows.filter(pc.invert(there))
    return rows
