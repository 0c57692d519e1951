"""Record values to columns by the declared schema, strictly: a record fits whole, or it is bad and says why.

Spark's own `from_json` lets a missing field, a duplicate field, trailing garbage, invalid UTF-8 and a number
with too many digits through without a sign, so it cannot decide what goes to quarantine. This module does the
same work on Arrow arrays inside Spark's Python workers; it needs no Spark to be tested.

docs/reference/records.md has the rules of each type. Records are read fast, many at once (`fast_reader`, `columns`).
The document of a record that the reader doubts is checked alone (`document`). A record whose fields are doubted
is read alone by their texts (`closer_look`), with a reason where it is bad.
`runtime.formats.plain_decoder` follows the same rules by other means: whoever changes one changes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.declaration.pipeline import ColumnType, ValueSchema
from millrace.domain.formats.years import LAST_MS
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.runtime.formats.decoded import BadRecordError, Decoded
from millrace.runtime.formats.field_tally import FieldTally
from millrace.runtime.formats.json.closer_look import CloserLook
from millrace.runtime.formats.json.columns import Built, column_builder
from millrace.runtime.formats.json.document import DocumentCheck
from millrace.runtime.formats.json.fast_reader import PARSED_AT_ONCE, FastReader
from millrace.runtime.formats.json.field_types import columns_by_field, record_of_nulls, record_parser
from millrace.runtime.formats.json.range_checks import CHECKS

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
        self._parse = record_parser(schema)
        self._nothing = record_of_nulls(schema)
        self._has_texts = any(column.type is ColumnType.STRING for column in schema.columns)
        self._builders = tuple(map(column_builder, schema.columns))
        self._fields = tuple(map(attrgetter, columns_by_field(schema)))
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
        parts = [self._part(values[part], keys[part], timestamps_ms[part], tally) for part in self._parts(values)]
        return Decoded(
            tuple(map(_joined, zip(*(part.columns for part in parts), strict=True))),
            list(chain.from_iterable(part.rules for part in parts)),
            list(chain.from_iterable(part.errors for part in parts)),
            list(chain.from_iterable(part.truncated for part in parts)),
            tally.counts(),
        )

    def _parts(self, values: Sequence[bytes | None]) -> list[slice]:
        """Return the parts of a block, at least one; the parsed records of a part are in memory at the same time."""
        parts: list[slice] = []
        first, after, self._first_part = 0, self._first_part, _AT_ONCE
        while first < len(values):
            sizes = list(map(len, filter(None, values[first:after])))
            if sum(sizes) > PARSED_AT_ONCE:  # of as many as fit in any case
                after = first + max(1, PARSED_AT_ONCE // max(sizes))
            parts.append(slice(first, after))
            first, after = after, after + _AT_ONCE
        return parts or [slice(0)]

    def _part(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        timestamps_ms: Sequence[int | None],
        tally: FieldTally,
    ) -> Decoded:
        """Decode a part of a block; the tally counts its undeclared fields."""
        bad: dict[int, Broken] = {}  # no errors: an error keeps in memory what was parsed
        rows: Sequence[int] = range(len(values))
        if not self._are_whole(values, keys, timestamps_ms):
            for row in rows:
                why = self._why_not_whole(values[row], keys[row], timestamps_ms[row])
                if why is not None:
                    bad[row] = why.broken
            rows = [row for row in rows if row not in bad]
        found, odd = self._fast.read([values[row] for row in rows], tally)  # type: ignore[misc]
        records: list[Any] = found if not odd and not bad else [self._nothing] * len(values)
        for row, record in zip(rows, found, strict=True) if odd or bad else ():
            if record is not None:
                records[row] = record
        unread: set[int] = set()
        for row in (rows[index] for index in odd):
            try:
                record = self._sound_record(values[row], tally)  # type: ignore[arg-type]
            except BadRecordError as error:
                bad[row] = error.broken
                continue
            if record is None:
                unread.add(row)
            else:
                records[row] = record
        built = [
            builder(list(map(field, records))) for builder, field in zip(self._builders, self._fields, strict=True)
        ]
        return self._finished(values, built, bad, unread)

    def _finished(
        self, values: Sequence[bytes | None], built: Sequence[Built], bad: dict[int, Broken], unread: set[int]
    ) -> Decoded:
        """Read alone what is left of a part.

        Args:
            values: all its values.
            built: its columns.
            bad: why rows are bad; all their columns are null.
            unread: rows that have to be read alone; so have those whose columns are odd.
        """
        are_null = set(bad)
        unread = unread.union(*(each.odd for each in built)).difference(bad)
        # In this order: what a text is comes before what its type can hold, each in the order of the schema.
        for reasons in (*(each.wrong for each in built), *(each.out_of_range for each in built)):
            for row, broken in reasons.items():
                if row not in unread:
                    bad.setdefault(row, broken)
        cut = {row for each in built for row in each.cut}
        alone: dict[int, Sequence[Any]] = {}
        for row in unread:
            cut.discard(row)
            try:
                alone[row], is_cut = self._alone(values[row])  # type: ignore[arg-type]
                cut.update([row] * is_cut)
            except BadRecordError as error:
                bad[row] = error.broken
        arrays = [each.array for each in built]
        alone.update(dict.fromkeys(bad.keys() - are_null, (None,) * len(arrays)))
        rules: list[Rule | None] = [None] * len(values)
        errors: list[str | None] = [None] * len(values)
        truncated = [False] * len(values)
        for row, broken in bad.items():
            rules[row], errors[row] = broken.rule, broken.error
        for row in cut.difference(bad):
            truncated[row] = True
        return Decoded(_with_rows(arrays, alone), rules, errors, truncated)

    def _are_whole(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> bool:
        """Return whether each record has what it needs beside its fields."""
        if not all(values) or None in timestamps_ms or (self._key_required and None in keys):
            return False
        return min(timestamps_ms, default=0) >= 0 and max(timestamps_ms, default=0) <= LAST_MS  # type: ignore[type-var, operator]

    def _why_not_whole(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None) -> BadRecordError | None:
        """Return why a record is not whole; None: it is."""
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


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _with_rows(arrays: Sequence[pa.Array], rows: Mapping[int, Sequence[Any]]) -> tuple[pa.Array, ...]:
    """Return the columns with other values in some rows."""
    if not rows:
        return tuple(arrays)
    is_replaced = np.zeros(len(arrays[0]), np.bool_)
    is_replaced[list(rows)] = True
    mask, fields = pa.array(is_replaced), zip(*(rows[row] for row in sorted(rows)), strict=True)
    return tuple(
        pc.replace_with_mask(array, mask, pa.array(values, type=array.type))
        for array, values in zip(arrays, fields, strict=True)
    )


def null_key() -> BadRecordError:
    """Return the fault of a record without a key in a topic that declares one."""
    return BadRecordError(Rule.NULL_KEY, "the topic declares a key and the record has none")


def bad_timestamp(timestamp_ms: int | None) -> BadRecordError | None:
    """Return why no sink can hold a record's own timestamp; None: each can."""
    if timestamp_ms is None or timestamp_ms < 0:
        return BadRecordError(Rule.NO_TIMESTAMP, f"the record's timestamp is {timestamp_ms} ms")
    if timestamp_ms > LAST_MS:
        return BadRecordError(Rule.FAR_TIMESTAMP, f"the record's timestamp, {timestamp_ms} ms, is after the year 9999")
    return None
