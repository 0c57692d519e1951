"""What a restore's clients do where the broker fails: nothing is committed that was not taken."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, OutOfOrderSequenceNumberError

from millrace.adapters.kafka.producers import exact as kafka_exact
from millrace.adapters.kafka.producers import restore as kafka_restore
from millrace.adapters.kafka.producers.exact import ExactProducer
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.archive.restore.records import Restored
from millrace.errors import DataLossError
from millrace.settings import KafkaSettings

NOWHERE = KafkaSettings({"bootstrap.servers": "127.0.0.1:1"})
RECORD = Restored(0, 0, b"k", b"v", ())


class Future:
    """What becomes of a record that is sent."""

    def __init__(self, error: KafkaError | None) -> None:
        self.exception = error

    def failed(self) -> bool:
        return self.exception is not None

    def get(self, timeout: float) -> None:
        if self.exception is not None:
            raise self.exception


class Client:
    """Stands in for kafka-python's producer: records fail as it is told, and it would commit all the same."""

    def __init__(self, errors: list[KafkaError | None], at_commit: Callable[[list[Future]], object]) -> None:
        self._errors = errors
        self._at_commit = at_commit
        self._sent: list[Future] = []
        self.calls: list[str] = []

    def __call__(self, **_: Any) -> Client:
        return self

    def init_transactions(self) -> None:
        self.calls.append("init")

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def send(self, *_: Any, **__: Any) -> Future:
        self._sent.append(Future(self._errors.pop(0)))
        return self._sent[-1]

    def commit_transaction(self) -> None:
        self.calls.append("commit")
        self._at_commit(self._sent)

    def close(self, seconds: float) -> None:
        self.calls.append(f"close {seconds:.0f}")


def exact(
    monkeypatch: pytest.MonkeyPatch,
    *errors: KafkaError | None,
    at_commit: Callable[[list[Future]], object] = lambda sent: None,
) -> tuple[ExactProducer, Client]:
    client = Client(list(errors), at_commit)
    monkeypatch.setattr(kafka_exact, "KafkaProducer", client)
    return ExactProducer(NOWHERE, "millrace.restore.back", 1_000), client


@pytest.mark.parametrize("error", [KafkaTimeoutError("expired"), OutOfOrderSequenceNumberError("a gap")])
def test_what_the_broker_did_not_take_is_not_committed_and_the_client_used_no_more(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    producer, client = exact(monkeypatch, None, error, None)
    with pytest.raises(type(error)):
        producer.write("back", [RECORD] * 3)
    with pytest.raises(IllegalStateError):
        producer.write("back", [RECORD])
    producer.close()
    assert client.calls == ["init", "begin", "close 0"]


def test_a_record_that_fails_while_its_transaction_is_committed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sent: list[Future]) -> None:
        sent[0].exception = OutOfOrderSequenceNumberError("a gap")

    producer, client = exact(monkeypatch, None, None, at_commit=fail)
    with pytest.raises(OutOfOrderSequenceNumberError):
        producer.write("back", [RECORD] * 2)
    assert client.calls[-1] == "commit"


def test_what_was_taken_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, client = exact(monkeypatch, None, None)
    producer.write("back", [RECORD])
    producer.write("back", [RECORD])
    producer.close()
    assert client.calls == ["init", "begin", "commit", "begin", "commit", "close 10"]


def test_the_client_says_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_restore, "Producer", lambda settings, **_: given.append(settings) or SimpleNamespace())
    kafka_restore.RestoreTarget(NOWHERE, "back", "millrace.restore.back", 1_000)
    assert given[0]["log_level"] == 0


class Cluster(TopicReader):
    """A topic whose offsets are as told; a read of it would fail, as nobody answers."""

    def __init__(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        super().__init__(NOWHERE, settle_seconds=1)
        self._starts = starts
        self._ends = ends

    def starts(self, topic: str) -> dict[int, int]:
        return self._starts

    def ends(self, topic: str) -> dict[int, int]:
        return self._ends

    def _offsets(self, topic: str, which: Any, isolation: Any) -> dict[int, int]:
        return self._ends


@pytest.mark.parametrize(("ends", "said"), [({0: 40, 1: 100}, "the log ends at 40"), ({1: 100}, "partition is gone")])
def test_a_log_that_ends_before_where_it_was_read_to_is_a_loss(ends: dict[int, int], said: str) -> None:
    with pytest.raises(DataLossError, match=said):
        Cluster(dict.fromkeys(ends, 0), ends).committed("back", firsts={0: 100, 1: 100})


def test_a_log_to_whose_end_it_was_read_has_nothing_more() -> None:
    assert list(Cluster({0: 0, 1: 0}, {0: 40, 1: 100}).committed("back", firsts={0: 40, 1: 100})) == []
