"""Bounded, read-committed reads of a topic, by `assign`, without a consumer group's membership."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from millrace.adapters.kafka.offsets import list_offsets
from millrace.domain.retention.readers import FirstRecords
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import Code, DataLossError, DeclarationError, MillraceError, RefusedError, UnreachableError
from millrace.settings import KafkaSettings

_ANSWER_SECONDS = 30.0
_READ_SECONDS = 60.0
_BATCH_RECORDS = 5_000
_FIRST_BYTES = 64 * 1024
_POLL_SECONDS = 0.1
_RECORDS_BETWEEN_PROGRESS = 10_000
# By its defaults the client fetches ahead up to 64 MB, of which who reads few records wants nothing; and waits a second
# before it fetches on where it has as many records as it wants.
_SPARING = {"queued.min.messages": 1, "max.partition.fetch.bytes": 256 * 1024, "fetch.queue.backoff.ms": 5}


class TopicReader:
    """Reads what is committed in topics of one cluster.

    Args:
        kafka: where the cluster is.
        settle_seconds: how long to wait for transactions that were open when a read began.
        sparing: reads are of few records each: fetch little more than those.
        clock: seconds that only grow, by which a broker's silence is measured.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        settle_seconds: float = 90.0,
        sparing: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._sparing = sparing
        self._settle_seconds = settle_seconds
        self._admin = AdminClient({**kafka.librdkafka, "log_level": 0})

    def partitions(self, topic: str) -> list[int]:
        """The topic's partition numbers.

        Raises:
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        with self._answered(topic):
            described = self._admin.describe_topics(TopicCollection([topic]))[topic].result(_ANSWER_SECONDS + 5)
        return sorted(partition.id for partition in described.partitions)

    def starts(self, topic: str) -> dict[int, int]:
        """The log start offset of each partition."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED)

    def ends(self, topic: str) -> dict[int, int]:
        """The next committed offset of each partition: where a reader of committed records stands when it is done."""
        return self._offsets(topic, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def committed(
        self,
        topic: str,
        *,
        firsts: Mapping[int, int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[TopicRecord]:
        """Every committed record the topic holds now, of partitions in `firsts` from that offset on.

        The read goes to the end of the log as it is now, not to the last stable offset: records of ours may lie
        committed behind another producer's open transaction, and must be seen.

        Raises:
            DataLossError: the log no longer reaches back to where one of `firsts` lies, or not up to there.
            DeclarationError: the topic does not exist.
            RefusedError: a transaction stays open, so what is committed cannot be told.
            UnreachableError: the broker does not answer.
        """
        starts = {**self.starts(topic), **(firsts or {})}
        ends = self._offsets(topic, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        for partition, first in sorted((firsts or {}).items()):
            if ends.get(partition, -1) < first:
                what = f"the log ends at {ends[partition]}" if partition in ends else "the partition is gone"
                raise DataLossError(
                    f"{what}, but it was read up to offset {first} before", where=f"{topic}/{partition}"
                )
        self._wait_for_transactions(topic, ends)
        todo = {partition: end for partition, end in ends.items() if starts[partition] < end}
        return self._read(topic, starts, todo, progress or (lambda _: None))

    def settled(self, topic: str) -> Iterator[TopicRecord]:
        """Every committed record below the last stable offset: no open transaction is waited for.

        Raises:
            DataLossError: records expired before they were read.
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        starts, ends = self.starts(topic), self.ends(topic)
        todo = {partition: end for partition, end in ends.items() if starts[partition] < end}
        return self._read(topic, starts, todo, lambda _: None)

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        """Every committed record of one partition with `first <= offset < end`.

        Args:
            topic: the topic.
            partition: its number.
            first: where to begin.
            end: where to end, not behind the last stable offset.

        Raises:
            DataLossError: the log no longer reaches back to `first`.
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        todo = {partition: end} if first < end else {}
        return self._read(topic, {partition: first}, todo, lambda _: None)

    def first_records(self, asked: Mapping[tuple[str, int], tuple[int, int]], within: timedelta) -> FirstRecords:
        """The first committed record of each partition from an offset on, of many partitions at once.

        Args:
            asked: by topic and partition the first offset, and the end: no record from there on counts.
            within: how long it may take, however many they are and whoever does not answer.
        """
        found: dict[tuple[str, int], int | None] = {}
        failed: dict[tuple[str, int], str] = {}
        deadline = time.monotonic() + within.total_seconds()
        consumer = Consumer(self._settings() | {"max.partition.fetch.bytes": _FIRST_BYTES})
        try:
            consumer.assign([TopicPartition(topic, number, first) for (topic, number), (first, _) in asked.items()])
            while len(found) + len(failed) < len(asked) and (left := deadline - time.monotonic()) > 0:
                for message in _take_batch(consumer, min(left, _POLL_SECONDS)):
                    here = (message.topic(), message.partition())
                    if here not in asked or here in found or here in failed:
                        continue
                    error = message.error()
                    if error is None:
                        kind, stamp = message.timestamp()
                        found[here] = stamp if kind and message.offset() < asked[here][1] else None
                    elif error.code() == KafkaError._PARTITION_EOF:
                        found[here] = None
                    else:
                        failed[here] = error.str()
                    consumer.incremental_unassign([TopicPartition(*here)])
        finally:
            consumer.close()
        return FirstRecords(found, failed)

    def _wait_for_transactions(self, topic: str, ends: Mapping[int, int]) -> None:
        """Wait until every transaction that was open below `ends` is decided."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            stable = self.ends(topic)
            hung = sorted(partition for partition, end in ends.items() if stable[partition] < end)
            if not hung:
                return
            if time.monotonic() > deadline:
                first = hung[0]
                raise RefusedError(
                    f"a transaction of another producer stays open from offset {stable[first]}",
                    where=f"{topic}/{first}",
                    next_step="find it with `kafka-transactions find-hanging` and end it, then run this again",
                )
            time.sleep(0.2)

    def _read(
        self, topic: str, starts: Mapping[int, int], todo: dict[int, int], progress: Callable[[int], None]
    ) -> Iterator[TopicRecord]:
        if not todo:
            return
        consumer = Consumer(self._settings() | (_SPARING if self._sparing else {}))
        try:
            consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition in todo])
            count = 0
            for message in self._messages(consumer, topic, todo):
                count += 1
                if count % _RECORDS_BETWEEN_PROGRESS == 0:
                    progress(count)
                yield TopicRecord(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1] if message.timestamp()[0] else None,
                    message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME,
                )
            progress(count)
        finally:
            consumer.close()

    def _settings(self) -> dict[str, Any]:
        return dict(self._kafka.librdkafka) | {
            "log_level": 0,  # what it warns of is raised as well, or tried again
            "group.id": "millrace.reader",  # asked for by the client; never joined and never committed to
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }

    def _messages(self, consumer: Any, topic: str, todo: dict[int, int]) -> Iterator[Any]:
        """The messages below each partition's end, until every partition has reached its own.

        Only the time within the client counts as the broker's silence: the caller may take as long as it likes.
        """
        silent_seconds = 0.0
        while todo:
            asked_at = self._clock()
            messages = _take_batch(consumer, _POLL_SECONDS)
            silent_seconds += self._clock() - asked_at
            for message in messages:
                partition, error = message.partition(), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise self._translated(error, topic)
                end = todo.get(partition)
                if end is None:
                    continue
                if error is None and message.offset() < end:
                    silent_seconds = 0.0
                    yield message
                # at the end of a partition the client names the next offset, behind markers and aborted records
                if message.offset() + (0 if error is not None else 1) >= end:
                    del todo[partition]
            if silent_seconds > _READ_SECONDS:
                raise UnreachableError(
                    f"the broker sent nothing for {_READ_SECONDS:.0f} s; partitions {sorted(todo)} are not read to "
                    "their end",
                    where=f"{topic} at {self._kafka.bootstrap_servers}",
                    next_step="read the broker's log, then run this again",
                    code=Code.KAFKA_UNREACHABLE,
                )

    def _offsets(self, topic: str, which: Any, isolation: Any) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): which for partition in self.partitions(topic)}
        with self._answered(topic):
            answers = list_offsets(self._admin, asked, isolation, _ANSWER_SECONDS)
        return {item.partition: answer.offset for item, answer in answers.items()}

    @contextmanager
    def _answered(self, topic: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._translated(error.args[0], topic) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"the broker did not answer within {_ANSWER_SECONDS:.0f} s",
                where=self._kafka.bootstrap_servers,
                next_step="check that the broker runs: `./millrace status`",
                code=Code.KAFKA_UNREACHABLE,
            ) from error

    def _translated(self, reason: Any, topic: str) -> MillraceError:
        if reason.code() == KafkaError._AUTO_OFFSET_RESET:
            return DataLossError(f"records expired before they were read: {reason.str()}", where=topic)
        if reason.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return DeclarationError(
                "the topic does not exist",
                where=topic,
                next_step="create it: run the DAG PIPELINE.topics, or `./millrace topics plan` and `plans run ID`",
                code=Code.MISSING_TOPIC,
            )
        return UnreachableError(
            f"the broker could not be read: {reason.str()}",
            where=f"{topic} at {self._kafka.bootstrap_servers}",
            next_step="check that the broker runs: `./millrace status`",
            code=Code.KAFKA_UNREACHABLE,
        )


def _take_batch(consumer: Any, seconds: float) -> list[Any]:
    """Return the messages that a consumer has, as soon as it has one; `consume` alone waits for all it is asked for."""
    first = consumer.poll(seconds)
    return [] if first is None else [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
