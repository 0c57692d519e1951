"""A topic open for one source's loader: a transactional producer and a read of what is committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from millrace.adapters.kafka_reader import TopicReader
from millrace.domain.sources import SourceRecord, TopicRecord, sequence_header
from millrace.errors import DeclarationError, FencedError, MillraceError, UnreachableError
from millrace.settings import KafkaSettings

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 10.0
_ATTEMPTS = 5
_FENCED_CODES = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


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
        _call(lambda: producer.init_transactions(_ANSWER_SECONDS), topic, kafka)
        yield LoadedTopic(kafka, reader, producer, topic, source, len(partitions))
    finally:
        _drop_waiting_records(producer)


class LoadedTopic:
    """The adapter of `usecases.sources.SourceTopic`.

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
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._write_once(batch, first_sequence)
                return
            except KafkaException as error:
                reason = self._reason(error.args[0])
                if not reason.txn_requires_abort() or attempt == _ATTEMPTS:
                    raise _translated(reason, self._topic, self._kafka) from error
                _call(lambda: self._producer.abort_transaction(_ANSWER_SECONDS), self._topic, self._kafka)

    def _reason(self, error: Any) -> Any:
        """The error itself, or the one behind it where it only says that the producer cannot go on.

        So says librdkafka (`_FATAL`) to a `produce` after the broker has refused an earlier record; its transactional
        calls name the cause.
        """
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(_ANSWER_SECONDS)
            except KafkaException as named:
                return named.args[0]
        return error

    def _write_once(self, batch: list[SourceRecord], first_sequence: int) -> None:
        self._producer.begin_transaction()
        for sequence, record in enumerate(batch, first_sequence):
            self._produce(record, sequence)
        _retried(lambda: self._producer.commit_transaction(_ANSWER_SECONDS))

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


def _drop_waiting_records(producer: Any) -> None:
    """Leave nothing in the client before it is destroyed; what was not committed counts as never written.

    librdkafka 2.16 corrupts its memory, and the process aborts, when a fenced producer is destroyed while records
    wait in it: seen in a third to four fifths of processes beside two busy loops, in none of 50 after this.
    """
    for _ in range(_ATTEMPTS):
        with suppress(KafkaException):  # a fatal error is told once, to whichever call comes next
            producer.purge()
            producer.flush(_CLOSE_SECONDS)
            break
    if waiting := len(producer):
        _LOG.warning("%d records are still in the client that is closed; none of them was committed", waiting)


def _retried(call: Callable[[], None]) -> None:
    """Call again what librdkafka names as safe to call again, for at most the answer time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def _call(call: Callable[[], None], topic: str, kafka: KafkaSettings) -> None:
    try:
        _retried(call)
    except KafkaException as error:
        raise _translated(error.args[0], topic, kafka) from error


def _translated(reason: Any, topic: str, kafka: KafkaSettings) -> MillraceError:
    """The Kafka client's error as one of ours."""
    if reason.code() in _FENCED_CODES:
        return FencedError(
            "a newer loader of the same source has taken over",
            where=topic,
            next_step="nothing: the newer loader writes the rest; run the load again to see that all is there",
        )
    if reason.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        return DeclarationError(
            f"the broker does not let this user write: {reason.str()}",
            where=topic,
            next_step="grant Write on the topic and on transactional ids that begin with millrace.source.",
        )
    if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return DeclarationError(
            f"a record is larger than the topic takes: {reason.str()}",
            where=topic,
            next_step="raise max.message.bytes of the topic, or leave the record out",
        )
    return UnreachableError(
        f"the broker did not take the records: {reason.str()}",
        where=f"{topic} at {kafka.bootstrap_servers}",
        next_step="look at the broker's log; running the load again does not double anything",
    )
