"""A topic open for one restore: a transactional producer, and a read of what is committed there.

All restores into one topic share a transactional id, whatever they restore, so a newer one fences an older one, and
what a killed one had open is aborted before the newer one looks at what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import errors as python_errors

from millrace.adapters.kafka.producers.exact import FENCED, ExactProducer
from millrace.adapters.kafka.producers.transactions import (
    ANSWER_SECONDS,
    FENCED_CODES,
    drop_waiting_records,
    in_one_transaction,
    retried,
)
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.archive.restore.records import Restored
from millrace.domain.archive.restore.target import CODEC
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import Code, FencedError, MillraceError, RefusedError, UnreachableError
from millrace.settings import KafkaSettings

_CLIENT_LOG = logging.getLogger(f"{__name__}.client")
_CLIENT_LOG.addHandler(logging.NullHandler())  # what it warns of is raised as well, or tried again
_BATCH_BYTES = 1_000_000
_MOST_RECORD_BYTES = 1_000_000_000  # librdkafka's own bound; what the topic takes is the broker's to say
_NOT_ALLOWED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_WRONG_TIME = KafkaError.INVALID_TIMESTAMP
_SAME_IN_PYTHON: dict[type[BaseException], int] = {
    python_errors.TopicAuthorizationFailedError: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    python_errors.TransactionalIdAuthorizationFailedError: KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    python_errors.MessageSizeTooLargeError: KafkaError.MSG_SIZE_TOO_LARGE,
    python_errors.RecordListTooLargeError: KafkaError.RECORD_LIST_TOO_LARGE,
    python_errors.InvalidTimestampError: _WRONG_TIME,
    **dict.fromkeys(FENCED, KafkaError.PRODUCER_FENCED),
}


@contextmanager
def open_restore_target(
    kafka: KafkaSettings, topic: str, transactional_id: str, max_message_bytes: int
) -> Iterator[RestoreTarget]:
    """Open a topic for one restore, which nobody learns of before it fences the others.

    Args:
        kafka: where the cluster is.
        topic: the topic, which exists.
        transactional_id: the same for all restores that must not write side by side.
        max_message_bytes: what the topic takes at once.
    """
    target = RestoreTarget(kafka, topic, transactional_id, max_message_bytes)
    try:
        yield target
    finally:
        target.close()


class RestoreTarget:
    """Writes with librdkafka, and from the first record of timestamp 0 on with a slower client that can."""

    def __init__(self, kafka: KafkaSettings, topic: str, transactional_id: str, max_message_bytes: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._transactional_id = transactional_id
        self._batch_bytes = min(_BATCH_BYTES, max_message_bytes)
        self._reader = TopicReader(kafka)
        self._seen: dict[int, int] = {}
        self._exact: ExactProducer | None = None
        self._producer: Any = Producer(
            dict(kafka.librdkafka)
            | {
                "transactional.id": transactional_id,
                "acks": "all",
                "compression.type": CODEC,
                "compression.level": 1,  # compressing is what most of the time goes into
                "linger.ms": 20,
                "batch.size": self._batch_bytes,
                "message.max.bytes": _MOST_RECORD_BYTES,
                "transaction.timeout.ms": 60_000,
                "log_level": 0,
            },
            logger=_CLIENT_LOG,
        )

    def glance(self) -> Iterator[TopicRecord]:
        """What is committed in the topic below transactions that are open; older restores go on.

        Raises:
            UnreachableError: the broker does not answer.
        """
        return self._reader.settled(self._topic)

    def fence(self) -> None:
        """End what an older restore had open; from here on it can write no more.

        Raises:
            RefusedError: the broker does not let this user write.
            UnreachableError: the broker does not answer.
        """
        try:
            retried(lambda: self._producer.init_transactions(ANSWER_SECONDS))
        except KafkaException as error:
            raise self._translated(error.args[0].code(), error.args[0].str(), ()) from error

    def look(self, *, anew: bool = False) -> Iterator[TopicRecord]:
        """Every committed record in the topic that no look before this one has seen; all of them where it is `anew`.

        Raises:
            DataLossError: records behind the last look are gone, or the log ends before it.
            RefusedError: a transaction of somebody else stays open.
            UnreachableError: the broker does not answer.
        """
        if anew:
            self._seen.clear()
        for record in self._reader.committed(self._topic, firsts=dict(self._seen)):
            self._seen[record.partition] = record.offset + 1
            yield record

    def takes(self, records: Sequence[Restored]) -> bool:
        """Whether the client at work can write these records exactly."""
        return self._exact is not None or all(record.timestamp_ms != 0 for record in records)

    def become_exact(self) -> None:
        """Go on with the client that takes every record.

        Does not guarantee: that nobody has fenced the former client meanwhile, and written. Look before you write.

        Raises:
            RefusedError: the client cannot be used with this connection, or the broker says no.
            UnreachableError: the broker does not answer.
        """
        drop_waiting_records(self._producer)
        self._producer = None
        try:
            self._exact = ExactProducer(self._kafka, self._transactional_id, self._batch_bytes)
        except python_errors.KafkaError as error:
            raise self._translated(_SAME_IN_PYTHON.get(type(error)), str(error), ()) from error

    def write(self, records: Sequence[Restored]) -> None:
        """Write the records in one transaction: all of them, or none.

        Raises:
            FencedError: another restore has taken over, or the transaction lasted too long.
            RefusedError: the topic does not take a record, or the broker does not let this user write.
            UnreachableError: the broker does not answer.
        """
        try:
            if self._exact is not None:
                self._exact.write(self._topic, records)
            else:
                in_one_transaction(self._producer, lambda: self._produce(records), {*_TOO_LARGE, _WRONG_TIME})
        except KafkaException as error:
            raise self._translated(error.args[0].code(), error.args[0].str(), records) from error
        except (python_errors.KafkaError, TimeoutError) as error:
            raise self._translated(_SAME_IN_PYTHON.get(type(error)), str(error), records) from error

    def _produce(self, records: Sequence[Restored]) -> None:
        for record in records:
            while True:
                try:
                    self._producer.produce(
                        self._topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp=record.timestamp_ms,  # -1, none, is written as it is
                    )
                    break
                except BufferError:  # the local queue is full: let deliveries make room
                    self._producer.poll(0.1)
            self._producer.poll(0)

    def taken_over(self) -> FencedError:
        """What an older restore learns of a newer one."""
        return FencedError(
            "another restore into the same topic took over, or a transaction lasted too long",
            where=self._topic,
            next_step="run it again when no other restore runs",
        )

    def close(self) -> None:
        """End the client; what was not committed counts as never written."""
        if self._exact is not None:
            self._exact.close()
        elif self._producer is not None:
            drop_waiting_records(self._producer)

    def _translated(self, code: int | None, said: str, records: Sequence[Restored]) -> MillraceError:
        """A client's error as one of ours; `code` is one of librdkafka's."""
        if code in FENCED_CODES:
            return self.taken_over()
        if code in _NOT_ALLOWED:
            return RefusedError(
                f"this user may not write to the topic: {said}",
                where=self._topic,
                next_step="grant Write on the topic and on transactional ids that begin with millrace.restore.",
                code=Code.MISSING_RIGHT,
            )
        if code in _TOO_LARGE:
            largest = max((record.size_bytes for record in records), default=0)
            return RefusedError(
                f"the topic refuses a record; the largest of {len(records)} has {largest} bytes",
                where=self._topic,
                next_step="run `kafka-configs --bootstrap-server ... --alter "
                f"--topic {self._topic} --add-config max.message.bytes={2 * largest}`, then run this again",
                code=Code.KAFKA_REFUSED,
            )
        if code == _WRONG_TIME:
            return RefusedError(
                f"the topic refuses a record's timestamp: {said}",
                where=self._topic,
                next_step="raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
                code=Code.KAFKA_REFUSED,
            )
        return UnreachableError(
            f"the broker did not accept the records: {said}",
            where=f"{self._topic} at {self._kafka.bootstrap_servers}",
            next_step="read the broker's log, then run the restore again: it resumes where this one ended",
            code=Code.KAFKA_UNREACHABLE,
        )
