"""A closer look at the fields of one record, which the fast parser refuses or reads too leniently.

Dates, times and DECIMAL numbers are read from their texts here. So more spellings of times are accepted, fewer of
numbers, and a reason names the text.
"""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException
from typing import Any

import msgspec

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError
from millrace.runtime.formats.json.decimals import DECIMAL_TEXT
from millrace.runtime.formats.json.field_types import columns_by_field, record_parser
from millrace.runtime.formats.json.times import read_date, read_time

_FLOATS = (ColumnType.FLOAT, ColumnType.DOUBLE)
_TEXTS = {ColumnType.DATE: "date", ColumnType.TIMESTAMP: "datetime"}
_FIELD = re.compile(r"at `\$\.(\w+)`$")
_ERROR_SHOWN = 300
_SHOWN = 60


class CloserLook:
    """Parses values of one topic one by one, by the texts of their fields.

    Args:
        schema: the topic's declared value schema.
    """

    def __init__(self, schema: ValueSchema) -> None:
        self._columns = columns_by_field(schema)
        self._types = {column.name: column.type for column in schema.columns}
        self._parse = record_parser(schema, dates_as_text=True)

    def record(self, value: bytes) -> tuple[Any, bool]:
        """Return the record, and whether a time of it was cut to microseconds.

        Args:
            value: one JSON document (`DocumentCheck`).

        Raises:
            BadRecordError: a field of it is wrong, or absent.
        """
        try:
            record = self._parse(value)
        except msgspec.ValidationError as error:
            raise self._reason(str(error)[:_ERROR_SHOWN]) from None
        truncated = False
        for field, column in self._columns.items():
            given = getattr(record, field)
            if given is None:
                continue
            if column.type is ColumnType.DECIMAL:
                setattr(record, field, _decimal(column, bytes(given)))
            elif column.type is ColumnType.DATE:
                setattr(record, field, read_date(column, given))
            elif column.type is ColumnType.TIMESTAMP:
                time, cut = read_time(column, given)
                setattr(record, field, time)
                truncated = truncated or cut
        return record, truncated

    def _reason(self, message: str) -> BadRecordError:
        """Return the parser's message about a field as an error, in the words of its declared type."""
        found = _FIELD.search(message)
        column = self._types.get(found[1]) if found else None
        if "missing required field" in message:
            return BadRecordError(Rule.MISSING_FIELD, message)
        is_too_large = "Number out of range" in message and column in _FLOATS
        if is_too_large or "Integer value out of range" in message or "Expected `int` " in message:
            return BadRecordError(Rule.OUT_OF_RANGE, message)
        if column in _TEXTS:
            message = message.replace("Expected `str", f"Expected `{_TEXTS[column]}", 1)
            if column is ColumnType.TIMESTAMP and ("got `int`" in message or "got `float`" in message):
                message += "; declare a number of seconds or milliseconds as BIGINT and convert it in the transform"
        return BadRecordError(Rule.WRONG_TYPE, message)


def _decimal(column: Column, raw: bytes) -> Decimal | None:
    """The number that stands there, as a number of JSON or as a text."""
    if raw == b"null" and not column.required:
        return None
    if raw[:1] == b'"':
        text = msgspec.json.decode(raw, type=str)
        if not DECIMAL_TEXT.fullmatch(text):
            what = f"the text of the field `{column.name}` is no decimal number: {text[:_SHOWN]!r}"
            raise BadRecordError(Rule.WRONG_TYPE, what)
    elif raw[:1] in b"-0123456789":
        text = raw.decode()
    else:
        what = f"Expected `decimal`, got {raw[:_SHOWN].decode(errors='replace')} - at `$.{column.name}`"
        raise BadRecordError(Rule.WRONG_TYPE, what)
    try:
        return Decimal(text)
    except DecimalException:  # more digits in the exponent than Python takes
        what = f"the field `{column.name}` does not fit {column.sql_type} exactly: {text[:_SHOWN]}"
        raise BadRecordError(Rule.OUT_OF_RANGE, what) from None
