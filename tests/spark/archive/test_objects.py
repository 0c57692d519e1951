"""Spark reads an object of the archive as the table that it is, without Millrace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = TopicPartition("orders", "J8-Zq_x1T0a5mB2nC3dE4f", 0)
RECORDS = [
    ArchivedRecord(3, -1, TimestampType.NONE, None, None),
    ArchivedRecord(4, 253_402_300_799_999, TimestampType.CREATE_TIME, b"", b"", (("", None), ("a", b""), ("", None))),
    ArchivedRecord(7, 9_300_000_000_000_000, TimestampType.LOG_APPEND_TIME, b"key", b"v\0\xff", (("größe", b"1"),)),
    ArchivedRecord(8, -(2**63), TimestampType.CREATE_TIME, b"k", b"large" * 200_000),
    ArchivedRecord(9, 2**63 - 1, TimestampType.CREATE_TIME, b"k", None, tuple(("h", b"%d" % n) for n in range(1000))),
]


def read(spark: SparkSession, folder: Path, records: list[ArchivedRecord]) -> DataFrame:
    """What Spark sees in one object with these records."""
    from millrace.adapters.archive.objects import to_batch, write_object

    file = folder / "object.parquet"
    file.write_bytes(write_object(OffsetRange(PARTITION, 2, 20_000), [to_batch(records)]).data)
    return spark.read.parquet(str(file))


@pytest.mark.full
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_every_column_as_it_was_written(spark: SparkSession, tmp_path: Path, vectorized: str) -> None:
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    spark.conf.set("spark.sql.parquet.enableNestedColumnVectorizedReader", vectorized)
    frame = read(spark, tmp_path, RECORDS)
    assert frame.schema.simpleString() == (
        "struct<offset:bigint,timestamp_ms:bigint,timestamp_type:int,key:binary,value:binary,"
        "headers:array<struct<name:string,value:binary>>>"
    )
    rows = [
        ArchivedRecord(
            row.offset,
            row.timestamp_ms,
            TimestampType(row.timestamp_type),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((name, None if value is None else bytes(value)) for name, value in row.headers),
        )
        for row in frame.orderBy("offset").collect()
    ]
    assert rows == RECORDS


@pytest.mark.full
def test_spark_finds_offsets_and_times_in_several_row_groups(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.adapters.archive import objects

    monkeypatch.setattr(objects, "_GROUP_BYTES", 100_000)
    records = [
        ArchivedRecord(offset, 10**12 + offset, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"),) * (offset % 2))
        for offset in range(2, 12_000)
    ]
    frame = read(spark, tmp_path, records)
    assert frame.count() == len(records)
    assert [row.offset for row in frame.where("offset >= 7000 and timestamp_ms < 1000000007003").collect()] == [
        7000,
        7001,
        7002,
    ]
    assert frame.selectExpr("sum(size(headers))").first()[0] == 5999


@pytest.mark.full
def test_spark_reads_an_object_without_records(spark: SparkSession, tmp_path: Path) -> None:
    assert read(spark, tmp_path, []).collect() == []
