"""Snapshots of three brokers, one of which dies or hangs: what it alone knows is missing, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.adapters.kafka.cluster.conversation import Conversation
from millrace.adapters.kafka.cluster.messages import all_topics
from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.domain.groups.snapshots import Snapshot
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from support.stack.brokers import NODES, Brokers, three_brokers
from support.waiting import Deadline, eventually

TIMEOUT = timedelta(seconds=5)
TOPIC = "spread"
GROUPS = tuple(f"g{number}" for number in range(24))


@pytest.fixture
def brokers(kafka: Stack, tmp_path: Path) -> Iterator[Brokers]:
    """Three brokers; the stack's own has seen to it that the jars are there."""
    jars = [jar.path_in(cache_folder()) for jar in read_lock("kafka")]
    with three_brokers(tmp_path, jars) as made:
        yield made


@pytest.fixture
def reader(brokers: Brokers) -> Iterator[ClusterReader]:
    """A reader of the cluster with a topic on all brokers and commits of many groups on all of them."""
    with ClusterReader(brokers.settings, timeout=TIMEOUT) as made:
        eventually(lambda: _whole(made, brokers), within=Deadline.SERVER, what="three brokers and their groups")
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The broker of each request so far. Requests for the topics do not count: any broker may answer them."""
    brokers: list[int] = []
    plain = Conversation.ask

    async def ask(talk: Conversation, node: Any, request: Any, deadline: float) -> Any:
        if not isinstance(request, type(all_topics())):
            brokers.append(node)
        return await plain(talk, node, request, deadline)

    monkeypatch.setattr(Conversation, "ask", ask)
    return brokers


def _whole(reader: ClusterReader, brokers: Brokers) -> bool:
    admin = AdminClient({**brokers.settings.librdkafka, "log_level": 0})
    try:
        if len(admin.describe_cluster(request_timeout=3).result(3).nodes) < len(NODES):
            return False
        if TOPIC not in admin.list_topics(timeout=3).topics:
            admin.create_topics([NewTopic(TOPIC, 9, 1)])[TOPIC].result(3)
        for group in GROUPS:
            with closing(Consumer({**brokers.settings.librdkafka, "group.id": group, "log_level": 0})) as made:
                made.commit(offsets=[TopicPartition(TOPIC, number, 0) for number in range(9)], asynchronous=False)
    except (KafkaException, TimeoutError):
        return False
    return _complete(reader)


def _complete(reader: ClusterReader) -> bool:
    try:
        seen = reader.take()
    except UnreachableError:
        return False
    logs_known = TOPIC in seen.topics and all(seen.topics[TOPIC].logs)
    return logs_known and set(seen.groups) == set(GROUPS) and not seen.faults and _sound(seen)


def _sound(seen: Snapshot) -> bool:
    return all(
        group.commits is not None and len(group.commits) == 9 and not group.fault for group in seen.groups.values()
    )


def _led_by(brokers: Brokers, node: int) -> set[int]:
    admin = AdminClient({**brokers.settings.librdkafka, "log_level": 0})
    found = admin.list_topics(TOPIC, timeout=Deadline.METADATA.seconds).topics[TOPIC].partitions
    return {number for number, partition in found.items() if partition.leader == node}


def _unknown(seen: Snapshot) -> set[int]:
    return {number for number, log in enumerate(seen.topics[TOPIC].logs) if log is None}


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_broker_that_does_not_answer_takes_only_its_own_away(
    brokers: Brokers, reader: ClusterReader, asked: list[int], how: str
) -> None:
    led = _led_by(brokers, 2)
    assert 0 < len(led) < 9
    if how == "killed":
        brokers.kill(2)
    else:
        brokers.stop(2)
    asked.clear()
    seen = reader.take()
    assert asked.count(2) <= 1  # it costs one time-out, not one a request
    assert min(asked.count(1), asked.count(3)) > 1
    assert _unknown(seen) == led
    assert 0 < len(seen.groups) < len(GROUPS)
    assert _sound(seen)
    assert any(fault.startswith(("broker 2:", "no leader:")) for fault in seen.faults)
    later = eventually(
        lambda: (found := reader.take()) and "no leader" in str(found.faults) and found,
        within=Deadline.SERVER,
        what="the controller to give the broker up",
    )
    assert _unknown(later) == led
    assert _sound(later)
    if how == "killed":
        brokers.start(2)
    else:
        brokers.go_on(2)
    eventually(lambda: _complete(reader), within=Deadline.SERVER, what="all to be known again")
