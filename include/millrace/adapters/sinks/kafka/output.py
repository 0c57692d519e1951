"""What a task writes rows to Kafka with: it checks them, produces them, and waits until the brokers have them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from millrace.adapters.kafka.producers.transactions import drop_waiting_records, told_by_the_client
from millrace.adapters.sinks.kafka.values import TOPIC_COLUMN, Records, Target, without_topic
from millrace.adapters.sinks.row_sources import SOURCE_COLUMNS, sources_of
from millrace.domain.sinks.batch import TaskResult
from millrace.domain.sinks.origin import ORDINAL, SOURCE, Origin
from millrace.domain.topics.offsets import OffsetRange, Source
from millrace.errors import Code, DeclarationError, MillraceError, SinkFailedError, SinkUnreachableError
from millrace.settings import KafkaSettings

_CLIENT_LOG = logging.getLogger(f"{__name__}.client")
_CLIENT_LOG.addHandler(logging.NullHandler())  # what it warns of is raised as well, or tried again
_ACKNOWLEDGED_SECONDS = 45.0
_BATCH_BYTES = 1_000_000
_SERVED_EVERY = 500  # records
_MARGIN_MS = 600_000  # for clocks that differ, and for what waits in the client
_MOST_KEPT = 4  # clients that wait for their next task
_WAITING_KILOBYTES = 64 * 1024
_LARGEST_LIMIT = 1_000_000_000  # librdkafka's own bound
_AWAY = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class RowsProducer:
    """Writes rows to topics. It travels to the tasks, the way into the cluster with it.

    Guarantees: what it counts is in the logs of all replicas in sync. Rows of one source partition come in the order
    that they are given in, in each partition of a topic.

    Args:
        settings: the cluster.
        client_id: how the brokers list it.
        stream: who writes.
        epoch: its epoch.
        timeline: the timeline of the batch.
        ranges: the batch's.
        targets: the topics, by name.
        by_column: whether a row names its topic.
        in_order: whether the rows of each source partition are given by offset and ordinal; else the records say so.
        stops: whether nothing more is to be written once a row is refused.
    """

    settings: KafkaSettings
    client_id: str
    stream: str
    epoch: int
    timeline: int
    ranges: tuple[OffsetRange, ...]
    targets: Mapping[str, Target]
    by_column: bool
    in_order: bool = True
    stops: bool = False

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Write blocks as `SinkStore.rows_writer` says; where none comes, nobody connects.

        Raises:
            DeclarationError: a row names a source that is not of the batch, or stands before one with a lesser ordinal.
            SinkUnreachableError: the brokers did not acknowledge in time.
            SinkFailedError: they refused.
        """
        refused: dict[Source, str] = {}
        last: dict[tuple[str, int], tuple[int, int]] = {}
        rows = 0
        given = (block for block in blocks if len(block))
        first = next(given, None)
        if first is None:
            return TaskResult()
        with _producing(self.settings, self.client_id) as output:
            for block in chain([first], given):
                if self.stops and refused:
                    continue  # a task that does not read to the end would end its worker
                self._check_order(block, self._check_sources(block), last)
                rows += self._write(block, output, refused)
            output.finish()
        return TaskResult(rows, refused)

    def _write(self, block: pa.RecordBatch, output: _Output, refused: dict[Source, str]) -> int:
        """Hand a block's rows over, but for those of a source that has a row which is refused; how many."""
        parts = [(target, part, target.records(part)) for target, part in self._by_target(block, refused)]
        for _, part, made in parts:
            if made.wrong:
                sources = sources_of(part)
                for row, why in made.wrong.items():
                    refused.setdefault(sources[row], why)
        if self.stops and refused:
            return 0
        return sum(self._produce(target, part, made, output, refused) for target, part, made in parts)

    def _by_target(self, block: pa.RecordBatch, refused: dict[Source, str]) -> Iterator[tuple[Target, pa.RecordBatch]]:
        if not self.by_column:
            yield next(iter(self.targets.values())), block
            return
        names = block.column(TOPIC_COLUMN)
        for name, target in self.targets.items():
            part = block.filter(pc.equal(names, name))
            if len(part):
                yield target, part
        for source, why in without_topic(block, self.targets):
            refused.setdefault(source, why)

    def _produce(
        self, target: Target, part: pa.RecordBatch, made: Records, output: _Output, refused: Mapping[Source, str]
    ) -> int:
        good = [source not in refused for source in sources_of(part)] if refused else [True] * len(part)
        origin = Origin(self.stream, ("", 0, 0), 0, self.timeline, self.epoch, self.in_order)
        stream, _, _, *more = origin.headers()
        rows = zip(
            good,
            made.keys,
            made.values,
            self._times(target, part.column("_timestamp")),
            _places(part).to_pylist(),
            part.column("_ordinal").cast(pa.string()).cast(pa.binary()).to_pylist(),
            part.column("_partition").to_pylist(),
            strict=True,
        )
        produce, name, partitions = output.producing(target), target.name, target.partitions
        for is_good, key, value, time_ms, place, ordinal, number in rows:
            if is_good:
                headers = [stream, (SOURCE, place), (ORDINAL, ordinal), *more]
                produce(
                    name, value, key, -1 if key is not None else number % partitions, timestamp=time_ms, headers=headers
                )
        return sum(good)

    def _times(self, target: Target, times: pa.Array) -> list[int]:
        """Milliseconds since 1970; 0, which the client takes for now, where the topic does not take a time.

        To refuse it instead would make two tries of a batch differ: in an hour it may be taken.
        """
        now_ms = time.time_ns() // 1_000_000
        behind_ms, ahead_ms = (bound - min(_MARGIN_MS, bound // 2) for bound in (target.behind_ms, target.ahead_ms))
        milliseconds = pc.divide(times.cast(pa.int64()), 1000)
        behind = pc.greater_equal(milliseconds, now_ms - behind_ms)
        taken = pc.and_(behind, pc.less_equal(milliseconds, now_ms + ahead_ms))
        found: list[int] = pc.if_else(pc.fill_null(taken, False), milliseconds, 0).to_pylist()
        return found

    def _check_sources(self, block: pa.RecordBatch) -> list[tuple[str, int]]:
        """Write no row whose source is not the batch's: a reader would take for old what comes of it later.

        Returns:
            topic id and partition of the rows.
        """
        sources = pa.table([block.column(name) for name in SOURCE_COLUMNS], names=list(SOURCE_COLUMNS))
        outside = sum(column.null_count for column in sources.columns)
        of_each = [("_offset", "min"), ("_offset", "max"), ("_ordinal", "min")]
        found = [] if outside else sources.group_by(["_topic_id", "_partition"]).aggregate(of_each).to_pylist()
        ranges = {(entry.partition.topic_id, entry.partition.partition): entry for entry in self.ranges}
        for one in found:
            entry = ranges.get((one["_topic_id"], one["_partition"]))
            if entry is None or one["_offset_min"] < entry.first or one["_offset_max"] >= entry.next:
                outside += 1
        if outside:
            raise DeclarationError(
                f"some of {len(block)} rows have a `_source` that is not in their batch",
                where=f"stream {self.stream}",
                next_step="keep the column `_source` unchanged in the transform",
                code=Code.WRONG_TRANSFORM,
            )
        if min(one["_ordinal_min"] for one in found) < 0:
            raise DeclarationError(
                "the transform returns a negative `_ordinal`",
                where=f"stream {self.stream}",
                next_step="number the rows of one record from 0",
                code=Code.WRONG_TRANSFORM,
            )
        return [(one["_topic_id"], one["_partition"]) for one in found]

    def _check_order(
        self, block: pa.RecordBatch, places: Sequence[tuple[str, int]], last: dict[tuple[str, int], tuple[int, int]]
    ) -> None:
        """Hold that no row comes twice, and where an order is promised, that every row comes behind lesser ones.

        A reader leaves out what stands behind a later row of its source partition.
        """
        columns = [block.column(name) for name in SOURCE_COLUMNS]
        risen = self.in_order
        for topic_id, number in places if self.in_order else ():
            offsets, ordinals = columns[2:]
            if len(places) > 1:
                here = pc.and_(pc.equal(columns[0], topic_id), pc.equal(columns[1], number))
                offsets, ordinals = offsets.filter(here), ordinals.filter(here)
            further = pc.and_(pc.equal(offsets[1:], offsets[:-1]), pc.greater(ordinals[1:], ordinals[:-1]))
            rises = pc.all(pc.or_(pc.greater(offsets[1:], offsets[:-1]), further)).as_py() is not False
            first = (offsets[0].as_py(), ordinals[0].as_py())
            risen = risen and rises and first > last.get((topic_id, number), (-1, -1))
            last[topic_id, number] = (offsets[-1].as_py(), ordinals[-1].as_py())
        if risen:
            return
        rows = pc.binary_join_element_wise(_places(block), columns[3].cast(pa.string()).cast(pa.binary()), b"/")
        if pc.count_distinct(rows).as_py() < len(block):
            raise DeclarationError(
                "the transform returns several rows of one record without different `_ordinal` values",
                where=f"stream {self.stream}",
                next_step="add an integer column `_ordinal` that numbers the rows of one record",
                code=Code.WRONG_TRANSFORM,
            )
        if self.in_order:
            raise DeclarationError(
                "rows of one record are not in the order of their `_ordinal`",
                where=f"stream {self.stream}",
                next_step="number them in the order in which the transform returns them, as posexplode does",
                code=Code.WRONG_TRANSFORM,
            )


@dataclass(slots=True, eq=False)
class _Output:
    """The producers of one task: one for each limit that topics have, for each batch has to keep it."""

    settings: KafkaSettings
    client_id: str
    producers: dict[int, Any] = field(default_factory=dict)
    failures: list[KafkaError] = field(default_factory=list)
    acknowledged_at: float = 0.0
    trouble: str = ""  # what a client has said last that passes, or does not

    def producing(self, target: Target) -> Callable[..., None]:
        """What takes the arguments of `Producer.produce`; it waits where the client has too many records."""
        producer = self._producer(target.limit_bytes)
        produce, handed_over = producer.produce, 0

        def waiting(*arguments: Any, **more: Any) -> None:
            nonlocal handed_over
            handed_over += 1
            if handed_over % _SERVED_EVERY == 0:
                self._serve(producer, 0)
                self._must_be_well(target.name)
            began = 0.0
            while True:
                try:
                    produce(*arguments, **more)
                    return
                except BufferError:
                    began = began or time.monotonic()
                    self._serve(producer, 0.1)  # lets deliveries make room
                    self._must_be_well(target.name)
                    self._must_get_on(began)
                except KafkaException as error:
                    raise self._error(error.args[0], target.name) from error

        return waiting

    def _serve(self, producer: Any, seconds: float, *, flush: bool = False) -> None:
        """Let the client call back; what it cannot go on after it raises here, or in the midst of a callback."""
        try:
            producer.flush(seconds) if flush else producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            told = told_by_the_client(error)
            if told is None:
                raise
            raise self._error(told, "") from error

    def _must_be_well(self, topic: str = "") -> None:
        if self.failures:
            raise self._error(self.failures[0], topic)

    def finish(self) -> None:
        """Wait until all is acknowledged."""
        began = time.monotonic()
        for producer in self.producers.values():
            while len(producer) and not self.failures:
                self._serve(producer, 0.5, flush=True)
                self._must_get_on(began)
        self._must_be_well()

    def _must_get_on(self, began: float) -> None:
        """Wait no longer where nothing was acknowledged for long; `began`: since when it is waited."""
        if time.monotonic() - max(began, self.acknowledged_at) > _ACKNOWLEDGED_SECONDS:
            raise self._error(KafkaError(KafkaError._MSG_TIMED_OUT, self.trouble or None), "")

    def close(self) -> None:
        """End the clients. What refers to them refers to this as well, so they are let go of by hand."""
        for producer in self.producers.values():
            if len(producer):
                drop_waiting_records(producer)
        self.producers.clear()

    def _producer(self, limit_bytes: int) -> Any:
        if limit_bytes not in self.producers:
            limit = min(max(limit_bytes, 1000), _LARGEST_LIMIT)
            self.producers[limit_bytes] = self._open(
                {
                    **self.settings.librdkafka,
                    "client.id": self.client_id,
                    # A record that was given up on while those behind it got through would be missing for a reader
                    # who has seen these: nothing times out by itself, and a refusal ends the producer.
                    "enable.idempotence": True,
                    "enable.gapless.guarantee": True,
                    "message.timeout.ms": 0,
                    "acks": "all",
                    "partitioner": "murmur2_random",
                    "compression.type": "lz4",
                    "linger.ms": 20,
                    "batch.size": min(_BATCH_BYTES, limit),
                    "message.max.bytes": limit,
                    "queue.buffering.max.kbytes": max(_WAITING_KILOBYTES, limit // 1024 + 1),
                    "allow.auto.create.topics": False,
                    "on_delivery": self._delivered,
                    "error_cb": self._troubled,
                    "log_level": 0,
                },
            )
        return self.producers[limit_bytes]

    def _open(self, configuration: dict[str, Any]) -> Any:
        try:
            return Producer(configuration, logger=_CLIENT_LOG)
        except KafkaException as error:
            raise SinkFailedError(
                f"the client refuses the Connection's keys together with the keys of a sink: {error.args[0].str()}",
                where=self.settings.bootstrap_servers,
                next_step="remove keys about producing from the extra of the pipeline's `kafka` Connection",
                code=Code.WRONG_CONNECTION,
            ) from error

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged_at = time.monotonic()
        else:
            self.failures.append(error)

    def _troubled(self, error: KafkaError) -> None:
        self.trouble = error.str()

    def _error(self, error: KafkaError, topic: str) -> MillraceError:
        where = f"topic {topic} at {self.settings.bootstrap_servers}" if topic else self.settings.bootstrap_servers
        if error.code() in _AWAY or error.retriable():
            return SinkUnreachableError(
                f"the brokers did not acknowledge the records: {error.str()}",
                where=where,
                next_step="check that the brokers run and that enough replicas are in sync",
            )
        return SinkFailedError(
            f"the brokers refuse the records: {error.str()}",
            where=where,
            next_step="check that the topic exists, and that this user has Write on it and IdempotentWrite",
            code=Code.KAFKA_REFUSED,
        )


_kept: list[_Output] = []
"""Clients of former tasks of this process, all of whose records are acknowledged. A new one asks the brokers for an id,
which takes half a second and which they keep for a day."""


@contextmanager
def _producing(settings: KafkaSettings, client_id: str) -> Iterator[_Output]:
    """Clients for one task; those of a task that fails are ended."""
    mine = [one for one in _kept if (one.settings, one.client_id) == (settings, client_id)]
    output = _Output(settings, client_id)
    with suppress(ValueError):  # another thread took it
        if mine:
            _kept.remove(mine[0])
            output = mine[0]
            output.trouble = ""
    try:
        yield output
    except BaseException:
        output.close()
        raise
    _kept.append(output)
    for old in _kept[:-_MOST_KEPT]:
        with suppress(ValueError):
            _kept.remove(old)
            old.close()


def _places(part: pa.RecordBatch) -> pa.Array:
    """The value of the header that names a row's source."""
    ids, numbers, offsets = (part.column(name).cast(pa.string()) for name in SOURCE_COLUMNS[:3])
    return pc.binary_join_element_wise(ids, numbers, offsets, "/").cast(pa.binary())
