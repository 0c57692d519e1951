"""Record values to columns by the declared schema, strictly: a record fits whole, or it is bad and says why.

Spark's own `from_json` lets a missing field, a duplicate field, trailing garbage, invalid UTF-8 and a number
with too many digits through without a sign, so it cannot decide what goes to quarantine. This module does the
same work on Arrow arrays inside Spark's Python workers; it needs no Spark to be tested.

docs/reference/records.md has the rules of each type. Records are read fast, many at once (`fast_reader`, `columns`).
Each record that these suspect of breaking a rule is read alone, slowly, and with a reason where it is bad.
`runtime.plain_decoder` follows the same rules by other means: whoever changes one changes both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal, DecimalException
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.value_types import arrow_type
from millrace.domain.declaration import Column, ColumnType, ValueSchema
from millrace.domain.quarantine import Rule
from millrace.domain.years import LAST_MS
from millrace.runtime.closer_look import CloserLook
from millrace.runtime.columns import LARGEST_FLOAT32, Built, column_builder, utc
from millrace.runtime.decimals import exact_decimal
from millrace.runtime.decoded import BadRecordError, Decoded
from millrace.runtime.fast_reader import FastReader
from millrace.runtime.field_tally import FieldTally
from millrace.runtime.json_document import DocumentCheck

_AT_FIRST, _AT_ONCE = 100, 1_000  # records that are read in one go; the first ones teach the reader


class Decoder:
    """Decodes record values of one topic.

    Args:
        schema: the topic's declared value schema.
        key_required: whether a record without a key is bad.
    """

    def __init__(self, schema: ValueSchema, *, key_required: bool) -> None:
        self.schema = schema
        self._key_required = key_required
        self._fast = FastReader(schema)
        self._builders = tuple(map(column_builder, schema.columns))
        self._fields = tuple(map(attrgetter, map("f{}".format, range(len(schema.columns)))))
        self._arrow = tuple(map(arrow_type, schema.columns))
        self._document = DocumentCheck()
        self._closer_look = CloserLook(schema)
        self._checks = tuple(
            (i, _CHECKS[column.type]) for i, column in enumerate(schema.columns) if column.type in _CHECKS
        )

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode one block; all three sequences have one entry a record."""
        tally = FieldTally(column.name for column in self.schema.columns)
        parts = [Decoded(tuple(pa.array([], type=arrow) for arrow in self._arrow), [], [], [])]
        for first, after in pairwise([0, *range(_AT_FIRST, len(values), _AT_ONCE), len(values)]):
            part = slice(first, after)
            parts.append(self._part(values[part], keys[part], timestamps_ms[part], tally))
        return Decoded(
            tuple(pa.concat_arrays(column) for column in zip(*(part.columns for part in parts), strict=True)),
            list(chain.from_iterable(part.rules for part in parts)),
            list(chain.from_iterable(part.errors for part in parts)),
            list(chain.from_iterable(part.truncated for part in parts)),
            tally.counts(),
        )

    def _part(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        timestamps_ms: Sequence[int | None],
        tally: FieldTally,
    ) -> Decoded:
        """Decode a part of a block; the tally counts its undeclared fields."""
        rows: Sequence[int] = range(len(values))
        if not self._are_whole(values, keys, timestamps_ms):
            rows = [row for row in rows if self._are_whole([values[row]], [keys[row]], [timestamps_ms[row]])]
        records, odd = self._fast.read([values[row] for row in rows], tally)  # type: ignore[misc]
        if odd:
            rows = [row for row, record in zip(rows, records, strict=True) if record is not None]
            records = [record for record in records if record is not None]
        built = [
            builder(list(map(field, records))) for builder, field in zip(self._builders, self._fields, strict=True)
        ]
        part = _Part(len(values), rows, built)
        for row in part.slow:
            try:
                tally_too = None if row in part.doubtful else tally
                record, cut = self._record(values[row], keys[row], timestamps_ms[row], tally_too)
                part.add(row, record, cut=cut)
            except BadRecordError as bad:
                part.add_bad(row, bad)
        return part.decoded()

    def _are_whole(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> bool:
        """Return whether each record has what it needs beside its fields; it asks what `_record` asks."""
        if None in values or None in timestamps_ms or (self._key_required and None in keys):
            return False
        return min(timestamps_ms, default=0) >= 0 and max(timestamps_ms, default=0) <= LAST_MS  # type: ignore[type-var, operator]

    def _record(
        self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, tally: FieldTally | None
    ) -> tuple[list[Any], bool]:
        """Read one record alone.

        Args:
            value: its value.
            key: its key.
            timestamp_ms: its own timestamp.
            tally: counts its undeclared fields; None: its document is known to be sound, and they are counted.

        Returns:
            a value for each column, and whether a timestamp of it was cut to microseconds.

        Raises:
            BadRecordError: it breaks a rule.
        """
        if value is None:
            raise BadRecordError(Rule.NULL_VALUE, "the record has no value")
        if not value:
            raise BadRecordError(Rule.EMPTY_VALUE, "the value is empty")
        if key is None and self._key_required:
            raise null_key()
        check_timestamp(timestamp_ms)
        if tally is not None:
            tally.add(self._document.names(value))
        record, cut = self._closer_look.record(value)
        fields = [field(record) for field in self._fields]
        if b"\\u0000" in value:
            self._look_for_nul(fields)
        for index, check in self._checks:
            if fields[index] is not None:
                fields[index] = check(self.schema.columns[index], fields[index])
        return fields, cut

    def _look_for_nul(self, fields: Sequence[Any]) -> None:
        for column, text in zip(self.schema.columns, fields, strict=True):
            if isinstance(text, str) and "\0" in text:
                what = f"the field `{column.name}` holds the character U+0000"
                raise BadRecordError(Rule.NUL_CHARACTER, what)


class _Part:
    """A part of a block: the records that were read fast, and those that have to be read alone.

    Args:
        length: the number of its records.
        rows: the rows that were read fast.
        built: their columns.

    Attributes:
        doubtful: rows that were read fast, and have to be read alone after all.
        slow: all rows that have to be read alone.
    """

    def __init__(self, length: int, rows: Sequence[int], built: Sequence[Built]) -> None:
        self._length = length
        self._rows = rows
        self._arrays = tuple(each.array for each in built)
        self.doubtful = {rows[index] for each in built for index in each.odd}
        unread = set(range(length)).difference(rows) if len(rows) < length else set()
        self.slow = sorted(unread | self.doubtful)
        self._alone: list[Sequence[Any]] = []
        self._rules: list[Rule | None] = [None] * length
        self._errors: list[str | None] = [None] * length
        self._truncated = [False] * length
        for each in built:
            for index in each.cut:
                self._truncated[rows[index]] = True

    def add(self, row: int, fields: Sequence[Any], *, cut: bool) -> None:
        """Add what was read of a slow row; rows come in order."""
        self._alone.append(fields)
        self._truncated[row] = cut

    def add_bad(self, row: int, bad: BadRecordError) -> None:
        """Add a slow row that is bad; rows come in order."""
        self._alone.append([None] * len(self._arrays))
        self._rules[row], self._errors[row], self._truncated[row] = bad.rule, str(bad), False

    def decoded(self) -> Decoded:
        """Return the part; each slow row was added."""
        return Decoded(self._columns(), self._rules, self._errors, self._truncated)

    def _columns(self) -> tuple[pa.Array, ...]:
        if not self.slow:
            return self._arrays
        places, is_slow = np.zeros(self._length, np.int64), np.zeros(self._length, np.bool_)
        places[self._rows], is_slow[self.slow] = np.arange(len(self._rows)), True
        taken, mask = pa.array(places, mask=is_slow), pa.array(is_slow)
        fields = zip(*self._alone, strict=True)
        return tuple(
            pc.replace_with_mask(array.take(taken), mask, pa.array(values, type=array.type))
            for array, values in zip(self._arrays, fields, strict=True)
        )


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


def _checked_decimal(column: Column, value: Decimal) -> Decimal:
    try:
        return exact_decimal(column, value)
    except DecimalException:
        problem = f"the field `{column.name}` does not fit {column.sql_type} exactly: {str(value)[:60]}"
        raise BadRecordError(Rule.OUT_OF_RANGE, problem) from None


def _checked_timestamp(column: Column, value: datetime) -> datetime:
    try:
        return utc(value)
    except OverflowError:
        message = f"the field `{column.name}` lies outside the years 1 to 9999: {value.isoformat()}"
        raise BadRecordError(Rule.OUT_OF_RANGE, message) from None


def _checked_float(column: Column, value: float) -> float:
    if abs(value) > LARGEST_FLOAT32:
        raise BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` does not fit FLOAT: {value!r}")
    return value


_CHECKS: dict[ColumnType, Callable[[Column, Any], Any]] = {
    ColumnType.DECIMAL: _checked_decimal,
    ColumnType.TIMESTAMP: _checked_timestamp,
    ColumnType.FLOAT: _checked_float,
}
