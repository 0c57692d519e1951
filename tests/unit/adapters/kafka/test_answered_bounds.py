"""Bounds of what answers: brokers with latencies, as librdkafka's admin client shows them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from millrace.adapters.kafka import log as kafka_log
from millrace.adapters.kafka import offsets as kafka_offsets
from millrace.adapters.kafka.log import AnsweredBounds, KafkaLog
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

FIRST, SECOND, THIRD = (TopicPartition("t", "id", number) for number in range(3))
HANGS = 1e9
WITHIN = timedelta(seconds=5)


@dataclass
class Brokers:
    """An admin client whose partitions are led by a broker each; the answers come together, as librdkafka's do.

    Attributes:
        latencies: seconds that each partition's leader takes, request by request; the last one stays.
        errors: what a leader answers in place of an offset.
        now: seconds that all requests took.
    """

    latencies: Mapping[int, list[float]]
    errors: Mapping[int, int] = field(default_factory=dict)
    now: float = 0.0

    def list_offsets(
        self,
        asked: Mapping[ClientTopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel,
        request_timeout: float,
    ) -> dict[ClientTopicPartition, Future[Any]]:
        answers = {}
        took = 0.0
        for entry, spec in asked.items():
            latencies = self.latencies[entry.partition]
            latency = latencies.pop(0) if len(latencies) > 1 else latencies[0]
            took = max(took, min(latency, request_timeout))
            answers[entry] = future = Future[Any]()
            if latency > request_timeout:
                future.set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
            elif entry.partition in self.errors:
                future.set_exception(KafkaException(KafkaError(self.errors[entry.partition])))
            else:
                future.set_result(ListOffsetsResultInfo(3 if spec == OffsetSpec.earliest() else 9, -1, -1))
        self.now += took
        return answers


def log_of(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> KafkaLog:
    clock = SimpleNamespace(monotonic=lambda: brokers.now, sleep=lambda seconds: None)
    monkeypatch.setattr(kafka_offsets, "time", clock)
    monkeypatch.setattr(kafka_log, "AdminClient", lambda settings: brokers)
    return KafkaLog(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), client_id="test")


def ask(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> AnsweredBounds:
    return log_of(brokers, monkeypatch).answered_bounds([FIRST, SECOND, THIRD], WITHIN)


def test_a_broker_that_hangs_takes_no_slow_broker_away(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({0: [3.0], 1: [HANGS], 2: [0.5]})
    answers = ask(brokers, monkeypatch)
    assert answers.found == {FIRST: LogBounds(3, 9), THIRD: LogBounds(3, 9)}
    assert answers.failed == {SECOND: "it did not answer in time"}
    assert answers.unheard == {SECOND}
    assert brokers.now <= 2 * WITHIN.total_seconds()


def test_a_broker_that_answers_one_of_the_two_requests_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ask(Brokers({0: [1.0], 1: [1.0, HANGS], 2: [1.0]}), monkeypatch)
    assert set(answers.found) == {FIRST, THIRD}
    assert (set(answers.failed), answers.unheard) == ({SECOND}, set())


def test_a_broker_that_answers_with_an_error_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ask(Brokers({0: [1.0], 1: [1.0], 2: [1.0]}, {1: KafkaError.KAFKA_STORAGE_ERROR}), monkeypatch)
    assert set(answers.found) == {FIRST, THIRD}
    assert (set(answers.failed), answers.unheard) == ({SECOND}, set())


def test_where_no_broker_answers_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({0: [HANGS], 1: [HANGS], 2: [HANGS]})
    answers = ask(brokers, monkeypatch)
    assert (answers.found, answers.unheard) == ({}, {FIRST, SECOND, THIRD})
    assert brokers.now == WITHIN.total_seconds()


def test_ends_that_are_asked_for_in_a_hurry_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({0: [0.1], 1: [HANGS], 2: [0.1]})
    with pytest.raises(UnreachableError, match="t/1: it did not answer in time"):
        log_of(brokers, monkeypatch).ends([FIRST, SECOND, THIRD], within=timedelta(seconds=3))
    assert brokers.now == 3.0
