"""A batch read by the plain client: for records that Spark's own source cannot hand over.

Spark counts a record's timestamp in microseconds and raises where that overflows, whatever is asked of the record. The
batch is then read again here, in parts small enough for one driver, and goes on as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.domain.topics.sources import TopicRecord

_PART_RECORDS = 5_000
_PART_BYTES = 16 * 1024 * 1024
# Source: Math.multiplyExact in Spark's DateTimeUtils.millisToMicros. A transform may overflow in the same way, and
# then does so again in the parts.
_SIGN = "ArithmeticException: long overflow"

RAW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""`runtime.stream.source.RAW_TYPE` as Arrow has it."""


def spark_cannot_read(failure: Exception) -> bool:
    """Whether a batch failed at a timestamp that Spark cannot count."""
    return _SIGN in str(failure)


Part = tuple[Sequence[OffsetRange], pa.Table]
"""The ranges of a part, none empty, and its records with the columns of `runtime.stream.source.RAW_TYPE`."""


def read_in_parts(reader: TopicReader, ranges: Sequence[OffsetRange]) -> Iterator[Part]:
    """The committed records of these ranges; a partition's parts follow one another without a gap.

    Small ranges share a part, a large one is split.

    Args:
        reader: of the cluster.
        ranges: what to read; an empty one is left out.

    Raises:
        DataLossError: the log no longer reaches back to where a range begins.
        UnreachableError: the broker does not answer.
    """
    done, held, size = list[OffsetRange](), list[tuple[str, TopicRecord]](), 0
    for entry in ranges:
        partition, first = entry.partition, entry.first
        if first == entry.next:
            continue
        for record in reader.between(partition.topic, partition.partition, first, entry.next):
            if len(held) >= _PART_RECORDS or size >= _PART_BYTES:
                yield [*done, *_range(partition, first, record.offset)], _table(held)
                first, done, held, size = record.offset, [], [], 0
            held.append((partition.topic, record))
            size += len(record.value or b"") + len(record.key or b"")
        done += _range(partition, first, entry.next)
    if done:
        yield done, _table(held)


def _range(partition: TopicPartition, first: int, next_offset: int) -> list[OffsetRange]:
    return [OffsetRange(partition, first, next_offset)] if first < next_offset else []


def _table(records: Sequence[tuple[str, TopicRecord]]) -> pa.Table:
    rows = [
        {
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for topic, record in records
    ]
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)
