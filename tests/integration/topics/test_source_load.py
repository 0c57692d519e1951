"""A source is in its topic once: run twice, killed at any point, or run twice at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.partitioner.default import murmur2

from millrace.adapters.kafka.producers.source import open_source_topic
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.topics.changes import NewTopic
from millrace.domain.topics.sources import SourceRecord
from millrace.embedded.stack import Stack
from millrace.errors import FencedError
from millrace.settings import Settings, open_settings
from millrace.usecases.topics.sources import load_program
from support.topics.new import create_topics
from support.topics.reader import CommittedRecord, committed_records
from support.waiting import Deadline, exit_code_of, line_of, output_of, result_of

CHILD = Path(__file__).with_name("source_loader_child.py")
PACKAGE_FOLDER = Path(__file__).parents[3] / "include"
RECORDS = 12_000
PARTITIONS = 4

PROGRAM = f"""
from datetime import UTC, datetime, timedelta
from millrace.domain.topics.sources import SourceRecord

FIRST = datetime(1997, 1, 1, tzinfo=UTC)

def records():
    for number in range({RECORDS}):
        key = None if number % 1000 == 7 else str(number % 313).encode()
        timestamp = None if number % 1000 == 9 else FIRST + timedelta(seconds=number)
        yield SourceRecord(key, str(number).encode(), timestamp)
"""


@pytest.fixture
def settings(kafka: Stack) -> Settings:
    return open_settings(kafka.root)


@dataclass
class Loading:
    """A topic and a project folder with one source program, and the children that load it."""

    root: Path
    topic: str
    bootstrap: str
    environment: dict[str, str]
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, stall_at: int = -1) -> subprocess.Popen[str]:
        command = [sys.executable, str(CHILD), str(self.root), "numbers", self.topic, str(stall_at)]
        child = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def load(self) -> str:
        child = self.start()
        output = output_of(child, within=Deadline.COMMAND, what="the end of a load")
        assert child.returncode == 0, output
        return output.splitlines()[-1]

    def committed(self) -> list[CommittedRecord]:
        """Every committed record, read by another client."""
        return committed_records(self.bootstrap, self.topic)

    def assert_once(self) -> None:
        values = Counter(int(value) for *_, value in self.committed())
        assert values == Counter(range(RECORDS))


@pytest.fixture
def loading(settings: Settings, tmp_path: Path) -> Iterator[Loading]:
    topic = f"test-load-{uuid.uuid4().hex[:8]}"
    bootstrap = settings.kafka().bootstrap_servers
    create_topics(KafkaTopicAdmin(settings.kafka()), NewTopic(topic, PARTITIONS, 1, {"retention.ms": "-1"}))
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "numbers.py").write_text(textwrap.dedent(PROGRAM))
    connection = settings.lookup("millrace_kafka") or ""
    environment = dict(os.environ) | {
        "AIRFLOW_CONN_MILLRACE_KAFKA": connection,
        "PYTHONPATH": str(PACKAGE_FOLDER),
    }
    made = Loading(tmp_path, topic, bootstrap, environment)
    yield made
    for child in made.children:
        child.kill()
    for child in made.children:
        output_of(child, within=Deadline.KILLED, what="a loader's death")
    admin = AdminClient(dict(settings.kafka().librdkafka))
    result_of(admin.delete_topics([topic])[topic], what="the end of the topic")


def wait_until_said(child: subprocess.Popen[str], wanted: str) -> None:
    what = f"the loader to say {wanted!r}"
    while (line := line_of(child.stdout, within=Deadline.COMMAND, what=what)).strip() != wanted:
        assert line, f"the loader ended without saying {wanted!r}"


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    exit_code_of(child, within=Deadline.KILLED, what="the loader's death")


def test_loading_twice_writes_once(loading: Loading) -> None:
    assert loading.load() == f"done {RECORDS} 0 {RECORDS}"
    assert loading.load() == f"done 0 {RECORDS} {RECORDS}"
    loading.assert_once()


def test_partitions_are_kafkas_own_choice_and_timestamps_arrive_as_given(loading: Loading) -> None:
    loading.load()
    for partition, _, timestamp, key, value in loading.committed():
        number = int(value)
        expected = number % PARTITIONS if key is None else (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        assert partition == expected
        assert timestamp == (-1 if number % 1000 == 9 else 852_076_800_000 + number * 1000)


def test_order_within_a_partition_is_the_order_of_the_source(loading: Loading) -> None:
    loading.load()
    committed = loading.committed()
    for partition in range(PARTITIONS):
        offsets = sorted((offset, int(value)) for p, offset, _, _, value in committed if p == partition)
        numbers = [number for _, number in offsets]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("stall_at", [0, 6_250, RECORDS - 1])
def test_killed_in_the_middle_of_a_transaction(loading: Loading, stall_at: int) -> None:
    child = loading.start(stall_at)
    wait_until_said(child, "stalled")
    kill(child)
    whole_transactions = stall_at // 500 * 500
    assert loading.load() == f"done {RECORDS - whole_transactions} {whole_transactions} {RECORDS}"
    loading.assert_once()


@pytest.mark.full
def test_killed_again_and_again_at_random_points(loading: Loading) -> None:
    points = random.Random(3)
    kills = 0
    for _ in range(6):
        child = loading.start()
        wait_until_said(child, "open")
        try:
            child.wait(points.uniform(0.0, 0.5))
        except subprocess.TimeoutExpired:
            kill(child)
            kills += 1
    assert kills, "no loader lived long enough to be killed"
    loading.load()
    loading.assert_once()


def test_an_older_loader_that_wakes_up_is_fenced(loading: Loading) -> None:
    older = loading.start(stall_at=6_250)
    wait_until_said(older, "stalled")
    older.send_signal(signal.SIGSTOP)
    assert loading.load() == f"done {RECORDS - 6_000} 6000 {RECORDS}"
    older.send_signal(signal.SIGCONT)
    output = output_of(older, within=Deadline.COMMAND, what="the older loader's end")
    assert older.returncode == 4
    assert output.startswith("FencedError: a newer loader")
    loading.assert_once()


def test_a_loader_that_learns_of_a_newer_one_between_two_records_is_fenced(
    loading: Loading, settings: Settings
) -> None:
    """The client tells the cause to whichever call comes next, and to `produce` only that it cannot go on."""
    kafka, source = settings.kafka(), f"{loading.topic}.fenced"
    with open_source_topic(kafka, loading.topic, source) as older:
        produce = older._produce

        def taken_over_after_the_first(record: SourceRecord, sequence: int) -> None:
            produce(record, sequence)
            if sequence == 0:
                with open_source_topic(kafka, loading.topic, source):
                    pass
            with suppress(KafkaException):  # what it tells here it does not tell `produce`
                older._producer.flush(Deadline.METADATA.seconds)

        older._produce = taken_over_after_the_first  # type: ignore[method-assign]
        with pytest.raises(FencedError):
            older.write([SourceRecord(None, b"0", None)] * PARTITIONS, 0)
    assert loading.committed() == []


def test_a_loader_that_is_broken_off_leaves_no_record_waiting_in_the_client(
    loading: Loading, settings: Settings
) -> None:
    """A fenced client that is destroyed with records in it aborts the process."""
    with open_source_topic(settings.kafka(), loading.topic, f"{loading.topic}.broken-off") as opened:
        opened._producer.begin_transaction()
        opened._producer.produce(loading.topic, b"0")  # nothing polls: its delivery report waits too
        assert len(opened._producer) == 1
    assert len(opened._producer) == 0
    assert loading.committed() == []


def test_two_at_once(loading: Loading) -> None:
    both = [loading.start(), loading.start()]
    outputs = [output_of(child, within=Deadline.COMMAND, what="the end of both loads") for child in both]
    codes = sorted(child.returncode for child in both)
    assert codes in ([0, 0], [0, 4]), outputs
    loading.assert_once()


def test_records_of_others_are_not_counted(loading: Loading, settings: Settings) -> None:
    from confluent_kafka import Producer

    producer = Producer(dict(settings.kafka().librdkafka))
    other = [("millrace-sequence", b"another.source/11999")]
    producer.produce(loading.topic, b"0", headers=other)
    producer.produce(loading.topic, b"0")
    assert producer.flush(Deadline.METADATA.seconds) == 0
    assert loading.load() == f"done {RECORDS} 0 {RECORDS}"


def test_a_missing_topic_is_named(loading: Loading) -> None:
    loading.topic, there = "test-load-not-there", loading.topic
    child = loading.start()
    output = output_of(child, within=Deadline.COMMAND, what="the loader's end")
    loading.topic = there
    assert child.returncode == 1
    assert "DeclarationError: the topic does not exist" in output


@pytest.fixture
def shop_records() -> Callable[[], int]:
    root = Path(__file__).parents[3]
    return lambda: sum(1 for _ in load_program(root, "cdnow")())


@pytest.mark.full
def test_the_shop_source_is_fetched_by_package_name(
    shop_records: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert shop_records() == 69_659 + 22
    kept = list((tmp_path / "millrace" / "sources").iterdir())
    assert [path.name for path in kept] == ["Lifetimes-0.11.3-py3-none-any.whl"]
    kept[0].write_bytes(b"damaged")
    assert shop_records() == 69_659 + 22
