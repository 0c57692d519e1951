"""All adapters of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millrace.domain.declaration.sinks import CONTROL
from millrace.settings import Settings
from millrace.wiring.apps import AppAdapters
from millrace.wiring.archive import ArchiveAdapters
from millrace.wiring.control import open_control
from millrace.wiring.kafka import KafkaAdapters
from millrace.wiring.objects import ObjectAdapters
from millrace.wiring.sink_readers import SinkAdapters

if TYPE_CHECKING:
    from millrace.ports.control.database import Control
    from millrace.ports.platform import Platform


class Adapters:
    """The real adapters (`ports.platform.Platform`), as the Connections of some settings say.

    Args:
        settings: the installation's.
        control: the control database; default: what its Connection leads to, on first use.
        kafka: the clusters; default: what their Connections lead to.
    """

    def __init__(self, settings: Settings, *, control: Control | None = None, kafka: KafkaAdapters | None = None):
        self.settings = settings
        self.kafka = kafka or KafkaAdapters(settings)
        self.objects = ObjectAdapters(settings)
        self.archive = ArchiveAdapters(settings, self.kafka, self.objects)
        self.sinks = SinkAdapters(settings, self.objects)
        self.apps = AppAdapters(settings)
        self.unanswered: dict[str, float] = {}
        self.signed: dict[str, float] = {}
        self._control: dict[str, Control] = {} if control is None else {CONTROL: control}

    @property
    def control(self) -> Control:
        """The control database; the same one to every thread."""
        if CONTROL not in self._control:
            self._control.setdefault(CONTROL, open_control(self.settings))  # one, also for two threads
        return self._control[CONTROL]

    def close(self) -> None:
        """Give back what is kept between calls: the control database's pool and the clusters' connections.

        The next use opens them again; a call that has one finishes with it. Clients of librdkafka end with this object.
        """
        for control in [*self._control.values()]:
            control.close()
        self.kafka.close()

    def post(self, connection: str, document: Mapping[str, object]) -> None:
        """Send a document to the webhook that an `http` Connection leads to (see `adapters.alarms.webhook.post`)."""
        from millrace.adapters.alarms.webhook import post

        post(self.settings.connection(connection), document)


def open_platform(settings: Settings) -> Platform:
    """Return the real adapters, as the Connections of these settings say."""
    return Adapters(settings)
