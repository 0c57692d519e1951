"""A pipeline with one topic that its readers are to lose records of, on the run's Kafka and control database."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.declarations import load_pipeline
from millrace.domain.declaration.pipeline import Pipeline
from millrace.embedded.stack import Stack
from millrace.ports.platform import Platform
from millrace.settings import Settings
from millrace.usecases.topics import plan as topics
from millrace.wiring import open_platform
from support.waiting import Deadline, eventually

PARTITIONS = 2

DECLARATION = """
pipeline: {name}
owner: tests
kafka: millrace_kafka
topics:
  {name}.records:
    partitions: {partitions}
    replication: 1
    cleanup: delete
    retention: {retention}
    {backup}
    value: {{format: json, schema: "id STRING"}}
"""

STREAM = """
streams:
  s:
    app: {name}
    reads: [{name}.records]
    writes: {{postgres: {{connection: millrace_sink, table: {name}.rows}}}}
    start: {start}
"""


@dataclass
class CutProject:
    """The project, in a folder of its own.

    Attributes:
        root: the folder; several may share one.
        stack: where Kafka and PostgreSQL run.
        stream: where its stream starts; None: it has none.
        backup: whether the topic is backed up.
    """

    root: Path
    stack: Stack
    stream: str | None = "earliest"
    backup: bool = False
    name: str = field(default_factory=lambda: f"cut{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        (self.root / "include/pipelines").mkdir(parents=True, exist_ok=True)
        program = self.root / "spark_apps" / self.name / "transform.py"
        program.parent.mkdir(parents=True)
        program.touch()
        self.platform: Platform = open_platform(Settings(root=self.root, lookup=self.stack.settings().lookup))

    @property
    def topic(self) -> str:
        return f"{self.name}.records"

    @property
    def group(self) -> str:
        """Of its stream."""
        return f"millrace.{self.name}.s"

    def declare(self, retention: str) -> Pipeline:
        """Write the declaration with this retention; the pipeline it says."""
        text = DECLARATION.format(
            name=self.name,
            partitions=PARTITIONS,
            retention=retention,
            backup="backup: {every: 1m, max_lag: 5m}" if self.backup else "",
        )
        if self.stream:
            text += STREAM.format(name=self.name, start=self.stream)
        (self.root / f"include/pipelines/{self.name}.yaml").write_text(text)
        return load_pipeline(self.root, self.name)

    def provision(self, retention: str) -> None:
        """Make the topic as this declares it, and wait until the broker shows it."""
        pipeline = self.declare(retention)
        topics.provision(self.platform, pipeline, "test:me", "set up")
        self.shown(pipeline)

    def shown(self, pipeline: Pipeline) -> None:
        """Wait until the brokers show the topic as it is declared."""
        eventually(
            lambda: not topics.propose(self.platform, pipeline, by="test:me").changes,
            within=Deadline.METADATA,
            what="the topic as declared",
        )

    def produce(self, sizes: Sequence[int], *, age: timedelta = timedelta()) -> None:
        """Write a record of each of these sizes in bytes, that no codec makes smaller, to every partition."""
        producer = Producer({**self.stack.settings().kafka().librdkafka, "linger.ms": 50})
        at_ms = int((datetime.now(UTC) - age).timestamp() * 1000)
        for size in sizes:
            for partition in range(PARTITIONS):
                producer.produce(self.topic, value=os.urandom(size), partition=partition, timestamp=at_ms)
        assert producer.flush(Deadline.METADATA.seconds) == 0

    def commit(self, group: str, offsets: Sequence[int], metadata: Sequence[str] = ("",) * PARTITIONS) -> None:
        """Commit an offset of each partition, as somebody outside."""
        settings = self.stack.settings().kafka().librdkafka
        consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
        try:
            consumer.commit(
                offsets=[
                    ClientTopicPartition(self.topic, number, offset, text)
                    for number, (offset, text) in enumerate(zip(offsets, metadata, strict=True))
                ],
                asynchronous=False,
            )
        finally:
            consumer.close()

    def set_config(self, settings: Mapping[str, str]) -> None:
        """Set these settings as somebody outside, and wait until the brokers show them: a plan says what it saw."""
        assert self.platform.kafka.topics().set_config({self.topic: settings}) == {self.topic: None}
        eventually(
            lambda: all(self.setting(key) == value for key, value in settings.items()),
            within=Deadline.METADATA,
            what="the settings",
        )

    def setting(self, key: str) -> str:
        """A setting of the topic that is in force."""
        return self.platform.kafka.topics().observe([self.topic])[self.topic].setting(key)
