"""What the shop wants to know of each purchase: the price of one item, the weekday and the month."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def transform(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per purchase.

    Args:
        inputs: `shop.purchases` with its declared columns and `_source`.
        tables: not used.

    Returns:
        The purchase (`customer_id`, `purchased_on`, `quantity`, `amount`) with
        `unit_amount` DECIMAL(14,4): amount / quantity, rounded half up; null where quantity is 0,
        `weekday` INT: 1 is Monday, 7 is Sunday (ISO 8601),
        `month` DATE: the first day of the purchase's month,
        and `_source` as it came.
    """
    purchases = inputs["shop.purchases"]
    # nullif: an ANSI session raises on a division by zero, and one such purchase would stop the stream
    quantity = F.nullif(F.col("quantity"), F.lit(0))
    # Spark rounds the quotient to 11 digits more than the amount has; with a scale of 2 those could round it twice
    unit_amount = F.col("amount").cast("DECIMAL(14,4)") / quantity
    return purchases.select(
        "customer_id",
        "purchased_on",
        "quantity",
        "amount",
        unit_amount.cast("DECIMAL(14,4)").alias("unit_amount"),
        (F.weekday("purchased_on") + F.lit(1)).alias("weekday"),
        F.trunc("purchased_on", "month").alias("month"),
        "_source",
    )
