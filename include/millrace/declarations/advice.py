"""Warnings: what is allowed and probably not meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items
from datetime import timedelta

from millrace.declarations.build import build_topic
from millrace.declarations.documents import StreamDocument, TopicDocument
from millrace.declarations.draft import Draft
from millrace.declarations.fields import nearest
from millrace.declarations.findings import Finding, Place, Severity, finding
from millrace.declarations.reader import Sequence
from millrace.declarations.rules import OWN_FIELDS
from millrace.declarations.spelling import spell_duration
from millrace.declarations.validate import Part
from millrace.declarations.world import World
from millrace.domain.declaration.pipeline import Cleanup, Manage, SinkMode, Tombstones, ValueFormat
from millrace.domain.declaration.sinks import SYSTEM_COLUMNS
from millrace.domain.formats.printable import shown
from millrace.domain.retention.advice import PARTITIONS, REPLICATION, advise
from millrace.domain.retention.settings import LogSettings, log_settings
from millrace.domain.topics.changes import wanted_config

SMALL_OBJECTS_UNDER = timedelta(seconds=10)
"""Datasets written more often than this are told to have small objects."""

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


def upsert_warnings(draft: Draft, world: World) -> Iterator[Finding]:
    """Advice about the streams of a sound pipeline that keep the last row of each key.

    Records of one key have an order within one partition only. Whether they are in one, their topic's key says. A
    tombstone has its topic's key alone, so it deletes a row only where that is all of the row's key.

    Args:
        draft: the pipeline.
        world: all pipelines: a stream may read topics of others.
    """
    for stream in draft.streams.values():
        sink = stream.document.writes.postgres
        if sink is not None and sink.mode is SinkMode.UPSERT:
            yield from _upserted(stream, sink.key, world)


def dataset_warnings(draft: Draft) -> Iterator[Finding]:
    """Advice about the streams of a sound pipeline that write datasets to a bucket, in small objects."""
    for stream in draft.streams.values():
        trigger = stream.document.trigger
        if stream.document.writes.s3 is not None and trigger < SMALL_OBJECTS_UNDER:
            what = (
                f"each batch writes an object for each task and date, and a manifest: a trigger of "
                f"{spell_duration(trigger)} makes many small objects, which are slow to read"
            )
            step = (
                "declare `trigger: 60s` or longer; at more than `max_records_per_batch` / `trigger` records a second "
                "raise that too, as a full batch does not wait"
            )
            yield finding(stream.place("trigger"), what, step, Severity.WARNING)


def table_warnings(draft: Draft, world: World) -> Iterator[Finding]:
    """Advice about topics with columns that no table can have; whether the app renames them shows at the start."""
    for stream in draft.streams.values():
        if stream.document.writes.postgres is None:
            continue
        for topic, document, place in _read_by(stream, world):
            columns = document.value.columns if document.value else ()
            for name in [each.name for each in columns if each.name in SYSTEM_COLUMNS]:
                what = (
                    f"the topic `{topic}` has a column `{name}`, and PostgreSQL has a system column of this name in "
                    "every table: the stream does not start where the app gives it"
                )
                step = f'see that the app renames it: col("{name}").alias("record_{name}")'
                yield finding(place, what, step, Severity.WARNING)


def _upserted(stream: Part[StreamDocument], columns: Items[str], world: World) -> Iterator[Finding]:
    for name, document, place in _read_by(stream, world):
        for what, step in (*_scattered(name, document, columns), *_undeleted(name, document, columns)):
            yield finding(place, what, step, Severity.WARNING)


def _read_by(stream: Part[StreamDocument], world: World) -> Iterator[tuple[str, TopicDocument, Place]]:
    """Return the topics that a stream reads, what is declared of each, and where the stream names it."""
    reads = stream.tree.get("reads")
    items = reads.items if isinstance(reads, Sequence) else ()
    for name, item in zip(stream.document.reads, items, strict=True):
        topic = world.topic(name)
        yield name, topic.document if topic else TopicDocument(), item.place


def _scattered(name: str, topic: TopicDocument, columns: Items[str]) -> Iterator[tuple[str, str]]:
    """Where records of one row may be in several partitions; adding to the sink's key would lose a topic's deletes."""
    if topic.key is None:
        what = f"the topic `{name}` declares no key"
        step = f"declare its key, as `key: {{field: {columns[0]}}}`"
    elif topic.key.field not in columns:
        what = f"the topic `{name}` has the key `{topic.key.field}`, which is no column of the sink's key"
        if _deletes(topic) or _compacted(topic):
            step = _narrowed(topic.key.field)
        else:
            step = f"add `{topic.key.field}` to the sink's key where it belongs to it"
    else:
        return
    what += ": records of one row may come from several partitions, and then the latest timestamp decides"
    yield what, step + ", or see that its timestamps say which record is the last"


def _undeleted(name: str, topic: TopicDocument, columns: Items[str]) -> Iterator[tuple[str, str]]:
    """Where records that stand for deletes would go to quarantine, and their rows stay."""
    if topic.key is None or topic.value is None or topic.value.format is ValueFormat.BYTES:
        return
    field = topic.key.field
    unknown = [column for column in columns if column != field]
    if _deletes(topic) and unknown:
        named = ", ".join(f"`{column}`" for column in unknown)
        what = (
            f"a tombstone of the topic `{name}` knows `{field}` and no other column, and the sink's key has {named}: "
            "where the app does not make that of it, the tombstone goes to quarantine, and its row stays"
        )
        yield what, f"{_narrowed(field)}, or see that the app makes {named} of `{field}` alone"
    elif _compacted(topic) and not _deletes(topic):
        what = (
            f"the topic `{name}` is compacted, and without `tombstones: delete` its deletes go to quarantine and their "
            "rows stay; compaction may remove them from the topic before anybody rewinds"
        )
        step = "add `tombstones: delete` to its `value`"
        yield what, f"{step}, and {_narrowed(field)}" if unknown else step


def _narrowed(field: str) -> str:
    return f"make `{field}` alone the sink's key, as `key: [{field}]`"


def _deletes(topic: TopicDocument) -> bool:
    return topic.value is not None and topic.value.tombstones is Tombstones.DELETE


def _compacted(topic: TopicDocument) -> bool:
    return topic.cleanup in (Cleanup.COMPACT, Cleanup.COMPACT_DELETE)


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
