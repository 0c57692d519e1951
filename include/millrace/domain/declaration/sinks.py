"""What a stream writes to, as values: the sinks of the declaration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""The columns that every table of PostgreSQL has by itself: it makes no other of these names (`ddl-system-columns`)."""


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

    @property
    def appended(self) -> str | None:
        """The table, where its rows can be found by their source."""
        return self.table if self.mode is SinkMode.APPEND else None

    @property
    def deletes(self) -> bool:
        """Whether a row that says so deletes its key."""
        return self.mode is SinkMode.UPSERT

    @property
    def named(self) -> str:
        """What is written to, for people."""
        return f"table {self.table}"


CONTROL = "millrace_control"
"""The Connection of the control database."""


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

    connection = CONTROL
    appended = None
    deletes = True

    @property
    def named(self) -> str:
        """What is written to, for people."""
        return f"topic {self.topics[0]}" if len(self.topics) == 1 else f"topics {', '.join(self.topics)}"


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

    connection = CONTROL
    appended = None
    deletes = False

    @property
    def named(self) -> str:
        """What is written to, for people."""
        return f"dataset {self.prefix}"


Sink = PostgresSink | KafkaSink | S3Sink
"""What a stream writes to."""
