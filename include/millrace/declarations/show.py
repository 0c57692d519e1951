"""The effective declaration: each value as it counts, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from millrace.declarations.build import build_pipeline
from millrace.declarations.environment import BUILT_IN, ENVIRONMENTS
from millrace.declarations.project import survey_pipeline
from millrace.declarations.reader import Mapping, Sequence
from millrace.declarations.sinks import kind_of
from millrace.declarations.spelling import spell_duration, spell_growth, spell_rate, spell_size
from millrace.domain.declaration.pipeline import (
    Backup,
    Expect,
    Pipeline,
    SourceProgram,
    Stream,
    Tombstones,
    Topic,
    ValueFormat,
    ValueSchema,
)

Path_ = tuple[str, ...]


class OriginKind(StrEnum):
    """Who says a value."""

    DECLARATION = "declaration"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One field as it counts. `file` and `line` are None for what no file says."""

    field: str
    value: str
    origin: OriginKind
    file: str | None = None
    line: int | None = None

    @property
    def where(self) -> str:
        """The origin for people."""
        return f"{self.file}:{self.line}" if self.file else str(self.origin)


@dataclass(frozen=True, slots=True)
class EffectiveDeclaration:
    """A pipeline with its environment applied, every default filled in."""

    pipeline: str
    environment: str
    values: tuple[EffectiveValue, ...]


def effective(root: Path, name: str, environment: str | None = None) -> EffectiveDeclaration:
    """The effective declaration of one pipeline.

    Raises:
        InvalidDeclarationError: the pipeline or the environment has errors.
        UsageError: there is no such pipeline or environment.
    """
    survey = survey_pipeline(root, name, environment)
    draft = survey.drafts[name]
    pipeline = build_pipeline(draft, survey.world)
    values = tuple(_with_origin(draft.tree, path, value) for path, value in _fields(pipeline))
    return EffectiveDeclaration(name, survey.overlay.environment.name, values)


def _with_origin(tree: Mapping, path: Path_, value: str) -> EffectiveValue:
    name = ".".join(path)
    node = tree.get(*path)
    if node is None:
        return EffectiveValue(name, value, OriginKind.DEFAULT)
    if node.place.file == BUILT_IN:
        return EffectiveValue(name, value, OriginKind.ENVIRONMENT)
    kind = OriginKind.ENVIRONMENT if node.place.file.startswith(ENVIRONMENTS) else OriginKind.DECLARATION
    line = node.items[0].place.line if isinstance(node, Sequence) and node.items else node.place.line
    return EffectiveValue(name, value, kind, node.place.file, line)


def _fields(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    yield ("pipeline",), pipeline.name
    yield ("owner",), pipeline.owner
    if pipeline.description:
        yield ("description",), pipeline.description
    yield ("kafka",), pipeline.kafka
    for topic in pipeline.topics:
        yield from ((("topics", topic.name, *path), value) for path, value in _topic(topic))
    for stream in pipeline.streams:
        yield from ((("streams", stream.name, *path), value) for path, value in _stream(stream))
    for source in pipeline.sources:
        yield from ((("sources", source.name, *path), value) for path, value in _source(source))


def _topic(topic: Topic) -> Iterator[tuple[Path_, str]]:
    yield ("manage",), topic.manage.value
    if topic.partitions is not None:
        yield ("partitions",), str(topic.partitions)
    if topic.replication is not None:
        yield ("replication",), str(topic.replication)
    if topic.key:
        yield ("key", "field"), topic.key.field
        yield ("key", "partitioner"), topic.key.partitioner.value
    if topic.cleanup:
        yield ("cleanup",), topic.cleanup.value
    if topic.retention:
        yield ("retention", "time"), _or_unlimited(topic.retention.time)
        yield ("retention", "size_per_partition"), _or_unlimited(topic.retention.size_per_partition_bytes)
    if topic.backup:
        yield from _backup(topic.backup)
    if topic.expect:
        yield from _expect(topic.expect)
    for key, value in topic.config:
        yield ("config", key), value
    if topic.value:
        yield from _value(topic.value)


def _value(schema: ValueSchema) -> Iterator[tuple[Path_, str]]:
    yield ("value", "format"), schema.format.value
    if schema.format is not ValueFormat.BYTES:
        yield ("value", "schema"), schema.ddl
        yield ("value", "tombstones"), (Tombstones.DELETE if schema.tombstones else Tombstones.QUARANTINE).value


def _backup(backup: Backup) -> Iterator[tuple[Path_, str]]:
    yield ("backup", "every"), spell_duration(backup.every)
    yield ("backup", "max_lag"), spell_duration(backup.max_lag)
    yield ("backup", "keep"), _or_unlimited(backup.keep)


def _expect(expect: Expect) -> Iterator[tuple[Path_, str]]:
    if expect.rate_per_second is not None:
        yield ("expect", "rate"), spell_rate(expect.rate_per_second)
    if expect.record_bytes is not None:
        yield ("expect", "record"), spell_size(expect.record_bytes)
    if expect.growth_per_day is not None:
        yield ("expect", "growth"), spell_growth(expect.growth_per_day)


def _stream(stream: Stream) -> Iterator[tuple[Path_, str]]:
    yield ("app",), stream.app
    yield ("reads",), ", ".join(stream.reads)
    kind = kind_of(stream.sink.kind)
    yield from ((("writes", kind.word, name), value) for name, value in kind.show(stream.sink))
    yield ("trigger",), spell_duration(stream.trigger)
    yield ("stuck_after",), spell_duration(stream.stuck_after)
    yield ("start",), stream.start.value
    yield ("on_rewind",), stream.on_rewind.value
    yield ("on_bad_record",), stream.on_bad_record.value
    yield ("resources", "cores"), str(stream.resources.cores)
    yield ("resources", "memory"), spell_size(stream.resources.memory_bytes)
    yield ("resources", "max_records_per_batch"), str(stream.resources.max_records_per_batch)
    yield ("group",), stream.group
    if stream.quality:
        yield ("quality", "rules"), f"{stream.quality.name} ({len(stream.quality.rules)} rules)"
        yield ("quality", "every"), spell_duration(stream.quality.every)
        yield ("quality", "keep"), spell_duration(stream.quality.keep)
        yield ("quality", "connection"), stream.quality.connection or stream.sink.connection


def _source(source: SourceProgram) -> Iterator[tuple[Path_, str]]:
    yield ("program",), source.program
    yield ("writes",), source.writes


def _or_unlimited(limit: timedelta | int | None) -> str:
    if limit is None:
        return "unlimited"
    return spell_duration(limit) if isinstance(limit, timedelta) else spell_size(limit)
