"""Consumer groups of one cluster: how far they are behind, who is in them, and where they shall begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NoReturn

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka.log import KafkaLog, patiently
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, RefusedError, UnreachableError, UsageError
from millrace.settings import KafkaSettings

TIMEOUT = timedelta(seconds=5)
_COMMITS_TOGETHER = 1_000  # a coordinator writes those of one request as one batch, of a megabyte at most
_NOT_EMPTY = frozenset({KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION})


class KafkaGroups:
    """Reads groups; changes only what `move` is given.

    Args:
        settings: the cluster's Connection.

    Raises:
        UsageError: no client can be made of the Connection's properties.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._address = settings.bootstrap_servers
        try:
            self._log = KafkaLog(settings, client_id="millrace", timeout=TIMEOUT)
            self._admin = AdminClient({**settings.librdkafka, "client.id": "millrace", "log_level": 0})
        except KafkaException as error:
            raise UsageError(
                f"a Kafka client cannot be created from the connection's properties: {error.args[0].str()}",
                where=self._address,
                next_step="correct its extra: it holds librdkafka's own keys",
                code=Code.WRONG_CONNECTION,
            ) from error

    def lag(self, group: str, topics: Sequence[str]) -> int | None:
        """Records between the group's commits and the end of the topics, as a reader of committed data sees it.

        A partition without a commit counts from the log's start. None where a topic does not exist.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        partitions = self._log.partitions(topics)
        if {partition.topic for partition in partitions} != set(topics):
            return None
        bounds = self._log.bounds(partitions)
        committed = self._log.committed(group, partitions)
        behind = 0
        for partition in partitions:
            known = committed.get((partition.topic, partition.partition))
            reached = bounds[partition].start if known is None else known.offset
            behind += max(0, bounds[partition].end - reached)
        return behind

    def newest_epoch(self, group: str, topics: Sequence[str], stream: str) -> int:
        """Return the greatest epoch of a stream or a backup that the group's commits name; 0 where none does.

        A topic that may not be described is left out.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        committed = self._log.committed(group, sorted(self._log.described(topics).leaders))
        texts = [commit.metadata for commit in committed.values()]
        of_streams = [one.epoch for text in texts if (one := CommitMetadata.decode(text)) and one.stream == stream]
        of_backups = [own.epoch for text in texts if (own := BackupMetadata.decode(text)) and own.app == stream]
        return max(of_streams + of_backups, default=0)

    def move(self, group: str, moves: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets, with their metadata, to a group that nobody is in; read back, so that it is so.

        Twice is once. Of many partitions some may be moved and others not when it fails.

        Raises:
            RefusedError: somebody is in the group.
            UnreachableError: the cluster does not answer, or does not take a commit.
        """
        asked = sorted(moves)
        for begin in range(0, len(asked), _COMMITS_TOGETHER):
            part = asked[begin : begin + _COMMITS_TOGETHER]
            self._move(group, {partition: moves[partition] for partition in part})
        found = self._log.committed(group, asked)
        for partition in asked:
            there = found.get((partition.topic, partition.partition))
            if there is None or (there.offset, there.metadata) != moves[partition]:
                at = there.offset if there else "no offset"
                raise RefusedError(
                    f"{partition} was moved to {moves[partition][0]} and is at {at}: another client commits",
                    where=f"group {group} at {self._address}",
                    next_step="run `kafka-consumer-groups --describe` to find who uses the group",
                    code=Code.GROUP_IN_USE,
                )

    def _move(self, group: str, moves: Mapping[TopicPartition, tuple[int, str]]) -> None:
        entries = [ClientTopicPartition(p.topic, p.partition, *where) for p, where in moves.items()]
        request = ConsumerGroupTopicPartitions(group, entries)
        try:
            answer = self._alter(request)
        except KafkaException as error:
            self._raise_not_moved(group, error.args[0])
        for entry in answer.topic_partitions or []:
            if entry.error:
                self._raise_not_moved(group, entry.error)

    @patiently
    def _alter(self, request: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
        [asked] = self._admin.alter_consumer_group_offsets([request], request_timeout=TIMEOUT.total_seconds()).values()
        answer: ConsumerGroupTopicPartitions = asked.result()
        return answer

    def _raise_not_moved(self, group: str, error: KafkaError) -> NoReturn:
        where = f"group {group} at {self._address}"
        if error.code() in _NOT_EMPTY:
            raise RefusedError(
                f"the group cannot be moved while it has members: {error.str()}",
                where=where,
                next_step="stop the stream; `kafka-consumer-groups --describe --members` shows other members",
                code=Code.GROUP_IN_USE,
            )
        raise UnreachableError(
            f"the group could not be moved: {error.str()}",
            where=where,
            next_step="run the plan again",
            code=Code.KAFKA_UNREACHABLE,
        )

    def members(self, group: str) -> int:
        """How many members the group has, also those that left without a word and are not timed out yet.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        try:
            return self._count_members(group)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise UnreachableError(
                f"the group cannot be described: {error.args[0].str()}",
                where=f"group {group} at {self._address}",
                next_step="run `millrace doctor` to check the cluster and the connection",
                code=Code.KAFKA_UNREACHABLE,
            ) from error

    @patiently
    def _count_members(self, group: str) -> int:
        asked = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT.total_seconds())[group]
        return len(asked.result().members)
