"""The Arrow types of declared columns: what Spark, its Python workers and the sinks hand to one another."""

from __future__ import annotations

import pyarrow as pa

from millrace.domain.declaration.pipeline import Column, ColumnType

_ARROW_TYPES = {
    ColumnType.STRING: pa.string(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TINYINT: pa.int8(),
    ColumnType.SMALLINT: pa.int16(),
    ColumnType.INT: pa.int32(),
    ColumnType.BIGINT: pa.int64(),
    ColumnType.FLOAT: pa.float32(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnType.BINARY: pa.binary(),
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type Spark uses for a declared column."""
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision or 10, column.scale or 0)
    return _ARROW_TYPES[column.type]
