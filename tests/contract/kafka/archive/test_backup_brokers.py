"""A backup of a topic on three brokers, one of which dies or hangs: the others' partitions are archived meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.adapters.archive.audits.inspection import everything, inspect
from millrace.adapters.archive.looks import Looks
from millrace.adapters.archive.plain import PlainCopier
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import Backup, BackupApp, Topic
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from millrace.runtime.backup.parts import Parts
from millrace.runtime.backup.tee import Tee
from support.archive.tees import Group
from support.fakes.objects import MemoryStore
from support.stack.brokers import NODES, Brokers, three_brokers
from support.waiting import Deadline, eventually

TOPIC, PARTITIONS, DEAD = "spread", 6, 3
AT_ONCE = Backup(every=timedelta(0), max_lag=timedelta(0), keep=timedelta(days=1))


@pytest.fixture
def brokers(kafka: Stack, tmp_path: Path) -> Iterator[Brokers]:
    """Three brokers with a topic on all of them; the stack's own has seen to it that the jars are there."""
    jars = [jar.path_in(cache_folder()) for jar in read_lock("kafka")]
    with three_brokers(tmp_path, jars) as made:
        admin = AdminClient({**made.settings.librdkafka, "log_level": 0})

        def is_made() -> bool:
            try:
                if len(admin.describe_cluster(request_timeout=3).result(3).nodes) < len(NODES):
                    return False
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(3)
            except (KafkaException, TimeoutError):
                return TOPIC in admin.list_topics(timeout=3).topics
            return True

        eventually(is_made, within=Deadline.SERVER, what="three brokers and a topic", ignoring=(KafkaException,))
        yield made


class Backed:
    """A backup's rounds over the topic; the store is in memory and nobody commits to a group."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.store = MemoryStore()
        self.alarms: dict[tuple[str, str], str | None] = {}
        log = KafkaLog(brokers.settings, client_id="test")
        self.looks = Looks(log, KafkaTopicAdmin(brokers.settings))
        group = Group()
        self.tee = Tee(
            Parts(
                app=BackupApp("test", (Topic(TOPIC, "test", partitions=PARTITIONS, backup=AT_ONCE),)),
                store=self.store,
                look=self.looks.look_around,
                copier=PlainCopier(TopicReader(brokers.settings), self.store),
                committed=group.committed,
                commit=group.commit,
                writer=Writer(1, "i1"),
                claimed=lambda epoch: None,
                asked=lambda: [],
                taken=lambda identity: None,
                expiries=lambda: [],
                expired=lambda identity, done: None,
                breach=lambda kind, subject, detail, extent=None: self.alarms.update({(kind, subject): detail}),
                step=lambda text: None,
                clock=lambda: datetime.now(UTC),
            )
        )

    def produce(self, partitions: set[int]) -> None:
        producer = Producer({**self.brokers.settings.librdkafka, "log_level": 0})
        for partition in partitions:
            producer.produce(TOPIC, b"value", partition=partition)
        assert producer.flush(Deadline.SERVER.seconds) == 0

    def led_by(self, node: int) -> set[int]:
        admin = AdminClient({**self.brokers.settings.librdkafka, "log_level": 0})
        found = admin.list_topics(TOPIC, timeout=Deadline.METADATA.seconds).topics[TOPIC].partitions
        return {number for number, partition in found.items() if partition.leader == node}

    def archived(self) -> dict[int, int]:
        """How many records of each partition the archive holds."""
        tiling = self._inspected().partitions
        return {one.partition: one.records for one in tiling}

    def verdict(self) -> Verdict:
        return self._inspected().verdict

    def _inspected(self):  # type: ignore[no-untyped-def]
        here = Incarnation(TOPIC, next(key for key in self.store.objects).split("/")[2])
        return inspect(
            self.store, Tiling(here), lambda: self.looks.look_around([TOPIC]).logs[TOPIC], picks=everything
        ).coverage


@pytest.mark.full  # three brokers of its own: half a minute
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_broker_that_does_not_answer_holds_up_its_own_partitions_only(brokers: Brokers, how: str) -> None:
    backed = Backed(brokers)
    led = backed.led_by(DEAD)
    others = set(range(PARTITIONS)) - led
    assert led
    assert others
    backed.produce(led | others)
    eventually(lambda: backed.tee.round().waiting == 0, within=Deadline.SERVER, what="the first records' archive")
    backed.produce(led)  # which nobody archives before the broker is away
    backed.produce(others)
    (brokers.kill if how == "killed" else brokers.stop)(DEAD)
    with pytest.raises(UnreachableError):
        backed.looks.look([TOPIC])  # a proof is of all partitions or of none
    done = eventually(
        lambda: (found := backed.tee.round()).waiting == 0 and found,
        within=Deadline.SERVER,
        what="the archive of what answers",
        ignoring=(UnreachableError,),
    )
    assert set(done.silent) == {f"{TOPIC}/{number}" for number in led}
    assert backed.archived() == {number: 1 if number in led else 2 for number in range(PARTITIONS)}
    assert backed.verdict() is Verdict.PENDING
    (brokers.start if how == "killed" else brokers.go_on)(DEAD)
    eventually(
        lambda: set(backed.archived().values()) == {2} or backed.tee.round() is None,
        within=Deadline.SERVER,
        what="the archive of all",
        ignoring=(UnreachableError,),
    )
    assert backed.verdict() is Verdict.PROVEN
    assert not any(detail for (kind, _), detail in backed.alarms.items() if kind == AlarmKind.BACKUP_LOST)
