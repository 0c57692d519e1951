"""Threads that share an admin client whose broker gives no answer: one new client, and an answer or an honest error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from millrace.adapters.kafka import log as kafka_log
from millrace.adapters.kafka import topics as kafka_topics
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings
from support.waiting import Deadline

SETTINGS = KafkaSettings({"bootstrap.servers": "127.0.0.1:1"})
THREADS = 4
Opened = list["Client"]
Ask = Callable[[], object]


def failed(code: int) -> Future[Any]:
    future = Future[Any]()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


class Client:
    """An admin client that knows one topic without partitions, or fails in the test's way."""

    def __init__(self, fails: Callable[[], Future[Any]] | None) -> None:
        self._fails = fails

    def describe_topics(self, topics: TopicCollection, *, request_timeout: float) -> Mapping[str, Future[Any]]:
        if self._fails is not None:
            return {"t": self._fails()}
        future = Future[Any]()
        future.set_result(SimpleNamespace(topic_id=Uuid(1, 1), partitions=[]))
        return {"t": future}

    def describe_configs(self, resources: list[Any], *, request_timeout: float) -> Mapping[Any, Future[Any]]:
        answers = {resource: Future[Any]() for resource in resources}
        for future in answers.values():
            future.set_result({})
        return answers

    def poll(self, seconds: float) -> int:
        return 0


@pytest.fixture
def opened() -> Opened:
    return []


@pytest.fixture(params=["log", "topics"])
def ask(request: pytest.FixtureRequest, clients: object) -> Ask:
    """Describe a topic; the clients are those of `clients`."""
    if request.param == "log":
        log = KafkaLog(SETTINGS, client_id="test", timeout=timedelta(seconds=0.2))
        return lambda: log.described(["t"]).refused
    admin = KafkaTopicAdmin(SETTINGS, timeout_seconds=0.2)
    return lambda: list(admin.observe(["t"]))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch, opened: Opened) -> list[Callable[[], Future[Any]] | None]:
    """How each client fails, in the order of their opening; later ones answer."""
    faults: list[Callable[[], Future[Any]] | None] = []

    def open_client(settings: object, **more: object) -> Client:
        opened.append(Client(faults[len(opened)] if len(opened) < len(faults) else None))
        return opened[-1]

    monkeypatch.setattr(kafka_log, "AdminClient", open_client)
    monkeypatch.setattr(kafka_topics, "AdminClient", open_client)
    return faults


def test_threads_that_fail_together_open_one_new_client(clients: list[Any], opened: Opened, ask: Ask) -> None:
    together = threading.Barrier(THREADS)

    def fail() -> Future[Any]:
        together.wait(Deadline.METADATA.seconds)
        return failed(KafkaError._TIMED_OUT)

    clients.append(fail)
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(ask) for _ in range(THREADS)]:
            future.result(Deadline.SERVER.seconds)
    assert len(opened) == 2


def test_a_request_of_a_client_that_was_replaced_is_not_taken_for_refused(clients: list[Any], ask: Ask) -> None:
    clients.extend([lambda: failed(KafkaError._DESTROY)] * 2)
    with pytest.raises(UnreachableError):
        ask()
    assert ask() in ({}, ["t"])


def test_a_client_that_never_answers_is_waited_for_within_bounds(
    clients: list[Any], monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.setattr(kafka_log, "ANSWER_MARGIN_SECONDS", 0.0)
    monkeypatch.setattr(kafka_topics, "ANSWER_MARGIN_SECONDS", 0.0)
    clients.extend([Future[Any]] * 2)
    with pytest.raises(UnreachableError, match="no answer"):
        ask()
