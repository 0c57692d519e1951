"""The Kafka source of a stream: reading, and decoding inside Spark's Python workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from millrace.domain.declaration import Column, ColumnType, Stream, Topic, ValueSchema
from millrace.domain.offsets import TopicPartition
from millrace.runtime.decode import Decoder, arrow_type
from millrace.settings import KafkaSettings

SOURCE_TYPE = spark.StructType(
    [
        spark.StructField("topic", spark.StringType()),
        spark.StructField("topic_id", spark.StringType()),
        spark.StructField("partition", spark.IntegerType()),
        spark.StructField("offset", spark.LongType()),
        spark.StructField("timestamp", spark.TimestampType()),
    ]
)
_SOURCE_ARROW = pa.struct(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
BAD_FIELD = "_bad"

# Measured on two cores: with the defaults a warm scan reaches less than half of this.
_FETCH_SETTINGS = {
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.min.bytes": str(1024 * 1024),
    "kafka.fetch.max.wait.ms": "100",
    "kafka.max.poll.records": "20000",
    "kafka.receive.buffer.bytes": str(4 * 1024 * 1024),
}

_SPARK_TYPES: dict[ColumnType, spark.DataType] = {
    ColumnType.STRING: spark.StringType(),
    ColumnType.BOOLEAN: spark.BooleanType(),
    ColumnType.TINYINT: spark.ByteType(),
    ColumnType.SMALLINT: spark.ShortType(),
    ColumnType.INT: spark.IntegerType(),
    ColumnType.BIGINT: spark.LongType(),
    ColumnType.FLOAT: spark.FloatType(),
    ColumnType.DOUBLE: spark.DoubleType(),
    ColumnType.DATE: spark.DateType(),
    ColumnType.TIMESTAMP: spark.TimestampType(),
}


def declared_type(column: Column) -> spark.DataType:
    """The Spark type of a declared column."""
    if column.type is ColumnType.DECIMAL:
        return spark.DecimalType(column.precision or 10, column.scale or 0)
    return _SPARK_TYPES[column.type]


def read_stream(
    session: SparkSession, settings: KafkaSettings, stream: Stream, positions: Mapping[TopicPartition, int]
) -> DataFrame:
    """The raw records from these positions on.

    It subscribes, so that it sees partitions made later (from their beginning), and lists every partition that
    exists now, because `startingOffsets` counts only for those it names. It reads committed records only and fails
    where offsets are gone.
    """
    starting: dict[str, dict[str, int]] = {}
    for partition, offset in positions.items():
        starting.setdefault(partition.topic, {})[str(partition.partition)] = offset
    reader = session.readStream.format("kafka")
    options = {f"kafka.{key}": value for key, value in settings.for_java().items()} | _FETCH_SETTINGS
    options |= {
        "kafka.isolation.level": "read_committed",
        "kafka.client.id": f"millrace.{stream.qualified_name}",
        "groupIdPrefix": f"millrace-fetch.{stream.qualified_name}",
        "subscribe": ",".join(stream.reads),
        "startingOffsets": json.dumps(starting),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(stream.resources.max_records_per_batch),
    }
    return reader.options(**options).load()


def decoded(raw: DataFrame, topic: Topic, topic_id: str) -> DataFrame:
    """One topic's records as its declared columns, `_source`, and `_bad` (true where the record does not fit)."""
    assert topic.value is not None
    decode = _decode_blocks(topic.value, topic.key is not None, topic_id)
    fields = [spark.StructField(column.name, declared_type(column)) for column in topic.value.columns]
    result = spark.StructType(
        [
            *fields,
            spark.StructField("_source", SOURCE_TYPE),
            spark.StructField(BAD_FIELD, spark.BooleanType()),
        ]
    )
    columns = ("topic", "partition", "offset", "timestamp", "value")
    needed = raw.where(F.col("topic") == topic.name).select(*columns, F.col("key").isNotNull().alias("has_key"))
    return needed.mapInArrow(decode, result)


def _decode_blocks(
    schema: ValueSchema, key_required: bool, topic_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(schema, key_required=key_required)
        types = [(column.name, arrow_type(column)) for column in schema.columns]
        result = pa.schema([*types, ("_source", _SOURCE_ARROW), (BAD_FIELD, pa.bool_())])
        for block in blocks:
            keys = [b"" if has_key else None for has_key in block.column("has_key").to_pylist()]
            found = decoder.decode(block.column("value").to_pylist(), keys, _milliseconds(block.column("timestamp")))
            bad = pa.array([rule is not None for rule in found.rules], type=pa.bool_())
            yield pa.RecordBatch.from_arrays([*found.columns, _source(block, topic_id), bad], schema=result)

    return decode


def _milliseconds(timestamps: pa.Array) -> list[int | None]:
    """Microseconds since the epoch, as Spark hands timestamps over, in milliseconds."""
    return [None if value is None else value // 1000 for value in timestamps.cast(pa.int64()).to_pylist()]


def _source(block: pa.RecordBatch, topic_id: str) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [
            block.column("topic"),
            pa.array([topic_id] * len(block), type=pa.string()),
            block.column("partition"),
            block.column("offset"),
            block.column("timestamp").cast(pa.timestamp("us", tz="UTC")),
        ],
        fields=list(_SOURCE_ARROW),
    )
