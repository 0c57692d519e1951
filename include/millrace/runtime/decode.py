"""Record values to columns by the declared schema, strictly: a record fits whole, or it is bad and says why.

Spark's own `from_json` lets a missing field, a duplicate field, trailing garbage, invalid UTF-8 and a number
with too many digits through without a sign, so it cannot decide what goes to quarantine. This module does the
same work on Arrow arrays inside Spark's Python workers; it needs no Spark to be tested.

docs/reference/records.md has the rules of each type. Whole blocks take a fast way; where one record of a block gives
cause, its part is decoded record by record, and a record that gives cause is looked at more closely.
`runtime.plain_decoder` follows the same rules by other means: whoever changes one changes both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute

from millrace.adapters.value_types import arrow_type
from millrace.domain.declaration import Column, ColumnType, ValueSchema
from millrace.domain.quarantine import Rule
from millrace.domain.years import LAST_MS
from millrace.runtime.closer_look import TIMES_AS_TEXT, CloserLook, record_parser
from millrace.runtime.decimals import OddDecimals, exact_decimal, require_exact
from millrace.runtime.decoded import BadRecordError, Decoded
from millrace.runtime.field_tally import FieldTally
from millrace.runtime.json_document import DocumentCheck

# The largest number that is rounded to the largest FLOAT, whose shortest text is larger than it.
_LARGEST_FLOAT32 = 3.4028235677973362e38
_BEFORE_COLON = (b" :", b"\t:", b"\n:", b"\r:")
_FINE_FRACTION, _FINE_TIME = re.compile(rb"\.\d{6}0*[1-9]"), re.compile(rb"\d:\d\d\.\d{6}0*[1-9]")
_ESCAPED_TIME = re.compile(rb"\\u00(?:2[eE]|3[0-9aA])")  # a point, a digit, a colon
_TOO_FINE = re.compile(r"(:[0-9]{2}\.[0-9]{6})0*[1-9][0-9]*")
_AT_ONCE = 500  # records that are decoded in one go; where one is odd, these are looked at one by one


class Decoder:
    """Decodes record values of one topic.

    Args:
        schema: the topic's declared value schema.
        key_required: whether a record without a key is bad.
    """

    def __init__(self, schema: ValueSchema, *, key_required: bool) -> None:
        self.schema = schema
        self._key_required = key_required
        self._names = tuple(column.name for column in schema.columns)
        self._field_count = len(self._names)
        self._optional = tuple(f"f{index}" for index, column in enumerate(schema.columns) if not column.required)
        self._parse = record_parser(schema)
        self._times = tuple(f"f{i}" for i, column in enumerate(schema.columns) if column.type is ColumnType.TIMESTAMP)
        self._parse_times_as_text = record_parser(schema, TIMES_AS_TEXT)
        self._document = DocumentCheck()
        self._tally: FieldTally  # of the last block
        self._closer_look = CloserLook(schema)
        self._odd_decimals = OddDecimals(schema.columns)
        self._arrow = tuple(arrow_type(column) for column in schema.columns)

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode one block; all three sequences have one entry a record."""
        records: list[Any] = []
        rules: list[Rule | None] = []
        errors: list[str | None] = []
        truncated: list[bool] = []
        is_full = True
        self._tally = FieldTally(self._names)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            found = self._all_good(values[part], keys[part], timestamps_ms[part])
            if found is None:
                self._each(values[part], keys[part], timestamps_ms[part], records, rules, errors, truncated)
                is_full = False
                continue
            records += found[0]
            rules += [None] * len(found[0])
            errors += [None] * len(found[0])
            truncated += found[1]
        columns = tuple(self._column(index, records, rules, errors, is_full) for index in range(self._field_count))
        if any(rules):
            good = pa.array([rule is None for rule in rules])
            columns = tuple(pa.compute.if_else(good, column, pa.scalar(None, column.type)) for column in columns)
            truncated = [cut and rule is None for cut, rule in zip(truncated, rules, strict=True)]
        return Decoded(columns, rules, errors, truncated, self._tally.counts())

    def _all_good(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> tuple[list[Any], list[bool]] | None:
        """The records, and which of them had times cut; None where one of them gives cause for a closer look.

        It asks the same questions as `_record`.
        """
        if None in values or None in timestamps_ms or (self._key_required and None in keys):
            return None
        if min(timestamps_ms, default=0) < 0 or max(timestamps_ms, default=0) > LAST_MS:  # type: ignore[type-var, operator]
            return None
        fields = set(map(bytes.count, values, repeat(b'":')))  # type: ignore[arg-type]
        text = b",".join(values)  # type: ignore[arg-type]
        if fields != {self._field_count} or any(_holds(signs, text) for signs in (b"\\u0000", *_BEFORE_COLON)):
            return None
        if self._odd_decimals.may_be_in_full(text, len(values)):
            return None
        try:
            if self._times and _may_be_finer(text):
                records, truncated = self._with_times_cut(values)  # type: ignore[arg-type]
            else:
                records, truncated = list(map(self._parse, values)), [False] * len(values)  # type: ignore[arg-type]
        except (ValueError, RecursionError):
            return None
        if any(None in map(attrgetter(name), records) for name in self._optional):
            return None
        return records, truncated

    def _each(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        timestamps_ms: Sequence[int | None],
        records: list[Any],
        rules: list[Rule | None],
        errors: list[str | None],
        truncated: list[bool],
    ) -> None:
        for value, key, timestamp in zip(values, keys, timestamps_ms, strict=True):
            try:
                record, cut = self._record(value, key, timestamp)
                records.append(record)
                rules.append(None)
                errors.append(None)
                truncated.append(cut)
            except BadRecordError as bad:
                records.append(None)
                rules.append(bad.rule)
                errors.append(str(bad))
                truncated.append(False)

    def _record(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None) -> tuple[Any, bool]:
        """One record, and whether a timestamp of it was cut to microseconds."""
        if value is None:
            raise BadRecordError(Rule.NULL_VALUE, "the record has no value")
        if not value:
            raise BadRecordError(Rule.EMPTY_VALUE, "the value is empty")
        if key is None and self._key_required:
            raise null_key()
        check_timestamp(timestamp_ms)
        record, cut = self._parsed(value)
        if b"\\u0000" in value:
            _look_for_nul(record, self._names)
        return record, cut

    def _parsed(self, value: bytes) -> tuple[Any, bool]:
        """The record as the parser gives it, but for what it refuses or does not read as strictly as it should."""
        try:
            record = self._parse(value)
        except (ValueError, RecursionError) as error:
            self._tally.add(self._document.names(value, error))
            return self._closer_look.record(value)
        if self._may_hide_a_field(value, record):
            self._tally.add(self._document.names(value))
        if (self._times and _may_be_finer(value)) or self._odd_decimals.may_be_in(value):
            return self._closer_look.record(value)
        return record, False

    def _with_times_cut(self, values: Sequence[bytes]) -> tuple[list[Any], list[bool]]:
        records, truncated = list(map(self._parse_times_as_text, values)), [False] * len(values)
        for name in self._times:
            rows = [row for row, record in enumerate(records) if getattr(record, name) is not None]
            texts = [getattr(records[row], name) for row in rows]
            shorter = [_TOO_FINE.sub(r"\1", text) for text in texts]
            times = msgspec.convert(shorter, list[datetime])
            for row, text, kept, time in zip(rows, texts, shorter, times, strict=True):
                setattr(records[row], name, time)
                truncated[row] = truncated[row] or len(kept) < len(text)
        return records, truncated

    def _may_hide_a_field(self, value: bytes, record: Any) -> bool:
        """Whether a doubled or unknown field is possible: no fault yet, but cause for a second look.

        Where nothing stands between a name and its colon, each field shows as `":`. So many of them as the schema has
        columns, and every column given, leaves no room for another field.
        """
        return (
            value.count(b'":') != self._field_count
            or any(sign in value for sign in _BEFORE_COLON)
            or any(getattr(record, name) is None for name in self._optional)
        )

    def _column(
        self, index: int, records: list[Any], rules: list[Rule | None], errors: list[str | None], is_full: bool
    ) -> pa.Array:
        """One column of all records; what its type cannot hold exactly turns its record bad.

        Where `is_full`, there is a record and a value in each place.
        """
        column, arrow = self.schema.columns[index], self._arrow[index]
        field = attrgetter(f"f{index}")
        values = list(map(field, records)) if is_full else [None if each is None else field(each) for each in records]
        check = _CHECKS.get(column.type)
        if check is None:
            return pa.array(values, type=arrow)
        try:
            return _exact_array(column, values, arrow, may_be_null=not is_full)
        except (pa.ArrowInvalid, ArithmeticError):
            for row, value in enumerate(values):
                if value is None:
                    continue
                try:
                    values[row] = check(column, value)
                except BadRecordError as bad:
                    values[row] = None
                    if rules[row] is None:
                        rules[row], errors[row] = bad.rule, str(bad)
            return pa.array(values, type=arrow)


def null_key() -> BadRecordError:
    """What is wrong with a record without a key in a topic that declares one."""
    return BadRecordError(Rule.NULL_KEY, "the topic declares a key and the record has none")


def check_timestamp(timestamp_ms: int | None) -> None:
    """Refuse a record's own timestamp that no sink can hold.

    Raises:
        BadRecordError: it is absent, negative or too late.
    """
    if timestamp_ms is None or timestamp_ms < 0:
        raise BadRecordError(Rule.NO_TIMESTAMP, f"the record's timestamp is {timestamp_ms} ms")
    if timestamp_ms > LAST_MS:
        raise BadRecordError(Rule.FAR_TIMESTAMP, f"the record's timestamp, {timestamp_ms} ms, is after the year 9999")


def _may_be_finer(text: bytes) -> bool:
    """Whether a time in it may be finer than a microsecond: it shows its digits, or hides characters in escapes."""
    shown = _FINE_FRACTION.search(text) and _FINE_TIME.search(text)  # the first is quick: it looks for points only
    return bool(shown or (_holds(b"\\u00", text) and _ESCAPED_TIME.search(text)))


def _holds(signs: bytes, text: bytes) -> bool:
    return signs[:1] in text and signs in text  # one byte is found much faster than several


def _look_for_nul(record: Any, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        text = getattr(record, f"f{index}")
        if isinstance(text, str) and "\0" in text:
            raise BadRecordError(Rule.NUL_CHARACTER, f"the field `{name}` holds the character U+0000")


def _exact_array(column: Column, values: list[Any], arrow: pa.DataType, *, may_be_null: bool) -> pa.Array:
    """The whole column at once where every value fits; raises where one may not."""
    if column.type is ColumnType.TIMESTAMP:
        return pa.array([None if value is None else _utc(value) for value in values], type=arrow)
    if column.type is ColumnType.DECIMAL:
        require_exact(column, [value for value in values if value is not None] if may_be_null else values)
    if column.type is ColumnType.FLOAT and any(value is not None and abs(value) > _LARGEST_FLOAT32 for value in values):
        raise OverflowError
    return pa.array(values, type=arrow)


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _checked_decimal(column: Column, value: Decimal) -> Decimal:
    try:
        return exact_decimal(column, value)
    except DecimalException:
        problem = f"the field `{column.name}` does not fit {column.sql_type} exactly: {str(value)[:60]}"
        raise BadRecordError(Rule.OUT_OF_RANGE, problem) from None


def _checked_timestamp(column: Column, value: datetime) -> datetime:
    try:
        return _utc(value)
    except OverflowError:
        message = f"the field `{column.name}` lies outside the years 1 to 9999: {value.isoformat()}"
        raise BadRecordError(Rule.OUT_OF_RANGE, message) from None


def _checked_float(column: Column, value: float) -> float:
    if abs(value) > _LARGEST_FLOAT32:
        raise BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` does not fit FLOAT: {value!r}")
    return value


_CHECKS: dict[ColumnType, Callable[[Column, Any], Any]] = {
    ColumnType.DECIMAL: _checked_decimal,
    ColumnType.TIMESTAMP: _checked_timestamp,
    ColumnType.FLOAT: _checked_float,
}
