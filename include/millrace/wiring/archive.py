"""Archives of backups, built by Connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from millrace.settings import Settings
from millrace.wiring.kafka import KafkaAdapters
from millrace.wiring.objects import ObjectAdapters, hasty_store

if TYPE_CHECKING:
    from millrace.adapters.archive.audits.auditor import Auditor
    from millrace.adapters.archive.audits.claims import Claims
    from millrace.adapters.archive.audits.evidence import EvidenceStore
    from millrace.adapters.archive.collecting import Collector
    from millrace.adapters.archive.heads import ChainHeads
    from millrace.adapters.archive.reading import ArchiveReader
    from millrace.domain.archive.names import Incarnation
    from millrace.domain.declaration.pipeline import BackupApp


@dataclass(frozen=True)
class ArchiveAdapters:
    """Archives of backups (`ports.platform.Archive`)."""

    settings: Settings
    kafka: KafkaAdapters
    objects: ObjectAdapters

    def reader(self, connection: str = "millrace_s3") -> ArchiveReader:
        """Return a reader of the archives in a bucket."""
        from millrace.adapters.archive.reading import ArchiveReader

        return ArchiveReader(self.objects.store(connection))

    def hasty_heads(self, connection: str) -> ChainHeads:
        """Return the ends of the chains in a bucket: each request is sent twice and has 5 s."""
        from millrace.adapters.archive.heads import ChainHeads

        return ChainHeads(hasty_store(self.settings, connection, attempts=2))

    def evidence(self, connection: str = "millrace_s3") -> EvidenceStore:
        """Return the evidence of audits in a bucket."""
        from millrace.adapters.archive.audits.evidence import EvidenceStore

        return EvidenceStore(self.objects.store(connection))

    def claims(self, app: BackupApp, kafka: str = "millrace_kafka") -> Claims:
        """Return what a backup's commits know of its chains."""
        from millrace.adapters.archive.audits.claims import Claims

        return Claims(self.kafka.logs(kafka), app)

    def auditor(self, app: BackupApp, kafka: str = "millrace_kafka") -> Auditor:
        """Return the auditor of a backup's archives, compared with a cluster."""
        from millrace.adapters.archive.audits.auditor import Auditor
        from millrace.adapters.archive.looks import Looks
        from millrace.domain.topics.offsets import TopicPartition

        looks, reader = Looks(self.kafka.logs(kafka), self.kafka.topics(kafka)), self.kafka.records(kafka)

        def deletable(here: Incarnation, positions: dict[int, int]) -> timedelta | None:
            asked = {TopicPartition(here.topic, here.topic_id, number): at for number, at in positions.items()}
            least = self.kafka.unread(kafka).least(asked)
            return least.left if least else None

        return Auditor(
            app=app.qualified_name,
            store=self.objects.store(app.store),
            look=lambda topic: looks.look([topic])[topic],
            reads=reader.between,
            claims=self.claims(app, kafka).of,
            deletable=deletable,
        )

    def collector(self, app: BackupApp, kafka: str = "millrace_kafka") -> Collector:
        """Return the collector of objects that a backup's archives no longer need."""
        from millrace.adapters.archive.collecting import Collector
        from millrace.adapters.archive.looks import Looks

        looks = Looks(self.kafka.logs(kafka), self.kafka.topics(kafka))
        return Collector(self.objects.store(app.store), lambda topic: looks.look([topic])[topic])
