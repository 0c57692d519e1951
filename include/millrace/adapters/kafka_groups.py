"""Consumer groups of one cluster: how far they are behind, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka_log import KafkaLog, patiently
from millrace.domain.groups import CommitMetadata
from millrace.errors import UnreachableError, UsageError
from millrace.settings import KafkaSettings

TIMEOUT = timedelta(seconds=5)


class KafkaGroups:
    """Reads groups; changes none.

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
                f"no client can be made of the kafka connection's properties: {error.args[0].str()}",
                where=self._address,
                next_step="mend its extra: it holds librdkafka's own keys",
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
        """The greatest epoch of a stream that the group's commits name; 0 where none does.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        committed = self._log.committed(group, self._log.partitions(topics))
        found = [CommitMetadata.decode(commit.metadata) for commit in committed.values()]
        return max((one.epoch for one in found if one is not None and one.stream == stream), default=0)

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
                next_step="see with `millrace doctor` whether the cluster runs and the connection is right",
            ) from error

    @patiently
    def _count_members(self, group: str) -> int:
        asked = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT.total_seconds())[group]
        return len(asked.result().members)
