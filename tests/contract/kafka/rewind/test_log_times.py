"""What a real broker answers for a time, held against one who keeps every record: 500 answers."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from functools import partial

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.rewind.time_travel import Quality, Resolved, resolve
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.settings import KafkaSettings
from support.topics.new import create_topics
from support.waiting import Deadline, eventually, result_of

PARTITIONS, TIMES = 25, 20
BASE = 1_700_000_000_000
NOW_MS = 1_750_000_000_000  # later than any time that is asked for, as a marker's time is


@dataclass
class Written:
    """One partition as its writer knows it: every offset's timestamp, which are committed records, where it begins."""

    all: dict[int, int] = field(default_factory=dict)  # aborted records too, and the markers of transactions
    held: list[int] = field(default_factory=list)
    start: int = 0

    def wrong(self, time_ms: int, found: Resolved, end: int) -> str:
        """What is wrong with an answer; empty where nothing is."""
        late = [offset for offset in self.held if offset >= self.start and self.all[offset] >= time_ms]
        if found.offset is None:
            wanted = Quality.EMPTY if self.start >= end else Quality.AFTER_END
            return "" if found.quality is wanted and not late else f"{late} are left out"
        if late and found.offset > late[0]:
            return f"{late[0]} is left out"
        left = sorted(offset for offset in self.all if offset >= self.start)
        counted = [offset for offset in left if self.all[offset] >= time_ms]
        if found.quality is Quality.BEFORE_LOG_START:
            return "" if self.start and found.offset in (self.start, *counted[:1]) else f"{counted[:1]} was right"
        provable = not self.start or left[0] < found.offset  # what is left before it is older
        right = found.quality is Quality.EXACT and counted[:1] == [found.offset] and provable
        return "" if right else f"{counted[:1]} was right"


def _tell(told: list[Message], error: KafkaError | None, message: Message) -> None:
    assert error is None, error
    told.append(message)


def write(kafka: KafkaSettings, topic: str, dice: random.Random) -> dict[int, Written]:
    """Transactions over all partitions but the last two, one in three aborted, timestamps out of order."""
    producer = Producer({**kafka.librdkafka, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(Deadline.SERVER.seconds)
    written = {number: Written() for number in range(PARTITIONS)}
    for turn in range(9):
        producer.begin_transaction()
        told: list[Message] = []
        for number in range(PARTITIONS - 2):
            for _ in range(dice.randint(0, 6)):
                producer.produce(
                    topic,
                    b"x",
                    partition=number,
                    timestamp=BASE + turn * 1000 + dice.randint(-3000, 3000),
                    on_delivery=partial(_tell, told),
                )
        producer.flush(Deadline.SERVER.seconds)
        aborted = turn % 3 == 1
        for message in sorted(told, key=lambda message: message.offset()):
            of_partition = written[message.partition()]
            of_partition.all[message.offset()] = message.timestamp()[1]
            if not aborted:
                of_partition.held.append(message.offset())
        end = producer.abort_transaction if aborted else producer.commit_transaction
        end(Deadline.SERVER.seconds)
        for number in {message.partition() for message in told}:
            written[number].all[max(written[number].all) + 1] = NOW_MS
    return written


def test_every_answer_is_that_of_who_keeps_all_records(kafka: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kafka.settings().kafka()
    dice = random.Random(20261124)
    topic = f"times.{uuid.uuid4().hex[:8]}"
    create_topics(KafkaTopicAdmin(settings), NewTopic(topic, PARTITIONS, 1, {"retention.ms": "-1"}))
    admin, log = AdminClient(dict(settings.librdkafka)), KafkaLog(settings, client_id="test")
    written = write(settings, topic, dice)
    partitions = log.partitions([topic])
    last = {p: max(written[p.partition].all, default=-1) + 1 for p in partitions}
    ends = eventually(  # markers come after their producer has been told
        lambda: (found := log.ends(partitions)) == last and found, within=Deadline.METADATA, what="the last markers"
    )
    for partition in partitions:
        if partition.partition % 3 == 0 and ends[partition]:
            written[partition.partition].start = dice.randint(1, ends[partition])
    cut = [ClientTopicPartition(topic, number, held.start) for number, held in written.items() if held.start]
    for future in admin.delete_records(cut).values():
        result_of(future, what="the new log start")

    wrong, answers, requests = [], 0, []
    ask = AdminClient.list_offsets
    monkeypatch.setattr(AdminClient, "list_offsets", lambda *a, **more: requests.append(1) or ask(*a, **more))
    for time_ms in [BASE - 5000, BASE + 20_000, *(BASE + dice.randint(-3000, 11_000) for _ in range(TIMES - 2))]:
        seen = log.times(partitions, time_ms)
        for partition in partitions:
            found = resolve(time_ms, seen[partition])
            answers += 1
            if problem := written[partition.partition].wrong(time_ms, found, ends[partition]):
                wrong.append(f"{partition} at {time_ms}: {found} of {seen[partition]}: {problem}")
    result_of(admin.delete_topics([topic])[topic], what="the end of the topic")
    assert answers == PARTITIONS * TIMES
    assert len(requests) == 4 * TIMES, "the client sends one request a broker for each call"
    assert not wrong, "\n".join(wrong)
