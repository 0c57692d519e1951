"""Consumer groups of one cluster: how far they are behind, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

TIMEOUT_SECONDS = 5.0
_ABSENT = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART})


class KafkaGroups:
    """Reads groups; changes none."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._address = settings.bootstrap_servers
        quiet = {"log_level": 0, "client.id": "millrace"}
        self._admin = AdminClient({**settings.librdkafka, **quiet, "socket.timeout.ms": int(TIMEOUT_SECONDS * 1000)})

    def lag(self, group: str, topics: Sequence[str]) -> int | None:
        """Records between the group's commits and the end of the topics, as a reader of committed data sees it.

        A partition without a commit counts from the log's start. None where a topic does not exist.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        try:
            partitions = self._partitions(topics)
            if partitions is None:
                return None
            ends = self._offsets(partitions, OffsetSpec.latest())
            committed = self._committed(group)
            without = [key for key in partitions if key not in committed]
            starts = self._offsets(without, OffsetSpec.earliest()) if without else {}
        except KafkaException as error:
            raise self._unreachable(error) from error
        return sum(max(0, ends[key] - committed.get(key, starts.get(key, 0))) for key in partitions)

    def members(self, group: str) -> int:
        """How many members the group has, also those that left without a word and are not timed out yet.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        asked = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)[group]
        try:
            return len(asked.result().members)
        except KafkaException as error:
            if error.args[0].code() in _ABSENT:
                return 0
            raise self._unreachable(error) from error

    def _partitions(self, topics: Sequence[str]) -> list[tuple[str, int]] | None:
        found = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS)
        keys: list[tuple[str, int]] = []
        for name, answer in found.items():
            try:
                keys += [(name, partition.id) for partition in answer.result().partitions]
            except KafkaException as error:
                if error.args[0].code() in _ABSENT:
                    return None
                raise
        return keys

    def _offsets(self, keys: Sequence[tuple[str, int]], which: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(topic, partition): which for topic, partition in keys}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
        )
        return {(key.topic, key.partition): answer.result().offset for key, answer in answers.items()}

    def _committed(self, group: str) -> dict[tuple[str, int], int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = self._admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_SECONDS)[group]
        try:
            partitions = answer.result().topic_partitions
        except KafkaException as error:
            if error.args[0].code() in _ABSENT:
                return {}
            raise
        return {(each.topic, each.partition): each.offset for each in partitions if each.offset >= 0}

    def _unreachable(self, error: KafkaException) -> UnreachableError:
        return UnreachableError(
            f"the Kafka cluster does not answer: {error.args[0].str()}",
            where=self._address,
            next_step="see with `millrace doctor` whether it runs and the connection is right",
        )
