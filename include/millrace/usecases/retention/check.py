"""What the DAG of a pipeline's retention looks at: its topics against their bounds, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.bounds import BreachKind
from millrace.domain.retention.headroom import Danger
from millrace.domain.retention.readers import Room
from millrace.usecases.declaration.environment import environment_of
from millrace.usecases.retention.alarms import MOST_ALARMS, by_topic, hold_against, in_words, is_headroom, subject_of
from millrace.usecases.retention.readers import Reader, Readers, look
from millrace.usecases.retention.sizing import Sizing, TopicSizing, size

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

LOOKED_AT_LAST = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at the retention of one pipeline's topics found.

    Attributes:
        wrong: a line for each reader that is about to lose something, and each new breach of a bound.
        known: breaches that were found before, warnings, and what could not be looked up.
        told: tables for the log, a line each.
    """

    wrong: Sequence[str] = ()
    known: Sequence[str] = ()
    told: Sequence[str] = ()


def check(platform: Platform, pipeline: Pipeline, *, now: datetime | None = None) -> Checked:
    """Hold the topics of a pipeline against their bounds, and their readers against what may be deleted.

    Opens an alarm for each breach, and closes those that are over. Declared topics that are not there are told.

    Raises:
        UnreachableError: no broker, or the control database, does not answer.
    """
    began = now or datetime.now(UTC)
    names = [topic.name for topic in pipeline.topics]
    snapshot = platform.kafka.cluster(pipeline.kafka).take()
    sizing = size(platform, pipeline.kafka, names, snapshot=snapshot)
    readers = look(platform, pipeline.kafka, environment_of(platform.settings.root), snapshot=snapshot)
    newest = platform.control.snapshots.newest(pipeline.kafka)
    if newest is None or began - newest.at > LOOKED_AT_LAST:  # the look of each minute knows more: leave it to that
        hold_against(platform, readers, began=began)
    mine = replace(readers, readers=list(_of(readers, set(names))))
    new, old = _hold_bounds(platform, sizing, began)
    in_danger = list(_alarmed(platform, mine))
    absent = sorted(set(names) - {one.name for one in sizing.topics})
    return Checked(
        wrong=[*(text for danger, text in in_danger if danger is Danger.ALARM), *new],
        known=[
            *(text for danger, text in in_danger if danger is Danger.WARNING),
            *old,
            *(f"topic {name} is declared, but does not exist" for name in absent),
            *dict.fromkeys([*sizing.not_known, *readers.not_known]),
        ],
        told=[*sizing_lines(sizing), *reader_lines(mine)],
    )


def _of(readers: Readers, names: set[str]) -> Iterator[Reader]:
    """The readers of these topics, with what they have of them."""
    for one in readers.readers:
        rooms = [room for room in one.rooms if room.position.partition.topic in names]
        if rooms:
            yield replace(one, rooms=rooms)


def _alarmed(platform: Platform, readers: Readers) -> Iterator[tuple[Danger, str]]:
    """What is in danger of these readers: alarms that are open, and what is near to that."""
    subjects = {
        subject_of(readers, one, topic): (one, rooms) for one in readers.readers for topic, rooms in by_topic(one)
    }
    alarmed = {
        each.subject: each.detail for each in platform.control.alarms.list(limit=MOST_ALARMS) if is_headroom(each)
    }
    for subject, (one, rooms) in subjects.items():
        if subject in alarmed:
            yield Danger.ALARM, alarmed[subject]
        elif rooms[0].danger is not Danger.NONE:
            yield Danger.WARNING, in_words(one, rooms)


def _hold_bounds(platform: Platform, sizing: Sizing, began: datetime) -> tuple[list[str], list[str]]:
    """Breaches of bounds that are new, and those that were found before; those that are over are closed."""
    alarms = platform.control.alarms
    now_open = {alarm.subject for alarm in alarms.list(limit=MOST_ALARMS) if alarm.kind == AlarmKind.TOPIC_BOUND}
    new: list[str] = []
    old: list[str] = []
    still = set()
    for one in sizing.topics:
        worst = _worst(one)
        for breach in one.breaches:
            text = f"{one.name}/{breach.partition} is {breach.kind}: {breach.text}"
            subject = f"{sizing.kafka}/{one.name} {breach.kind}"
            if not breach.wrong:
                old.append(text)
            elif subject in still:
                (new if subject not in now_open else old).append(text)
            else:
                still.add(subject)
                (new if alarms.open(AlarmKind.TOPIC_BOUND, subject, text, Extent(worst[breach.kind])) else old).append(
                    text
                )
    looked_at = {f"{sizing.kafka}/{one.name}" for one in sizing.topics if _is_known(one)}
    for subject in now_open - still:
        if subject.rpartition(" ")[0] in looked_at:
            alarms.close(AlarmKind.TOPIC_BOUND, subject, opened_before=began)
    return new, old


def _worst(topic: TopicSizing) -> Mapping[BreachKind, float]:
    """Return the greatest measure of each kind of breach over the topic's partitions."""
    found: dict[BreachKind, float] = {}
    for breach in topic.breaches:
        found[breach.kind] = max(breach.measure, found.get(breach.kind, 0))
    return found


def _is_known(topic: TopicSizing) -> bool:
    return topic.settings is not None and topic.size_bytes is not None


def sizing_lines(sizing: Sizing) -> Iterator[str]:
    """A line a topic: what it takes, what it takes at most, how old it is and gets."""
    yield from _table(
        ("topic", "size", "at most", "oldest", "at most", "comes in"),
        [
            (
                one.name,
                _size(one.size_bytes),
                _size(one.bound_bytes),
                "" if one.age is None else roughly(one.age),
                "" if one.age_bound is None else roughly(one.age_bound),
                "?" if one.bytes_per_second is None else f"{roughly_bytes(one.bytes_per_second)}/s",
            )
            for one in sizing.topics
        ],
    )


def reader_lines(readers: Readers) -> Iterator[str]:
    """A line a reader: what it has not read, what it has lost, and when the first of it may be deleted."""
    yield from _table(
        ("reader", "unread", "lost", "goes in", "by", "danger"),
        [
            (one.group, f"{one.unread:,}", f"{one.lost:,}", *_first(one.rooms[0] if one.rooms else None))
            for one in readers.readers
        ],
    )


def _first(room: Room | None) -> tuple[str, str, str]:
    if room is None or room.left is None:
        return "?" if room is not None and room.why else "never", "", room.why if room is not None else ""
    return roughly(room.left), str(room.rule or ""), "" if room.danger is Danger.NONE else room.danger.value


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns; the first to the left, the others to the right."""
    if not rows:
        return
    widths = [max(len(row[n]) for row in (headings, *rows)) for n in range(len(headings))]
    for row in (headings, *rows):
        yield "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def _size(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else roughly_bytes(size_bytes)
