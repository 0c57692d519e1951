"""A tee over a topic of its own, on the real broker and the real store, round by round in the test's own process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millrace.adapters.archive.audits.inspection import Inspection, everything, inspect
from millrace.adapters.archive.looks import Looks
from millrace.adapters.archive.plain import PlainCopier
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.expiry import Expiry
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import LogsSeen, Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import Backup, BackupApp, Topic
from millrace.domain.groups.commits import Committed
from millrace.domain.topics.offsets import TopicPartition
from millrace.embedded.stack import Stack
from millrace.ports.objects import ObjectStore
from millrace.ports.platform import Platform
from millrace.runtime.backup.parts import Copier, Parts
from millrace.runtime.backup.tee import Round, Tee
from millrace.settings import Settings
from millrace.wiring import open_platform
from support.waiting import Deadline, eventually, in_time, result_of

ROUNDS_APART = timedelta(milliseconds=10)
DUE_AT_ONCE = Backup(every=timedelta(0), max_lag=timedelta(0))
ANY_TIMESTAMP = {"message.timestamp.after.max.ms": str(2**63 - 1)}


class Topics:
    """Topics of a test's own: made, filled, trimmed, grown, deleted."""

    def __init__(self, stack: Stack) -> None:
        self.settings: Settings = stack.settings()
        self.platform: Platform = open_platform(self.settings)
        self.kafka = self.settings.kafka()
        self.admin = AdminClient(dict(self.kafka.librdkafka))
        self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        self._producer: Any = None
        self._forget_transactional()

    def name(self, suffix: str = "events") -> str:
        return f"{self.pipeline}.{suffix}"

    def make(self, suffix: str = "events", *, partitions: int = 2, **config: str) -> str:
        """A new topic, or one of the same name again; its full name."""
        name = self.name(suffix)
        settings = ANY_TIMESTAMP | {key.replace("_", "."): value for key, value in config.items()}
        result_of(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name], what=name)
        self._until(lambda: len(self.platform.kafka.logs().partitions([name])) == partitions, f"{name} to be known")
        return name

    def delete(self, name: str) -> None:
        result_of(self.admin.delete_topics([name])[name], what=f"{name} to be deleted")
        self._until(lambda: not self.platform.kafka.logs().partitions([name]), f"{name} to be gone")
        self._forget_transactional()  # a topic that is made anew knows no producer that has numbered its records

    def grow(self, name: str, partitions: int) -> None:
        result_of(self.admin.create_partitions([NewPartitions(name, partitions)])[name], what=f"{name} to grow")
        self._until(lambda: len(self.platform.kafka.logs().partitions([name])) == partitions, f"{name} to have grown")
        self._producer = None  # the old one knows of the new partitions in some minutes only
        self._forget_transactional()

    def trim(self, name: str, partition: int, to: int) -> None:
        """DeleteRecords: the log begins at this offset from now on."""
        asked = ClientTopicPartition(name, partition, to)
        [answer] = self.admin.delete_records([asked]).values()
        result_of(answer, what=f"{name}/{partition} to be trimmed")

    def produce(self, name: str, partition: int, values: Sequence[bytes | None], **more: Any) -> None:
        """Records one after the other, acknowledged when this returns."""
        if self._producer is None:
            self._producer = Producer({**self.kafka.librdkafka, "acks": "all", "linger.ms": 5, "log_level": 0})
        for value in values:
            self._producer.produce(name, value, partition=partition, **more)
        assert self._producer.flush(60) == 0

    def transaction(self, name: str, partition: int, values: Sequence[bytes], *, commit: bool) -> None:
        """A transaction that is committed, or aborted after its records were written; decided when this returns."""
        before = self.end(name, partition)
        idle = self._transactional[commit]
        try:
            producer = idle.pop()
        except IndexError:
            producer = self._open_transactional()
        self._write(producer, name, partition, values)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
        idle.append(producer)
        self.until_end(name, partition, before + len(values) + 1)  # a marker comes after its producer has been told

    def open_transaction(self, name: str, partition: int, values: Sequence[bytes]) -> Any:
        """Records of a transaction that nobody has decided; its producer."""
        producer = self._open_transactional()
        self._write(producer, name, partition, values)
        return producer

    def _forget_transactional(self) -> None:
        """Let those that threads use now be no idle ones afterwards: they return to a list that nobody looks at."""
        self._transactional: Mapping[bool, list[Any]] = {True: [], False: []}

    def _open_transactional(self) -> Any:
        """A producer with an id of its own, for which the broker takes half a second."""
        producer = Producer({**self.kafka.librdkafka, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        producer.init_transactions(30)
        return producer

    def _write(self, producer: Any, name: str, partition: int, values: Sequence[bytes]) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value, partition=partition)
        assert producer.flush(60) == 0

    def end(self, name: str, partition: int) -> int:
        """The last stable offset."""
        log = self.platform.kafka.logs()
        return next(end for p, end in log.ends(log.partitions([name])).items() if p.partition == partition)

    def until_end(self, name: str, partition: int, end: int) -> None:
        self._until(lambda: self.end(name, partition) == end, f"{name}/{partition} to end at {end}")

    def topic_id(self, name: str) -> str:
        return next(iter(self.platform.kafka.logs().partitions([name]))).topic_id

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        eventually(holds, within=Deadline.METADATA, what=what)


@dataclass
class Group:
    """What a group's commits are, without a group: who commits here is not what these tests are about."""

    commits: dict[tuple[str, int], Committed] = field(default_factory=dict)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        keys = {(partition.topic, partition.partition) for partition in partitions}
        return {key: commit for key, commit in self.commits.items() if key in keys}

    def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self.commits |= {(partition.topic, partition.partition): commit for partition, commit in commits.items()}


@dataclass
class TeeWorld:
    """Topics with a backup, the store, the group; any number of epochs of the tee, one after the other or at once."""

    topics: Topics
    names: Sequence[str]
    store: ObjectStore
    backup: Backup = DUE_AT_ONCE
    group: Group = field(default_factory=Group)
    breaches: dict[tuple[str, str], str | None] = field(default_factory=dict)
    asked: list[Acknowledgement] = field(default_factory=list)
    expiries: list[Expiry] = field(default_factory=list)
    expired: dict[int, int] = field(default_factory=dict)
    copiers: Callable[[ObjectStore], Copier] | None = None
    epoch: int = 0

    @property
    def app(self) -> BackupApp:
        declared = tuple(Topic(name, self.topics.pipeline, partitions=1, backup=self.backup) for name in self.names)
        return BackupApp(self.topics.pipeline, declared)

    def look(self, names: Collection[str]) -> LogsSeen:
        platform = self.topics.platform
        return Looks(platform.kafka.logs(), platform.kafka.topics()).look_around(names)

    def copier(self, store: ObjectStore) -> Copier:
        return self.copiers(store) if self.copiers else PlainCopier(self.topics.platform.kafka.records(), store)

    def parts(self, *, store: ObjectStore | None = None, **more: Any) -> Parts:
        """The parts of the next epoch."""
        self.epoch += 1
        store = self.store if store is None else store
        given: dict[str, Any] = {
            "app": self.app,
            "store": store,
            "look": self.look,
            "copier": self.copier(store),
            "committed": self.group.committed,
            "commit": self.group.commit,
            "writer": Writer(self.epoch, f"i{self.epoch}"),
            "claimed": lambda epoch: f"i{epoch}" if 1 <= epoch <= self.epoch else None,
            "asked": lambda: list(self.asked),
            "taken": self._taken,
            "expiries": lambda: list(self.expiries),
            "expired": self._expired,
            "breach": self._breach,
            "step": lambda text: None,
            "clock": lambda: datetime.now(UTC),
        }
        return Parts(**given | more)

    def _breach(self, kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        self.breaches[kind, subject] = detail

    def acknowledge(
        self, name: str, span: PartitionSpan | None = None, sequence: int | None = None, topic_id: str = ""
    ) -> None:
        here = Incarnation(name, topic_id or self.topics.topic_id(name))
        number = len(self.asked) + 1
        self.asked.append(Acknowledgement(number, self.app.qualified_name, here, span, sequence, "cli:ann", "seen"))

    def _taken(self, identity: int) -> None:
        self.asked = [one for one in self.asked if one.identity != identity]

    def let_go(self, name: str, sequence: int, topic_id: str = "") -> None:
        here = Incarnation(name, topic_id or self.topics.topic_id(name))
        number = len(self.expiries) + len(self.expired) + 1
        self.expiries.append(Expiry(number, self.app.qualified_name, here, sequence, "cli:ann", "older than keep"))

    def _expired(self, identity: int, reached: int) -> None:
        self.expiries = [one for one in self.expiries if one.identity != identity]
        self.expired[identity] = reached

    def next_epoch(self, **more: Any) -> Tee:
        return Tee(self.parts(**more))

    def archive_all(self, tee: Tee) -> Round:
        """Rounds until nothing waits any more; the last that did something."""
        last = Round()

        def is_done() -> bool:
            nonlocal last
            done = tee.round()
            last = done if done.objects else last
            return done.waiting == 0

        in_time(
            lambda: eventually(
                is_done, within=Deadline.STREAM, what="all to be archived", every=timedelta(milliseconds=10)
            ),
            within=Deadline.STREAM,
            what="all to be archived",
        )
        return last

    def inspect(self, name: str, topic_id: str = "") -> Inspection:
        """The proof, every object read."""
        here = Incarnation(name, topic_id or self.topics.topic_id(name))
        return inspect(self.store, Tiling(here), lambda: self.look([name]).logs[name], picks=everything)
