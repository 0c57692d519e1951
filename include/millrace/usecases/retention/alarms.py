"""An alarm before a reader loses what it has not read, at each snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.printable import printable
from millrace.domain.formats.shortened import shortened
from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.retention.headroom import Danger
from millrace.domain.retention.readers import Room
from millrace.usecases.declaration.environment import environment_of
from millrace.usecases.retention.readers import Memory, Reader, Readers, look

if TYPE_CHECKING:
    from millrace.domain.alarms.alarm import Alarm
    from millrace.ports.platform import Platform

MOST_ALARMS = 10_000
_NAMED = 3


def watch(platform: Platform, kafka: str, snapshot: Snapshot, memory: Memory) -> list[str]:
    """Open an alarm for each reader and topic of which unread records may soon be deleted, and close those over.

    Returns:
        A line for each alarm that was opened now, and for what could not be looked up.

    Raises:
        UnreachableError: the control database does not answer.
        UsageError: the environment file has errors.
    """
    found = look(platform, kafka, environment_of(platform.settings.root), snapshot=snapshot, memory=memory)
    lines = hold_against(platform, found, began=snapshot.at)
    not_known = [f"not known: {line}" for line in found.not_known[:_NAMED]]
    more = len(found.not_known) - _NAMED
    return [*lines, *not_known, *([f"not known: {more} more"] if more > 0 else [])]


def hold_against(platform: Platform, found: Readers, *, began: datetime) -> list[str]:
    """The alarms that what was found opens and closes; a line for each that was opened now."""
    alarms = platform.control.alarms
    now_open = {alarm.subject for alarm in alarms.list(limit=MOST_ALARMS) if is_headroom(alarm)}
    still: set[str] = set()
    lines = []
    for reader in found.readers:
        for topic, rooms in by_topic(reader):
            if not any(room.danger is Danger.ALARM for room in rooms):
                continue
            subject = subject_of(found, reader, topic)
            still.add(subject)
            text = in_words(reader, rooms)
            if alarms.open(AlarmKind.READER_HEADROOM, subject, text, _extent(rooms)):
                lines.append(text)
    for subject in now_open - still:
        if _is_over(found, subject):
            alarms.close(AlarmKind.READER_HEADROOM, subject, opened_before=began)
    return lines


def _extent(rooms: Iterable[Room]) -> Extent:
    """Return how long the first of what is in danger stays, in seconds."""
    left = [room.left.total_seconds() for room in rooms if room.danger is Danger.ALARM and room.left is not None]
    return Extent(min(left, default=None))


def is_headroom(alarm: Alarm) -> bool:
    """Whether it is one of these."""
    return alarm.kind == AlarmKind.READER_HEADROOM


def subject_of(found: Readers, reader: Reader, topic: str) -> str:
    """What an alarm of a reader and a topic is about."""
    return f"{found.kafka}/{reader.group} {topic}"


def by_topic(reader: Reader) -> Iterable[tuple[str, Sequence[Room]]]:
    """A reader's partitions by topic, in the order they are in."""
    found: dict[str, list[Room]] = {}
    for room in reader.rooms:
        found.setdefault(room.position.partition.topic, []).append(room)
    return found.items()


def in_words(reader: Reader, rooms: Sequence[Room]) -> str:
    """What is in danger of one reader and topic, in a line for people."""
    danger = rooms[0].danger
    near = [room for room in rooms if room.danger is danger]
    first = near[0]
    assert first.left is not None
    when = f"in {roughly(first.left)}" if first.left else "at any moment"
    parts = shortened([f"{r.position.partition} from offset {r.position.offset:,}" for r in near], _NAMED)
    unread = sum(room.unread for room in near)
    what = printable(reader.what or f"group {reader.group}")
    return f"{what}: {unread:,} unread offsets of {parts} may be deleted, the first {when} ({first.rule})"


def _is_over(found: Readers, subject: str) -> bool:
    """Whether what does not show any more is over: not where what would show it is not known."""
    kafka, _, name = subject.partition("/")
    if kafka != found.kafka:
        return False
    group, _, topic = name.rpartition(" ")
    reader = next((reader for reader in found.readers if reader.group == group), None)
    if topic not in found.snapshot.topics:
        return not found.snapshot.faults
    if reader is None:  # one of ours is not out of danger because its commits have expired
        return group not in found.declared and not found.snapshot.faults
    rooms = [room for room in reader.rooms if room.position.partition.topic == topic]
    seen = found.snapshot.groups.get(group)
    known = all(found.snapshot.topics[topic].logs) and (seen is None or seen.commits is not None)
    return known and (bool(rooms) or not reader.declared) and not any(room.why for room in rooms)
