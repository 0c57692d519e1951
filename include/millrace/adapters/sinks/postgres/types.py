"""Which PostgreSQL column holds what a transform gives."""

from __future__ import annotations

import pyarrow as pa

from millrace.adapters.sinks.postgres.tables import TargetColumn
from millrace.domain.declaration.sinks import SYSTEM_COLUMNS
from millrace.errors import Code, DeclarationError

_LONGEST_NAME_BYTES = 63
_TYPES: dict[pa.DataType, str] = {
    pa.string(): "text",
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.binary(): "bytea",
}


def target_columns(columns: pa.Schema, where: str) -> tuple[TargetColumn, ...]:
    """The table columns for a transform's output, in its order.

    Args:
        columns: the output without the source columns.
        where: what gives them, for people.

    Raises:
        DeclarationError: a name is too long, has a %, or is that of a system column, or PostgreSQL has no plain column
            for a type.
    """
    for name in columns.names:
        if "%" in name:
            raise DeclarationError(
                f"column {name}: a name with % cannot be written",
                where=where,
                next_step="rename the column",
                code=Code.WRONG_TRANSFORM,
            )
        if len(name.encode()) > _LONGEST_NAME_BYTES:
            raise DeclarationError(
                f"column {name}: the name is longer than {_LONGEST_NAME_BYTES} bytes, the limit of PostgreSQL",
                where=where,
                next_step="rename the column in the transform",
                code=Code.WRONG_TRANSFORM,
            )
        if name in SYSTEM_COLUMNS:
            raise DeclarationError(
                f"column {name}: every table of PostgreSQL has a system column of this name",
                where=where,
                next_step=f'rename the column in the transform: col("{name}").alias("record_{name}")',
                code=Code.WRONG_TRANSFORM,
            )
    return tuple(TargetColumn(field.name, _type(field, where)) for field in columns)


def _type(field: pa.Field, where: str) -> str:
    if pa.types.is_decimal128(field.type):
        return f"numeric({field.type.precision},{field.type.scale})"
    found = _TYPES.get(field.type)
    if found is None:
        raise DeclarationError(
            f"column {field.name} is {field.type}, which has no plain PostgreSQL column",
            where=where,
            next_step=f'return its parts as columns, or text: to_json(col("{field.name}"))',
            code=Code.WRONG_TRANSFORM,
        )
    return found
