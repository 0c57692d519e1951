"""The records that the JSON parser makes: a field `f0`, `f1`, ... for each declared column, with its Python type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueSchema

NULL = msgspec.Raw(b"null")
"""The value of an absent DECIMAL field."""
_INTEGER_BITS = {ColumnType.TINYINT: 8, ColumnType.SMALLINT: 16, ColumnType.INT: 32, ColumnType.BIGINT: 64}
_TYPES: Mapping[ColumnType, Any] = {
    ColumnType.STRING: str,
    ColumnType.BOOLEAN: bool,
    ColumnType.FLOAT: float,
    ColumnType.DOUBLE: float,
    ColumnType.TIMESTAMP: str,
}


def columns_by_field(schema: ValueSchema) -> dict[str, Column]:
    """Return the columns by the name of their field in a parsed record, in the order of the schema."""
    return {f"f{index}": column for index, column in enumerate(schema.columns)}


def default_of(column: Column) -> object:
    """Return the value of an absent field."""
    return NULL if column.type is ColumnType.DECIMAL else None


def record_parser(schema: ValueSchema, *, dates_as_text: bool = False) -> Callable[[bytes], Any]:
    """Return a parser of documents with any undeclared fields. It keeps the last of two fields with one name.

    Args:
        schema: the topic's declared value schema.
        dates_as_text: whether dates stay the texts that they are.
    """
    fields: list[Any] = []
    for name, column in columns_by_field(schema).items():
        python = python_type(column, dates_as_text=dates_as_text)
        fields.append((name, python) if column.required else (name, python, default_of(column)))
    names = {name: column.name for name, column in columns_by_field(schema).items()}
    # Fields with defaults come last, or all are keyword-only: only so the order of the schema remains.
    return msgspec.json.Decoder(msgspec.defstruct("Record", fields, kw_only=True, rename=names, gc=False)).decode


def record_of_nulls(schema: ValueSchema) -> Any:
    """Return a record whose fields are all null, the required ones too."""
    return SimpleNamespace(**{name: default_of(column) for name, column in columns_by_field(schema).items()})


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
