"""A topic open for one source's loader: a transactional producer and a read of what is committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from millrace.adapters.kafka.producers.transactions import (
    ANSWER_SECONDS,
    FENCED_CODES,
    drop_waiting_records,
    in_one_transaction,
    retried,
)
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.topics.sources import SourceRecord, TopicRecord, sequence_header
from millrace.errors import Code, DeclarationError, FencedError, MillraceError, UnreachableError
from millrace.settings import KafkaSettings

_LOG = logging.getLogger(__name__)


@contextmanager
def open_source_topic(kafka: KafkaSettings, topic: str, source: str) -> Iterator[LoadedTopic]:
    """Open a topic for one loader of a source and fence every older one.

    An older loader's open transaction is aborted before this returns; its next call fails as fenced.

    Args:
        kafka: where the cluster is.
        topic: the topic to load; it must exist.
        source: the source, `PIPELINE.NAME`; its loaders share the transactional id `millrace.source.PIPELINE.NAME`.

    Raises:
        DeclarationError: the topic does not exist.
        UnreachableError: the broker does not answer.
    """
    reader = TopicReader(kafka)
    partitions = reader.partitions(topic)
    producer = Producer(
        dict(kafka.librdkafka)
        | {
            "transactional.id": f"millrace.source.{source}",
            "partitioner": "murmur2_random",
            "acks": "all",
            "compression.type": "gzip",  # the one codec that every client reads without a further library
            "linger.ms": 20,
            "transaction.timeout.ms": 60_000,
        },
        logger=_LOG,
    )
    try:
        _call(lambda: producer.init_transactions(ANSWER_SECONDS), topic, kafka)
        yield LoadedTopic(kafka, reader, producer, topic, source, len(partitions))
    finally:
        drop_waiting_records(producer)


class LoadedTopic:
    """The adapter of `usecases.topics.sources.SourceTopic`.

    Records without a key go to partition `sequence mod partitions`, so that every load puts them in the same
    place; all others follow murmur2, Kafka's own choice.
    """

    def __init__(
        self, kafka: KafkaSettings, reader: TopicReader, producer: Any, topic: str, source: str, partitions: int
    ) -> None:
        self._kafka = kafka
        self._reader = reader
        self._producer = producer
        self._topic = topic
        self._source = source
        self._partitions = partitions

    def committed(self, progress: Callable[[int], None]) -> Iterator[TopicRecord]:
        """Every committed record in the topic when this was called."""
        return self._reader.committed(self._topic, progress=progress)

    def write(self, records: Iterable[SourceRecord], first_sequence: int) -> None:
        """Write the records in one transaction: all of them, or none.

        A transaction the broker asks to abort is aborted and written again, a few times.

        Raises:
            FencedError: a newer loader of the source has taken over.
            UnreachableError: the broker does not answer.
        """
        batch = list(records)

        def produce() -> None:
            for sequence, record in enumerate(batch, first_sequence):
                self._produce(record, sequence)

        try:
            in_one_transaction(self._producer, produce)
        except KafkaException as error:
            raise _translated(error.args[0], self._topic, self._kafka) from error

    def _produce(self, record: SourceRecord, sequence: int) -> None:
        arguments: dict[str, Any] = {
            "key": record.key,
            "value": record.value,
            "headers": [*record.headers, sequence_header(self._source, sequence)],
            # librdkafka writes -1 to the log as it is; only 0 would become "now"
            "timestamp": record.timestamp_milliseconds,
        }
        if record.key is None:
            arguments["partition"] = sequence % self._partitions
        while True:
            try:
                self._producer.produce(self._topic, **arguments)
                break
            except BufferError:  # the local queue is full: let deliveries make room
                self._producer.poll(0.1)
        self._producer.poll(0)


def _call(call: Callable[[], None], topic: str, kafka: KafkaSettings) -> None:
    try:
        retried(call)
    except KafkaException as error:
        raise _translated(error.args[0], topic, kafka) from error


def _translated(reason: Any, topic: str, kafka: KafkaSettings) -> MillraceError:
    """The Kafka client's error as one of ours."""
    if reason.code() in FENCED_CODES:
        return FencedError(
            "a newer loader of the same source took over",
            where=topic,
            next_step="run the load again to check that it is complete; the newer loader writes the rest",
        )
    if reason.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        return DeclarationError(
            f"this user may not write to the topic: {reason.str()}",
            where=topic,
            next_step="grant Write on the topic and on transactional ids that begin with millrace.source.",
            code=Code.MISSING_RIGHT,
        )
    if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return DeclarationError(
            f"a record is larger than the topic allows: {reason.str()}",
            where=topic,
            next_step="raise max.message.bytes of the topic, or leave the record out",
            code=Code.KAFKA_REFUSED,
        )
    return UnreachableError(
        f"the broker did not accept the records: {reason.str()}",
        where=f"{topic} at {kafka.bootstrap_servers}",
        next_step="read the broker's log, then run the load again: it writes no record twice",
        code=Code.KAFKA_UNREACHABLE,
    )
