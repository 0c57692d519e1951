"""The shape of a topic's declaration: its fields and what each may hold."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import ConfigDict, Field

from millrace.declarations.ddl import parse_schema
from millrace.declarations.fields import (
    ArchiveTime,
    RetentionSize,
    RetentionTime,
    Rule,
    Setting,
    bounded_duration,
    bounded_size,
    choice,
    pattern,
    whole_number,
)
from millrace.declarations.rates import Growth, Rate
from millrace.declarations.shapes import Document, FieldName
from millrace.domain.declaration.pipeline import Backup, Cleanup, Column, Manage, Partitioner, Tombstones, ValueFormat


def not_yet(subject: str) -> str:
    """Return the message about a capability that the design has and this version has not."""
    return f"{subject} does not exist in Millrace yet"


_BACKUP = Backup()
_OTHER_FORMATS = {word: not_yet(f"the value format `{word}`") for word in ("avro", "protobuf", "csv", "text", "raw")}
Format = Annotated[ValueFormat, choice(ValueFormat, _OTHER_FORMATS)]
Columns = Annotated[
    tuple[Column, ...],
    Rule(parse_schema, {"type": "string", "examples": ["id STRING NOT NULL, amount DECIMAL(12,2)"]}),
]
Pace = Annotated[timedelta, bounded_duration(timedelta(seconds=10), timedelta(hours=1), "10s to 1h", {})]
ArchiveLag = Annotated[timedelta, bounded_duration(timedelta(minutes=1), timedelta(days=1), "1m to 1d", {})]
RecordSize = Annotated[int, bounded_size(1, 1024**3, "1B to 1GiB")]
ConfigKey = Annotated[str, pattern(r"[a-z][a-z0-9]*(\.[a-z0-9]+)*", "a Kafka setting's name", "max.message.bytes")]
Partitions = Annotated[int, whole_number(1, 10_000)]
Replication = Annotated[int, whole_number(1, 32_767)]


class KeyDocument(Document):
    """The value field that the record key is made from."""

    field: FieldName
    partitioner: Annotated[Partitioner, choice(Partitioner)] = Partitioner.MURMUR2


class RetentionDocument(Document):
    """How long and how much a topic keeps."""

    time: RetentionTime
    size_per_partition: RetentionSize = None


class ValueDocument(Document):
    """The encoding and the columns of a topic's record values."""

    format: Format = ValueFormat.JSON
    columns: Columns = Field(default=(), alias="schema")
    tombstones: Annotated[Tombstones, choice(Tombstones)] = Tombstones.QUARANTINE


class BackupDocument(Document):
    """How a topic is copied to the archive."""

    every: Pace = _BACKUP.every
    max_lag: ArchiveLag = _BACKUP.max_lag
    keep: ArchiveTime = _BACKUP.keep


class ExpectDocument(Document):
    """What is expected of a topic: records over all partitions, their size, and how much more it becomes."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    rate: Rate | None = None
    record: RecordSize | None = None
    growth: Growth | None = None


class TopicDocument(Document):
    """A topic, declared once over all files."""

    manage: Annotated[Manage, choice(Manage)] = Manage.FULL
    partitions: Partitions | None = None
    replication: Replication | None = None
    key: KeyDocument | None = None
    cleanup: Annotated[Cleanup, choice(Cleanup)] | None = None
    retention: RetentionDocument | None = None
    value: ValueDocument | None = None
    config: dict[ConfigKey, Setting] = Field(default_factory=dict)
    backup: BackupDocument | None = None
    expect: ExpectDocument | None = None
