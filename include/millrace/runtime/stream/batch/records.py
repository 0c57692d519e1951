"""The records of a batch: as Spark read them, or as the plain client reads them where Spark cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.declaration.pipeline import Stream
from millrace.domain.topics.offsets import OffsetRange
from millrace.runtime.stream.plain_read import Part, read_in_parts
from millrace.runtime.stream.source import RAW_TYPE, without_own


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are written and merged together: a micro-batch, or a part of one.

    Attributes:
        raw: all records, a frame of `runtime.stream.source.RAW_TYPE`.
        by_topic: a frame of each topic that holds its records at least.
        ids: the ids of the topics when the batch was planned.
        ranges: the exact range of each partition.
    """

    raw: DataFrame
    by_topic: Mapping[str, DataFrame]
    ids: Mapping[str, str]
    ranges: Sequence[OffsetRange]


class RecordReader:
    """Reads the records of each topic, and leaves out those that the stream itself has written.

    Args:
        stream: the stream that reads.
        read_topic: gives the raw records of some ranges of one topic.
        reader: opens the plain client.
    """

    def __init__(
        self,
        stream: Stream,
        read_topic: Callable[[SparkSession, Sequence[OffsetRange]], DataFrame],
        reader: Callable[[], TopicReader],
    ) -> None:
        self._stream = stream
        self._read_topic = read_topic
        self._reader = reader

    def whole(self, raw: DataFrame, ids: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Batch:
        """Return the batch that Spark read; a look at one topic's records costs no look at another topic's."""
        reads = self._stream.reads
        if len(reads) == 1:
            return self._others(raw, {reads[0]: raw}, ids, ranges)
        parts = {name: [entry for entry in ranges if entry.partition.topic == name] for name in reads}
        by_topic = {name: self._read_topic(raw.sparkSession, part) for name, part in parts.items()}
        return self._others(raw, by_topic, ids, ranges)

    def in_parts(self, ranges: Sequence[OffsetRange]) -> Iterator[Part]:
        """Read these ranges by the plain client (`runtime.stream.plain_read.read_in_parts`)."""
        return read_in_parts(self._reader(), ranges)

    def part(
        self, session: SparkSession, table: pa.Table, ids: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Batch:
        """Return one part that the plain client read as a batch of its own."""
        frame = session.createDataFrame(table, schema=RAW_TYPE)
        return self._others(frame, dict.fromkeys(ids, frame), ids, ranges)

    def _others(
        self,
        raw: DataFrame,
        by_topic: Mapping[str, DataFrame],
        ids: Mapping[str, str],
        ranges: Sequence[OffsetRange],
    ) -> Batch:
        """Return these records without the stream's own."""
        if self._stream.reads_itself:
            own = self._stream.qualified_name, self._stream.writes_topics
            raw = without_own(raw, *own)
            by_topic = {name: without_own(frame, *own) for name, frame in by_topic.items()}
        return Batch(raw, by_topic, ids, ranges)
