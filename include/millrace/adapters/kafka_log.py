"""What a Kafka cluster says of its logs: topic ids, partitions, and bounds for a read_committed reader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millrace.adapters.kafka_ids import topic_id_text
from millrace.domain.groups import Committed
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds
from millrace.errors import MillraceError, UnreachableError
from millrace.settings import KafkaSettings

_UNKNOWN_TOPIC = "UNKNOWN_TOPIC_OR_PART"


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
        self._admin = AdminClient({**settings.librdkafka, "client.id": client_id, "log_level": 2})

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Every partition of these topics, with the ids the topics have now; a topic that is not there has none.

        Raises:
            UnreachableError: no broker answered in time.
        """
        found: list[TopicPartition] = []
        answers = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=self._timeout)
        for topic, future in answers.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].name() == _UNKNOWN_TOPIC:
                    continue
                raise self._error(error, f"describing topic {topic}") from error
            found += [
                TopicPartition(topic, topic_id_text(description.topic_id), partition.id)
                for partition in description.partitions
            ]
        return sorted(found)

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The log start and the read_committed end of each partition, in two requests a broker.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        starts = self._list_offsets(partitions, OffsetSpec.earliest())
        ends = self._list_offsets(partitions, OffsetSpec.latest())
        return {partition: LogBounds(starts[partition], ends[partition]) for partition in partitions}

    def committed(self, group: str) -> dict[tuple[str, int], Committed]:
        """A group's commits by topic and partition; empty where the group does not exist.

        Raises:
            UnreachableError: the group's coordinator did not answer in time.
        """
        request = [ConsumerGroupTopicPartitions(group)]
        answers = self._admin.list_consumer_group_offsets(request, request_timeout=self._timeout)
        try:
            offsets = answers[group].result().topic_partitions
        except KafkaException as error:
            raise self._error(error, f"reading the offsets of group {group}") from error
        return {
            (entry.topic, entry.partition): Committed(entry.offset, entry.metadata or "")
            for entry in offsets
            if entry.offset >= 0
        }

    def _list_offsets(self, partitions: Collection[TopicPartition], spec: OffsetSpec) -> Mapping[TopicPartition, int]:
        request = {ClientTopicPartition(p.topic, p.partition): spec for p in partitions}
        if not request:
            return {}
        answers = self._admin.list_offsets(
            request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout
        )
        found: dict[tuple[str, int], int] = {}
        for entry, future in answers.items():
            try:
                found[entry.topic, entry.partition] = future.result().offset
            except KafkaException as error:
                raise self._error(error, f"asking for the offsets of {entry.topic}/{entry.partition}") from error
        return {p: found[p.topic, p.partition] for p in partitions}

    def _error(self, error: KafkaException, doing: str) -> MillraceError:
        return UnreachableError(
            f"{doing} failed: {error.args[0].str()}",
            where=self._where,
            next_step="see that the brokers run and that the connection may read; `./millrace doctor` tries each one",
        )
