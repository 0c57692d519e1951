"""What a real broker answers for a time, held against one who keeps every record: 500 answers."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from functools import partial

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.adapters.kafka_log import KafkaLog
from millrace.domain.time_travel import Quality, resolve
from millrace.embedded.stack import Stack
from millrace.settings import KafkaSettings
from support.waiting import Deadline, eventually, result_of

PARTITIONS, TIMES = 25, 20
BASE = 1_700_000_000_000


@dataclass
class Written:
    """One partition as its writer knows it: the committed records' offsets and timestamps, and where it begins now."""

    held: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0

    def truth(self, time_ms: int) -> tuple[Quality, set[int]]:
        """The quality, and every offset that reads the same records: aborted ones and markers may lie before it."""
        left = [(offset, timestamp) for offset, timestamp in self.held if offset >= self.start]
        if not left:
            return Quality.EMPTY, set()
        late = [offset for offset, timestamp in left if timestamp >= time_ms]
        if not late:
            return Quality.AFTER_END, set()
        before = [offset for offset, _ in left if offset < late[0]]
        first = before[-1] + 1 if before else self.start
        quality = Quality.BEFORE_LOG_START if self.start and not before else Quality.EXACT
        return quality, set(range(first, late[0] + 1))


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
        if dice.random() < 1 / 3:
            producer.abort_transaction(Deadline.SERVER.seconds)
            continue
        producer.commit_transaction(Deadline.SERVER.seconds)
        for message in sorted(told, key=lambda message: message.offset()):
            written[message.partition()].held.append((message.offset(), message.timestamp()[1]))
    return written


def test_every_answer_is_that_of_who_keeps_all_records(kafka: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kafka.settings().kafka()
    dice = random.Random(20261124)
    admin, topic = AdminClient(dict(settings.librdkafka)), f"times.{uuid.uuid4().hex[:8]}"
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})])[topic]
    result_of(made, what="the new topic")
    log = KafkaLog(settings, client_id="test")
    eventually(lambda: len(log.partitions([topic])) == PARTITIONS, within=Deadline.METADATA, what="the new topic")
    written = write(settings, topic, dice)
    partitions = log.partitions([topic])
    ends = log.ends(partitions)
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
            quality, offsets = written[partition.partition].truth(time_ms)
            found = resolve(time_ms, seen[partition])
            answers += 1
            if found.quality is not quality or (found.offset not in offsets if offsets else found.offset is not None):
                wrong.append(f"{partition} at {time_ms}: {found} instead of {quality} at {sorted(offsets)}")
    result_of(admin.delete_topics([topic])[topic], what="the end of the topic")
    assert answers == PARTITIONS * TIMES
    assert len(requests) == 4 * TIMES, "the client sends one request a broker for each call"
    assert not wrong, "\n".join(wrong)
