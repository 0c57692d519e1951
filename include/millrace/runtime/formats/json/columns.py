"""Arrow columns from parsed values, many at once; values that need a closer look are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.sinks.value_types import arrow_type
from millrace.domain.declaration.pipeline import Column, ColumnType
from millrace.domain.formats.years import FIRST_MS, LAST_MS
from millrace.domain.quarantine.rules import Broken
from millrace.runtime.formats.decoded import BadRecordError
from millrace.runtime.formats.json.decimals import DECIMAL_TEXT, LARGEST_PRECISION, require_exact
from millrace.runtime.formats.json.range_checks import LARGEST_FLOAT32, checked_decimal, utc
from millrace.runtime.formats.json.times import read_time

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_FIRST, _LAST = pa.scalar(FIRST_MS * 1_000, _TIMESTAMP), pa.scalar(LAST_MS * 1_000 + 999, _TIMESTAMP)
_DAY_US, _YEAR_0 = 86_400_000_000, "0000"
_DAY, _MINUTES, _SECONDS = 10, 14, 20  # characters of a date, before minutes, and more than any time without them has
_ZONE = re.compile("[Z+-]")
_LOSES, _TOO_FINE = r"\.\d{6}0*[1-9]", r"(\.\d{6})\d+"
_FEW = 0.05  # of the texts: so many are read one by one before all are looked at more closely
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_WITHOUT_ZONE = rf"^.{{10}}[T ]{_CLOCK}(:[0-5]\d(\.\d+)?)?$"
_COMMON = (
    rf"^\d{{4}}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]{_CLOCK}(:[0-5]\d(\.\d{{1,6}})?)?"
    r"(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)$"
)


@dataclass(frozen=True, slots=True)
class Built:
    """A column, or a part of one.

    Attributes:
        array: its values; null where one is odd, wrong or out of range.
        odd: the indexes of the values that need a closer look.
        wrong: why a text is no value of the type, by its index.
        out_of_range: why the type cannot hold a value, by its index.
        cut: the indexes of the values that lost something.
    """

    array: pa.Array
    odd: list[int] = field(default_factory=list)
    wrong: dict[int, Broken] = field(default_factory=dict)
    out_of_range: dict[int, Broken] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)


ColumnBuilder = Callable[[Sequence[Any]], Built]
"""Makes a column from values of its `field_types.python_type`."""


def column_builder(column: Column) -> ColumnBuilder:
    """Return what makes the column."""
    if column.type is ColumnType.TIMESTAMP:
        return partial(_times, column)
    if column.type is ColumnType.DECIMAL:
        return partial(_decimals, column)
    if column.type is ColumnType.FLOAT:
        return _floats
    arrow = arrow_type(column)
    return lambda values: Built(pa.array(values, type=arrow))


def _floats(values: Sequence[Any]) -> Built:
    wide = pa.array(values, type=pa.float64())
    if _is_within(wide, -LARGEST_FLOAT32, LARGEST_FLOAT32):
        return Built(wide.cast(pa.float32()))
    is_odd = pc.greater(pc.abs(wide), LARGEST_FLOAT32)
    return Built(_without(wide, is_odd).cast(pa.float32()), _indexes(is_odd))


def _times(column: Column, values: Sequence[Any]) -> Built:
    texts = pa.array(values, type=pa.string())
    clock = next((text[_DAY:] for text in values if text is not None), "")
    arrow = _TIMESTAMP if _ZONE.search(clock) else pa.timestamp("us")
    try:
        times = texts.cast(arrow)  # refuses both kinds of texts at once, and finer times
    except pa.ArrowInvalid:
        return _times_by_form(column, texts)
    if not (_have_minutes(texts) and _have_years(texts, times)):  # Arrow takes hours without minutes, and any year
        return _times_by_form(column, texts)
    return Built(times if arrow is _TIMESTAMP else times.cast(_TIMESTAMP))


def _have_minutes(texts: pa.Array) -> bool:
    """Return whether each text that Arrow takes for a time has minutes, or is a day alone."""
    if (pc.min(pc.binary_length(texts)).as_py() or _SECONDS) >= _SECONDS:
        return True
    has_minutes = pc.equal(pc.utf8_slice_codeunits(texts, _MINUTES - 1, _MINUTES), ":")
    return pc.all(pc.or_(has_minutes, pc.equal(pc.utf8_length(texts), _DAY))).as_py() is not False


def _have_years(texts: pa.Array, times: pa.Array) -> bool:
    """Return whether all years are 1 to 9999, in UTC and in the texts: a zone moves the year 0 into the year 1."""
    low, high = _bounds(times.view(pa.int64()))
    if low is None:
        return True
    if not _FIRST.value <= low <= high <= _LAST.value:
        return False
    return low >= _FIRST.value + _DAY_US or pc.any(pc.starts_with(texts, _YEAR_0)).as_py() is not True


def _times_by_form(column: Column, texts: pa.Array) -> Built:
    """Read texts of all forms: Arrow reads the common ones."""
    is_cut: pa.Array = None
    is_common = _are_common(texts)
    kept = texts
    if pc.sum(pc.invert(is_common)).as_py() > _FEW * len(texts):
        is_cut = pc.match_substring_regex(texts, _LOSES)
        kept = pc.replace_substring_regex(pc.ascii_upper(texts), _TOO_FINE, r"\1")
        zone = pc.if_else(pc.match_substring_regex(kept, _WITHOUT_ZONE), "Z", "")
        kept = pc.binary_join_element_wise(kept, zone, "")
        is_common = _are_common(kept)
    try:
        times = _without(kept, pc.invert(is_common)).cast(_TIMESTAMP)
    except pa.ArrowInvalid:  # a day that does not exist
        times = pa.nulls(len(texts), _TIMESTAMP)
        is_common = _without(pa.array([False] * len(texts)), pc.is_null(texts))
    is_outside = _is_outside(times)
    times = _without(times, is_outside)
    odd, cut = _indexes(is_outside), [] if is_cut is None else _indexes(pc.and_(is_cut, is_common))
    others = pc.fill_null(pc.invert(is_common), False)
    found: list[datetime | None] = []
    wrong: dict[int, Broken] = {}
    for index, text in zip(_indexes(others), texts.filter(others).to_pylist(), strict=True):
        found.append(None)
        try:
            time, is_cut_too = read_time(column, text)
            found[-1] = utc(time)
            cut += [index] * is_cut_too
        except BadRecordError as bad:
            wrong[index] = bad.broken
        except OverflowError:
            odd.append(index)
    return Built(pc.replace_with_mask(times, others, pa.array(found, type=_TIMESTAMP)), odd, wrong, cut=cut)


def _are_common(texts: pa.Array) -> pa.Array:
    """Return for each text whether Arrow reads it as `read_time` does, unless there is no such day."""
    return pc.and_not(pc.match_substring_regex(texts, _COMMON), pc.starts_with(texts, _YEAR_0))


def _decimals(column: Column, values: Sequence[Any]) -> Built:
    together = b"\n".join(values)
    texts = pc.split_pattern(pa.array([together], type=pa.string()), "\n").values
    if len(texts) != len(values):  # one of them is an array or an object that has lines, or there is none
        texts = pa.array(list(map(bytes, values)), type=pa.string())
    odd: list[int] = []
    if b"null" in together:
        is_null = pc.equal(texts, "null")
        texts = _without(texts, is_null)
        odd = _indexes(is_null) if column.required else []
    if b'"' in together:
        texts = pc.ascii_trim(texts, characters='"')
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    try:
        # Arrow is exact where neither the text nor the number with its point moved has too many digits.
        if longest + (column.scale or 0) <= LARGEST_PRECISION and b"e" not in together and b"E" not in together:
            return Built(texts.cast(arrow_type(column)), odd)
        # Python's Decimal takes no other texts of these signs than DECIMAL_TEXT.
        if not together.translate(None, b'+-.0123456789eE"nul\n'):
            numbers = [None if text is None else Decimal(text) for text in texts.to_pylist()]
            require_exact(column, [number for number in numbers if number is not None])
            return Built(pa.array(numbers, type=arrow_type(column)), odd)
    except (pa.ArrowInvalid, ArithmeticError):
        pass  # one of them is odd
    return _decimals_one_by_one(column, texts.to_pylist(), odd)


def _decimals_one_by_one(column: Column, texts: Sequence[str | None], odd: list[int]) -> Built:
    numbers: list[Decimal | None] = [None] * len(texts)
    out_of_range: dict[int, Broken] = {}
    for index, text in enumerate(texts):
        if text is None:
            continue
        try:
            number = Decimal(text) if DECIMAL_TEXT.fullmatch(text) else None
        except DecimalException:  # more digits in the exponent than Python takes
            number = None
        if number is None:
            odd.append(index)
            continue
        try:
            numbers[index] = checked_decimal(column, number)
        except BadRecordError as bad:
            out_of_range[index] = bad.broken
    return Built(pa.array(numbers, type=arrow_type(column)), odd, out_of_range=out_of_range)


def _is_within(numbers: pa.Array, least: float, most: float) -> bool:
    low, high = _bounds(numbers)
    return low is None or least <= low <= high <= most


def _bounds(numbers: pa.Array) -> tuple[Any, Any]:
    """Return the least and the greatest number; None: all are null."""
    bounds = pc.min_max(numbers)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _is_outside(times: pa.Array) -> pa.Array:
    return pc.or_(pc.less(times, _FIRST), pc.greater(times, _LAST))


def _without(array: pa.Array, mask: pa.Array) -> pa.Array:
    """Return the array with null where the mask is true."""
    return pc.if_else(pc.fill_null(mask, False), pa.scalar(None, array.type), array)


def _indexes(mask: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return found
