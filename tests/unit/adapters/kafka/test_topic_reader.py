"""How long a broker may be silent while a topic is read, and whose time that is. The reading itself: tests/contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError

from millrace.adapters.kafka import reader as kafka_reader
from millrace.adapters.kafka.reader import TopicReader
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

MOST_SECONDS = 60.0


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Message:
    """A record, or the end of a partition."""

    def __init__(self, partition: int, offset: int, *, is_end: bool = False) -> None:
        self._place, self._is_end = (partition, offset), is_end

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._is_end else None

    def key(self) -> None:
        return None

    value = headers = key

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)


class SlowBroker:
    """A client of a broker that gives these messages, each answer after so many seconds."""

    def __init__(self, clock: Clock, answers: Iterable[tuple[float, Sequence[Message]]]) -> None:
        self._clock, self._answers = clock, iter(answers)

    def __call__(self, configuration: dict[str, Any]) -> SlowBroker:
        return self

    def assign(self, partitions: Sequence[Any]) -> None:
        pass

    def close(self) -> None:
        pass

    def poll(self, seconds: float) -> Message | None:
        passes, messages = next(self._answers)
        self._clock.seconds += passes
        self._left = list(messages[1:])
        return messages[0] if messages else None

    def consume(self, most: int, seconds: float) -> list[Message]:
        assert seconds == 0, "the client would wait until it has all that it is asked for"
        taken, self._left = self._left[:most], self._left[most:]
        return taken


def read(
    monkeypatch: pytest.MonkeyPatch,
    answers: Iterable[tuple[float, Sequence[Message]]],
    *,
    caller_seconds: float,
    end: int,
) -> list[int]:
    """The offsets of partition 0 that a caller gets who takes so long for each record."""
    clock, found = Clock(), list[int]()
    monkeypatch.setattr(kafka_reader, "Consumer", SlowBroker(clock, answers))
    monkeypatch.setattr(kafka_reader, "AdminClient", lambda configuration: None)
    reader = TopicReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), clock=clock)
    for record in reader.between("t", 0, 0, end):
        found.append(record.offset)
        clock.seconds += caller_seconds
    return found


def test_a_caller_may_take_its_time_over_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        (1.0, [Message(0, 0), Message(0, 1)]),
        (1.0, []),
        (1.0, [Message(0, 2)]),
        (1.0, []),
        (1.0, [Message(0, 3)]),
    ]
    assert read(monkeypatch, answers, caller_seconds=10 * MOST_SECONDS, end=4) == [0, 1, 2, 3]


def test_a_broker_that_is_silent_for_a_minute_is_away_however_slow_the_caller_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[float]()

    def answers() -> Iterable[tuple[float, Sequence[Message]]]:
        yield 1.0, [Message(0, 0)]
        while True:
            asked.append(10.0)
            yield 10.0, []

    with pytest.raises(UnreachableError, match="sent nothing for 60 s"):
        read(monkeypatch, answers(), caller_seconds=1_000.0, end=4)
    assert asked == [10.0] * 7


def test_what_comes_of_elsewhere_is_no_word_of_the_partition_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers() -> Iterable[tuple[float, Sequence[Message]]]:
        offset = 0
        while True:
            offset += 1
            yield 10.0, [Message(1, offset), Message(0, 0, is_end=True)]

    with pytest.raises(UnreachableError, match=r"partitions \[0\] are not read"):
        read(monkeypatch, answers(), caller_seconds=0.0, end=4)
