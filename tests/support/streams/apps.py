"""A pipeline of a test's own in the run's project, and its driver run as a plain process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millrace.adapters.postgres.connection import connect
from millrace.embedded.environment import JAVA_VARIABLE
from millrace.embedded.stack import Stack
from millrace.settings import open_settings, read_environment_file
from support.checks.budget import Kind, spend
from support.streams.project import reset_by_stock_tool
from support.waiting import Deadline, eventually, exit_code_of, result_of

PLAIN_TRANSFORM = """
    def transform(inputs, tables):
        (frame,) = inputs.values()
        return frame
"""


class Driven:
    """An app's driver, epoch after epoch, as a plain process of the test's.

    Args:
        root: the run's project.
        stream: PIPELINE.STREAM.

    Attributes:
        program: of `spark_apps`, which is the driver.
    """

    def __init__(self, root: Path, stream: str) -> None:
        self.root = root
        self.stream = stream
        self.epoch = 0
        self.program = "stream.py"
        self._log_file = Path(os.devnull)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The next epoch's driver; stopped gracefully at the end of the block, which asserts that it ends with 0."""
        with self.started() as driver:
            yield driver
            driver.send_signal(signal.SIGTERM)
            assert exit_code_of(driver, within=Deadline.STREAM, what="the driver to stop") == 0, self.log()

    @contextmanager
    def started(self, *, same_epoch: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """A driver of the next epoch, or another one of this; killed at the end of the block if it is still there."""
        self.epoch += not same_epoch
        if same_epoch:  # any other is counted by its epoch's folder
            spend(Kind.DRIVER_STARTS)
        instance, former = uuid.uuid4().hex, self._log_file
        self._log_file = self.root / f"{self.stream}-{self.epoch}-{instance}.log"
        command = [sys.executable, str(self.root / "spark_apps" / self.program), "--stream", self.stream]
        command += ["--epoch", str(self.epoch), "--instance", instance]
        java = read_environment_file(self.root / ".millrace" / "env")[JAVA_VARIABLE]
        environment = {**os.environ, "MILLRACE_ROOT": str(self.root), "JAVA_HOME": java}
        with self._log_file.open("wb") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            yield driver
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                exit_code_of(driver, within=Deadline.KILLED, what="the driver's death")
            if same_epoch:
                self._log_file = former

    def ends(self, *, same_epoch: bool = False) -> tuple[int, str]:
        """Run a driver until it ends by itself; its exit code and what it logged."""
        with self.started(same_epoch=same_epoch) as driver:
            return exit_code_of(driver, within=Deadline.STREAM, what="the driver's end"), self.log()

    def log(self) -> str:
        return self._log_file.read_text()

    def until(self, condition, what: str) -> None:
        def met_or_ended() -> bool:
            assert "event=ended" not in self.log(), "the driver has ended"
            return bool(condition())

        try:
            eventually(met_or_ended, within=Deadline.STREAM, what=what)
        except AssertionError as error:
            lines = [line[:2500] for line in self.log().splitlines() if "level=" in line or "Error" in line]
            error.add_note("\n".join(lines[-30:]))
            raise


class App(Driven):
    """One stream with a topic, a table and a group of its own; every name is new.

    Args:
        stack: the run's stack, with Kafka and PostgreSQL running.
        schema: the topic's value schema.
        transform: the text of transform.py.
        options: further fields of the stream, as YAML text by name.

    Attributes:
        keeps: the Connection of the database that has its quarantine.
        key: the field that is each record's key; a record without a value then deletes its key. Empty: keys are text
            without a meaning.
    """

    keeps = "millrace_sink"
    key = ""

    def __init__(
        self,
        stack: Stack,
        *,
        schema: str = "id INT NOT NULL, name STRING",
        transform: str = PLAIN_TRANSFORM,
        partitions: int = 2,
        **options: str,
    ) -> None:
        self._stack = stack
        self.settings = open_settings(stack.root)
        self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        super().__init__(stack.root, f"{self.pipeline}.events")
        self.topic = f"{self.pipeline}.events"
        self.table = f"{self.pipeline}.events"
        self._producer = self._open_producer()
        self._admin = AdminClient(dict(self.settings.kafka().librdkafka))
        kept = {"retention.ms": "-1"}
        any_timestamp = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        topics = {self.topic: partitions, **self.more_topics}
        made = [NewTopic(self.topic, partitions, 1, config=kept | any_timestamp)]
        made += [NewTopic(name, count, 1, config=kept) for name, count in self.more_topics.items()]
        for name, future in self._admin.create_topics(made).items():
            result_of(future, what=name)
        self.write_transform(transform)
        settings = {"trigger": "100ms", "resources": "{cores: 1, max_records_per_batch: 1000}"} | options
        lines = "".join(f"    {name}: {value}\n" for name, value in settings.items())
        self.declaration.write_text(
            f"pipeline: {self.pipeline}\nowner: tests\ntopics:\n"
            + "".join(self._declared(name, count, schema) for name, count in topics.items())
            + f"streams:\n  events:\n    app: {self.pipeline}\n    reads: [{self.topic}]\n"
            f"    writes: {self.writes}\n{lines}"
        )

    def _declared(self, topic: str, partitions: int, schema: str) -> str:
        tombstones, key = (", tombstones: delete", f"    key: {{field: {self.key}}}\n") if self.key else ("", "")
        value = f'    value: {{format: json, schema: "{schema}"{tombstones}}}\n'
        return f"  {topic}:\n    partitions: {partitions}\n    replication: 1\n{key}{value}"

    @property
    def more_topics(self) -> Mapping[str, int]:
        """The partitions of each topic beside the one that the stream reads."""
        return {}

    @property
    def writes(self) -> str:
        """The sink, as YAML."""
        return f"{{postgres: {{connection: millrace_sink, table: {self.table}, mode: append}}}}"

    @property
    def declaration(self) -> Path:
        return self.root / "include" / "pipelines" / f"{self.pipeline}.yaml"

    def write_transform(self, text: str) -> None:
        folder = self.root / "spark_apps" / self.pipeline
        folder.mkdir(exist_ok=True)
        (folder / "transform.py").write_text(textwrap.dedent(text))

    def produce(self, values: Iterable[Mapping[str, object] | bytes | None], **more: int) -> None:
        """Produce these values under new keys; `more` is what `Producer.produce` takes for each of them."""
        for value in values:
            body = json.dumps(value).encode() if isinstance(value, Mapping) else value
            self._producer.produce(self.topic, value=body, key=uuid.uuid4().hex, **more)
            self._producer.poll(0)
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def grow(self, partitions: int) -> None:
        grown = self._admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic]
        result_of(grown, what="the new partitions")
        self._producer = self._open_producer()  # one that knows the new partitions at once

    def expire(self, *, partition: int, before: int) -> None:
        """Delete the records below an offset, as retention would."""
        place = TopicPartition(self.topic, partition, before)
        result_of(self._admin.delete_records([place])[place], what="the records to expire")

    def reset(self, *where: str) -> None:
        """Reset the group by Kafka's own tool."""
        reset_by_stock_tool(self._stack, f"millrace.{self.stream}", self.topic, *where)

    def _open_producer(self) -> Producer:
        return Producer(
            {**self.settings.kafka().librdkafka, "partitioner": "murmur2_random", "enable.idempotence": True}
        )

    @contextmanager
    def database(self) -> Iterator[psycopg.Connection]:
        with connect(self.settings.postgres(self.keeps), "test") as connection:
            connection.autocommit = True
            yield connection

    def rows(self, columns: str = "id", *, where: str = "true") -> list[tuple]:
        with self.database() as connection:
            if connection.execute("SELECT to_regclass(%s)", (self.table,)).fetchone() == (None,):
                return []
            try:
                return connection.execute(f"SELECT {columns} FROM {self.table} WHERE {where} ORDER BY 1").fetchall()
            except psycopg.errors.UndefinedColumn:
                return []

    def quarantine(self, columns: str = "rule") -> list[tuple]:
        query = f"SELECT {columns} FROM millrace.quarantine WHERE stream = %s ORDER BY 1"
        with self.database() as connection:
            if connection.execute("SELECT to_regclass('millrace.quarantine')").fetchone() == (None,):
                return []
            return connection.execute(query, (self.stream,)).fetchall()
