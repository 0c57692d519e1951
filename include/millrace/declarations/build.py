"""A sound draft as the frozen values of `domain.declaration`, every default filled in."""

from __future__ import annotations

from millrace.declarations.documents import SourceDocument, StreamDocument, WritesDocument
from millrace.declarations.draft import Draft
from millrace.declarations.topic_document import TopicDocument, ValueDocument
from millrace.declarations.world import World
from millrace.domain.declaration.pipeline import (
    BYTES_COLUMNS,
    Backup,
    Expect,
    Key,
    Manage,
    Pipeline,
    Resources,
    Retention,
    Sink,
    SourceProgram,
    Stream,
    Tombstones,
    Topic,
    ValueFormat,
    ValueSchema,
)
from millrace.domain.quality.rules import Rule, StreamQuality

DEFAULT_REPLICATION = 3


def build_pipeline(draft: Draft, world: World) -> Pipeline:
    """The pipeline of a draft without errors, with the topics of other files that it refers to."""
    header = draft.header.document
    topics = tuple(build_topic(draft.name, name, part.document) for name, part in draft.topics.items())
    streams = tuple(
        build_stream(draft.name, name, part.document, draft.rules.get(name, ())) for name, part in draft.streams.items()
    )
    sources = tuple(build_source(draft.name, name, part.document) for name, part in draft.sources.items())
    used = {name for stream in streams for name in (*stream.reads, *stream.writes_topics)}
    used |= {source.writes for source in sources}
    return Pipeline(
        name=draft.name,
        owner=header.owner,
        kafka=header.kafka,
        topics=topics,
        streams=streams,
        sources=sources,
        references=_references(world, sorted(used - {topic.name for topic in topics})),
        description=header.description,
    )


def _references(world: World, names: list[str]) -> tuple[Topic, ...]:
    found = []
    for name in names:
        owner, part = world.owner(name), world.topic(name)
        if owner is not None and part is not None:
            found.append(build_topic(owner.name, name, part.document))
    return tuple(found)


def build_topic(pipeline: str, name: str, document: TopicDocument) -> Topic:
    """A topic as a value."""
    retention, value, key, backup = document.retention, document.value, document.key, document.backup
    expect = document.expect
    managed = document.manage is Manage.FULL
    return Topic(
        name=name,
        pipeline=pipeline,
        manage=document.manage,
        partitions=document.partitions,
        replication=document.replication or (DEFAULT_REPLICATION if managed else None),
        key=Key(key.field, key.partitioner) if key else None,
        cleanup=document.cleanup,
        retention=Retention(retention.time, retention.size_per_partition) if retention else None,
        value=_value(value) if value else None,
        config=tuple(sorted(document.config.items())),
        backup=Backup(backup.every, backup.max_lag, backup.keep) if backup else None,
        expect=Expect(expect.rate, expect.record, expect.growth) if expect else None,
    )


def _value(document: ValueDocument) -> ValueSchema:
    columns = BYTES_COLUMNS if document.format is ValueFormat.BYTES else document.columns
    return ValueSchema(document.format, columns, document.tombstones is Tombstones.DELETE)


def build_stream(pipeline: str, name: str, document: StreamDocument, rules: tuple[Rule, ...] = ()) -> Stream:
    """A stream as a value.

    Args:
        pipeline: whose it is.
        name: its name there.
        document: what the pipeline says of it.
        rules: those of the rule file that it names.
    """
    resources, quality = document.resources, document.quality
    return Stream(
        name=name,
        pipeline=pipeline,
        app=document.app,
        reads=tuple(document.reads),
        sink=_sink(document.writes),
        group=document.group or f"millrace.{pipeline}.{name}",
        trigger=document.trigger,
        stuck_after=document.stuck_after,
        start=document.start,
        on_rewind=document.on_rewind,
        on_bad_record=document.on_bad_record,
        resources=Resources(resources.cores, resources.memory, resources.max_records_per_batch),
        quality=StreamQuality(quality.rules, rules, quality.every, quality.keep, quality.connection)
        if quality
        else None,
    )


def _sink(document: WritesDocument) -> Sink:
    ((kind, written),) = document.each()
    sink: Sink = kind.build(written)
    return sink


def build_source(pipeline: str, name: str, document: SourceDocument) -> SourceProgram:
    """A source program as a value."""
    return SourceProgram(name=name, pipeline=pipeline, program=document.program, writes=document.writes)
