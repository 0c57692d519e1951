"""Raw records as a frame, for tests of the transforms that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def raw_frame(session: SparkSession, rows: Sequence[tuple[Any, ...]], partitions: int) -> DataFrame:
    """Return a frame of `RAW_TYPE`, made of an Arrow table as for what a stream reads by the plain client.

    Spark cuts the table itself. An RDD of the same rows costs a Python worker more in each of its tasks.

    Args:
        session: its number of partitions is set for all frames, and joins sort as those of a stream's frames do.
        rows: the fields of each record, in the order of `RAW_TYPE`.
        partitions: Spark's, of about the same size.
    """
    import pyarrow as pa

    from millrace.runtime.stream.plain_read import RAW_SCHEMA
    from millrace.runtime.stream.source import RAW_TYPE

    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.conf.set("spark.sql.leafNodeDefaultParallelism", str(partitions))
    records = [dict(zip(RAW_SCHEMA.names, row, strict=True)) for row in rows]
    return session.createDataFrame(pa.Table.from_pylist(records, schema=RAW_SCHEMA), schema=RAW_TYPE)
