"""Warnings: what is allowed and probably not meant."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.domain.declaration import Manage, ValueFormat
from millrace.spec.build import DEFAULT_REPLICATION
from millrace.spec.documents import TopicDocument
from millrace.spec.draft import Draft
from millrace.spec.fields import nearest
from millrace.spec.findings import Finding, Severity, finding, shown
from millrace.spec.validate import Part

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


def warnings(draft: Draft, *, embedded: bool) -> Iterator[Finding]:
    """Advice about a sound pipeline.

    Args:
        draft: the pipeline, its environment applied.
        embedded: whether that is the embedded stack, where one replica is all there can be.
    """
    for topic in draft.topics.values():
        if topic.document.manage is Manage.FULL:
            yield from _topic(topic, embedded)
        yield from _config(topic)


def _topic(topic: Part[TopicDocument], embedded: bool) -> Iterator[Finding]:
    document = topic.document
    replication = document.replication or DEFAULT_REPLICATION
    if document.partitions == 1:
        what = "one partition: records can be read by one task only, and adding partitions later moves keys"
        yield finding(topic.place("partitions"), what, "declare as many as you may need", Severity.WARNING)
    if embedded:
        return
    if replication == 1:
        what = "one replica: records are lost with their broker"
        yield finding(topic.place("replication"), what, "declare 3 replicas", Severity.WARNING)
    in_sync = document.config.get("min.insync.replicas", "")
    if in_sync.isdecimal() and int(in_sync) > replication:
        what = f"{in_sync} replicas must be in sync, but there are {replication}: nobody could write with acks=all"
        place = topic.place("config").below("min.insync.replicas")
        yield finding(place, what, f"write at most {replication}", Severity.WARNING)


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
