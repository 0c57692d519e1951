"""What a Kafka cluster says of its logs: topic ids, partitions, and bounds for a read_committed reader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from millrace.adapters.kafka.admin_client import ANSWER_MARGIN_SECONDS, SharedAdminClient
from millrace.adapters.kafka.ids import topic_id_text
from millrace.adapters.kafka.offsets import Answers, list_answered_offsets, list_offsets
from millrace.adapters.kafka.silence import SILENT
from millrace.domain.groups.commits import Committed
from millrace.domain.rewind.time_travel import PartitionTimes, RecordAt
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, MillraceError, UnreachableError
from millrace.settings import KafkaSettings

_COORDINATOR_WITHIN_SECONDS = 15.0
_FIRST_TRY_SECONDS = 5.0
_MOVING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)


def _coordinator_moves(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _MOVING


patiently = retry(
    retry=retry_if_exception(_coordinator_moves),
    stop=stop_after_delay(_COORDINATOR_WITHIN_SECONDS),
    wait=wait_fixed(0.3),
    reraise=True,
)
"""Waits out a coordinator that is only coming up, as after the broker's start: librdkafka gives the error back."""


@dataclass(frozen=True, slots=True)
class Described:
    """Topics as the brokers describe them. A topic that does not exist is in neither.

    Attributes:
        leaders: the broker that leads each partition; None: it has no leader.
        refused: why the brokers do not describe a topic.
    """

    leaders: Mapping[TopicPartition, int | None]
    refused: Mapping[str, KafkaException]


@dataclass(frozen=True, slots=True)
class AnsweredBounds:
    """Bounds of the partitions whose leaders answered.

    Attributes:
        found: the log start and the read_committed end of each partition.
        failed: why each other partition has no bounds.
        unheard: the partitions among the failed ones whose leaders sent nothing at all.
    """

    found: Mapping[TopicPartition, LogBounds]
    failed: Mapping[TopicPartition, str]
    unheard: Collection[TopicPartition]


class KafkaLog:
    """Reads topics' ids and bounds and groups' commits of one cluster; changes nothing.

    Args:
        settings: the cluster's Connection.
        client_id: how the broker's own tools name this client.
        timeout: how long one call may take.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str, timeout: timedelta = timedelta(seconds=20)) -> None:
        self._where = settings.bootstrap_servers
        self._timeout = timeout.total_seconds()
        self._settings = {**settings.librdkafka, "client.id": client_id, "log_level": "0"}
        self._admin = SharedAdminClient(lambda: AdminClient(self._settings))

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Every partition of these topics, with the ids the topics have now; a topic that is not there has none.

        Raises:
            UnreachableError: no broker answered in time.
        """
        return sorted(self.leaders(topics))

    def leaders(self, topics: Collection[str]) -> dict[TopicPartition, bool]:
        """Every partition of these topics, and whether it has a leader now.

        Raises:
            UnreachableError: no broker answered in time.
        """
        described = self.described(topics)
        for topic, error in described.refused.items():
            raise self._error(error, f"describing topic {topic}") from error
        return {partition: leader is not None for partition, leader in described.leaders.items()}

    def described(self, topics: Collection[str]) -> Described:
        """Return the leaders of these topics' partitions, and name the topics that may not be described.

        Raises:
            UnreachableError: no broker answered in time.
        """
        first_try = min(_FIRST_TRY_SECONDS, self._timeout / 2)
        return self._admin.ask(partial(self._described, topics), first_try, self._timeout - first_try)

    def _described(self, topics: Collection[str], client: AdminClient, seconds: float) -> Described:
        leaders: dict[TopicPartition, int | None] = {}
        refused: dict[str, KafkaException] = {}
        answers = client.describe_topics(TopicCollection(sorted(topics)), request_timeout=seconds)
        for topic, future in answers.items():
            try:
                description = future.result(seconds + ANSWER_MARGIN_SECONDS)
            except TimeoutError:
                late = KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client gave no answer"))
                raise self._error(late, f"describing topic {topic}") from None
            except KafkaException as error:
                if error.args[0].code() in SILENT:
                    raise self._error(error, f"describing topic {topic}") from error
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    refused[topic] = error
                continue
            for partition in description.partitions:
                leader = partition.leader.id if partition.leader is not None else -1
                found = TopicPartition(topic, topic_id_text(description.topic_id), partition.id)
                leaders[found] = leader if leader >= 0 else None
        return Described(leaders, refused)

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The log start and the read_committed end of each partition, in two requests a broker.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        starts = self._list_offsets(partitions, OffsetSpec.earliest())
        ends = self.ends(partitions)
        return {partition: LogBounds(starts[partition], ends[partition]) for partition in partitions}

    def ends(
        self, partitions: Collection[TopicPartition], within: timedelta | None = None
    ) -> dict[TopicPartition, int]:
        """Return the read_committed end (last stable offset) of each partition, by one request a broker.

        Args:
            partitions: partitions that have a leader.
            within: how long the request may take; None: as long as any call.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        return dict(self._list_offsets(partitions, OffsetSpec.latest(), within))

    def answered_bounds(self, partitions: Collection[TopicPartition], within: timedelta) -> AnsweredBounds:
        """Return the bounds that leaders answer in time, and why each other partition has none.

        A partition without bounds is not known to be empty: nothing is known of it.

        Two requests follow one another, starts before ends. librdkafka gives the answers back together, so one silent
        leader uses up the first request's time. The second request leaves its partitions out.

        Args:
            partitions: partitions that have a leader.
            within: how long each of the two requests may take, however many leaders are silent.
        """
        by_name = {(p.topic, p.partition): p for p in partitions}
        starts = self._answered_offsets(by_name.values(), OffsetSpec.earliest(), within)
        named = {by_name[entry.topic, entry.partition]: answer.offset for entry, answer in starts.found.items()}
        ends = self._answered_offsets(named, OffsetSpec.latest(), within)
        failed = {by_name[e.topic, e.partition]: reason for e, reason in (starts.failed | ends.failed).items()}
        found = {by_name[e.topic, e.partition]: answer.offset for e, answer in ends.found.items()}
        return AnsweredBounds(
            {partition: LogBounds(named[partition], end) for partition, end in found.items()},
            {partition: reason.str() for partition, reason in failed.items()},
            {partition for partition, reason in failed.items() if reason.code() in SILENT and partition not in named},
        )

    def _answered_offsets(self, partitions: Collection[TopicPartition], spec: OffsetSpec, within: timedelta) -> Answers:
        request = {ClientTopicPartition(p.topic, p.partition): spec for p in partitions}
        return list_answered_offsets(
            self._admin.present, request, IsolationLevel.READ_COMMITTED, within.total_seconds()
        )

    def times(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, PartitionTimes]:
        """Bounds of each partition, and its records about a time, in four requests a broker.

        The bounds are asked for after the record at the time: one that has expired or came in meanwhile is outside.

        Args:
            partitions: partitions that have a leader.
            time_ms: milliseconds since 1970.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        at = self._records(dict.fromkeys(partitions, OffsetSpec.for_timestamp(time_ms)))
        bounds = self.bounds(partitions)
        first = OffsetSpec.for_timestamp(0)  # KIP-79: the first record with a timestamp from 0
        rest = self._records({p: OffsetSpec.max_timestamp() if at[p] is None else first for p in partitions})
        return {
            p: PartitionTimes(bounds[p], at[p], first=rest[p] if at[p] else None, latest=None if at[p] else rest[p])
            for p in partitions
        }

    def firsts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, RecordAt | None]:
        """The first record that each partition holds, in one request a broker; None where that cannot be told.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        return self._records(dict.fromkeys(partitions, OffsetSpec.for_timestamp(0)))

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        """A group's commits of these partitions, by topic and number; without those it has not committed.

        Asked by a consumer that never joins: unlike the admin client's call it waits for a coordinator that is only
        coming up.

        Raises:
            UnreachableError: the group's coordinator did not answer in time, or not for every partition.
        """
        asked = [ClientTopicPartition(p.topic, p.partition) for p in partitions]
        reader = Consumer({**self._settings, "group.id": group, "enable.auto.commit": False})
        try:
            found = self._committed(reader, asked)
        except KafkaException as error:
            raise self._error(error, f"reading the offsets of group {group}") from error
        finally:
            reader.close()
        return {
            (entry.topic, entry.partition): Committed(entry.offset, entry.metadata or "")
            for entry in found
            if entry.offset >= 0
        }

    @patiently
    def _committed(self, reader: Consumer, asked: list[ClientTopicPartition]) -> list[ClientTopicPartition]:
        answer: list[ClientTopicPartition] = reader.committed(asked, timeout=self._timeout)
        for entry in answer:  # one that could not be read would look like one that was never made
            if entry.error:
                what = f"{entry.topic}/{entry.partition}: {entry.error.str()}"
                raise KafkaException(KafkaError(entry.error.code(), what))
        return answer

    def _records(self, asked: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, RecordAt | None]:
        found = self._answers(asked)
        return {p: RecordAt(*answer) if answer[0] >= 0 else None for p, answer in found.items()}

    def _list_offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, within: timedelta | None = None
    ) -> Mapping[TopicPartition, int]:
        return {p: offset for p, (offset, _) in self._answers(dict.fromkeys(partitions, spec), within).items()}

    def _answers(
        self, asked: Mapping[TopicPartition, OffsetSpec], within: timedelta | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset and timestamp that the leaders answer, by one request a broker."""
        request = {ClientTopicPartition(p.topic, p.partition): spec for p, spec in asked.items()}
        if not request:
            return {}
        try:
            seconds = self._timeout if within is None else within.total_seconds()
            answers = list_offsets(self._admin.present, request, IsolationLevel.READ_COMMITTED, seconds)
        except KafkaException as error:
            raise self._error(error, "asking for offsets") from error
        found = {(entry.topic, entry.partition): (a.offset, a.timestamp) for entry, a in answers.items()}
        return {p: found[p.topic, p.partition] for p in asked}

    def _error(self, error: KafkaException, doing: str) -> MillraceError:
        return UnreachableError(
            f"{doing} failed: {error.args[0].str()}",
            where=self._where,
            next_step="check that the brokers run and this connection may read; "
            "`./millrace doctor` tests each connection",
            code=Code.KAFKA_UNREACHABLE,
        )
