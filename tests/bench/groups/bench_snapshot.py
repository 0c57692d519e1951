"""What a snapshot of the embedded broker costs: seconds and requests, by partitions and groups."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from statistics import median

import pytest
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.settings import KafkaSettings
from support.waiting import Deadline, eventually

SIZES = ((500, 50), (1_000, 200), (2_000, 500))
PARTITIONS_A_TOPIC = 50
COMMITS_A_GROUP = 20
ROUNDS = int(os.environ.get("MILLRACE_BENCH_RUNS", "5"))


def test_the_cost_of_a_snapshot(kafka: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    settings = kafka.settings().kafka()
    prefix = f"bench-{uuid.uuid4().hex[:6]}"
    table = Table(title=f"one snapshot of one broker, median of {ROUNDS}, {COMMITS_A_GROUP} commits a group")
    for name in ("partitions", "groups", "s", "least", "most", "requests", "first s"):
        table.add_column(name, justify="right")
    topics = groups = 0
    for partitions, wanted in SIZES:
        topics = grow_topics(settings, prefix, topics, partitions // PARTITIONS_A_TOPIC)
        groups = grow_groups(settings, prefix, groups, wanted)
        table.add_row(*measured(settings, prefix, partitions, wanted))
    with capsys.disabled():
        console = Console(width=100)
        console.print()
        console.print(table)


def grow_topics(settings: KafkaSettings, prefix: str, had: int, wanted: int) -> int:
    made = [NewTopic(f"{prefix}-{number}", PARTITIONS_A_TOPIC, 1, {}) for number in range(had, wanted)]
    assert not any(KafkaTopicAdmin(settings).create(made).values())
    return wanted


def grow_groups(settings: KafkaSettings, prefix: str, had: int, wanted: int) -> int:
    offsets = [TopicPartition(f"{prefix}-0", number, 0) for number in range(COMMITS_A_GROUP)]
    for number in range(had, wanted):
        with closing(Consumer({**settings.librdkafka, "group.id": f"{prefix}-{number}"})) as consumer:
            consumer.commit(offsets=offsets, asynchronous=False)
    return wanted


def measured(settings: KafkaSettings, prefix: str, partitions: int, groups: int) -> list[str]:
    """Takes them one after the other, on connections that are kept; the first one opens them."""
    with ClusterReader(settings) as reader:
        first = reader.take()
        eventually(lambda: whole(reader.take(), prefix, partitions), within=Deadline.METADATA, what="every leader")
        taken = [reader.take() for _ in range(ROUNDS)]
    assert all(whole(each, prefix, partitions) for each in taken)
    seconds = [each.seconds for each in taken]
    cells = [f"{each:.2f}" for each in (median(seconds), min(seconds), max(seconds))]
    return [str(partitions), str(groups), *cells, str(taken[-1].requests), f"{first.seconds:.2f}"]


def whole(seen: Snapshot, prefix: str, partitions: int) -> bool:
    own = [topic for name, topic in seen.topics.items() if name.startswith(prefix)]
    return sum(len(topic.logs) for topic in own if all(topic.logs)) == partitions and not seen.faults
