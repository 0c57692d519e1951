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
# The parts of a source that differ from record to record. Between Python and the JVM they carry an underscore, which
# no declared column may begin with.
_OWN = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
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
    options = read_options(settings, stream) | {
        "startingOffsets": json.dumps(starting),
        "maxOffsetsPerTrigger": str(stream.resources.max_records_per_batch),
    }
    return session.readStream.format("kafka").options(**options).load()


def read_options(settings: KafkaSettings, stream: Stream) -> dict[str, str]:
    """How a stream reads its topics, wherever it begins: the same for streaming and for batch reads."""
    connection = {f"kafka.{key}": value for key, value in settings.for_java().items()}
    return {
        **connection,
        **_FETCH_SETTINGS,
        "kafka.isolation.level": "read_committed",
        "kafka.client.id": f"millrace.{stream.qualified_name}",
        "groupIdPrefix": f"millrace-fetch.{stream.qualified_name}",
        "subscribe": ",".join(stream.reads),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def decoded(raw: DataFrame, topic: Topic, topic_id: str) -> DataFrame:
    """One topic's records as its declared columns, `_source`, and `_bad` (true where the record does not fit).

    What is the same for all its records, topic and topic id, does not travel through Python and back.
    """
    assert topic.value is not None
    decode = _decode_blocks(topic.value, topic.key is not None)
    names = [column.name for column in topic.value.columns]
    result = spark.StructType([spark.StructField(column.name, declared_type(column)) for column in topic.value.columns])
    for name in _OWN:
        result = result.add(f"_{name}", SOURCE_TYPE[name].dataType)
    result = result.add(BAD_FIELD, spark.BooleanType())
    needed = raw.where(F.col("topic") == topic.name).select(*_OWN, "value", F.col("key").isNotNull().alias("has_key"))
    source = F.struct(
        F.lit(topic.name).alias("topic"),
        F.lit(topic_id).alias("topic_id"),
        *(F.col(f"_{name}").alias(name) for name in _OWN),
    )
    return needed.mapInArrow(decode, result).select(
        *(F.col(f"`{name}`") for name in names), source.alias("_source"), BAD_FIELD
    )


def _decode_blocks(
    schema: ValueSchema, key_required: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(schema, key_required=key_required)
        types = [(column.name, arrow_type(column)) for column in schema.columns]
        own_types = [(f"_{name}", arrow) for name, arrow in _OWN.items()]
        result = pa.schema([*types, *own_types, (BAD_FIELD, pa.bool_())])
        for block in blocks:
            keys = [b"" if has_key else None for has_key in block.column("has_key").to_pylist()]
            found = decoder.decode(block.column("value").to_pylist(), keys, milliseconds(block.column("timestamp")))
            bad = pa.array([rule is not None for rule in found.rules], type=pa.bool_())
            own = [block.column(name).cast(arrow) for name, arrow in _OWN.items()]
            yield pa.RecordBatch.from_arrays([*found.columns, *own, bad], schema=result)

    return decode


def milliseconds(timestamps: pa.Array) -> list[int | None]:
    """Microseconds since the epoch, as Spark hands timestamps over, in milliseconds."""
    return [None if value is None else value // 1000 for value in timestamps.cast(pa.int64()).to_pylist()]
