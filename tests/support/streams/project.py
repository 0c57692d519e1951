"""A pipeline of its own in a project folder of its own, on the servers of the run's stack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millrace.adapters.apps.host import FILE as HOST_FILE
from millrace.adapters.apps.host import make_host
from millrace.adapters.kafka.ids import topic_id_text
from millrace.ports.platform import Platform
from millrace.settings import (
    KafkaSettings,
    PostgresSettings,
    Settings,
    open_settings,
    read_environment_file,
    variable_name,
)
from millrace.wiring import open_platform
from millrace.wiring.control import upgrade_control
from support.waiting import Deadline, eventually, result_of

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import ControlDatabase

TESTS = Path(__file__).resolve().parents[2]
SECONDS = Deadline.METADATA.seconds
ONE_BAD_IN = 2000

DECLARATION = """
pipeline: {name}
owner: drills
kafka: millrace_kafka
topics:
  {topic}:
    partitions: {partitions}
    replication: 1
    key: {{field: id, partitioner: murmur2}}
    cleanup: delete
    retention: {{time: unlimited}}
    value: {{format: json, schema: "id STRING NOT NULL, amount INT NOT NULL"}}
streams:
  s:
    app: {name}
    reads: [{topic}]
    writes: {writes}
    trigger: 250ms
    stuck_after: {stuck_after}
    start: earliest
    on_rewind: {on_rewind}
    on_bad_record: quarantine
    resources: {{cores: 2, memory: 512MiB, max_records_per_batch: {batch}}}
"""

TRANSFORM = """
from pyspark.sql import functions as F

def transform(inputs, tables):
    return inputs["{topic}"].select("id", (F.col("amount") * F.lit({factor})).alias("amount"), "_source")
"""

STREAM_PROGRAM = """
import sys

sys.path.insert(0, {tests!r})
from support.drills.points import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], mutants={mutants!r}))
"""

Source = tuple[str, int, int]


@dataclass
class StreamProject:
    """One pipeline with one stream `s`, its topic, table and control database.

    Attributes:
        root: the project folder; the stack's connections are written into its `.millrace/env`.
        mutants: what the drill's driver leaves out, see `support.drills.points`.
        mode: what is declared of the sink beside its table.
    """

    root: Path
    stack: Stack
    database: ControlDatabase
    name: str = field(default_factory=lambda: f"d{uuid.uuid4().hex[:8]}")
    partitions: int = 3
    batch: int = 1500
    on_rewind: str = "reprocess"
    mutants: tuple[str, ...] = ()
    stuck_after: str = "2m"
    mode: str = "mode: append"

    @property
    def stream(self) -> str:
        return f"{self.name}.s"

    @property
    def topic(self) -> str:
        return f"{self.name}.records"

    @property
    def group(self) -> str:
        return f"millrace.{self.stream}"

    @property
    def writes(self) -> str:
        """What is declared of the sink."""
        return f"{{postgres: {{connection: millrace_sink, table: {self.name}.rows, {self.mode}}}}}"

    @property
    def settings(self) -> Settings:
        return open_settings(self.root)

    @property
    def sink(self) -> PostgresSettings:
        return self.settings.postgres("millrace_sink")

    def make(self) -> StreamProject:
        """Write the project and make the control database's tables."""
        for folder in ("include/pipelines", "include/environments", f"spark_apps/{self.name}", "drill", ".millrace"):
            (self.root / folder).mkdir(parents=True)
        self.declare()
        self.deploy(factor=1)
        program = STREAM_PROGRAM.format(tests=str(TESTS), mutants=self.mutants)
        (self.root / "spark_apps" / "stream.py").write_text(program)
        self._connect_to_stack()
        upgrade_control(self.settings)
        return self

    def declare(self, **changes: Any) -> None:
        """Write the declaration, also again with another batch size or `on_rewind`."""
        for key, value in changes.items():
            setattr(self, key, value)
        text = DECLARATION.format(
            name=self.name,
            topic=self.topic,
            partitions=self.partitions,
            batch=self.batch,
            on_rewind=self.on_rewind,
            stuck_after=self.stuck_after,
            writes=self.writes,
        )
        (self.root / "include" / "pipelines" / f"{self.name}.yaml").write_text(text)

    def deploy(self, *, factor: int) -> None:
        """Write the transform: `amount` times a factor."""
        path = self.root / "spark_apps" / self.name / "transform.py"
        path.write_text(TRANSFORM.format(topic=self.topic, factor=factor))

    def platform(self) -> Platform:
        """The adapters of one process that works in this project."""
        return open_platform(self.settings)

    def second_machine(self, root: Path, mutants: tuple[str, ...] = ()) -> StreamProject:
        """Return the same pipeline in another folder, where nobody sees the processes of this one.

        It bears this one's identity, as a copied state folder does: nothing but claims and fences keeps them apart.
        """
        other = type(self)(
            root,
            self.stack,
            self.database,
            self.name,
            self.partitions,
            self.batch,
            self.on_rewind,
            mutants,
            mode=self.mode,
        )
        made = other.make()
        make_host(self.root)
        shutil.copy(self.root / HOST_FILE, root / HOST_FILE)
        return made

    def _connect_to_stack(self) -> None:
        variables = read_environment_file(self.stack.root / ".millrace" / "env")
        for name, settings in (
            ("millrace_control", self.database.working),
            ("millrace_control_owner", self.database.owner),
        ):
            document = {
                "conn_type": "postgres",
                "host": settings.host,
                "port": settings.port,
                "login": settings.user,
                "password": settings.password,
                "schema": settings.database,
            }
            variables[variable_name(name)] = json.dumps(document)
        path = self.root / ".millrace" / "env"
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in variables.items()))
        jars = (self.stack.root / ".millrace" / "spark-jars").read_text()
        (self.root / ".millrace" / "spark-jars").write_text(jars)

    # Kafka

    @cached_property
    def admin(self) -> AdminClient:
        """Kept: an answer never comes from a client that is gone."""
        return AdminClient({**self.settings.kafka().librdkafka, "log_level": 2})

    def create_topic(self) -> None:
        topic = NewTopic(self.topic, self.partitions, 1, config={"retention.ms": "-1"})
        result_of(self.admin.create_topics([topic])[self.topic], what="the new topic")

    def configure_topic(self, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=entries)
        [changed] = self.admin.incremental_alter_configs([resource]).values()
        result_of(changed, what="the topic's new configuration")

    def topic_id(self) -> str:
        asked = self.admin.describe_topics(TopicCollection([self.topic]))[self.topic]
        found = result_of(asked, within=Deadline.SERVER, what="the topic's id")  # the broker may just be back
        return topic_id_text(found.topic_id)

    def produce(self, count: int, *, first: int = 0, timestamp: int | None = None) -> None:
        """Produce `count` records by key, one in 2,000 of them bad; `timestamp` in milliseconds for all of them."""
        producer = self._producer()
        stamp = {} if timestamp is None else {"timestamp": timestamp}
        for number in range(first, first + count):
            bad = number % ONE_BAD_IN == ONE_BAD_IN - 1
            value = b"not json" if bad else b'{"id":"k%d","amount":%d}' % (number, number % 1000)
            producer.produce(self.topic, value, b"k%d" % number, **stamp)
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(Deadline.STREAM.seconds) == 0

    def produce_values(self, values: Iterable[bytes], **more: Any) -> None:
        """Produce these values under new keys; `more` is what `Producer.produce` takes for each of them."""
        producer = self._producer()
        for value in values:
            producer.produce(self.topic, value, uuid.uuid4().bytes, **more)
        assert producer.flush(SECONDS) == 0

    def _producer(self) -> Producer:
        return Producer(
            {
                **self.settings.kafka().librdkafka,
                "partitioner": "murmur2_random",
                "linger.ms": 50,
                "queue.buffering.max.messages": 500_000,
                "acks": "all",
                "enable.idempotence": True,
            }
        )

    def ends(self) -> dict[int, int]:
        """The end of each partition."""
        consumer = self._consumer()
        try:
            return {
                number: consumer.get_watermark_offsets(ClientTopicPartition(self.topic, number), timeout=SECONDS)[1]
                for number in range(self.partitions)
            }
        finally:
            consumer.close()

    def topic_sources(self) -> Counter[Source]:
        """Every record of the topic as a plain read_committed consumer reads it."""
        id_, ends = self.topic_id(), self.ends()
        consumer = self._consumer()
        consumer.assign([ClientTopicPartition(self.topic, number, 0) for number in ends])
        found: Counter[Source] = Counter()
        missing = sum(ends.values())
        while missing:
            messages = consumer.consume(min(missing, 10_000), SECONDS)  # it waits for as many as it is asked for
            assert messages, f"{missing} records of {self.topic} do not come"
            for message in messages:
                assert message.error() is None, message.error()
                found[id_, message.partition(), message.offset()] += 1
            missing -= len(messages)
        consumer.close()
        return found

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self.settings.kafka().librdkafka,
                "group.id": "drills.reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )

    # The sink

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement on the sink database."""
        with psycopg.connect(**self.sink.keywords(), autocommit=True) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def sink_sources(self) -> Counter[Source]:
        """The source of every row and of every record in quarantine."""
        rows = f"SELECT _topic_id, _partition, _offset FROM {self.name}.rows"
        bad = 'SELECT topic_id, partition, "offset" FROM millrace.quarantine WHERE stream = %s'
        return Counter(self.query(f"{rows} UNION ALL {bad}", self.stream))

    def record_of_work(self) -> dict[int, int]:
        """The next offset of each partition on the newest timeline; empty before the first start."""
        if self.query("SELECT to_regclass('millrace.progress')") == [(None,)]:
            return {}
        return dict(
            self.query(
                "SELECT partition, next_offset FROM millrace.progress p WHERE stream = %s AND timeline = "
                "(SELECT max(timeline) FROM millrace.progress WHERE stream = p.stream) AND topic_id = %s",
                self.stream,
                self.topic_id(),
            )
        )

    def set_aside(self) -> Counter[Source]:
        """The source of every record in the quarantine that the control database has, which may just be coming back."""
        asked = 'SELECT topic_id, partition, "offset" FROM millrace.quarantine WHERE stream = %s'

        def ask() -> tuple[Counter[Source]]:
            with psycopg.connect(**self.database.working.keywords(), autocommit=True) as connection:  # type: ignore[arg-type]
                return (Counter(connection.execute(asked, (self.stream,)).fetchall()),)

        return eventually(ask, within=Deadline.SERVER, what="the quarantine", ignoring=(psycopg.OperationalError,))[0]

    def drop(self) -> None:
        """Remove what the sink database and the broker hold of this pipeline."""
        self.query(f"DROP SCHEMA IF EXISTS {self.name} CASCADE")
        for table in ("fence", "progress", "quarantine", "ledger", "replaced"):
            self.query(f"DELETE FROM millrace.{table} WHERE stream = %s", self.stream)
        result_of(self.admin.delete_topics([self.topic])[self.topic], what="the end of the topic")


def tool_environment(stack: Stack) -> dict[str, str]:
    """The environment in which Kafka's own command line tools run."""
    from millrace.embedded import environment

    return environment.of_command(stack.layout, os.environ)


def committed(project: StreamProject) -> dict[int, int]:
    """The group's commits by partition, by the client's own call. A broker that comes back takes a while to answer.

    By a new client: one that has lost its broker may go on asking a coordinator that is gone.
    """

    def ask() -> tuple[dict[int, int]]:
        with closing(commits_reader(project.settings.kafka(), project.group)) as reader:
            return (group_commits(reader, project.topic, project.partitions),)

    what = f"the commits of {project.group}"
    return eventually(ask, within=Deadline.SERVER, what=what, ignoring=(KafkaException,))[0]


def commits_reader(kafka: KafkaSettings, group: str) -> Consumer:
    """A client that may read a group's commits. It never joins the group.

    The admin client's `list_consumer_group_offsets` ends the process while a coordinator is away (librdkafka 2.16).
    """
    return Consumer({**kafka.librdkafka, "group.id": group, "enable.auto.commit": False, "log_level": 0})


def group_commits(reader: Consumer, topic: str, partitions: int) -> dict[int, int]:
    """The commits of a group that reads one topic, by partition."""
    asked = [ClientTopicPartition(topic, number) for number in range(partitions)]
    found = reader.committed(asked, timeout=SECONDS)
    for entry in found:
        if entry.error:
            raise KafkaException(entry.error)
    return {entry.partition: entry.offset for entry in found if entry.offset >= 0}


def group_tool(project: StreamProject, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Kafka's own `kafka-consumer-groups` for the stream's group."""
    tool = project.stack.layout.tools / "kafka-consumer-groups"
    server = project.settings.kafka().bootstrap_servers
    return subprocess.run(
        [str(tool), "--bootstrap-server", server, "--group", project.group, *arguments],
        env=tool_environment(project.stack),
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )


def reset_by_stock_tool(stack: Stack, group: str, topic: str, *where: str) -> None:
    """Reset a group on a topic by Kafka's own tool, once the broker lets go of the member that has left."""
    server = open_settings(stack.root).kafka().bootstrap_servers
    order = [str(stack.layout.tools / "kafka-consumer-groups"), "--bootstrap-server", server]
    order += ["--group", group, "--topic", topic, "--reset-offsets", *where, "--execute"]

    def done() -> bool:
        said = subprocess.run(
            order,
            env=tool_environment(stack),
            capture_output=True,
            text=True,
            timeout=Deadline.COMMAND.seconds,
            check=False,
        )
        return "Assignments can only be reset" not in said.stdout + said.stderr and said.returncode == 0

    eventually(done, within=Deadline.SERVER, what="the reset")


def stock_offsets(project: StreamProject) -> dict[int, int]:
    """What `kafka-consumer-groups --describe` calls the current offsets."""
    done = group_tool(project, "--describe", "--offsets")
    lines = [line.split() for line in done.stdout.splitlines() if project.topic in line]
    assert lines, done.stdout + done.stderr
    return {int(line[2]): int(line[3]) for line in lines}
