"""What a pipeline's YAML says, as values: the declaration.

These are engine-neutral and complete: every default is filled in, every duration is a `timedelta`, every
size is bytes. `declarations/` makes them from text and is the only place that knows about YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from millrace.domain.declaration.sinks import CONTROL as CONTROL
from millrace.domain.declaration.sinks import KafkaSink as KafkaSink
from millrace.domain.declaration.sinks import PostgresSink as PostgresSink
from millrace.domain.declaration.sinks import S3Sink as S3Sink
from millrace.domain.declaration.sinks import Sink as Sink
from millrace.domain.declaration.sinks import SinkMode as SinkMode
from millrace.domain.quality.rules import StreamQuality
from millrace.domain.sinks.capabilities import Capability, Lack
from millrace.domain.streams.hosts import HOST_LOST_AFTER
from millrace.domain.streams.vitals import STUCK_AFTER


class Manage(StrEnum):
    """Whether Millrace may change a topic (`full`) or only reads and measures it (`none`)."""

    FULL = "full"
    NONE = "none"


class Cleanup(StrEnum):
    """A topic's `cleanup.policy`."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


class Partitioner(StrEnum):
    """How producers map a record key to a partition."""

    MURMUR2 = "murmur2"


class ValueFormat(StrEnum):
    """How record values are encoded."""

    JSON = "json"
    BYTES = "bytes"  # not decoded: the columns are the record's own `key` and `value`


class Tombstones(StrEnum):
    """What a record without a value is: a bad record, or a delete of its key."""

    QUARANTINE = "quarantine"
    DELETE = "delete"


class Start(StrEnum):
    """Where a stream with no work on record and no committed group begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnRewind(StrEnum):
    """What a stream does when somebody moved its consumer group."""

    REPROCESS = "reprocess"
    REFUSE = "refuse"


class OnBadRecord(StrEnum):
    """What a stream does with a record that does not fit its schema."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class ColumnType(StrEnum):
    """Scalar types of a value schema, by their Spark SQL names; no schema of JSON declares BINARY."""

    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    BINARY = "BINARY"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a value schema. `precision` and `scale` are set for DECIMAL only (1..38, 0..precision)."""

    name: str
    type: ColumnType
    required: bool = False
    precision: int | None = None
    scale: int | None = None

    @property
    def sql_type(self) -> str:
        """The Spark SQL spelling of the type, for instance `DECIMAL(12,2)`."""
        if self.type is ColumnType.DECIMAL:
            return f"DECIMAL({self.precision},{self.scale})"
        return self.type.value


DELETED_COLUMN = Column("_deleted", ColumnType.BOOLEAN, required=True)
"""Whether a record has no value and so deletes its key; no declared column may have this name."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The format of a topic's record values and their columns in declared order.

    Attributes:
        tombstones: whether a record without a value is a delete of its key, instead of a bad record; of a declared
            topic, for streams that upsert (`Pipeline.topics_of`).
    """

    format: ValueFormat
    columns: tuple[Column, ...]
    tombstones: bool = False

    @property
    def decoded(self) -> tuple[Column, ...]:
        """The columns that a record has once it is decoded: those declared, and `_deleted` where records delete."""
        return (*self.columns, DELETED_COLUMN) if self.tombstones else self.columns

    @property
    def ddl(self) -> str:
        """The schema as Spark SQL DDL."""
        return ", ".join(f"{c.name} {c.sql_type}{' NOT NULL' if c.required else ''}" for c in self.columns)


BYTES_COLUMNS = (Column("key", ColumnType.BINARY), Column("value", ColumnType.BINARY))
"""The columns of a topic whose records are not decoded; either may be null."""


@dataclass(frozen=True, slots=True)
class Key:
    """The value field a topic's record key is made from, and how producers partition by it."""

    field: str
    partitioner: Partitioner = Partitioner.MURMUR2


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how much a topic keeps. `None` means without limit (Kafka's -1)."""

    time: timedelta | None = None
    size_per_partition_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Backup:
    """How a topic is backed up: every record of it is copied to the archive.

    Attributes:
        every: how often at most an object is written of a partition that has little to say.
        max_lag: how old an unarchived record may become.
        keep: for how long at least what is archived is kept; None: for ever.
    """

    every: timedelta = timedelta(minutes=1)
    max_lag: timedelta = timedelta(minutes=10)
    keep: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    """What its owner expects of a topic; what is None is not said, and at least one is.

    Attributes:
        rate_per_second: records a second over all partitions, as a mean over days.
        record_bytes: how many bytes a record takes on disk, key, value, headers and framing together, as a mean.
        growth_per_day: by which share of itself the rate grows from one day to the next, compounded; 0.01 is 1 %.
    """

    rate_per_second: float | None = None
    record_bytes: int | None = None
    growth_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A declared topic.

    `retention` None means that the declaration says nothing and Millrace leaves both limits alone.
    `config` holds further broker settings by their Kafka names, as declared.
    """

    name: str
    pipeline: str
    manage: Manage = Manage.FULL
    partitions: int | None = None
    replication: int | None = None
    key: Key | None = None
    cleanup: Cleanup | None = None
    retention: Retention | None = None
    value: ValueSchema | None = None
    config: tuple[tuple[str, str], ...] = ()
    backup: Backup | None = None
    expect: Expect | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What one stream may use: Spark cores, JVM heap, and the bound of one micro-batch."""

    cores: int = 1
    memory_bytes: int = 1024**3
    max_records_per_batch: int = 100_000


@dataclass(frozen=True, slots=True)
class Stream:
    """A declared stream: one Spark application, one query, one consumer group, one sink."""

    name: str
    pipeline: str
    app: str
    reads: tuple[str, ...]
    sink: Sink
    group: str
    trigger: timedelta = timedelta(seconds=2)
    stuck_after: timedelta = STUCK_AFTER
    start: Start = Start.EARLIEST
    on_rewind: OnRewind = OnRewind.REPROCESS
    on_bad_record: OnBadRecord = OnBadRecord.QUARANTINE
    resources: Resources = Resources()
    quality: StreamQuality | None = None

    @property
    def qualified_name(self) -> str:
        """`PIPELINE.STREAM`: the name everywhere outside the pipeline's own file."""
        return f"{self.pipeline}.{self.name}"

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that its app needs beside Kafka's and the control database's."""
        return self.sink.connections

    @property
    def writes_topics(self) -> tuple[str, ...]:
        """The topics that it writes to."""
        return self.sink.topics

    def able(self, capability: Capability) -> bool:
        """Return whether its sink has a capability."""
        return capability in self.sink.capabilities

    def lack(self, capability: Capability) -> Lack | None:
        """Return why its sink lacks a capability, and the way out; None where it has it."""
        lack = self.sink.capabilities.lack(capability)
        return lack and lack.of(self.qualified_name, self.group)

    @property
    def reads_itself(self) -> bool:
        """Whether it reads a topic that it writes to, and so leaves out what it has written."""
        return not set(self.reads).isdisjoint(self.writes_topics)


BACKUP = "backup"
"""The name of the app that keeps a pipeline's backup; no stream may have it."""


def is_backup(qualified_name: str) -> bool:
    """Whether PIPELINE.NAME names the app that keeps a pipeline's backup."""
    pipeline, _, name = qualified_name.partition(".")
    return bool(pipeline) and name == BACKUP


@dataclass(frozen=True, slots=True)
class BackupApp:
    """The app that copies a pipeline's topics to the archive: supervised as a stream is, with the archive as its sink.

    `topics` are those the pipeline declares with `backup`; `store` names the Connection of the archive's bucket.
    """

    pipeline: str
    topics: tuple[Topic, ...]
    store: str = "millrace_s3"
    stuck_after: timedelta = STUCK_AFTER
    resources: Resources = Resources(cores=2)

    @property
    def name(self) -> str:
        """Its name inside the pipeline."""
        return BACKUP

    @property
    def qualified_name(self) -> str:
        """`PIPELINE.backup`: the name everywhere outside the pipeline's own file."""
        return f"{self.pipeline}.{BACKUP}"

    @property
    def group(self) -> str:
        """Its consumer group."""
        return f"millrace.{self.qualified_name}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the topics it backs up."""
        return tuple(topic.name for topic in self.topics)

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that it needs beside Kafka's and the control database's."""
        return (self.store,)


App = Stream | BackupApp
"""What lives as one Spark application with one consumer group: supervised, started and stopped in the same way."""


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A program that feeds a topic: `sources/PROGRAM.py` with `records()`, run by `PIPELINE.source.NAME`."""

    name: str
    pipeline: str
    program: str
    writes: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline: what one YAML file under `include/pipelines/` says, with its environment applied.

    `topics` are those this file declares; `references` are topics other files declare and this one reads.
    """

    name: str
    owner: str
    kafka: str
    topics: tuple[Topic, ...]
    streams: tuple[Stream, ...]
    sources: tuple[SourceProgram, ...] = ()
    references: tuple[Topic, ...] = ()
    description: str = ""

    def topic(self, name: str) -> Topic:
        """The declared or referenced topic of this name; `KeyError` where there is none."""
        for topic in (*self.topics, *self.references):
            if topic.name == name:
                return topic
        raise KeyError(name)

    def topics_of(self, stream: Stream) -> dict[str, Topic]:
        """What a stream reads, by name, each as it decodes it; `KeyError` where one is not there.

        Where nothing can be deleted by key, in a table that is appended to, a record without a value is bad, whatever
        the topic says.
        """
        topics = {name: self.topic(name) for name in stream.reads}
        if stream.able(Capability.DELETES):
            return topics
        return {
            name: replace(topic, value=replace(topic.value, tombstones=False)) if topic.value else topic
            for name, topic in topics.items()
        }

    def stream(self, name: str) -> Stream:
        """The stream of this name; `KeyError` where there is none."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise KeyError(name)

    @property
    def backup(self) -> BackupApp | None:
        """The app that keeps the backup; None where no topic of this pipeline is backed up."""
        topics = tuple(topic for topic in self.topics if topic.backup is not None)
        return BackupApp(self.name, topics) if topics else None

    @property
    def apps(self) -> tuple[App, ...]:
        """Every app of this pipeline: its streams, then the backup."""
        return (*self.streams, *([self.backup] if self.backup else []))

    def able(self, capability: Capability) -> tuple[Stream, ...]:
        """Return the streams whose sinks have a capability."""
        return tuple(stream for stream in self.streams if stream.able(capability))

    def app(self, name: str) -> App:
        """The stream of this name, or the backup; `KeyError` where there is none."""
        for app in self.apps:
            if app.name == name:
                return app
        raise KeyError(name)


NOTIFIER_ARGUMENTS: Mapping[str, tuple[str, ...]] = {"log": (), "webhook": ("connection",)}
"""The notifiers that are built in, with the arguments that each needs and takes."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where alarms are told: `kind` is `log` (a file), `webhook`, or an Airflow notifier class by its import path."""

    kind: str
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def needs_airflow(self) -> bool:
        """Return whether it works inside a task of Airflow only."""
        return self.kind not in NOTIFIER_ARGUMENTS


@dataclass(frozen=True, slots=True)
class Environment:
    """One file under `include/environments/`: what differs between installations, and nothing else.

    A rewind that goes further back than `longest_rewind`, or reads more records again than `most_rewound`, needs the
    approval of a second person; None: none does. Consumer groups that no declaration names are watched as readers where
    their commits moved in the time `readers_within`, but for those that fit one of the patterns `ignored_readers`.
    """

    name: str
    notifiers: tuple[Notifier, ...] = ()
    operators: tuple[str, ...] = ()
    longest_rewind: timedelta | None = timedelta(hours=1)
    most_rewound: int | None = 1_000_000
    ignored_readers: tuple[str, ...] = ()
    readers_within: timedelta = timedelta(days=7)
    host_lost_after: timedelta = HOST_LOST_AFTER
