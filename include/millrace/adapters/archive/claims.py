"""What the group's commits of a backup know of its chains: each names the manifest that was the last one then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from millrace.adapters.kafka_log import KafkaLog
from millrace.domain.archive.memory import Claim
from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration import BackupApp
from millrace.domain.groups import BackupMetadata


class Claims:
    """Asks the group.

    Args:
        log: of the cluster.
        app: the backup; what others committed says nothing.
    """

    def __init__(self, log: KafkaLog, app: BackupApp) -> None:
        self._log = log
        self._app = app

    def of(self, here: Incarnation) -> list[Claim]:
        """The furthest manifest of one incarnation that a commit knows of; nothing where none does.

        Raises:
            UnreachableError: a broker does not answer.
        """
        said = [each for each in self._said(here.topic) if each.topic_id == here.topic_id]
        last = max(said, key=lambda each: each.sequence, default=None)
        return [Claim(last.sequence, last.sha256, f"the commits of {self._app.group}")] if last else []

    def incarnations(self) -> set[Incarnation]:
        """Return the app's topics as they are now, and the former ones that commits know of: it writes those chains.

        Raises:
            UnreachableError: a broker does not answer.
        """
        partitions = self._log.partitions(self._app.reads)
        found = {Incarnation(partition.topic, partition.topic_id) for partition in partitions}
        for (topic, _), commit in self._log.committed(self._app.group, partitions).items():
            said = BackupMetadata.decode(commit.metadata)
            if said is not None and said.app == self._app.qualified_name:
                with suppress(ValueError, TypeError):  # no topic has such an id: somebody made the commit by hand
                    found.add(Incarnation(topic, said.topic_id))
        return found

    def topic_ids(self, topic: str) -> set[str]:
        """The ids of a topic that commits know of, and the one it has now.

        Raises:
            UnreachableError: a broker does not answer.
        """
        now = {partition.topic_id for partition in self._log.partitions([topic])}
        return now | {each.topic_id for each in self._said(topic)}

    def _said(self, topic: str) -> Iterator[BackupMetadata]:
        commits = self._log.committed(self._app.group, self._log.partitions([topic]))
        for commit in commits.values():
            said = BackupMetadata.decode(commit.metadata)
            if said is not None and said.app == self._app.qualified_name:
                yield said
