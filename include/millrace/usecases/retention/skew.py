"""Skew: which partition of a topic holds most, and the keys that make it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from millrace.declarations.fields import nearest
from millrace.domain.formats.printable import shown
from millrace.domain.groups.snapshots import TopicSeen
from millrace.domain.retention.skew import Load, Sample, load_of, newest, sample_of
from millrace.errors import Code, DataLossError, UnreachableError, UsageError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Skew:
    """How a topic's records lie in its partitions.

    Attributes:
        topic: its name.
        kafka: the Connection of its cluster.
        cluster_id: that cluster's own id.
        at: when it was looked at.
        load: what each partition holds.
        sample: the newest keys of the fullest one; None where no partition holds anything.
    """

    topic: str
    kafka: str
    cluster_id: str
    at: datetime
    load: Load
    sample: Sample | None


def find_skew(platform: Platform, kafka: str, topic: str, records: int) -> Skew:
    """Look at a topic now: what its partitions hold, and the keys of the newest records of the fullest one.

    Args:
        platform: the adapters; the control database is not needed.
        kafka: the cluster's Connection.
        topic: the topic's name.
        records: how many are read at most.

    Raises:
        DataLossError: its oldest records were deleted each time before they were read.
        UnreachableError: the cluster, or every leader of the topic's partitions, does not answer.
        UsageError: the cluster has no such topic.
    """
    for _ in range(_TRIES - 1):
        try:
            return _look(platform, kafka, topic, records)
        except DataLossError:  # retention was faster than the read
            continue
    return _look(platform, kafka, topic, records)


def _look(platform: Platform, kafka: str, topic: str, records: int) -> Skew:
    snapshot = platform.kafka.cluster(kafka).take()
    seen = _seen(snapshot.topics, topic, kafka)
    load = load_of(seen)
    if len(load.unknown) == len(seen.logs):
        raise UnreachableError(
            "no leader of its partitions answers",
            where=f"{topic} on {kafka}",
            next_step="; ".join(snapshot.faults) or "check the brokers: `./millrace status`",
            code=Code.KAFKA_UNREACHABLE,
        )
    sample = _sample(platform, kafka, topic, seen, load, records)
    return Skew(topic, kafka, snapshot.cluster_id, snapshot.at, load, sample)


def _seen(topics: Mapping[str, TopicSeen], topic: str, kafka: str) -> TopicSeen:
    if topic in topics:
        return topics[topic]
    hint = nearest(topic, topics)
    raise UsageError(
        f"topic `{shown(topic)}` does not exist, or this connection may not see it",
        where=kafka,
        next_step=hint if hint.startswith("did") else "check the name, and give its cluster with --kafka",
        code=Code.UNKNOWN_NAME,
    )


def _sample(platform: Platform, kafka: str, topic: str, seen: TopicSeen, load: Load, records: int) -> Sample | None:
    hottest = load.hottest
    log = None if hottest is None else seen.logs[hottest.partition]
    if hottest is None or log is None:
        return None
    first, end = newest(log, records)
    found = platform.kafka.records(kafka).between(topic, hottest.partition, first, end) if first < end else ()
    return sample_of(hottest.partition, (first, end), (record.key for record in found), len(seen.logs))
