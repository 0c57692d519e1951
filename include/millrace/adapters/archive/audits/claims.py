"""What the group's commits of a backup know of its chains: each names the manifest that was the last one then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import structlog

from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.archive.audits.memory import Claim
from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration.pipeline import BackupApp
from millrace.domain.groups.commits import BackupMetadata
from millrace.errors import UnreachableError

log = structlog.get_logger()


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

        A topic that may not be described is left out. So are former ones while the group's coordinator is away.

        Raises:
            UnreachableError: no broker answers.
        """
        partitions = sorted(self._log.described(self._app.reads).leaders)
        found = {Incarnation(partition.topic, partition.topic_id) for partition in partitions}
        try:
            committed = self._log.committed(self._app.group, partitions)
        except UnreachableError as error:
            log.warning("former_topics_not_known", group=self._app.group, error=error.what)
            return found
        for (topic, _), commit in committed.items():
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
