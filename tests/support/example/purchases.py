"""The value of a record of `shop.purchases`, as the example declares it, for what makes or reads such records."""

from __future__ import annotations

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema

PURCHASE = ValueSchema(
    ValueFormat.JSON,
    (
        Column("customer_id", ColumnType.STRING, required=True),
        Column("purchased_on", ColumnType.DATE, required=True),
        Column("quantity", ColumnType.INT, required=True),
        Column("amount", ColumnType.DECIMAL, required=True, precision=12, scale=2),
    ),
)
