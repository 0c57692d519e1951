"""Values that no sink takes, whatever column or nested field they stand in.

Spark makes dates and timestamps of every year that its integers reach, and text of any bytes. The years 1 to 9999 are
those that every reader behind a sink can read: Python's and JSON's (RFC 3339) end there. PostgreSQL and Parquet hold
more, but Arrow's text form, by which PostgreSQL gets them, does not: it has no year before 1 that PostgreSQL takes,
nothing from the year 32768 on, and with a zone prints the year 65537 as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.formats.years import FIRST_DAY, FIRST_MS, LAST_DAY, LAST_MS

Leaf = Callable[[pa.Array], pa.Array | None]


def unheld_rows(names: Sequence[str], columns: Sequence[pa.Array]) -> dict[int, str]:
    """Return the rows with a value that no sink takes, each with the column and the reason.

    Args:
        names: of the columns.
        columns: of one length.
    """
    found: dict[int, str] = {}
    for name, column in zip(names, columns, strict=True):
        for mask, why in unheld(column):
            for row in pc.indices_nonzero(mask).to_pylist():
                found.setdefault(row, f"`{name}` {why}")
    return found


def unheld(column: pa.Array) -> Iterator[tuple[pa.BooleanArray, str]]:
    """Yield which rows of a column hold a value that no sink takes, for each reason that occurs.

    Lists, structs and maps are looked into. The types are those that a sink takes: timestamps are in microseconds.
    """
    for why, leaf in _REASONS.items():
        mask = _rows_with(column, leaf)
        if mask is not None:
            yield mask, why


def _rows_with(array: pa.Array, leaf: Leaf) -> pa.BooleanArray | None:
    """The rows in which a leaf is found, also deep within; None: none."""
    if not len(array):
        return None
    if pa.types.is_struct(array.type):
        return _any_of([_rows_with(child, leaf) for child in array.flatten()])
    if pa.types.is_map(array.type):
        return _any_of([_owners(array, _rows_with(child, leaf)) for child in (array.keys, array.items)])
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _owners(array, _rows_with(array.values, leaf))
    return leaf(array)


def _any_of(masks: Sequence[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    found: pa.BooleanArray | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else pc.or_(found, mask)
    return found


def _owners(array: pa.Array, entries: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """The rows of a list or map that own one of these entries; a null owns none."""
    if entries is None:
        return None
    counted = pc.cumulative_sum(entries.cast(pa.int64()))
    before = pa.concat_arrays([pa.array([0], pa.int64()), counted])
    ends = before.take(array.offsets)
    return pc.and_(pc.greater(ends[1:], ends[:-1]), array.is_valid())


def _outside_the_years(array: pa.Array) -> pa.BooleanArray | None:
    if pa.types.is_date32(array.type):
        numbers, first, last = array.cast(pa.int32()), FIRST_DAY, LAST_DAY
    elif pa.types.is_timestamp(array.type):
        numbers, first, last = array.cast(pa.int64()), FIRST_MS * 1_000, LAST_MS * 1_000 + 999
    else:
        return None
    ends = pc.min_max(numbers)
    if not ends["min"].is_valid or (ends["min"].as_py() >= first and ends["max"].as_py() <= last):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)


def _not_utf8(array: pa.Array) -> pa.BooleanArray | None:
    large = pa.types.is_large_string(array.type)
    if not large and not pa.types.is_string(array.type):
        return None
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.large_binary() if large else pa.binary()).to_pylist()
        return pa.array([text is not None and not is_utf8(text) for text in raw], pa.bool_())
    return None


def is_utf8(text: bytes) -> bool:
    """Return whether these bytes are UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_REASONS: dict[str, Leaf] = {
    "lies outside the years 1 to 9999": _outside_the_years,
    "is not UTF-8": _not_utf8,
}
