"""An alarm before a reader loses what it has not read, at each snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from millrace.domain.durations import roughly
from millrace.domain.headroom import Danger
from millrace.domain.retention.readers import Room
from millrace.domain.snapshots import Snapshot
from millrace.usecases.alarms import environment_of
from millrace.usecases.readers import Memory, Reader, Readers, look

if TYPE_CHECKING:
    from millrace.wiring import Platform

HEADROOM = "reader.headroom"
MOST_ALARMS = 10_000
_NAMED = 3


def watch(platform: Platform, kafka: str, snapshot: Snapshot, memory: Memory) -> list[str]:
    """Open an alarm for each reader and topic of which unread records may soon be deleted, and close those over.

    Returns:
        A line for each alarm that was opened now.

    Raises:
        UnreachableError: the control database does not answer.
        UsageError: the environment file has errors.
    """
    found = look(platform, kafka, environment_of(platform.settings.root), snapshot=snapshot, memory=memory)
    return hold_against(platform, found, began=snapshot.at)


def hold_against(platform: Platform, found: Readers, *, began: datetime) -> list[str]:
    """The alarms that what was found opens and closes; a line for each that was opened now."""
    alarms = platform.control().alarms
    now_open = {alarm.subject for alarm in alarms.list(limit=MOST_ALARMS) if alarm.kind == HEADROOM}
    still: set[str] = set()
    lines = []
    for reader in found.readers:
        for topic, rooms in by_topic(reader):
            if not any(room.danger is Danger.ALARM for room in rooms):
                continue
            subject = f"{found.kafka}/{reader.group} {topic}"
            still.add(subject)
            text = in_words(reader, rooms)
            if alarms.open(HEADROOM, subject, text):
                lines.append(text)
    for subject in now_open - still:
        if _is_over(found, subject):
            alarms.close(HEADROOM, subject, opened_before=began)
    return lines


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
    parts = ", ".join(f"{r.position.partition} from offset {r.position.offset:,}" for r in near[:_NAMED])
    more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
    unread = sum(room.unread for room in near)
    what = reader.what or f"group {reader.group}"
    return f"{what}: {unread:,} unread offsets of {parts}{more} may be deleted, the first {when} ({first.rule})"


def _is_over(found: Readers, subject: str) -> bool:
    """Whether what does not show any more is over: not where what would show it is not known."""
    kafka, _, name = subject.partition("/")
    if kafka != found.kafka:
        return False
    group, _, topic = name.rpartition(" ")
    reader = next((reader for reader in found.readers if reader.group == group), None)
    if reader is None or topic not in found.snapshot.topics:
        return not found.snapshot.faults
    seen = found.snapshot.topics[topic]
    known = all(seen.logs) and found.snapshot.groups[group].commits is not None
    return known and not any(room.why for room in reader.rooms if room.position.partition.topic == topic)
