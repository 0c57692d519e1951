"""The decoder of the check: `quality recompute` makes rows by it, so that it shares no fault with the streams' decoder.

It follows the same rules by other means. Python's `json` parses one record at a time, numbers stay the text that they
are, and each field is read by a few lines of its own. It shares the form of results with the other decoder and nothing
else, counts no undeclared fields, and is many times slower. A test holds both against each other.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from millrace.adapters.sinks.value_types import arrow_type
from millrace.domain.declaration.pipeline import Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError, Decoded, RecordDecoder

MAXIMUM_DEPTH = 500
_INTEGERS = {
    ColumnType.TINYINT: 2**7,
    ColumnType.SMALLINT: 2**15,
    ColumnType.INT: 2**31,
    ColumnType.BIGINT: 2**63,
}
_FLOATS = (ColumnType.FLOAT, ColumnType.DOUBLE)
_TEXTS = (ColumnType.STRING, ColumnType.DATE, ColumnType.TIMESTAMP)
_NO_MORE_DIGITS = 20  # than any BIGINT has, with its sign
_FAR_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() + 1) * 1000
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Integer(str):
    """A number without point and exponent, as it is written."""

    __slots__ = ()


class _Fraction(str):
    """A number with a point or an exponent, as it is written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The names and values of an object, in the order of the document."""


def plain_decoder_of(schema: ValueSchema, key: Key | None) -> RecordDecoder:
    """Return the plain decoder of a topic's records.

    Args:
        schema: the topic's declared value schema.
        key: its declared key; None: its records need none.
    """
    return PlainDecoder(schema, key)


class PlainDecoder:
    """Decodes the records of one topic, whatever its format and whatever a record without a value is."""

    def __init__(self, schema: ValueSchema, key: Key | None) -> None:
        self._schema = schema
        self._key = key
        self._columns = {column.name: column for column in schema.columns}

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode records; all three sequences have one entry a record."""
        columns = self._schema.decoded
        nothing: tuple[Any, ...] = (None,) * len(self._schema.columns)
        rows: list[tuple[Any, ...]] = []
        rules: list[Rule | None] = []
        errors: list[str | None] = []
        truncated: list[bool] = []
        for value, key, timestamp_ms in zip(values, keys, timestamps_ms, strict=True):
            rule = error = None
            try:
                row, cut = self._record(value, key, timestamp_ms)
            except BadRecordError as bad:
                row, cut = (*nothing, False)[: len(columns)], False
                rule, error = bad.rule, str(bad)
            rows.append(row)
            rules.append(rule)
            errors.append(error)
            truncated.append(cut)
        arrays = (
            pa.array([row[index] for row in rows], type=arrow_type(column)) for index, column in enumerate(columns)
        )
        return Decoded(tuple(arrays), rules, errors, truncated)

    def _record(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None) -> tuple[tuple[Any, ...], bool]:
        """The values of all columns, and whether a timestamp among them lost something."""
        if self._schema.format is ValueFormat.BYTES:
            self._check_key(key)
            return (key, value), False
        if value is None and self._schema.tombstones:
            return self._tombstone(key, timestamp_ms), False
        if value is None:
            raise BadRecordError(Rule.NULL_VALUE, "the record has no value")
        if value == b"":
            raise BadRecordError(Rule.EMPTY_VALUE, "the value is empty")
        self._check_key(key)
        _check_timestamp(timestamp_ms)
        fields = self._fields(_document(value))
        truncated = any(isinstance(each, _Time) and each.is_cut for each in fields.values())
        row = tuple(_held(column, fields.get(name)) for name, column in self._columns.items())
        if not self._schema.tombstones:
            return row, truncated
        assert self._key is not None
        text = fields.get(self._key.field)
        if text is None or text.encode() != key:
            raise BadRecordError(Rule.KEY_MISMATCH, f"the record's key is not what the field `{self._key.field}` says")
        return (*row, False), truncated

    def _check_key(self, key: bytes | None) -> None:
        if key is None and self._key is not None:
            raise BadRecordError(Rule.NULL_KEY, "the topic declares a key and the record has none")

    def _tombstone(self, key: bytes | None, timestamp_ms: int | None) -> tuple[Any, ...]:
        assert self._key is not None
        self._check_key(key)
        _check_timestamp(timestamp_ms)
        try:
            text = str(key, "utf-8", "strict")  # type: ignore[arg-type]
        except UnicodeDecodeError as error:
            raise BadRecordError(Rule.INVALID_UTF8, f"the key is not UTF-8: {error}") from None
        if "\0" in text:
            raise BadRecordError(Rule.NUL_CHARACTER, "the key holds the character U+0000")
        return (*(text if name == self._key.field else None for name in self._columns), True)

    def _fields(self, document: Any) -> dict[str, Any]:
        """The declared fields of a document that are not null, as far as one can tell without the type's bounds."""
        if not isinstance(document, _Object):
            raise BadRecordError(Rule.WRONG_TYPE, "the value is no object")
        found: dict[str, Any] = {}
        for name, given in document:
            if name in self._columns:
                found[name] = _typed(self._columns[name], given)
        for name, column in self._columns.items():
            if column.required and name not in found:
                raise BadRecordError(Rule.MISSING_FIELD, f"the field `{name}` is absent")
        for name, column in self._columns.items():
            if name in found:
                found[name] = _read(column, found[name])
        for name, column in self._columns.items():
            if column.type is ColumnType.STRING and "\0" in (found.get(name) or ""):
                raise BadRecordError(Rule.NUL_CHARACTER, f"the field `{name}` holds the character U+0000")
        return found


def _check_timestamp(timestamp_ms: int | None) -> None:
    if timestamp_ms is None or timestamp_ms < 0:
        raise BadRecordError(Rule.NO_TIMESTAMP, f"the record's timestamp is {timestamp_ms} ms")
    if timestamp_ms >= _FAR_MS:
        raise BadRecordError(Rule.FAR_TIMESTAMP, f"the record's timestamp is {timestamp_ms} ms")


def _document(value: bytes) -> Any:
    """The document that the value is: objects are `_Object`, numbers `_Integer` and `_Fraction`."""
    try:
        document = json.loads(
            value.decode("utf-8", "replace"),
            object_pairs_hook=_Object,
            parse_int=_Integer,
            parse_float=_Fraction,
            parse_constant=_no_constant,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRecordError(Rule.NOT_JSON, f"the value is no JSON: {error}") from None
    doubled = has_half = False
    level, depth = [document], 0
    while level:
        depth += any(isinstance(node, list) for node in level)
        if depth > MAXIMUM_DEPTH:
            raise BadRecordError(Rule.NOT_JSON, f"the value is nested more than {MAXIMUM_DEPTH} deep")
        below: list[Any] = []
        for node in level:
            if isinstance(node, _Object):
                doubled = doubled or len({name for name, _ in node}) < len(node)
                below += [part for pair in node for part in pair]
            elif isinstance(node, list):
                below += node
            has_half = has_half or (isinstance(node, str) and bool(_SURROGATE.search(node)))
        level = below
    try:
        value.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise BadRecordError(Rule.INVALID_UTF8, f"the value is not UTF-8: {error}") from None
    if has_half:
        raise BadRecordError(Rule.NOT_JSON, "a text holds half of a surrogate pair")
    if doubled:
        raise BadRecordError(Rule.DUPLICATE_FIELD, "a field appears more than once")
    return document


def _no_constant(constant: str) -> None:
    raise json.JSONDecodeError(f"{constant} is no JSON", constant, 0)


def _typed(column: Column, given: Any) -> Any:
    """The value of a field, where it is one of JSON's types that the column takes; null where it takes that."""
    wrong = BadRecordError(Rule.WRONG_TYPE, f"the field `{column.name}` is no {column.type}")
    out = BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` does not fit {column.type}")
    if column.type is ColumnType.DECIMAL:
        return given  # looked at later, as a text may be one as well
    if given is None:
        if column.required:
            raise wrong
        return None
    is_number = isinstance(given, _Integer | _Fraction)
    if column.type in _TEXTS and isinstance(given, str) and not is_number:
        return given
    if column.type is ColumnType.BOOLEAN and isinstance(given, bool):
        return given
    if column.type in _FLOATS and is_number:
        number = float(given)
        if number in (float("inf"), float("-inf")):
            raise out
        return abs(number) if number == 0 and isinstance(given, _Integer) else number
    if column.type in _INTEGERS and isinstance(given, _Integer):
        number, bound = int(given[: _NO_MORE_DIGITS + 1]), _INTEGERS[column.type]
        if len(given) > _NO_MORE_DIGITS or not -bound <= number < bound:
            raise out
        return number
    raise wrong


def _read(column: Column, given: Any) -> Any:
    """The value of a field by the form of its text."""
    if column.type is ColumnType.DECIMAL:
        return _decimal(column, given)
    if given is None:
        return None
    if column.type is ColumnType.DATE:
        return _day(column.name, _digits_of_date(column.name, given))
    return _Time(column.name, given) if column.type is ColumnType.TIMESTAMP else given


def _decimal(column: Column, given: Any) -> Decimal | None:
    """The number, whatever its digits."""
    wrong = BadRecordError(Rule.WRONG_TYPE, f"the field `{column.name}` is no decimal number")
    if given is None and not column.required:
        return None
    if not isinstance(given, str):
        raise wrong
    mantissa, *exponents = re.split("[eE]", given)
    digits = mantissa[mantissa[:1] in ("+", "-") :].replace(".", "", 1)
    for number in (digits, *(each[each[:1] in ("+", "-") :] for each in exponents)):
        if not (number.isascii() and number.isdigit()):
            raise wrong
    if len(exponents) > 1:
        raise wrong
    try:
        return Decimal(given)
    except InvalidOperation:
        raise BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` has too large an exponent") from None


def _digits_of_date(name: str, text: str) -> list[str]:
    parts = text.split("-")
    if [len(part) for part in parts] != [4, 2, 2] or not all(part.isascii() and part.isdigit() for part in parts):
        raise BadRecordError(Rule.WRONG_TYPE, f"the field `{name}` is no date: {text[:60]!r}")
    return parts


def _day(name: str, parts: Sequence[str]) -> date:
    try:
        return date(int(parts[0]), int(parts[1]), int(parts[2]))
    except ValueError as error:
        raise BadRecordError(Rule.OUT_OF_RANGE, f"the field `{name}` is no day: {error}") from None


class _Time:
    """A time as it is written: the time on the clock, how far that is ahead of UTC, and whether digits were cut off."""

    def __init__(self, name: str, text: str) -> None:
        self._wrong = BadRecordError(Rule.WRONG_TYPE, f"the field `{name}` is no time: {text[:60]!r}")
        day, rest = _digits_of_date(name, text[:10]), text[10:]
        if rest and rest[0] not in "Tt ":
            raise self._wrong
        written, zone = self._parts(rest[1:]) if rest else ("00:00", "")
        hour, minute, second = self._clock(written)
        self._check_zone(zone)
        fraction = written.partition(".")[2]
        self.is_cut = fraction[6:].strip("0") != ""
        date_ = _day(name, day)
        try:
            self.local = datetime.combine(date_, clock(hour, minute, second, int((fraction + "000000")[:6])))
            self.ahead = self._offset(zone)
        except ValueError as error:
            raise BadRecordError(Rule.OUT_OF_RANGE, f"the field `{name}` is no time: {error}") from None

    @staticmethod
    def _parts(rest: str) -> tuple[str, str]:
        """The time on the clock, and the zone."""
        if rest[-1:] in ("Z", "z"):
            return rest[:-1], ""
        place = max(rest.rfind("+"), rest.rfind("-"))
        return (rest, "") if place < 0 else (rest[:place], rest[place:])

    def _clock(self, written: str) -> list[int]:
        whole, point, fraction = written.partition(".")
        parts = whole.split(":")
        is_form = [len(part) for part in parts] in ([2, 2], [2, 2, 2]) and (not point or len(parts) == 3)
        digits = "".join(parts) + (fraction if point else "0")
        if not is_form or (point and not fraction) or not (digits.isascii() and digits.isdigit()):
            raise self._wrong
        return [*map(int, parts), 0][:3]

    def _check_zone(self, zone: str) -> None:
        signs = "".join("0" if sign.isascii() and sign.isdigit() else sign for sign in zone[1:])
        if zone and signs not in ("00", "0000", "00:00"):
            raise self._wrong

    @staticmethod
    def _offset(zone: str) -> timedelta:
        """How far the clock is ahead of UTC; raises ValueError where that is a day or more, or no time."""
        digits = zone[1:].replace(":", "").ljust(4, "0")
        distance = clock(int(digits[:2]), int(digits[2:]))
        return timedelta(hours=distance.hour, minutes=distance.minute) * (-1 if zone[:1] == "-" else 1)


def _held(column: Column, value: Any) -> Any:
    """The value as the column holds it.

    Raises:
        BadRecordError: the column's type cannot hold it exactly.
    """
    out = BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` does not fit {column.sql_type}")
    if isinstance(value, Decimal):
        return _held_decimal(value, column.precision or 10, column.scale or 0, out)
    if isinstance(value, _Time):
        try:
            return (value.local - value.ahead).replace(tzinfo=UTC)
        except OverflowError:
            raise out from None
    if column.type is ColumnType.FLOAT and value is not None:
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            raise out from None
    return value


def _held_decimal(value: Decimal, precision: int, scale: int, out: BadRecordError) -> Decimal:
    """The same number with exactly `scale` places, put together from its digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).strip("0")
    if not shown:
        return Decimal((0, (0,), -scale))
    places = exponent + len(digits) - len("".join(map(str, digits)).rstrip("0")) + scale
    if places < 0 or len(shown) + places > precision:
        raise out
    return Decimal((sign, tuple(map(int, shown + "0" * places)), -scale))
