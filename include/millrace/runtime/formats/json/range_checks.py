"""Bounds of DECIMAL, TIMESTAMP and FLOAT columns: a value that the type cannot hold makes its record bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from typing import Any

from millrace.domain.declaration.pipeline import Column, ColumnType
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError
from millrace.runtime.formats.json.decimals import exact_decimal

LARGEST_FLOAT32 = 3.4028235677973362e38
"""The largest number that is rounded to the largest FLOAT, whose shortest text is larger than it."""


def utc(time: datetime) -> datetime:
    """Return the time in UTC, which a time without a zone is in.

    Raises:
        OverflowError: there it is outside the years 1 to 9999.
    """
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def checked_decimal(column: Column, value: Decimal) -> Decimal:
    """Return the number with the places of its column.

    Raises:
        BadRecordError: the column cannot hold it exactly.
    """
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


CHECKS: Mapping[ColumnType, Callable[[Column, Any], Any]] = {
    ColumnType.DECIMAL: checked_decimal,
    ColumnType.TIMESTAMP: _checked_timestamp,
    ColumnType.FLOAT: _checked_float,
}
"""Return a value as its column holds it, or raise BadRecordError."""
