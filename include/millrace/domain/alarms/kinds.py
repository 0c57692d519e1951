"""Every kind of alarm: its meaning, its measure, the modules that open and close it, and its page of the runbook.

The control database keeps the words. A row may hold a word of another release, which `facts_of` does not know.
`docs/operations/alarms.md` has a row for each kind; a test compares them. `docs/contributing/add-an-alarm.md` adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class AlarmKind(StrEnum):
    """The kind of an alarm, by the word in the control database. One alarm is open per kind and subject."""

    STREAM_DIED = "stream.died"
    STREAM_STUCK = "stream.stuck"
    STREAM_GAVE_UP = "stream.gave_up"
    STREAM_RECREATED = "stream.recreated"
    STREAM_HOST_LOST = "stream.host_lost"
    STREAM_SINK_EXHAUSTED = "stream.sink_exhausted"
    STREAM_ALL_QUARANTINED = "stream.all_quarantined"
    BACKUP_LOST = "backup.lost"
    BACKUP_BROKEN = "backup.broken"
    BACKUP_LATE = "backup.late"
    BACKUP_HALTED = "backup.halted"
    BACKUP_DOOMED = "backup.doomed"
    BACKUP_SILENT = "backup.silent"
    GROUP_STUCK = "group.stuck"
    GROUP_RISK = "group.risk"
    TOPIC_HOLD = "topic.hold"
    READER_HEADROOM = "reader.headroom"
    TOPIC_BOUND = "topic.bound"
    DISK_FULL = "disk.full"
    QUALITY_BROKEN = "quality.broken"
    BOOKS_UNBALANCED = "books.unbalanced"
    QUALITY_UNCHECKED = "quality.unchecked"
    CONTROL_DOWN = "control.down"


@dataclass(frozen=True, slots=True)
class Measure:
    """The unit of a kind of alarm. `shrinks`: the breach gets worse as the number falls, as with time that is left."""

    unit: str
    shrinks: bool = False


NOTHING = Measure("")


@dataclass(frozen=True, slots=True)
class AlarmFacts:
    """Facts about every alarm of a kind.

    Attributes:
        text: the breach, in a few words for people; the row of `docs/operations/alarms.md` begins with them.
        opened_by: the modules that open it, as `usecases.groups.check`.
        closed_by: the modules that close it.
        runbook: the page below `docs/` with the heading of the section that says what to do.
        measure: the unit of its number.
    """

    text: str
    opened_by: tuple[str, ...]
    closed_by: tuple[str, ...]
    runbook: str
    measure: Measure = NOTHING


_DRIVER = "runtime.stream.driver"
_KEEPER = "runtime.backup.keeper"
_AUDITS = "usecases.archive.audits"
_STREAMS = "usecases.streams.alarms"
_GROUPS = "usecases.groups.check"
_HOLDS = "usecases.retention.holds"
_HEADROOM = "usecases.retention.alarms"
_BOUNDS = "usecases.retention.check"
_DISKS = "usecases.retention.growth"
_QUALITY = "usecases.quality.alarms"
_BOOKS = "usecases.quality.books"
_WATCHDOG = "usecases.alarms.watchdog"

FACTS: Mapping[AlarmKind, AlarmFacts] = {
    AlarmKind.STREAM_DIED: AlarmFacts(
        "an app ended by itself, or did not start, although it should run; it is retried",
        opened_by=(_STREAMS, "usecases.streams.supervise"),
        closed_by=(_STREAMS,),
        runbook="operations/supervision.md#states-of-millrace-streams-list",
    ),
    AlarmKind.STREAM_STUCK: AlarmFacts(
        "its app runs but makes no progress",
        opened_by=(_STREAMS,),
        closed_by=(_STREAMS,),
        runbook="operations/supervision.md#a-stream-that-is-stuck",
    ),
    AlarmKind.STREAM_GAVE_UP: AlarmFacts(
        "it needs an operator before it starts again, or its declaration is wrong",
        opened_by=(_STREAMS,),
        closed_by=(_STREAMS,),
        runbook="operations/supervision.md#states-of-millrace-streams-list",
    ),
    AlarmKind.STREAM_RECREATED: AlarmFacts(
        "a topic that it reads was deleted and created again",
        opened_by=(_STREAMS,),
        closed_by=(_STREAMS,),
        runbook="operations/supervision.md#states-of-millrace-streams-list",
    ),
    AlarmKind.STREAM_HOST_LOST: AlarmFacts(
        "a stream should run, but its host is silent",
        opened_by=(_STREAMS,),
        closed_by=(_STREAMS,),
        runbook="operations/supervision.md#the-host-of-a-stream",
    ),
    AlarmKind.STREAM_SINK_EXHAUSTED: AlarmFacts(
        "its sink lacks disk, memory or connections",
        opened_by=(_DRIVER,),
        closed_by=(_DRIVER, _STREAMS),
        runbook="operations/supervision.md#a-sink-that-is-exhausted",
    ),
    AlarmKind.STREAM_ALL_QUARANTINED: AlarmFacts(
        "three batches in a row that had records, or 1,000 records in a row, went to quarantine completely and gave "
        "no row",
        opened_by=(_DRIVER,),
        closed_by=(_DRIVER,),
        runbook="guide/redrive.md#2-what-is-wrong-with-them",
        measure=Measure("records"),
    ),
    AlarmKind.BACKUP_LOST: AlarmFacts(
        "offsets of a topic are lost: no object has them or will have them",
        opened_by=(_KEEPER, _AUDITS),
        closed_by=(_KEEPER, _AUDITS),
        runbook="operations/backup-audit.md#lost",
        measure=Measure("offsets"),
    ),
    AlarmKind.BACKUP_BROKEN: AlarmFacts(
        "an audit found a missing or corrupt manifest or object",
        opened_by=(_AUDITS,),
        closed_by=(_AUDITS,),
        runbook="operations/backup-audit.md#broken",
        measure=Measure("faults"),
    ),
    AlarmKind.BACKUP_LATE: AlarmFacts(
        "an audit found records that wait for longer than `max_lag`",
        opened_by=(_AUDITS,),
        closed_by=(_AUDITS,),
        runbook="operations/backup-audit.md#late",
        measure=Measure("partitions"),
    ),
    AlarmKind.BACKUP_HALTED: AlarmFacts(
        "the chain of a topic is damaged, or another writer writes it",
        opened_by=(_KEEPER,),
        closed_by=(_KEEPER,),
        runbook="guide/backup.md#when-something-is-wrong",
    ),
    AlarmKind.BACKUP_DOOMED: AlarmFacts(
        "the backup does not keep up: unarchived records may be deleted within 15 minutes",
        opened_by=("runtime.backup.doom",),
        closed_by=("runtime.backup.doom",),
        runbook="guide/backup.md#when-something-is-wrong",
        measure=Measure("seconds left", shrinks=True),
    ),
    AlarmKind.BACKUP_SILENT: AlarmFacts(
        "for five minutes a broker, a partition's leader, or the right to describe a topic is missing",
        opened_by=("runtime.backup.silence",),
        closed_by=("runtime.backup.silence",),
        runbook="guide/backup.md#when-something-is-wrong",
        measure=Measure("partitions or topics"),
    ),
    AlarmKind.GROUP_STUCK: AlarmFacts(
        "the consumer group of a declared stream or backup has unread records and does not commit",
        opened_by=(_GROUPS,),
        closed_by=(_GROUPS,),
        runbook="guide/groups.md#status",
        measure=Measure("unread offsets"),
    ),
    AlarmKind.GROUP_RISK: AlarmFacts(
        "such a group has a new risk",
        opened_by=(_GROUPS,),
        closed_by=(_GROUPS,),
        runbook="guide/groups.md#what-may-go-wrong",
        measure=Measure("offsets"),
    ),
    AlarmKind.TOPIC_HOLD: AlarmFacts(
        "the time of a hold is over, and its end would take unread records from a declared reader",
        opened_by=(_HOLDS,),
        closed_by=(_HOLDS,),
        runbook="guide/topics.md#holds",
        measure=Measure("offsets"),
    ),
    AlarmKind.READER_HEADROOM: AlarmFacts(
        "unread records of a reader may be deleted soon",
        opened_by=(_HEADROOM,),
        closed_by=(_HEADROOM,),
        runbook="guide/retention.md#headroom",
        measure=Measure("seconds left", shrinks=True),
    ),
    AlarmKind.TOPIC_BOUND: AlarmFacts(
        "a topic is larger, or has older records, than its settings and its rate allow, or has records of the future "
        "or the past",
        opened_by=(_BOUNDS,),
        closed_by=(_BOUNDS,),
        runbook="guide/retention.md#what-breaks-a-bound-by-name",
        measure=Measure("bytes or seconds"),
    ),
    AlarmKind.DISK_FULL: AlarmFacts(
        "less than a tenth of a broker's disk is free, or it is expected to be full within a week",
        opened_by=(_DISKS,),
        closed_by=(_DISKS,),
        runbook="guide/retention.md#forecasts",
        measure=Measure("bytes free", shrinks=True),
    ),
    AlarmKind.QUALITY_BROKEN: AlarmFacts(
        "a rule of severity `fail` is broken by rows that a stream wrote",
        opened_by=(_QUALITY,),
        closed_by=(_QUALITY,),
        runbook="guide/quality.md#what-a-check-looks-at",
        measure=Measure("rows"),
    ),
    AlarmKind.BOOKS_UNBALANCED: AlarmFacts(
        "offsets of a stream are missing from its table, doubled, or unknown",
        opened_by=(_BOOKS,),
        closed_by=(_BOOKS,),
        runbook="guide/books.md#faults",
        measure=Measure("offsets"),
    ),
    AlarmKind.QUALITY_UNCHECKED: AlarmFacts(
        "a rule of severity `fail`, or a whole check, could not be tested",
        opened_by=(_QUALITY,),
        closed_by=(_QUALITY,),
        runbook="guide/quality.md#what-comes-of-it",
    ),
    AlarmKind.CONTROL_DOWN: AlarmFacts(
        "the control database does not answer a host for 60 seconds",
        opened_by=(_WATCHDOG,),
        closed_by=(_WATCHDOG,),
        runbook="operations/alarms.md#while-the-control-database-is-down",
    ),
}
"""Each kind of alarm, in the order of the page."""


def facts_of(kind: str) -> AlarmFacts | None:
    """Return the facts of a kind; None for a word of another release."""
    try:
        return FACTS[AlarmKind(kind)]
    except ValueError:
        return None


def measure_of(kind: str) -> Measure:
    """Return the measure of a kind; a kind of another release gets worse as its number grows."""
    found = facts_of(kind)
    return found.measure if found else NOTHING


def runbook_of(kind: str) -> str:
    """Return the runbook's page and heading from the project's folder; empty for a kind of another release."""
    found = facts_of(kind)
    return f"docs/{found.runbook}" if found else ""
