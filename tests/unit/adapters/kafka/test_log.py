"""What a broker's answer about a group's commits is taken for. No real broker can be made to fail for one partition."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError

from millrace.adapters.kafka import log as kafka_log
from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.groups.commits import Committed
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

TOPIC = [TopicPartition("t", "id", number) for number in range(2)]


class Entry:
    def __init__(self, partition: int, offset: int, code: int | None = None) -> None:
        self.topic, self.partition, self.offset, self.metadata = "t", partition, offset, None
        self.error = None if code is None else KafkaError(code)


class Answers:
    """A consumer that gives one prepared answer after another."""

    def __init__(self, *answers: list[Entry]) -> None:
        self.left = list(answers)

    def __call__(self, settings: object) -> Answers:
        return self

    def committed(self, asked: object, timeout: float) -> list[Entry]:
        return self.left.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def log() -> KafkaLog:
    return KafkaLog(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), client_id="test")


def test_a_partition_whose_commit_cannot_be_read_is_not_one_without_a_commit(log: KafkaLog) -> None:
    """It would be: and a rewind of it would be overlooked."""
    refused = [Entry(0, 5), Entry(1, -1001, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with patch.object(kafka_log, "Consumer", Answers(refused)), pytest.raises(UnreachableError) as found:
        log.committed("g", TOPIC)
    assert "group g" in str(found.value)
    assert "t/1" in str(found.value)


def test_a_commit_that_is_not_settled_is_asked_for_again(log: KafkaLog) -> None:
    unsettled = [Entry(0, 5), Entry(1, -1001, KafkaError.UNSTABLE_OFFSET_COMMIT)]
    with patch.object(kafka_log, "Consumer", Answers(unsettled, [Entry(0, 5), Entry(1, 7)])):
        assert log.committed("g", TOPIC) == {("t", 0): Committed(5), ("t", 1): Committed(7)}


def test_a_partition_without_a_commit_has_none(log: KafkaLog) -> None:
    with patch.object(kafka_log, "Consumer", Answers([Entry(0, 5), Entry(1, -1001)])):
        assert log.committed("g", TOPIC) == {("t", 0): Committed(5)}
