"""Kafka, built by Connection."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.adapters.kafka.cluster.snapshot import ClusterReader
    from millrace.adapters.kafka.groups import KafkaGroups
    from millrace.adapters.kafka.headroom import UnreadLogs
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.kafka.producers.restore import RestoreTarget
    from millrace.adapters.kafka.reader import TopicReader
    from millrace.ports.kafka import TopicAdmin


@dataclass(frozen=True)
class KafkaAdapters:
    """Clusters by `kafka` Connections (`ports.platform.Kafka`)."""

    settings: Settings
    _topics: dict[str, TopicAdmin] = field(default_factory=dict, repr=False)
    _groups: dict[str, KafkaGroups] = field(default_factory=dict, repr=False)
    _logs: dict[str, KafkaLog] = field(default_factory=dict, repr=False)
    _clusters: dict[str, ClusterReader] = field(default_factory=dict, repr=False)

    def topics(self, connection: str = "millrace_kafka") -> TopicAdmin:
        """Return the topics of a cluster."""
        if connection not in self._topics:
            from millrace.adapters.kafka.topics import KafkaTopicAdmin

            self._topics[connection] = KafkaTopicAdmin(self.settings.kafka(connection))
        return self._topics[connection]

    def groups(self, connection: str = "millrace_kafka") -> KafkaGroups:
        """Return the consumer groups of a cluster."""
        if connection not in self._groups:
            from millrace.adapters.kafka.groups import KafkaGroups

            self._groups[connection] = KafkaGroups(self.settings.kafka(connection))
        return self._groups[connection]

    def cluster(self, connection: str = "millrace_kafka") -> ClusterReader:
        """Return the reader of a whole cluster."""
        if connection not in self._clusters:
            from millrace.adapters.kafka.cluster.snapshot import ClusterReader

            self._clusters[connection] = ClusterReader(self.settings.kafka(connection))
        return self._clusters[connection]

    def logs(self, connection: str = "millrace_kafka") -> KafkaLog:
        """Return the logs of a cluster."""
        if connection not in self._logs:
            from millrace.adapters.kafka.log import KafkaLog

            self._logs[connection] = KafkaLog(self.settings.kafka(connection), client_id="millrace")
        return self._logs[connection]

    def records(self, connection: str = "millrace_kafka") -> TopicReader:
        """Return a reader of records of a cluster."""
        from millrace.adapters.kafka.reader import TopicReader

        return TopicReader(self.settings.kafka(connection))

    def unread(self, connection: str = "millrace_kafka") -> UnreadLogs:
        """Return the unread part of a cluster's logs."""
        from millrace.adapters.kafka.headroom import UnreadLogs

        return UnreadLogs(self.logs(connection), self.topics(connection), self.records(connection))

    def close(self) -> None:
        """Close the connections of the readers of whole clusters."""
        for cluster in [*self._clusters.values()]:
            cluster.close()

    def restore_target(
        self, topic: str, transactional_id: str, max_message_bytes: int, connection: str = "millrace_kafka"
    ) -> AbstractContextManager[RestoreTarget]:
        """Open a topic for one restore (see `adapters.kafka.producers.restore.open_restore_target`)."""
        from millrace.adapters.kafka.producers.restore import open_restore_target

        return open_restore_target(self.settings.kafka(connection), topic, transactional_id, max_message_bytes)
