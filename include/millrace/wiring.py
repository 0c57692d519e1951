"""The only place that builds adapters: what a use case works with, opened when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.adapters.control_db import ControlStore
    from millrace.adapters.control_migrations import MigrationReport
    from millrace.domain.declaration import Pipeline
    from millrace.ports import TopicAdmin
    from millrace.usecases.sources import LoadProgress, LoadReport

CONTROL = "millrace_control"
CONTROL_OWNER = "millrace_control_owner"


@dataclass(frozen=True)
class Platform:
    """The adapters of one process. Each is built on its first use and then kept; none is contacted before."""

    settings: Settings
    _control: list[ControlStore] = field(default_factory=list, repr=False)
    _topic_admins: dict[str, TopicAdmin] = field(default_factory=dict, repr=False)

    def control(self) -> ControlStore:
        """The control database."""
        if not self._control:
            from millrace.adapters.control_db import ControlStore

            self._control.append(ControlStore(self.settings.postgres(CONTROL)))
        return self._control[0]

    def topic_admin(self, connection: str = "millrace_kafka") -> TopicAdmin:
        """The topics of the cluster that a `kafka` Connection leads to."""
        if connection not in self._topic_admins:
            from millrace.adapters.kafka_topics import KafkaTopicAdmin

            self._topic_admins[connection] = KafkaTopicAdmin(self.settings.kafka(connection))
        return self._topic_admins[connection]


def open_platform(settings: Settings) -> Platform:
    """The real adapters, as the Connections of these settings say."""
    return Platform(settings)


def upgrade_control(settings: Settings) -> MigrationReport:
    """Bring the control database up to date, as its owner where `millrace_control_owner` is defined."""
    from millrace.adapters.control_migrations import upgrade

    working = settings.postgres(CONTROL)
    owner = settings.postgres(CONTROL_OWNER) if settings.lookup(CONTROL_OWNER) is not None else working
    return upgrade(owner, working.user)


def load_source(
    settings: Settings, pipeline: Pipeline, name: str, progress: Callable[[LoadProgress], None]
) -> LoadReport:
    """Load a declared source into its topic (see `usecases.sources.load_source`)."""
    from millrace.adapters.kafka_producer import open_source_topic
    from millrace.usecases import sources

    return sources.load_source(settings, pipeline, name, progress, open_topic=open_source_topic)
