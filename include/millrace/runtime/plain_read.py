"""A batch read by the plain client: for records that Spark's own source cannot hand over.

Spark counts a record's timestamp in microseconds and raises where that overflows, whatever is asked of the record. The
batch is then read again here, in parts small enough for one driver, and goes on as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millrace.adapters.kafka_reader import TopicReader
from millrace.domain.offsets import OffsetRange
from millrace.domain.sources import TopicRecord

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
"""`runtime.source.RAW_TYPE` as Arrow has it."""


def spark_cannot_read(failure: Exception) -> bool:
    """Whether a batch failed at a timestamp that Spark cannot count."""
    return _SIGN in str(failure)


def read_in_parts(reader: TopicReader, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, pa.Table]]:
    """The committed records of these ranges, in ranges that follow one another without a gap.

    Args:
        reader: of the cluster.
        ranges: what to read.

    Returns:
        each part's range, and its records with the columns of `runtime.source.RAW_TYPE`. A range without records is
        one part without rows.

    Raises:
        DataLossError: the log no longer reaches back to where a range begins.
        UnreachableError: the broker does not answer.
    """
    for entry in ranges:
        partition, first, held, size = entry.partition, entry.first, list[TopicRecord](), 0
        for record in reader.between(partition.topic, partition.partition, entry.first, entry.next):
            if held and (len(held) >= _PART_RECORDS or size >= _PART_BYTES):
                yield OffsetRange(partition, first, record.offset), _table(partition.topic, held)
                first, held, size = record.offset, [], 0
            held.append(record)
            size += len(record.value or b"") + len(record.key or b"")
        yield OffsetRange(partition, first, entry.next), _table(partition.topic, held)


def _table(topic: str, records: Sequence[TopicRecord]) -> pa.Table:
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
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)
