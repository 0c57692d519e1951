"""Ranges copied into the archive by the plain client: for records that Spark's own source cannot hand over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from millrace.adapters.archive.columns import to_batch
from millrace.adapters.archive.cutting import Copied, copy_range, put_object
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import MOST_OBJECT_BYTES, Read
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.topics.sources import NO_TIMESTAMP, TopicRecord
from millrace.errors import RefusedError
from millrace.ports.logs import TopicRecords
from millrace.ports.objects import ObjectStore

_BATCH_RECORDS = 5_000
_BATCH_BYTES = 16 << 20


class PlainCopier:
    """Copies ranges one after the other, in this process.

    Args:
        reader: of the cluster.
        store: where the objects go.
        most_bytes: what the records of an object weigh before it is cut.
    """

    def __init__(self, reader: TopicRecords, store: ObjectStore, *, most_bytes: int = MOST_OBJECT_BYTES) -> None:
        self._reader = reader
        self._store = store
        self._most_bytes = most_bytes

    def copy(self, reads: Sequence[Read]) -> list[Copied]:
        """Copy these ranges; what became of each, in their order.

        Raises:
            DataLossError: the log no longer reaches back to where a range begins.
            UnreachableError: broker or store do not answer.
        """
        return [self._copy(read) for read in reads]

    def _copy(self, read: Read) -> Copied:
        here = Incarnation(read.partition.topic, read.partition.topic_id)
        records = self._reader.between(here.topic, read.partition.partition, read.range.first, read.range.next)
        put = partial(put_object, self._store, here)
        try:
            return copy_range(read, _batches(records), put, most_bytes=self._most_bytes)
        except UnicodeDecodeError as error:  # of the client
            raise RefusedError(
                f"a header's name is not UTF-8, which Kafka's protocol requires: {error}",
                where=str(read.range),
                next_step="find the producer of such records; no record of this range can be archived",
            ) from error


def _batches(records: Iterable[TopicRecord]) -> Iterator[pa.RecordBatch]:
    held: list[ArchivedRecord] = []
    size = 0
    for record in records:
        held.append(_archived(record))
        size += len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if len(held) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield to_batch(held)
            held, size = [], 0
    if held:
        yield to_batch(held)


def _archived(record: TopicRecord) -> ArchivedRecord:
    """A record without a timestamp counts as one whose producer gave none, as all since Kafka 0.10 have a type."""
    kind = TimestampType.LOG_APPEND_TIME if record.appended_at else TimestampType.CREATE_TIME
    at = NO_TIMESTAMP if record.timestamp_ms is None else record.timestamp_ms
    return ArchivedRecord(record.offset, at, kind, record.key, record.value, record.headers)
