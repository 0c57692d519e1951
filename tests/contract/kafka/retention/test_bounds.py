"""Bounds of size and age against a broker that really deletes: small segments, short intervals, steady load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.adapters.kafka.cluster.snapshot import ClusterReader
from millrace.domain.groups.snapshots import Snapshot
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.usecases.retention.sizing import TopicSizing, size
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.stack.brokers import Brokers, one_broker
from support.waiting import Deadline, eventually, in_time

KAFKA = "millrace_kafka"
SEGMENT = 1 << 20
RECORD = b"x" * 1000
EVERY_SECONDS = 0.1
TOGETHER = 60  # records of each topic at once: some 0.6 MB a second
KEPT_SECONDS = 20
TOPICS = {
    "by_time": {"retention.ms": str(KEPT_SECONDS * 1000)},
    "by_size": {"retention.ms": "-1", "retention.bytes": str(10 * SEGMENT)},
    "both": {"retention.ms": str(KEPT_SECONDS * 1000), "retention.bytes": str(4 * SEGMENT)},
}


@dataclass
class Measured:
    """What was seen of one topic at one moment; `on_disk`: with files that wait for their deletion."""

    size: int
    age_seconds: float
    start: int
    on_disk: int


@pytest.fixture
def broker(kafka: Stack, tmp_path: Path) -> Iterator[Brokers]:
    """One that looks every second; the stack's own has seen to it that the jars are there."""
    jars = [jar.path_in(cache_folder()) for jar in read_lock("kafka")]
    (tmp_path / "broker").mkdir()
    often = {"log_retention_check_interval_ms": 1000, "log_initial_task_delay_ms": 500}
    with one_broker(tmp_path / "broker", jars, **often) as made:
        eventually(lambda: _answers(made), within=Deadline.SERVER, what="the broker")
        yield made


def _answers(broker: Brokers) -> bool:
    try:
        admin = AdminClient({**broker.settings.librdkafka, "log_level": 0})
        return bool(admin.describe_cluster(request_timeout=3).result(3).nodes)
    except Exception:
        return False


@contextmanager
def steady_load(broker: Brokers) -> Iterator[None]:
    """So many records every tenth of a second, until the block ends."""
    done = threading.Event()
    producer = Producer({**broker.settings.librdkafka, "linger.ms": 5})

    def work() -> None:
        due = time.monotonic()
        while not done.is_set():
            for name in TOPICS:
                for _ in range(TOGETHER):
                    producer.produce(name, RECORD, partition=0)
            producer.poll(0)
            due = max(due + EVERY_SECONDS, time.monotonic())  # a machine that is slow makes no burst of it
            done.wait(due - time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        assert producer.flush(Deadline.METADATA.seconds) == 0


def measure(broker: Brokers, seen: Snapshot, name: str) -> Measured:
    log = seen.log((name, 0))
    assert log is not None
    assert log.size_bytes is not None
    age = seen.at.timestamp() - log.first_ms / 1000 if log.first_ms is not None else 0.0
    on_disk = 0
    for file in (broker.data(1) / f"{name}-0").glob("*.log*"):
        try:
            on_disk += file.stat().st_size
        except FileNotFoundError:  # deleted while we looked
            continue
    return Measured(log.size_bytes, age, log.start, on_disk)


def looks(broker: Brokers, platform: GroupsPlatform, until: int) -> dict[str, list[Measured]]:
    """A snapshot a second until each topic has deleted so many records; what was seen of each."""
    found: dict[str, list[Measured]] = {name: [] for name in TOPICS}
    with ClusterReader(broker.settings) as reader:

        def led() -> bool:
            seen = reader.take()
            return all(seen.log((name, 0)) for name in TOPICS)

        def look() -> bool:
            seen = reader.take()
            platform.snapshots.add(KAFKA, seen)
            platform.clusters[KAFKA] = FakeCluster(seen)
            for name, own in found.items():
                own.append(measure(broker, seen, name))
            time.sleep(0.5)
            return all(own[-1].start > until for own in found.values())

        eventually(led, within=Deadline.METADATA, what="the new topics")
        eventually(look, within=Deadline.SERVER, what="records that were deleted")
    return found


@pytest.mark.full
def test_bounds_hold_and_are_not_far_from_what_is_reached(kafka: Stack, broker: Brokers, tmp_path: Path) -> None:
    platform = groups_platform(tmp_path, datetime.now(UTC))
    config = {"segment.bytes": str(SEGMENT), "file.delete.delay.ms": "2000"}
    admin = AdminClient(dict(broker.settings.librdkafka))
    made = admin.create_topics([NewTopic(name, 1, 1, config=config | own) for name, own in TOPICS.items()])
    for future in made.values():
        in_time(future.result, within=Deadline.METADATA, what="a topic")
    with steady_load(broker):
        found = looks(broker, platform, until=12_000)
    sizing = {each.name: each for each in size(platform, KAFKA).topics}
    for name, own in found.items():
        _holds(sizing[name], own)


def _holds(topic: TopicSizing, measured: list[Measured]) -> None:
    bound = topic.partitions[0].bound
    assert bound.log_bytes is not None
    assert bound.disk_bytes is not None
    assert bound.age is not None
    largest, disk, oldest = (
        max(getattr(each, what) for each in measured) for what in ("size", "on_disk", "age_seconds")
    )
    print(
        f"{topic.name}: {largest:,} of {bound.log_bytes:,.0f} ({bound.by}); disk {disk:,} of {bound.disk_bytes:,.0f}; "
    )
    print(f"    {oldest:.1f} s of {bound.age.total_seconds():.1f} s ({bound.age_by}); {topic.breaches}")
    assert largest <= bound.log_bytes <= 1.5 * largest
    assert disk <= bound.disk_bytes
    assert oldest <= bound.age.total_seconds()
    assert topic.breaches == []
