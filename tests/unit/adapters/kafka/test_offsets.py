"""A broker that is not the leader yet is asked again, as the Java client does; any other error is told at once.

What it answers then was seen of a real one: Kafka 4.3 on a loaded machine, the moment after a topic was made.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from millrace.adapters.kafka import offsets as kafka_offsets
from millrace.adapters.kafka.offsets import list_answered_offsets, list_offsets

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
NOT_LEADER = KafkaError.NOT_LEADER_FOR_PARTITION


class Broker:
    """Answers 7 for every partition once it has given back these errors, one a request."""

    def __init__(self, *errors: tuple[TopicPartition, int]) -> None:
        self._errors = list(errors)
        self.asked: list[list[int]] = []

    def list_offsets(self, asked: dict[TopicPartition, Any], **named: Any) -> dict[TopicPartition, Future[Any]]:
        self.asked.append([entry.partition for entry in asked])
        failing, code = self._errors.pop(0) if self._errors else (None, 0)
        answers = {}
        for entry in asked:
            answers[entry] = future = Future[Any]()
            if failing is not None and entry == failing:
                future.set_exception(KafkaException(KafkaError(code)))
            else:
                future.set_result(ListOffsetsResultInfo(7, -1, -1))
        return answers


def ask(broker: Any) -> dict[int, int]:
    asked = {FIRST: OffsetSpec.latest(), SECOND: OffsetSpec.latest()}
    found = list_offsets(broker, asked, IsolationLevel.READ_COMMITTED, 1.0)
    return {entry.partition: answer.offset for entry, answer in found.items()}


def test_only_who_was_not_the_leader_yet_is_asked_again() -> None:
    broker = Broker((SECOND, NOT_LEADER), (SECOND, NOT_LEADER))
    assert ask(broker) == {0: 7, 1: 7}
    assert broker.asked == [[0, 1], [1], [1]]


def test_who_never_becomes_the_leader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_offsets, "_LEADER_WITHIN_SECONDS", 0.0)
    with pytest.raises(KafkaException, match="t/1: Broker: Not leader for partition") as caught:
        ask(Broker((SECOND, NOT_LEADER), (SECOND, NOT_LEADER)))
    assert caught.value.args[0].code() == NOT_LEADER


def test_any_other_error_is_told_at_once() -> None:
    broker = Broker((FIRST, KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(KafkaException, match="t/0") as caught:
        ask(broker)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert broker.asked == [[0, 1]]


def test_a_client_that_says_nothing_is_told() -> None:
    class Silent(Broker):
        def list_offsets(self, asked: dict[TopicPartition, Any], **named: Any) -> dict[TopicPartition, Future[Any]]:
            return {entry: Future() for entry in asked}

    with pytest.raises(KafkaException, match="no answer"):
        list_offsets(Silent(), {FIRST: OffsetSpec.latest()}, IsolationLevel.READ_COMMITTED, -4.9)  # type: ignore[arg-type]


class Unavailable(Broker):
    """Answers for the first partition only; for the other as librdkafka does where its leader is silent."""

    def list_offsets(self, asked: dict[TopicPartition, Any], **named: Any) -> dict[TopicPartition, Future[Any]]:
        answers = super().list_offsets(asked, **named)
        if SECOND in answers:
            answers[SECOND] = Future()
            answers[SECOND].set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
        return answers


def test_an_offset_that_is_none_is_never_taken_for_an_answer() -> None:
    with pytest.raises(KafkaException, match="t/1: it did not answer in time"):
        ask(Unavailable())


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        (Unavailable(), "it did not answer in time"),
        (Broker(*[(SECOND, KafkaError.TOPIC_AUTHORIZATION_FAILED)] * 9), "Topic authorization failed"),
        (Broker(*[(SECOND, NOT_LEADER)] * 9), "Not leader"),
    ],
    ids=["silent", "refused", "moved"],
)
def test_a_partition_without_an_answer_takes_no_other_away(broker: Any, why: str) -> None:
    asked = {FIRST: OffsetSpec.latest(), SECOND: OffsetSpec.latest()}
    answers = list_answered_offsets(broker, asked, IsolationLevel.READ_COMMITTED, 0.3)
    assert {entry.partition: answer.offset for entry, answer in answers.found.items()} == {0: 7}
    assert set(answers.failed) == {SECOND}
    assert why in answers.failed[SECOND].str()


def test_a_leader_that_has_moved_is_asked_again_within_the_one_deadline() -> None:
    broker = Broker((SECOND, NOT_LEADER), (SECOND, NOT_LEADER))
    asked = {FIRST: OffsetSpec.latest(), SECOND: OffsetSpec.latest()}
    answers = list_answered_offsets(broker, asked, IsolationLevel.READ_COMMITTED, 30.0)  # type: ignore[arg-type]
    assert (set(answers.found), answers.failed, broker.asked) == ({FIRST, SECOND}, {}, [[0, 1], [1], [1]])
