"""Warnings: what is allowed and probably not meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from millrace.declarations.build import build_topic
from millrace.declarations.documents import StreamDocument
from millrace.declarations.draft import Draft
from millrace.declarations.fields import nearest
from millrace.declarations.findings import Finding, Place, Severity, finding
from millrace.declarations.reader import Sequence
from millrace.declarations.rules import OWN_FIELDS
from millrace.declarations.sink_kind import Read
from millrace.declarations.topic_document import TopicDocument
from millrace.declarations.validate import Part
from millrace.declarations.world import World
from millrace.domain.declaration.pipeline import Manage, ValueFormat
from millrace.domain.formats.printable import shown
from millrace.domain.retention.advice import PARTITIONS, REPLICATION, advise
from millrace.domain.retention.settings import LogSettings, log_settings
from millrace.domain.topics.changes import wanted_config

_SETTINGS = """
cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
index.interval.bytes leader.replication.throttled.replicas local.retention.bytes local.retention.ms
max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
TOPIC_SETTINGS = frozenset(_SETTINGS.split())
"""The settings a topic of Kafka 4.3 has (`TopicConfig`). Other brokers may know more, hence only a warning."""


def warnings(draft: Draft, *, embedded: bool, fed: Collection[str] = ()) -> Iterator[Finding]:
    """Advice about a sound pipeline.

    Args:
        draft: the pipeline, its environment applied.
        embedded: whether that is the embedded stack, where one replica is all there can be.
        fed: the topics that a source program writes to, of any pipeline.
    """
    for topic in draft.topics.values():
        if topic.document.manage is Manage.FULL:
            yield from _topic(draft, topic, embedded, topic.name in fed)
        yield from _config(topic)


def sink_warnings(draft: Draft, world: World) -> Iterator[Finding]:
    """Advice about the sinks of a sound pipeline.

    Args:
        draft: the pipeline.
        world: all pipelines: a stream may read topics of others.
    """
    for stream in draft.streams.values():
        for kind, document in stream.document.writes.each():
            yield from kind.advice(stream, document, [*_read_by(stream, world)])


def _read_by(stream: Part[StreamDocument], world: World) -> Iterator[Read]:
    """Return the topics that a stream reads, what is declared of each, and where the stream names it."""
    reads = stream.tree.get("reads")
    items = reads.items if isinstance(reads, Sequence) else ()
    for name, item in zip(stream.document.reads, items, strict=True):
        topic = world.topic(name)
        yield Read(name, topic.document if topic else TopicDocument(), item.place)


def _topic(draft: Draft, topic: Part[TopicDocument], embedded: bool, fed: bool) -> Iterator[Finding]:
    """What the settings would come to. What the file does not say is the broker's, and not known here."""
    declared = build_topic(draft.name, topic.name, topic.document)
    values = wanted_config(declared)
    try:
        settings = log_settings(values)
    except (ValueError, OverflowError):  # no number where Kafka wants one, which it will refuse
        settings, values = LogSettings(), {}
    found = advise(
        topic.name,
        settings,
        replication=None if embedded else declared.replication,
        partitions=declared.partitions,
        has_key=declared.key is not None,
        fed_by_source=fed,
        declared=frozenset({*values, PARTITIONS, REPLICATION}),
    )
    for each in found:
        yield finding(_place(topic, each.setting), each.what, each.next_step, Severity.WARNING)


def _place(topic: Part[TopicDocument], setting: str) -> Place:
    """Where a setting is declared, or where it would be."""
    if setting in OWN_FIELDS:
        return topic.place(*OWN_FIELDS[setting].split("."))
    if setting in (PARTITIONS, REPLICATION):
        return topic.place(setting)
    if setting in topic.tree.mapping("config").entries:
        return topic.place("config", setting)
    return topic.place("config").below(setting)


def _config(topic: Part[TopicDocument]) -> Iterator[Finding]:
    document = topic.document
    for key, entry in topic.tree.mapping("config").entries.items():
        if key not in TOPIC_SETTINGS:
            what = f"`{shown(key)}` is not a topic setting of Kafka 4.3"
            hint = nearest(key, TOPIC_SETTINGS)
            step = hint if hint.startswith("did") else "check the name, or your broker's documentation"
            yield finding(entry.place, what, step, Severity.WARNING)
    if document.key and document.value and document.value.format is not ValueFormat.BYTES:
        column = next((each for each in document.value.columns if each.name == document.key.field), None)
        if column and not column.required:
            what = f"the key `{column.name}` may be null, and records without a key go to any partition"
            yield finding(topic.place("key", "field"), what, f"declare `{column.name}` as NOT NULL", Severity.WARNING)
