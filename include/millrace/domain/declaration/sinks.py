"""Sinks of the declaration, as values: what a stream writes to, and what each kind can."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from millrace.domain.sinks.capabilities import KEEPS_EACH_ROW, Capabilities, no_dataset, of_table, without_a_table

SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""The columns that every table of PostgreSQL has by itself: it makes no other of these names (`ddl-system-columns`)."""
CONTROL = "millrace_control"
"""The Connection of the control database."""

Place = tuple[str, str]
"""A thing that is written to: the Connection that leads there, and its name there."""


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """Facts that a page shows of a sink, as parts of its sentences.

    Attributes:
        label: what `names` are, in the number that they have: "Topics".
        names: what is written to.
        leads: "of", or another way to go on to the Connection.
        connection: it leads to them.
        record: where the record of work is, to go on after "is"; a word between backticks is a name. Empty: it is
            beside the rows, in the database that `Sink.connection` leads to.
        kept_in: where fence and quarantine are, to go on after "are kept"; a word between backticks is a name. Empty:
            they are in the database that `Sink.connection` leads to, whose quarantine the page shows.
    """

    label: str
    names: tuple[str, ...]
    leads: str
    connection: str
    record: str = ""
    kept_in: str = ""


class Sink(Protocol):
    """The target that a stream writes to. Each kind is a frozen dataclass with these properties.

    Its fields are its declaration.
    No other module asks which kind a sink is, but those that register it: `declarations.sinks` and `wiring.sinks`.
    """

    @property
    def kind(self) -> str:
        """The word below `writes` in YAML."""
        ...

    @property
    def named(self) -> str:
        """Its kind and name, for people."""
        ...

    @property
    def connection(self) -> str:
        """The Connection of the database with its fence and its quarantine."""
        ...

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that the app needs beside Kafka's and the control database's."""
        ...

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are written to."""
        ...

    @property
    def appended(self) -> str | None:
        """The table whose rows can be found by their source; None where there is none."""
        ...

    @property
    def as_table(self) -> PostgresSink | None:
        """Itself where it has the capability `TABLE`, for who looks into the table."""
        ...

    @property
    def as_dataset(self) -> S3Sink | None:
        """Itself where it has the capability `FILES`, for who reads the objects."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """All that can be asked of it, and the way out where something cannot."""
        ...

    def facts(self, kafka: str, group: str) -> SinkFacts:
        """Return what a page shows of it.

        Args:
            kafka: the Connection of the pipeline's cluster.
            group: the stream's consumer group.
        """
        ...

    def places(self, kafka: str) -> frozenset[Place]:
        """Return what is written to; two streams that share a place write to the same.

        Args:
            kafka: the Connection of the pipeline's cluster.
        """
        ...


class SinkMode(StrEnum):
    """How rows meet what the sink table already holds."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """A table in PostgreSQL.

    Attributes:
        connection: the name of an Airflow Connection.
        table: `schema.table`.
        mode: whether every row is kept, or the last one of each key.
        key: the columns of the transform's output that identify a row, as declared; of `upsert` only, empty else.
    """

    connection: str
    table: str
    mode: SinkMode = SinkMode.APPEND
    key: tuple[str, ...] = ()

    kind = "postgres"
    topics = ()
    as_dataset = None

    @property
    def named(self) -> str:
        """Its kind and name, for people."""
        return f"table {self.table}"

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that the app needs beside Kafka's and the control database's."""
        return (self.connection,)

    @property
    def appended(self) -> str | None:
        """The table, where its rows can be found by their source."""
        return self.table if self.mode is SinkMode.APPEND else None

    @property
    def as_table(self) -> PostgresSink:
        """Itself."""
        return self

    @property
    def capabilities(self) -> Capabilities:
        """All that can be asked of a table; less of one that has the last row of each key."""
        return of_table(self.named, upserts=self.mode is SinkMode.UPSERT)

    def facts(self, kafka: str, group: str) -> SinkFacts:
        """Return the table, and its Connection."""
        return SinkFacts("Table", (self.table,), "of", self.connection)

    def places(self, kafka: str) -> frozenset[Place]:
        """Return the table, with its Connection."""
        return frozenset({(self.connection, self.table)})


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """Topics of the pipeline's cluster.

    Its record of work are the group's own commits. Its fence, its timelines and its quarantine are kept in the control
    database.

    Attributes:
        topics: their names; not empty.
        by_column: whether each row names its topic, in the column `topic`; else there is one topic.
    """

    topics: tuple[str, ...]
    by_column: bool = False

    kind = "kafka"
    connection = CONTROL
    connections = ()
    appended = None
    as_table = None
    as_dataset = None

    @property
    def named(self) -> str:
        """Its kind and name, for people."""
        return f"topic {self.topics[0]}" if len(self.topics) == 1 else f"topics {', '.join(self.topics)}"

    @property
    def capabilities(self) -> Capabilities:
        """All that can be asked of topics."""
        return without_a_table("Kafka", record="group", files=no_dataset(self.named), deletes=None)

    def facts(self, kafka: str, group: str) -> SinkFacts:
        """Return the topics, their cluster, and the group that is the record of work."""
        label = "Topic" if len(self.topics) == 1 else "Topics"
        return SinkFacts(label, self.topics, "of", kafka, f"what its group `{group}` has committed")

    def places(self, kafka: str) -> frozenset[Place]:
        """Return the topics, with the Connection of the cluster."""
        return frozenset((kafka, topic) for topic in self.topics)


@dataclass(frozen=True, slots=True)
class S3Sink:
    """A dataset of Parquet objects in a bucket.

    Its fence's copy and its quarantine are kept in the control database.

    Attributes:
        store: the name of an `aws` Connection.
        prefix: what every key begins with, without a slash at its end.
        event_date: the column of the app's rows by whose date they are partitioned; None: by that of the record's
            own timestamp.
    """

    store: str
    prefix: str
    event_date: str | None = None

    kind = "s3"
    connection = CONTROL
    topics = ()
    appended = None
    as_table = None

    @property
    def named(self) -> str:
        """Its kind and name, for people."""
        return f"dataset {self.prefix}"

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that the app needs beside Kafka's and the control database's."""
        return (self.store,)

    @property
    def as_dataset(self) -> S3Sink:
        """Itself."""
        return self

    @property
    def capabilities(self) -> Capabilities:
        """All that can be asked of a dataset."""
        return without_a_table("S3", record="dataset", files=None, deletes=KEEPS_EACH_ROW)

    def facts(self, kafka: str, group: str) -> SinkFacts:
        """Return the prefix, its bucket, and where the record of work is."""
        return SinkFacts("Dataset", (f"{self.prefix}/",), "in the bucket of", self.store, "in its manifests, there")

    def places(self, kafka: str) -> frozenset[Place]:
        """Return the prefix, with the Connection of its bucket."""
        return frozenset({(self.store, self.prefix)})
