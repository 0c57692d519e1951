"""The columns of an archive's object: their schema, what is taken for them, and records into and out of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.archive.proof.spans import Span
from millrace.domain.archive.records import ArchivedRecord, Digest, Digester, Headers, TimestampType

_HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),  # as in the log: no Parquet timestamp holds all of them
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER, nullable=False)), nullable=False),
    ]
)
_TYPES = {int(each): each for each in TimestampType}
_RECORD_BYTES = 64  # what a record weighs beside its key, value and headers; bounds the rows of a group as well
_HEADER_BYTES = 16
_AT_ONCE = 16_384  # records that are Python objects at one time


def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of these columns with exactly `SCHEMA`, whatever its buffers and its flags of nullability look like.

    Taken for `binary` and `string` are their large and view types, and nulls; for a list its large type.

    Raises:
        ValueError: a column is missing, too many, out of place, of another type, or null where it may not be, or a
            header's name is not UTF-8. Says which.
        pyarrow.ArrowInvalid: a column holds more than 2 GiB.
    """
    if batch.schema.names != SCHEMA.names:
        raise ValueError(f"the columns are {', '.join(batch.schema.names)}, not {', '.join(SCHEMA.names)}")
    columns = []
    for field, column in zip(SCHEMA, batch.columns, strict=True):
        columns.append(_headers(column) if field.name == "headers" else _cast(field.name, column, field))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def to_batch(records: Iterable[ArchivedRecord]) -> pa.RecordBatch:
    """A record batch of `SCHEMA`; all keys together, and all values, are at most 2 GiB."""
    rows = list(records)
    headers = [header for row in rows for header in row.headers]
    names, values = pa.array([name for name, _ in headers], pa.string()), pa.array([v for _, v in headers], pa.binary())
    columns = [
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp_ms for row in rows], pa.int64()),
        pa.array([int(row.timestamp_type) for row in rows], pa.int32()),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        _lists(pa.array([len(row.headers) for row in rows], pa.int32()), names, values),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def records_of(table: pa.Table) -> Iterator[ArchivedRecord]:
    """The records of a table of `SCHEMA`, as they lie in it.

    Raises:
        KeyError: the type of a timestamp is none; `unknown_type` finds it before.
    """
    for batch in table.to_batches(max_chunksize=_AT_ONCE):
        offsets, times, types, keys, values = (column.to_pylist() for column in batch.columns[:5])
        headers = _python_headers(batch["headers"])
        for offset, at, kind, key, value, held in zip(offsets, times, types, keys, values, headers, strict=True):
            yield ArchivedRecord(offset, at, _TYPES[kind], key, value, held)


class Content:
    """What the entry of an object says of its records, added up in the order of their offsets."""

    def __init__(self) -> None:
        self.count = 0
        self.min_timestamp_ms: int | None = None
        self.max_timestamp_ms: int | None = None
        self.spans: list[Span] = []
        self._digester = Digester()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of `SCHEMA` whose offsets rise, and lie above those that were counted."""
        if not batch.num_rows:
            return
        self.count += batch.num_rows
        self.spans += spans_of(batch["offset"])
        found = pc.min_max(batch["timestamp_ms"]).as_py()
        low, high = self.min_timestamp_ms, self.max_timestamp_ms
        self.min_timestamp_ms = found["min"] if low is None else min(low, found["min"])
        self.max_timestamp_ms = found["max"] if high is None else max(high, found["max"])
        for start in range(0, batch.num_rows, _AT_ONCE):
            part = batch.slice(start, _AT_ONCE)
            offsets, times, _, keys, values = (column.to_pylist() for column in part.columns[:5])
            for row in zip(offsets, times, keys, values, _python_headers(part["headers"]), strict=True):
                self._digester.add(*row)

    def digest(self) -> Digest:
        """The digest of what was counted."""
        return self._digester.digest()


def grouped(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same records in groups that depend on nothing but the records: each has as many as `most_bytes` hold.

    A record that is larger than that is a group of its own. Holds one group and one batch at a time.
    """
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        ends = pc.cumulative_sum(weights(batch)).to_pylist()
        at = 0
        while at < len(ends):
            before = ends[at - 1] if at else 0
            upto = max(bisect_right(ends, before + most_bytes - weight), at if pending else at + 1)
            if upto > at:
                pending.append(batch.slice(at, upto - at))
                weight += ends[upto - 1] - before
            if upto < len(ends):
                yield pa.concat_batches(pending)
                pending, weight = [], 0
            at = upto
    if pending:
        yield pa.concat_batches(pending)


def disorder(offsets: pa.Array, first: int, next_: int, last: int | None = None) -> str:
    """What is wrong with offsets that must rise within `first <= offset < next_`, above the `last` one; or empty."""
    if not len(offsets):
        return ""
    fall = pc.index(pc.less_equal(offsets.slice(1), offsets.slice(0, len(offsets) - 1)), True).as_py()
    if fall >= 0:
        return f"offset {offsets[fall + 1].as_py()} comes after offset {offsets[fall].as_py()}"
    ends = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    if last is not None and ends[0] <= last:
        return f"offset {ends[0]} comes after offset {last}"
    outside = [offset for offset in ends if not first <= offset < next_]
    return f"offset {outside[0]} is outside [{first}, {next_})" if outside else ""


def unknown_type(batch: pa.RecordBatch | pa.Table) -> str:
    """Which record's timestamp is of a type that Kafka has not; empty where all are."""
    known = pc.is_in(batch["timestamp_type"], value_set=pa.array(list(_TYPES), pa.int32()))
    at = pc.index(known, False).as_py()
    if at < 0:
        return ""
    return f"offset {batch['offset'][at].as_py()} has a timestamp of type {batch['timestamp_type'][at].as_py()}"


def spans_of(offsets: pa.Array) -> list[Span]:
    """Rising offsets as ranges `first <= offset < next`, in order and merged."""
    if not len(offsets):
        return []
    below, above = offsets.slice(0, len(offsets) - 1), offsets.slice(1)
    breaks = pc.indices_nonzero(pc.not_equal(above, pc.add(below, 1)))
    firsts = [offsets[0].as_py(), *above.take(breaks).to_pylist()]
    lasts = [*below.take(breaks).to_pylist(), offsets[len(offsets) - 1].as_py()]
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]


def gaps(spans: Iterable[Span], first: int, next_: int) -> list[Span]:
    """What of `first <= offset < next_` lies in none of these ranges, which are in order and inside it; merged."""
    edges = [first, *(edge for span in spans for edge in span), next_]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def _cast(name: str, column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as the field wants it; the name is for the error."""
    kinds = {pa.binary(): (pa.large_binary(), pa.binary_view(), pa.null())}
    kinds[pa.string()] = (pa.large_string(), pa.string_view(), pa.null())
    if column.type != field.type and column.type not in kinds.get(field.type, ()):
        raise ValueError(f"{name} is of type {column.type}, not {field.type}")
    if column.null_count and not field.nullable:
        raise ValueError(f"{name} is null in a record")
    return column.cast(field.type)


def _headers(column: pa.Array) -> pa.Array:
    """The column of headers built anew: what lies between and below its lists is left behind."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise ValueError(f"headers is of type {column.type}, not a list")
    kind = column.type.value_type
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["name", "value"]:
        raise ValueError(f"headers is a list of {kind}, not of structs of name and value")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise ValueError("headers is null in a record, or a header is")
    name, value = (_cast(f"headers.{f.name}", a, f) for f, a in zip(_HEADER, flat.flatten(), strict=True))
    try:
        name.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"the name of a header is not UTF-8: {error}") from error
    return _lists(pc.list_value_length(column).cast(pa.int32()), name, value)


def _lists(lengths: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """A column of headers: how many each record has, and all of them one after the other."""
    structs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(_starts(lengths), structs, type=SCHEMA.field("headers").type)


def _starts(lengths: pa.Array) -> pa.Array:
    """Where each list begins, and the end of the last."""
    return pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum(lengths)])


def _python_headers(column: pa.Array) -> Iterable[Headers]:
    """The headers of each record; many topics have none at all, which costs next to nothing."""
    flat = column.flatten()
    if not len(flat):
        return [()] * len(column)
    names, values = (part.to_pylist() for part in flat.flatten())
    pairs = list(zip(names, values, strict=True))
    starts = _starts(pc.list_value_length(column)).to_pylist()
    return [tuple(pairs[low:high]) for low, high in pairwise(starts)]


def weights(batch: pa.RecordBatch) -> pa.Array:
    """What each record weighs in bytes, from its content alone."""
    flat = batch["headers"].flatten()
    within = pc.add(_lengths(flat.field("name")), pc.add(_lengths(flat.field("value")), _HEADER_BYTES))
    sums, starts = _starts(within), _starts(pc.list_value_length(batch["headers"]))
    headers = pc.subtract(sums.take(starts.slice(1)), sums.take(starts.slice(0, len(starts) - 1)))
    return pc.add(pc.add(_lengths(batch["key"]), _lengths(batch["value"])), pc.add(headers, _RECORD_BYTES))


def _lengths(column: pa.Array) -> pa.Array:
    return pc.coalesce(pc.binary_length(column), 0).cast(pa.int64())
