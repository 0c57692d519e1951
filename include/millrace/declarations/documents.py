"""The shape of declarations and environment files: what fields there are and what each may hold.

These models check one field at a time; what fields mean to each other is in `rules`. They are also the
source of the JSON schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, create_model

from millrace.declarations.fields import (
    RESERVED_PIPELINES,
    Rule,
    TopicName,
    Wrong,
    bounded_duration,
    bounded_size,
    choice,
    described,
    pattern,
    sentence,
    setting,
    whole_number,
)
from millrace.declarations.shapes import ConnectionName, Document
from millrace.declarations.sink_kind import SinkKind, Written
from millrace.declarations.sinks import KINDS
from millrace.declarations.topic_document import (
    ExpectDocument,
    Partitions,
    Replication,
    RetentionDocument,
    TopicDocument,
    not_yet,
)
from millrace.domain.declaration.pipeline import (
    BACKUP,
    OnBadRecord,
    OnRewind,
    Start,
)
from millrace.domain.streams.hosts import HOST_LOST_AFTER
from millrace.domain.streams.vitals import STUCK_AFTER

_NAME = r"[a-z][a-z0-9_]{0,23}"
_RULE = "a lower-case letter and up to 23 lower-case letters, digits and `_`"
_RESERVED = {word: "Millrace names its own DAGs with it" for word in RESERVED_PIPELINES}

PipelineName = Annotated[str, pattern(_NAME, _RULE, "shop", reserved=_RESERVED)]
StreamName = Annotated[
    str, pattern(_NAME, _RULE, "purchases", reserved={BACKUP: "the backup of the pipeline has this name"})
]
SourceName = Annotated[str, pattern(_NAME, _RULE, "cdnow")]
QualifiedName = Annotated[str, pattern(rf"{_NAME}\.{_NAME}", "PIPELINE.STREAM", "shop.purchases")]
ModuleName = Annotated[str, pattern(r"[a-z][a-z0-9_]{0,47}", "a Python module's name in lower case", "shop_purchases")]
GroupName = Annotated[
    str, pattern(r"[A-Za-z0-9._-]{1,249}", "a consumer group's name: letters, digits, `.`, `_`, `-`", "my-team.shop")
]
Description = Annotated[str, sentence(2000, "Purchases of the shop.")]
Person = Annotated[str, sentence(100, "commerce-data")]
Rewind = Annotated[OnRewind, choice(OnRewind, {"rebuild": not_yet("`on_rewind: {rebuild: ...}`")})]
Trigger = Annotated[
    timedelta,
    bounded_duration(
        timedelta(milliseconds=100),
        timedelta(hours=1),
        "100ms to 1h",
        {"realtime": not_yet("the trigger `realtime`")},
    ),
]
Patience = Annotated[timedelta, bounded_duration(timedelta(seconds=30), timedelta(days=1), "30s to 1d", {})]
Interval = Annotated[timedelta, bounded_duration(timedelta(minutes=5), timedelta(days=1), "5m to 1d", {})]
EvidenceTime = Annotated[timedelta, bounded_duration(timedelta(days=1), timedelta(days=3650), "1d to 3650d", {})]
Span = Annotated[timedelta, bounded_duration(timedelta(minutes=1), timedelta(days=3650), "1m to 3650d", {})]
Memory = Annotated[int, bounded_size(512 * 1024**2, 1024**4, "512MiB to 1TiB")]
Records = Annotated[int, whole_number(1, 10**15)]


class _Writes(Document):
    """Exactly one sink."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    def part(self, kind: SinkKind[Written, Any]) -> Written | None:
        """Return the document of a sink of this kind; None where there is none, or it is not sound."""
        found: Written | None = getattr(self, kind.word, None)
        return found

    def each(self) -> Iterator[tuple[SinkKind[Any, Any], Any]]:
        """Return each sink with its kind; a sound document has one."""
        for kind in KINDS:
            if (document := self.part(kind)) is not None:
                yield kind, document


if TYPE_CHECKING:
    WritesDocument = _Writes
else:  # a field for each kind
    WritesDocument = create_model(
        "WritesDocument",
        __base__=_Writes,
        __doc__=_Writes.__doc__,
        **{kind.word: (kind.document | None, None) for kind in KINDS},
    )


class ResourcesDocument(Document):
    """What one stream may use."""

    cores: Annotated[int, whole_number(1, 64)] = 1
    memory: Memory = 1024**3
    max_records_per_batch: Annotated[int, whole_number(1, 10_000_000)] = 100_000


class QualityDocument(Document):
    """How the quality of what a stream writes is checked."""

    rules: ModuleName
    every: Interval = timedelta(hours=1)
    keep: EvidenceTime = timedelta(days=90)
    connection: ConnectionName | None = None


class StreamDocument(Document):
    """A stream: one app, one query, one consumer group, one sink."""

    app: ModuleName
    reads: list[TopicName]
    writes: WritesDocument
    trigger: Trigger = timedelta(seconds=2)
    stuck_after: Patience = STUCK_AFTER
    start: Annotated[Start, choice(Start)] = Start.EARLIEST
    on_rewind: Rewind = OnRewind.REPROCESS
    on_bad_record: Annotated[OnBadRecord, choice(OnBadRecord)] = OnBadRecord.QUARANTINE
    resources: ResourcesDocument = Field(default_factory=ResourcesDocument)
    group: GroupName | None = None
    quality: QualityDocument | None = None


class SourceDocument(Document):
    """A program that feeds a topic."""

    program: ModuleName
    writes: TopicName


class HeaderDocument(Document):
    """What a pipeline says of itself."""

    pipeline: PipelineName
    owner: Person
    description: Description = ""
    kafka: ConnectionName = "millrace_kafka"


class PipelineDocument(HeaderDocument):
    """A pipeline: one file `include/pipelines/NAME.yaml`."""

    topics: dict[TopicName, TopicDocument] = Field(default_factory=dict)
    streams: dict[StreamName, StreamDocument] = Field(default_factory=dict)
    sources: dict[SourceName, SourceDocument] = Field(default_factory=dict)


class TopicOverride(Document):
    """What an environment may say of a topic."""

    partitions: Partitions | None = None
    replication: Replication | None = None
    retention: RetentionDocument | None = None
    expect: ExpectDocument | None = None


class StreamOverride(Document):
    """What an environment may say of a stream."""

    resources: ResourcesDocument | None = None


def _notifier(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or "kind" not in value:
        raise Wrong(
            f"{described(value)} is not a notifier",
            "write {kind: log}, {kind: webhook, connection: ...}, or a notifier class's import path",
        )
    return {str(name): setting(argument) for name, argument in value.items()}


NotifierFields = Annotated[
    dict[str, str],
    Rule(
        _notifier,
        {
            "type": "object",
            "properties": {"kind": {"type": "string"}},
            "required": ["kind"],
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
    ),
]
NotifierKind = pattern(
    r"log|webhook|[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+", "`log`, `webhook` or a class's import path", "log"
)


class UnapprovedDocument(Document):
    """The largest rewind that one person may run alone."""

    longest: Span | None = None
    records: Records | None = None


class HeadroomDocument(Document):
    """Which readers that no declaration names are watched."""

    ignore: list[Annotated[str, sentence(249, "console-consumer-*")]] = Field(default_factory=list)
    within: Annotated[timedelta, bounded_duration(timedelta(hours=1), timedelta(days=7), "1h to 7d", {})] = timedelta(
        days=7
    )


class EnvironmentDocument(Document):
    """One installation's differences: a file `include/environments/NAME.yaml`."""

    description: Description = ""
    connections: dict[ConnectionName, ConnectionName] = Field(default_factory=dict)
    all_topics: TopicOverride = Field(default_factory=TopicOverride)
    topics: dict[TopicName, TopicOverride] = Field(default_factory=dict)
    all_streams: StreamOverride = Field(default_factory=StreamOverride)
    streams: dict[QualifiedName, StreamOverride] = Field(default_factory=dict)
    notifiers: list[NotifierFields] = Field(default_factory=list)
    operators: list[Person] = Field(default_factory=list)
    unapproved_rewind: UnapprovedDocument = Field(default_factory=UnapprovedDocument)
    headroom: HeadroomDocument = Field(default_factory=HeadroomDocument)
    host_lost_after: Annotated[timedelta, bounded_duration(timedelta(minutes=1), timedelta(days=1), "1m to 1d", {})] = (
        HOST_LOST_AFTER
    )
