"""Record values to columns by the declared schema, strictly: a record fits whole, or it is bad and says why.

Spark's own `from_json` lets a missing field, a duplicate field, trailing garbage, invalid UTF-8 and a number
with too many digits through without a sign, so it cannot decide what goes to quarantine. This module does the
same work on Arrow arrays inside Spark's Python workers; it needs no Spark to be tested.

docs/reference/records.md has the rules of each type. Records are read fast, many at once (`fast_reader`, `columns`).
The document of a record that the reader doubts is checked alone (`json_document`). A record whose fields are doubted
is read alone by their texts (`closer_look`), with a reason where it is bad.
`runtime.plain_decoder` follows the same rules by other means: whoever changes one changes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.value_types import arrow_type
from millrace.domain.declaration import ColumnType, ValueSchema
from millrace.domain.quarantine import Broken, Rule
from millrace.domain.years import LAST_MS
from millrace.runtime.closer_look import CloserLook
from millrace.runtime.columns import Built, column_builder
from millrace.runtime.counting_parser import lenient_parser
from millrace.runtime.decoded import BadRecordError, Decoded
from millrace.runtime.fast_reader import FastReader
from millrace.runtime.field_tally import FieldTally
from millrace.runtime.json_document import DocumentCheck
from millrace.runtime.range_checks import CHECKS

_AT_FIRST, _AT_ONCE = 100, 1_000  # records that are read in one go; the first ones teach the reader
_BYTES_AT_ONCE = 1024 * 1024  # of these records: what is parsed takes many times as much


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
        self._parse = lenient_parser(schema)
        self._has_texts = any(column.type is ColumnType.STRING for column in schema.columns)
        self._builders = tuple(map(column_builder, schema.columns))
        self._fields = tuple(map(attrgetter, map("f{}".format, range(len(schema.columns)))))
        self._arrow = tuple(map(arrow_type, schema.columns))
        self._first_part = _AT_FIRST
        self._document = DocumentCheck()
        self._closer_look = CloserLook(schema)
        self._checks = tuple(
            (i, CHECKS[column.type]) for i, column in enumerate(schema.columns) if column.type in CHECKS
        )

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode one block; all three sequences have one entry a record."""
        tally = FieldTally(column.name for column in self.schema.columns)
        parts = [Decoded(tuple(pa.array([], type=arrow) for arrow in self._arrow), [], [], [])]
        for part in self._parts(values):
            parts.append(self._part(values[part], keys[part], timestamps_ms[part], tally))
        return Decoded(
            tuple(pa.concat_arrays(column) for column in zip(*(part.columns for part in parts), strict=True)),
            list(chain.from_iterable(part.rules for part in parts)),
            list(chain.from_iterable(part.errors for part in parts)),
            list(chain.from_iterable(part.truncated for part in parts)),
            tally.counts(),
        )

    def _parts(self, values: Sequence[bytes | None]) -> Iterator[slice]:
        """Parts of a block; their parsed records are in memory at the same time."""
        first, size, most, self._first_part = 0, 0, self._first_part, _AT_ONCE
        for row, value in enumerate(values):
            if row - first == most or (row > first and size + len(value or b"") > _BYTES_AT_ONCE):
                yield slice(first, row)
                first, size, most = row, 0, _AT_ONCE
            size += len(value or b"")
        if values:
            yield slice(first, len(values))

    def _part(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        timestamps_ms: Sequence[int | None],
        tally: FieldTally,
    ) -> Decoded:
        """Decode a part of a block; the tally counts its undeclared fields."""
        part = _Part(len(values))
        for row in part.rows if not self._are_whole(values, keys, timestamps_ms) else ():
            if not self._are_whole([values[row]], [keys[row]], [timestamps_ms[row]]):
                part.bad[row] = self._why_not_whole(values[row], keys[row], timestamps_ms[row]).broken
        rows = part.rows if not part.bad else [row for row in part.rows if row not in part.bad]
        records, odd = self._fast.read([values[row] for row in rows], tally)  # type: ignore[misc]
        for index in odd:
            try:
                records[index] = self._sound_record(values[rows[index]], tally)  # type: ignore[arg-type]
            except BadRecordError as bad:
                part.bad[rows[index]] = bad.broken
        if odd:
            rows = [row for row, record in zip(rows, records, strict=True) if record is not None]
            records = [record for record in records if record is not None]
        part.add_columns(
            rows,
            [builder(list(map(field, records))) for builder, field in zip(self._builders, self._fields, strict=True)],
        )
        for row in part.unread():
            try:
                part.add_alone(row, *self._alone(values[row]))  # type: ignore[arg-type]
            except BadRecordError as bad:
                part.bad[row] = bad.broken
        return part.decoded()

    def _are_whole(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> bool:
        """Return whether each record has what it needs beside its fields."""
        if not all(values) or None in timestamps_ms or (self._key_required and None in keys):
            return False
        return min(timestamps_ms, default=0) >= 0 and max(timestamps_ms, default=0) <= LAST_MS  # type: ignore[type-var, operator]

    def _why_not_whole(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None) -> BadRecordError:
        """Return why a record is not whole."""
        if value is None:
            return BadRecordError(Rule.NULL_VALUE, "the record has no value")
        if not value:
            return BadRecordError(Rule.EMPTY_VALUE, "the value is empty")
        if key is None and self._key_required:
            return null_key()
        return bad_timestamp(timestamp_ms)

    def _sound_record(self, value: bytes, tally: FieldTally) -> Any:
        """Check one document.

        Args:
            value: the document.
            tally: counts its undeclared fields.

        Returns:
            its record, as the fast reader gives it, or None: its fields need a closer look.

        Raises:
            BadRecordError: it is no document that a record may have.
        """
        tally.add(self._document.names(value))
        if self._has_texts and b"\\u0000" in value:
            return None
        try:
            return self._parse(value)
        except (ValueError, RecursionError):
            return None

    def _alone(self, value: bytes) -> tuple[list[Any], bool]:
        """Read the fields of one sound document alone.

        Returns:
            a value for each column, and whether a timestamp of it was cut to microseconds.

        Raises:
            BadRecordError: a field breaks a rule.
        """
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
    """What is known of a part of a block.

    Args:
        length: the number of its records.

    Attributes:
        rows: all its rows.
        bad: the rows that are bad. It holds no errors: an error keeps what was parsed in memory.
    """

    def __init__(self, length: int) -> None:
        self.rows = range(length)
        self.bad: dict[int, Broken] = {}
        self._read: Sequence[int] = ()
        self._arrays: tuple[pa.Array, ...] = ()
        self._odd: set[int] = set()
        self._truncated: set[int] = set()
        self._alone: dict[int, Sequence[Any]] = {}

    def add_columns(self, rows: Sequence[int], built: Sequence[Built]) -> None:
        """Add the columns of rows that were read together; a row that was not is bad, or has to be read alone."""
        self._read = rows
        self._arrays = tuple(each.array for each in built)
        self._odd = {rows[index] for each in built for index in each.odd}
        self._truncated = {rows[index] for each in built for index in each.cut}
        for each in built:
            for index, broken in each.out_of_range.items():
                if rows[index] not in self._odd:
                    self.bad.setdefault(rows[index], broken)

    def unread(self) -> list[int]:
        """Return the rows that have to be read alone."""
        left = set(self.rows).difference(self._read, self.bad) if len(self._read) < len(self.rows) else set[int]()
        return sorted(left | self._odd)

    def add_alone(self, row: int, fields: Sequence[Any], cut: bool) -> None:
        """Add the values of a row that was read alone, and whether a timestamp of it was cut."""
        self._alone[row] = fields
        (self._truncated.add if cut else self._truncated.discard)(row)

    def decoded(self) -> Decoded:
        """Return the part; nothing is left to be read."""
        rules: list[Rule | None] = [None] * len(self.rows)
        errors: list[str | None] = [None] * len(self.rows)
        truncated = [False] * len(self.rows)
        for row, broken in self.bad.items():
            rules[row], errors[row] = broken.rule, broken.error
        for row in self._truncated.difference(self.bad):
            truncated[row] = True
        return Decoded(self._columns(), rules, errors, truncated)

    def _columns(self) -> tuple[pa.Array, ...]:
        replaced = sorted(self._alone.keys() | self.bad.keys())
        if not replaced:
            return self._arrays
        nothing = [None] * len(self._arrays)
        fields = zip(*(self._alone.get(row, nothing) for row in replaced), strict=True)
        places, is_replaced = np.zeros(len(self.rows), np.int64), np.zeros(len(self.rows), np.bool_)
        places[self._read], is_replaced[replaced] = np.arange(len(self._read)), True
        taken, mask = pa.array(places, mask=is_replaced), pa.array(is_replaced)
        return tuple(
            pc.replace_with_mask(array.take(taken), mask, pa.array(values, type=array.type))
            for array, values in zip(self._arrays, fields, strict=True)
        )


def null_key() -> BadRecordError:
    """What is wrong with a record without a key in a topic that declares one."""
    return BadRecordError(Rule.NULL_KEY, "the topic declares a key and the record has none")


def bad_timestamp(timestamp_ms: int | None) -> BadRecordError:
    """What is wrong with a record's own timestamp that is absent, negative or too late."""
    if timestamp_ms is None or timestamp_ms < 0:
        return BadRecordError(Rule.NO_TIMESTAMP, f"the record's timestamp is {timestamp_ms} ms")
    return BadRecordError(Rule.FAR_TIMESTAMP, f"the record's timestamp, {timestamp_ms} ms, is after the year 9999")


def check_timestamp(timestamp_ms: int | None) -> None:
    """Refuse a record's own timestamp that no sink can hold.

    Raises:
        BadRecordError: it is absent, negative or too late.
    """
    if timestamp_ms is None or not 0 <= timestamp_ms <= LAST_MS:
        raise bad_timestamp(timestamp_ms)
