"""The Kafka source of a stream: reading, and decoding inside Spark's Python workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from millrace.adapters.kafka.settings.spark import for_spark
from millrace.adapters.sinks.value_types import arrow_type
from millrace.domain.declaration.pipeline import Column, ColumnType, Key, Stream, Topic, ValueFormat, ValueSchema
from millrace.domain.formats.years import FIRST_MS, LAST_MS
from millrace.domain.sinks.origin import STREAM
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.runtime.formats.coordinator_log import OFFSETS_TOPIC, commit_key_prefixes
from millrace.runtime.formats.decoded import DecoderFactory, RecordDecoder
from millrace.runtime.formats.field_tally import as_text
from millrace.runtime.formats.registry import decoder_of
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
RAW_TYPE = spark.StructType(
    [
        spark.StructField("topic", spark.StringType()),
        spark.StructField("partition", spark.IntegerType()),
        spark.StructField("offset", spark.LongType()),
        spark.StructField("timestamp_ms", spark.LongType()),  # as Kafka has it: it need not be a time that Spark holds
        spark.StructField("key", spark.BinaryType()),
        spark.StructField("value", spark.BinaryType()),
        spark.StructField(
            "headers",
            spark.ArrayType(
                spark.StructType(
                    [spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())]
                )
            ),
        ),
    ]
)
"""A batch's records before they are decoded, whoever has read them."""

# The parts of a source that differ from record to record. Between Python and the JVM they carry an underscore, which
# no declared column may begin with.
_OWN = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own, as `org.apache.kafka.common.internals.Topic` lists them."""

BAD_FIELD = "_bad"
TRUNCATED_FIELD = "_truncated"
UNDECLARED_FIELD = "_undeclared"
_RAW = ["unix_millis(timestamp) AS timestamp_ms" if name == "timestamp_ms" else name for name in RAW_TYPE.fieldNames()]

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
    ColumnType.BINARY: spark.BinaryType(),
}


def declared_type(column: Column) -> spark.DataType:
    """The Spark type of a declared column."""
    if column.type is ColumnType.DECIMAL:
        return spark.DecimalType(column.precision or 10, column.scale or 0)
    return _SPARK_TYPES[column.type]


def read_stream(
    session: SparkSession,
    settings: KafkaSettings,
    stream: Stream,
    positions: Mapping[TopicPartition, int],
    most_records: int,
) -> DataFrame:
    """The raw records from these positions on, in batches of at most `most_records`.

    It subscribes, so that it sees partitions made later (from their beginning), and lists every partition that
    exists now, because `startingOffsets` counts only for those it names. It reads committed records only and fails
    where offsets are gone.

    Kafka's own topics are assigned instead: Spark's subscription leaves them out, and its newer way of asking for
    offsets does (`filterNot(_.isInternal)` in ConsumerStrategy.scala). They do not grow.

    Returns:
        a frame of `RAW_TYPE`.
    """
    options = read_options(settings, stream) | {
        "startingOffsets": _offsets(positions),
        "maxOffsetsPerTrigger": str(most_records),
    }
    if not INTERNAL_TOPICS.isdisjoint(stream.reads):
        session.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
        del options["subscribe"]
        options["assign"] = _assigned(positions)
    return as_raw(session.readStream.format("kafka").options(**options).load())


def read_ranges(
    session: SparkSession, settings: KafkaSettings, stream: Stream, ranges: Sequence[OffsetRange]
) -> DataFrame:
    """The raw records of exactly these ranges, read once more for each action on the frame.

    Returns:
        a frame of `RAW_TYPE`.
    """
    full = [entry for entry in ranges if entry.first < entry.next]
    if not full:
        return session.createDataFrame([], RAW_TYPE)
    # With a group for each read, up to 64 consumers would pile up: Spark keeps them by group and partition.
    name = stream.qualified_name
    options = batch_options(settings, name=name, group=f"millrace-fetch.{name}", ranges=full)
    return as_raw(session.read.format("kafka").options(**options).load())


def batch_options(settings: KafkaSettings, *, name: str, group: str, ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """How an app reads exactly these ranges, none of them empty: committed records only, and all of them or none.

    Args:
        settings: the cluster.
        name: of the app, PIPELINE.NAME.
        group: under which Spark keeps its consumers; nothing is committed to it.
        ranges: one a partition.
    """
    return {
        **_reading(settings, name),
        "kafka.group.id": group,
        "assign": _assigned([entry.partition for entry in ranges]),
        "startingOffsets": _offsets({entry.partition: entry.first for entry in ranges}),
        "endingOffsets": _offsets({entry.partition: entry.next for entry in ranges}),
    }


def _assigned(partitions: Iterable[TopicPartition]) -> str:
    """Partitions by topic, as Spark's Kafka source takes them."""
    listed: dict[str, list[int]] = {}
    for partition in partitions:
        listed.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(listed)


def _offsets(positions: Mapping[TopicPartition, int]) -> str:
    """Offsets by topic and partition, as Spark's Kafka source takes them."""
    listed: dict[str, dict[str, int]] = {}
    for partition, offset in positions.items():
        listed.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(listed)


def as_raw(frame: DataFrame) -> DataFrame:
    """What Spark's Kafka source gives, as a frame of `RAW_TYPE`."""
    return frame.selectExpr(*_RAW)


def read_options(settings: KafkaSettings, stream: Stream) -> dict[str, str]:
    """How a stream reads its topics, wherever it begins."""
    return {
        **_reading(settings, stream.qualified_name),
        "groupIdPrefix": f"millrace-fetch.{stream.qualified_name}",
        "subscribe": ",".join(stream.reads),
    }


def _reading(settings: KafkaSettings, name: str) -> dict[str, str]:
    """What is the same for streaming and for batch reads."""
    return {
        **{f"kafka.{key}": value for key, value in for_spark(settings).items()},
        **_FETCH_SETTINGS,
        "kafka.isolation.level": "read_committed",
        "kafka.client.id": f"millrace.{name}",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def holds_only_commits_of(raw: DataFrame, group: str) -> bool:
    """Whether each record is a commit of this group, or the tombstone of one, by its key; reads them once more.

    Args:
        raw: a frame of `RAW_TYPE`; a record of another topic than `__consumer_offsets` is none.
        group: the group's name.
    """
    own = [F.col("key").startswith(F.lit(prefix)) for prefix in commit_key_prefixes(group)]
    is_own = (F.col("topic") == OFFSETS_TOPIC) & F.coalesce(own[0] | own[1], F.lit(False))
    return bool(raw.where(~is_own).isEmpty())


def without_own(raw: DataFrame, stream: str, topics: Sequence[str]) -> DataFrame:
    """The raw records but for those that this stream has written to topics that it reads as well.

    Args:
        raw: a frame of `RAW_TYPE`.
        stream: PIPELINE.STREAM.
        topics: those that it writes to; elsewhere a record that has its header was made by a program that hands
            headers on.
    """
    is_own = F.exists("headers", lambda header: (header["key"] == STREAM) & (header["value"] == F.lit(stream.encode())))
    return raw.where(~(F.col("topic").isin(*topics) & F.coalesce(is_own, F.lit(False))))


def decoded(raw: DataFrame, topic: Topic, topic_id: str, make_decoder: DecoderFactory = decoder_of) -> DataFrame:
    """One topic's records as its columns (`ValueSchema.decoded`), `_source`, `_bad`, `_truncated` and `_undeclared`.

    `_bad` is true where the record does not fit, `_truncated` where a timestamp in it was finer than a microsecond.
    `_undeclared` counts the undeclared fields of a whole block (`runtime.formats.field_tally`): it stands at the
    block's first record and is null at every other.
    What is the same for all its records, topic and topic id, does not travel through Python and back.

    Args:
        raw: a frame of `RAW_TYPE`.
        topic: the topic.
        topic_id: the id it has now.
        make_decoder: makes what decodes, in Spark's workers.
    """
    assert topic.value is not None
    decode = _decode_blocks(topic.value, topic.key, make_decoder)
    names = [column.name for column in topic.value.decoded]
    result = spark.StructType([spark.StructField(column.name, declared_type(column)) for column in topic.value.decoded])
    for name in _OWN:
        result = result.add(f"_{name}", SOURCE_TYPE[name].dataType)
    for name in (BAD_FIELD, TRUNCATED_FIELD):
        result = result.add(name, spark.BooleanType())
    result = result.add(UNDECLARED_FIELD, spark.StringType())
    needed = raw.where(F.col("topic") == topic.name).select(
        "partition", "offset", "timestamp_ms", "value", _key_as_needed(topic.value)
    )
    source = F.struct(
        F.lit(topic.name).alias("topic"),
        F.lit(topic_id).alias("topic_id"),
        *(F.col(f"_{name}").alias(name) for name in _OWN),
    )
    return needed.mapInArrow(decode, result).select(
        *(F.col(f"`{name}`") for name in names), source.alias("_source"), BAD_FIELD, TRUNCATED_FIELD, UNDECLARED_FIELD
    )


def _decode_blocks(
    schema: ValueSchema, key: Key | None, make_decoder: DecoderFactory
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = _decoder_of_worker(make_decoder, schema, key)
        types = [(column.name, arrow_type(column)) for column in schema.decoded]
        own_types = [(f"_{name}", arrow) for name, arrow in _OWN.items()]
        flag_types = [(BAD_FIELD, pa.bool_()), (TRUNCATED_FIELD, pa.bool_()), (UNDECLARED_FIELD, pa.string())]
        result = pa.schema([*types, *own_types, *flag_types])
        for block in blocks:
            keys = _keys(block)
            milliseconds = block.column("timestamp_ms")
            found = decoder.decode(block.column("value").to_pylist(), keys, milliseconds.to_pylist())
            own = [block.column("partition"), block.column("offset"), timestamps(milliseconds)]
            flags = [[rule is not None for rule in found.rules], found.truncated]
            undeclared = [as_text(found.undeclared), *[None] * (len(block) - 1)][: len(block)]
            arrays = [*found.columns, *own, *(pa.array(flag, type=pa.bool_()) for flag in flags)]
            arrays.append(pa.array(undeclared, type=pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, schema=result)

    return decode


@lru_cache(maxsize=32)
def _decoder_of_worker(make_decoder: DecoderFactory, schema: ValueSchema, key: Key | None) -> RecordDecoder:
    """Return the decoder that this worker process keeps for its tasks: what it has learned serves the next one too."""
    return make_decoder(schema, key)


def _key_as_needed(schema: ValueSchema) -> SparkColumn:
    """`key`, where keys are decoded or compared; else `has_key`: whether there is one."""
    key = F.col("key")
    if schema.format is ValueFormat.BYTES or schema.tombstones:
        return key
    return key.isNotNull().alias("has_key")


def _keys(block: pa.RecordBatch) -> list[bytes | None]:
    """The keys as `_key_as_needed` gives them; empty where it says no more than that there is one."""
    if "key" in block.schema.names:
        found: list[bytes | None] = block.column("key").to_pylist()
        return found
    return [b"" if has_key else None for has_key in block.column("has_key").to_pylist()]


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as times; null where the year is not one of 1 to 9999."""
    held = pc.and_(pc.greater_equal(milliseconds, FIRST_MS), pc.less_equal(milliseconds, LAST_MS))
    kept = pc.if_else(held, milliseconds, pa.scalar(None, pa.int64()))
    return kept.cast(pa.timestamp("ms", tz="UTC")).cast(_OWN["timestamp"])
