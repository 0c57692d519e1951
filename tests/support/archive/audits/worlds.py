"""Archives that a tee made of real topics, audited as the command does it: with evidence, alarms, acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.adapters.control.store import ControlStore
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.archive.audits.findings import Depth
from millrace.domain.archive.manifest import Kind, Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration.pipeline import BackupApp
from millrace.runtime.backup.tee import Tee
from millrace.usecases.archive import audits
from millrace.usecases.archive.audits import Backed, Kept
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, Archive, records
from support.archive.tees import TeeWorld, Topics
from support.stack.control_databases import Databases
from support.stack.faulty_proxy import plain_client


@dataclass
class AuditWorld(TeeWorld):
    """A tee's world whose acknowledgements and alarms are rows of a control database of its own."""

    raw: Any = None
    kept: list[Kept] = field(default_factory=list)

    @classmethod
    def of(cls, topics: Topics, databases: Databases, *names: str, **more: Any) -> AuditWorld:
        database = databases.create_upgraded()
        platform = topics.platform
        platform._control = {"millrace_control": ControlStore(database.working)}
        raw = plain_client(topics.settings.s3())
        return cls(topics, names, platform.objects.store(), raw=raw, **more)

    @property
    def app(self) -> BackupApp:
        return super().app

    def tee(self) -> Tee:
        """An epoch that asks the control database."""
        backups = self.topics.platform.control.backups
        alarms = self.topics.platform.control.alarms

        def breach(kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
            alarms.close(kind, subject) if detail is None else alarms.open(kind, subject, detail, extent)

        asked = lambda: backups.waiting(self.app.qualified_name)  # noqa: E731
        return self.next_epoch(
            asked=asked,
            taken=backups.taken,
            expiries=lambda: backups.expiries(self.app.qualified_name),
            expired=backups.expired,
            breach=breach,
        )

    def backed(self, name: str) -> Backed:
        topic = next(each for each in self.app.topics if each.name == name)
        return Backed(self.app, "millrace_kafka", topic)

    def here(self, name: str, topic_id: str = "") -> Incarnation:
        return Incarnation(name, topic_id or self.topics.topic_id(name))

    def audit(self, name: str, depth: Depth = Depth.SHALLOW, topic_id: str = "") -> Kept:
        kept = audits.audit(self.topics.platform, self.backed(name), self.here(name, topic_id), depth)
        assert kept.failures == ()
        self.kept.append(kept)
        return kept

    def open_alarms(self, here: Incarnation) -> dict[str, str]:
        found = self.topics.platform.control.alarms.list()
        return {alarm.kind: alarm.detail for alarm in found if alarm.subject == str(here)}

    def contents(self, here: Incarnation) -> dict[str, bytes]:
        """Every object of an archive but its summaries, as it is now."""
        keys = [info.key for info in self.store.list(here.prefix) if not info.key.startswith(here.summaries)]
        return {key: self.store.get(key) or b"" for key in keys}

    def put_back(self, here: Incarnation, contents: dict[str, bytes]) -> None:
        """Make an archive as it was."""
        bucket = self.topics.settings.s3().bucket
        now = self.contents(here)
        self.store.delete([key for key in now if key not in contents])
        for key, data in contents.items():
            if now.get(key) != data:
                self.raw.put_object(Bucket=bucket, Key=key, Body=data)


def archive_by_tee(world: AuditWorld, name: str) -> Archive:
    """Make by a tee the archive that `support.archive.small_archive` builds by hand, of the same records."""
    tee = world.tee()
    for number in range(ROUNDS):
        for partition in range(PARTITIONS):
            produce_round(world.topics, name, partition, number * OFFSETS)
        world.archive_all(tee)
    here = world.here(name)
    chain = [decode(link.data or b"", Manifest, link.key) for link in links(world.store, here)]
    data = [manifest for manifest in chain if manifest.kind is Kind.DATA]
    assert [len(manifest.objects) for manifest in data] == [PARTITIONS] * ROUNDS
    return Archive(world.store, here, world.topics.settings.s3().bucket, world.raw, data)


def produce_round(topics: Topics, name: str, partition: int, first: int) -> None:
    """Ten offsets: eight records of a transaction, its marker, and one record."""
    given = records(partition, first)
    before = topics.end(name, partition)
    producer = Producer({**topics.kafka.librdkafka, "transactional.id": f"{name}/{partition}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for record in given[:-1]:
        _produce(producer, name, partition, record)
    producer.commit_transaction(30)
    topics.until_end(name, partition, before + len(given))
    plain = Producer({**topics.kafka.librdkafka, "log_level": 0})
    _produce(plain, name, partition, given[-1])
    assert plain.flush(60) == 0
    topics.until_end(name, partition, before + OFFSETS)


def _produce(producer: Any, name: str, partition: int, record: Any) -> None:
    headers = list(record.headers)
    producer.produce(
        name, record.value, record.key, partition=partition, timestamp=record.timestamp_ms, headers=headers
    )
