"""The last purchase of a customer with the price of one item, posted back to the topic that it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def transform(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per record, in the order of the records.

    No record is left out, neither a deleted customer nor one whose `unit_amount` is there: what is posted back of an
    earlier record of the same key may come behind it, and would be the last of the key. So each record has to follow.

    Args:
        inputs: `customers.last` with its declared columns, `_deleted` and `_source`, without what this stream wrote.
        tables: not used.

    Returns:
        The record with `unit_amount` DECIMAL(14,4): as it was, and where it was null amount / quantity, rounded half
        up; null where quantity is 0,
        and `_deleted` and `_source` as they came.
    """
    # nullif: an ANSI session raises on a division by zero, and one such purchase would stop the stream
    quantity = F.nullif(F.col("quantity"), F.lit(0))
    # Spark rounds the quotient to 11 digits more than the amount has; with a scale of 2 those could round it twice
    unit_amount = (F.col("amount").cast("DECIMAL(14,4)") / quantity).cast("DECIMAL(14,4)")
    return inputs["customers.last"].select(
        "customer_id",
        "purchased_on",
        "quantity",
        "amount",
        F.coalesce("unit_amount", unit_amount).alias("unit_amount"),
        "_deleted",
        "_source",
    )
