"""Consumer groups of one cluster: how far they are behind, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

TIMEOUT_SECONDS = 5.0
COORDINATOR_WITHIN_SECONDS = 15.0
_MOVING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
_ABSENT = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART})


def _coordinator_moves(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _MOVING


_patiently = retry(
    retry=retry_if_exception(_coordinator_moves),
    stop=stop_after_delay(COORDINATOR_WITHIN_SECONDS),
    wait=wait_fixed(0.3),
    reraise=True,
)
"""Waits out a coordinator that is only coming up, as after the broker's start: librdkafka gives the error back."""


class KafkaGroups:
    """Reads groups; changes none."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._address = settings.bootstrap_servers
        quiet: dict[str, str | int] = {
            "log_level": 0,
            "client.id": "millrace",
            "socket.timeout.ms": int(TIMEOUT_SECONDS * 1000),
        }
        self._settings: dict[str, str | int] = {**settings.librdkafka, **quiet}
        self._admin = AdminClient(self._settings)

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
            committed = self._committed(group, partitions)
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
        try:
            return self._count_members(group)
        except KafkaException as error:
            if error.args[0].code() in _ABSENT:
                return 0
            raise self._unreachable(error) from error

    @_patiently
    def _count_members(self, group: str) -> int:
        asked = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)[group]
        return len(asked.result().members)

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

    @_patiently
    def _committed(self, group: str, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The group's commits, asked by a consumer that never joins: it waits for a coordinator that is coming up.

        The admin client's `list_consumer_group_offsets` does not: it was seen to end the process (confluent-kafka
        2.16.1, segmentation fault) when asked while the coordinator of a fresh broker loads.
        """
        reader = Consumer({**self._settings, "group.id": group, "enable.auto.commit": False})
        try:
            asked = [TopicPartition(topic, partition) for topic, partition in keys]
            answer = reader.committed(asked, timeout=COORDINATOR_WITHIN_SECONDS)
        finally:
            reader.close()
        return {(each.topic, each.partition): each.offset for each in answer if each.offset >= 0}

    def _unreachable(self, error: KafkaException) -> UnreachableError:
        return UnreachableError(
            f"the Kafka cluster does not answer: {error.args[0].name()} {error.args[0].str()}",
            where=self._address,
            next_step="see with `millrace doctor` whether it runs and the connection is right",
        )
