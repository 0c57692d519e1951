"""What the example's topic keeps, and whether a reader of it may lose something, in a line for `up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.headroom import Danger
from millrace.usecases.declaration.environment import environment_of
from millrace.usecases.retention.readers import Readers, look
from millrace.usecases.retention.sizing import TopicSizing, size

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def retention_line(platform: Platform, kafka: str, topic: str) -> str:
    """Size and bound of a topic, and the reader of it with the least headroom; empty where it is not there.

    Raises:
        UnreachableError: no broker answers.
    """
    snapshot = platform.kafka.cluster(kafka).take()
    found = size(platform, kafka, [topic], snapshot=snapshot)
    readers = look(platform, kafka, environment_of(platform.settings.root), snapshot=snapshot)
    return "; ".join((_size(found.topics[0]), _headroom(readers, topic))) if found.topics else ""


def _size(one: TopicSizing) -> str:
    now = "size not known" if one.size_bytes is None else roughly_bytes(one.size_bytes)
    if one.bound_bytes is not None:
        return f"{now} of {roughly_bytes(one.bound_bytes)} at most"
    whys = sorted({each.bound.why for each in one.partitions if each.bound.why})
    return f"{now}, without bound: {', '.join(whys)}" if whys else now


def _headroom(readers: Readers, topic: str) -> str:
    rooms = [(reader, room) for reader in readers.readers for room in reader.rooms]
    mine = [(reader, room) for reader, room in rooms if room.position.partition.topic == topic]
    timed = [(room.left, reader) for reader, room in mine if room.left is not None]
    if timed:
        left, reader = min(timed, key=lambda each: each[0])
        danger = "" if reader.danger is Danger.NONE else f" ({reader.danger.value})"
        return f"{reader.what or reader.group} has {roughly(left)} left{danger}"
    count = len({reader.group for reader, _ in mine})
    return f"none of its {count} readers can lose records" if count else "it has no reader"
