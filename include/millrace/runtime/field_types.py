"""The Python types as which the JSON parser reads declared fields."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

import msgspec

from millrace.domain.declaration import Column, ColumnType

_INTEGER_BITS = {ColumnType.TINYINT: 8, ColumnType.SMALLINT: 16, ColumnType.INT: 32, ColumnType.BIGINT: 64}
_TYPES: Mapping[ColumnType, Any] = {
    ColumnType.STRING: str,
    ColumnType.BOOLEAN: bool,
    ColumnType.FLOAT: float,
    ColumnType.DOUBLE: float,
    ColumnType.TIMESTAMP: str,
}


def python_type(column: Column, *, dates_as_text: bool = False) -> Any:
    """Return the type of a column's values: times and decimal numbers stay the texts that they are.

    Args:
        column: the column.
        dates_as_text: whether dates do so too.
    """
    if column.type is ColumnType.DECIMAL:
        return msgspec.Raw  # holds a null too, and cannot be part of a union
    bits = _INTEGER_BITS.get(column.type)
    if bits:
        python: Any = Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
    elif column.type is ColumnType.DATE:
        python = str if dates_as_text else date
    else:
        python = _TYPES[column.type]
    return python if column.required else python | None
