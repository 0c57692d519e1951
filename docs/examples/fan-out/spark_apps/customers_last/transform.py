"""A purchase as the last one of its customer: which one that is, the sinks find by key."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def transform(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per purchase, for a topic and for a table.

    Args:
        inputs: `shop.purchases` with its declared columns and `_source`.
        tables: not used.

    Returns:
        The purchase (`customer_id`, `purchased_on`, `quantity`, `amount`) with
        `unit_amount` DECIMAL(14,4): null, because a topic takes every column that it declares and of exactly its type,
        and `_source` as it came.
    """
    return inputs["shop.purchases"].select(
        "customer_id",
        "purchased_on",
        "quantity",
        "amount",
        F.lit(None).cast("DECIMAL(14,4)").alias("unit_amount"),
        "_source",
    )
