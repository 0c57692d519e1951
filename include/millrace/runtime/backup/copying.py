"""Ranges copied into the archive by Spark: the task that reads a partition writes, counts and digests its objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace.adapters.archive.cutting import Copied, Cutter, copy_range, put_object
from millrace.adapters.archive.plain import PlainCopier
from millrace.adapters.chain.documents import decode, encode
from millrace.adapters.s3.store import S3Store
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import MOST_OBJECT_BYTES, Read
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import (
    Code,
    DataLossError,
    MillraceError,
    PartFailedError,
    RefusedError,
    UnreachableError,
    code_named,
)
from millrace.ports.objects import ObjectStore
from millrace.runtime.life.spark_failures import means_loss, message
from millrace.runtime.stream.plain_read import spark_cannot_read
from millrace.runtime.stream.source import batch_options
from millrace.settings import KafkaSettings, S3Settings

log = structlog.get_logger()

_REPORT = "topic string, partition int, entry binary, weight bigint, failure string"
_REPORTED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("entry", pa.binary()),
        ("weight", pa.int64()),
        ("failure", pa.string()),
    ]
)
# Cast, and not transformed: a function of higher order is interpreted for each record.
_COLUMNS = (
    "partition",
    "offset",
    "unix_millis(timestamp) AS timestamp_ms",
    "timestampType AS timestamp_type",
    "key",
    "value",
    "CAST(coalesce(headers, CAST(array() AS array<struct<key:string,value:binary>>))"
    " AS array<struct<name:string,value:binary>>) AS headers",
)
FIRST_COUNTED_MS = -12_219_292_800_000
"""Midnight of 15 October 1582. Spark takes what lies before it for a date of the Julian calendar, and shifts it.

Source: `DateTimeUtils.fromJavaTimestamp`, which Spark's Kafka source calls.
"""


class UncountableError(MillraceError):
    """A record's timestamp is one that Spark cannot count, or would change."""


_FAILURES = {kind.__name__: kind for kind in (UnreachableError, RefusedError, UncountableError)}

Blocks = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where tasks write to, and by which key; it travels to the workers.

    Where the Connection names no key, or no region, a worker searches for one as botocore does: in its own variables,
    files and machine. What the Connection names reaches tasks with the driver's next start where it is renewed: a
    session token too.
    """

    bucket: S3Settings
    most_bytes: int = MOST_OBJECT_BYTES


class SparkCopier:
    """Copies ranges by one Spark job, a task each.

    Args:
        session: the app's.
        kafka: the cluster.
        app: PIPELINE.backup, for the names of its clients.
        store: where the objects go.
        destination: the same for the tasks.
    """

    def __init__(
        self, session: SparkSession, kafka: KafkaSettings, app: str, store: ObjectStore, destination: Destination
    ) -> None:
        self._session = session
        self._kafka = kafka
        self._app = app
        self._store = store
        self._destination = destination

    def copy(self, reads: Sequence[Read]) -> list[Copied]:
        """Copy these ranges, one a partition; what became of each, in no order.

        Raises:
            DataLossError: some of it is not in the log any more, or is not there yet.
            UnreachableError: the store does not answer.
            RefusedError: an object cannot be written of what was read.
            UncountableError: Spark cannot count a record's timestamp.
            PartFailedError: what else Spark says, as of brokers that do not answer.
        """
        by_topic = groupby(sorted(reads, key=_place), key=lambda read: read.partition.topic)
        frames = [self._copying(list(of_topic)) for _, of_topic in by_topic]
        try:
            rows = reduce(DataFrame.unionAll, frames).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise _of_spark(error, self._app) from error
        reports = _reports(rows)
        return [
            _copied(read, reports[_place(read)]) if _place(read) in reports else self._without_records(read)
            for read in reads
        ]

    def _without_records(self, read: Read) -> Copied:
        """The object of a range of which no record came: its task did not even know which one that is."""
        here = Incarnation(read.partition.topic, read.partition.topic_id)
        return copy_range(read, [], partial(put_object, self._store, here))

    def _copying(self, reads: Sequence[Read]) -> DataFrame:
        """The copies of one topic's ranges, run by an action on the frame."""
        topic, topic_id = reads[0].partition.topic, reads[0].partition.topic_id
        # Spark keeps consumers, and what they have fetched ahead, by group and partition: those of a topic that was
        # deleted must not hand over its records as those of the new one.
        options = batch_options(
            self._kafka,
            name=self._app,
            group=f"millrace-fetch.{self._app}.{topic_id}",
            ranges=[read.range for read in reads],
        )
        raw = self._session.read.format("kafka").options(**options).load().selectExpr(*_COLUMNS)
        return raw.mapInArrow(_writer(topic, topic_id, reads, self._destination), _REPORT)


class PatientCopier:
    """Copies by Spark, and what Spark cannot read by the plain client.

    Args:
        spark: copies nearly everything.
        plain: copies a topic's ranges where one of its records has a timestamp that Spark cannot count.
    """

    def __init__(self, spark: SparkCopier, plain: PlainCopier) -> None:
        self._spark = spark
        self._plain = plain

    def copy(self, reads: Sequence[Read]) -> list[Copied]:
        """Copy these ranges, one a partition; raises what its two copiers raise."""
        try:
            return self._spark.copy(reads)
        except UncountableError as error:
            topics = sorted({read.partition.topic for read in reads})
            if len(topics) == 1:
                log.warning("read_by_the_plain_client", topic=topics[0], error=error.what)
                return self._plain.copy(reads)
        of_topic = [[read for read in reads if read.partition.topic == topic] for topic in topics]
        return [copied for part in of_topic for copied in self.copy(part)]


def _of_spark(error: Exception, app: str) -> MillraceError:
    """What a failed job means."""
    if spark_cannot_read(error):
        return UncountableError("a record has a timestamp outside the range of Spark", where=app)
    if means_loss(error):
        return DataLossError(
            f"Spark could not read the planned offsets: {message(error)}",
            where=app,
            next_step="check whether retention deleted records before the backup read them",
        )
    return PartFailedError(
        f"Spark could not copy: {message(error)}",
        where=app,
        next_step="read the driver's log; the backup retries",
        code=Code.APP_FAILED,
    )


def _place(read: Read) -> tuple[str, int]:
    return read.partition.topic, read.partition.partition


def _writer(topic: str, topic_id: str, reads: Sequence[Read], destination: Destination) -> Callable[[Blocks], Blocks]:
    here = Incarnation(topic, topic_id)
    ranges = {read.partition.partition: (read.range.first, read.range.next, read.whole) for read in reads}

    def write(blocks: Blocks) -> Blocks:
        """Copy what one task reads, which is of one partition: Spark reads a range by one task."""
        store = _store(destination.bucket)
        put = partial(put_object, store, here)
        cutter: Cutter | None = None
        number = -1
        try:
            for block in blocks:
                if not block.num_rows:
                    continue
                if cutter is None:
                    number = block.column("partition")[0].as_py()
                    first, next_, whole = ranges[number]
                    range_ = OffsetRange(TopicPartition(topic, topic_id, number), first, next_)
                    cutter = Cutter(Read(range_, whole), put, most_bytes=destination.most_bytes)
                if pc.min(block.column("timestamp_ms")).as_py() < FIRST_COUNTED_MS:
                    raise UncountableError("a record has a timestamp that Spark shifts", where=f"{topic}/{number}")
                cutter.add(block.drop_columns(["partition"]))
                if cutter.has_enough:  # what is not read costs the worker, which is less than reading it
                    break
            if cutter is not None:
                yield _report(topic, number, cutter.close())
        except (UnreachableError, RefusedError, UncountableError) as error:
            for _ in blocks:  # a task that does not read to the end would end its worker
                pass
            yield _failed(topic, number, error)

    return write


_stores: dict[S3Settings, ObjectStore] = {}


def _store(bucket: S3Settings) -> ObjectStore:
    """The store, opened once a worker."""
    if bucket not in _stores:
        _stores[bucket] = S3Store(bucket)
    return _stores[bucket]


def _report(topic: str, number: int, copied: Copied) -> pa.RecordBatch:
    count = len(copied.entries)
    entries = [encode(entry) for entry in copied.entries]
    weights = [copied.weight, *[0] * (count - 1)][:count]
    return _rows([topic] * count, [number] * count, entries, weights, [None] * count)


def _failed(topic: str, number: int, error: MillraceError) -> pa.RecordBatch:
    said = {"kind": _kind(error), "what": error.what, "where": error.where}
    said |= {"next_step": error.next_step, "code": error.code}
    return _rows([topic], [number], [None], [0], [json.dumps(said)])


def _rows(*columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _REPORTED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORTED)


def _kind(error: MillraceError) -> str:
    """The name of the nearest class of the error that the driver can raise again."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _FAILURES)


def _reports(rows: Sequence[Any]) -> dict[tuple[str, int], list[Any]]:
    """What the tasks report, by partition; raises what one of them failed by."""
    found: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        if row.failure is not None:
            said = json.loads(row.failure)
            kind, code = _FAILURES[said["kind"]], code_named(said["code"])
            raise kind(said["what"], where=said["where"], next_step=said["next_step"], code=code)
        found.setdefault((row.topic, row.partition), []).append(row)
    return found


def _copied(read: Read, rows: Sequence[Any]) -> Copied:
    entries = [decode(bytes(row.entry), ObjectEntry, "what a task reports") for row in rows]
    return Copied(read, tuple(sorted(entries, key=lambda entry: entry.first)), sum(row.weight for row in rows))
