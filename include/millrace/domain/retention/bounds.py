"""Upper bounds of how much a partition's log takes and how old its oldest record gets, and what breaks them.

Kafka deletes whole segments: by time once a segment's youngest record is older than `retention.ms`, by size as long as
the rest still has `retention.bytes`. It looks every `log.retention.check.interval.ms`, and the files go
`file.delete.delay.ms` later. A segment is rolled when a record comes that does not fit in `segment.bytes`, or that is
`segment.ms` younger than the segment's first one; where no record comes, none is rolled, but the last one is deleted as
well once all in it is old. So a record stays for `retention.ms`, the time its segment spans, and one interval at most.
Source: `UnifiedLog`, `LogManager` and `LogCleaner` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

from millrace.domain.formats.durations import roughly
from millrace.domain.groups.snapshots import LogSample
from millrace.domain.retention.flow import Flow
from millrace.domain.retention.headroom import Rule
from millrace.domain.retention.settings import BrokerSettings, LogSettings

_CLOCKS = timedelta(minutes=1)  # producers' and brokers' may differ so much before a record is called of the future
_MATTERS = 100  # the part of retention by which a record's date has to be ahead to be told
_MERGED = "it is compacted too: compaction merges segments, so no time limit bounds it"


@dataclass(frozen=True, slots=True)
class Bound:
    """What one partition takes at most, and how old its oldest record gets.

    Attributes:
        log_bytes: of its segments, as the broker tells them; None: without bound, or not known.
        disk_bytes: with the files of what was deleted and waits for its deletion.
        by: the rule that bounds the bytes.
        age: of the oldest record; None: without bound, or not known.
        age_by: the rule that bounds it.
        segments: how many segments that makes, about.
        why: why there is no bound of the bytes; empty where there is one.
    """

    log_bytes: float | None = None
    disk_bytes: float | None = None
    by: Rule | None = None
    age: timedelta | None = None
    age_by: Rule | None = None
    segments: int | None = None
    why: str = ""


class BreachKind(StrEnum):
    """Why a partition holds more, or older records, than its settings let one expect."""

    FUTURE = "future-dated"  # a record of the future keeps its segment
    IDLE = "idle"  # larger than what comes in now explains, for nothing does
    PAST = "dated-back"  # records are dated so that retention deletes them as soon as it looks
    AGE = "too-old"
    SIZE = "too-large"


@dataclass(frozen=True, slots=True)
class Breach:
    """One bound that does not hold in one partition.

    Attributes:
        kind: which bound.
        partition: the partition's number.
        text: for people.
        wrong: whether nothing that is known explains it.
        measure: the bytes that the partition takes, or by how many seconds records are too old, past or future.
    """

    kind: BreachKind
    partition: int
    text: str
    wrong: bool = False
    measure: float = 0


def bound(settings: LogSettings, broker: BrokerSettings, flow: Flow | None, clean_bytes: int | None = None) -> Bound:
    """The bounds of one partition.

    Args:
        settings: its topic's.
        broker: its broker's.
        flow: the bytes that came in; None where nobody knows.
        clean_bytes: of a compacted log: what it had right after it was compacted, where that was seen.

    Guarantees: as long as records come as they did, and are dated when they come, no more and nothing older is kept.

    Does not guarantee: anything of a record batch that is larger than a segment, of tiered storage, or of index files,
    which take less than one hundredth.
    """
    if not settings.deletes:
        return _compacted(settings, flow, clean_bytes)
    if not settings.limited:
        return Bound(why="it keeps everything")
    age, age_by = _age(settings, broker, flow)
    found: list[tuple[float, float, Rule]] = []
    if settings.size_bytes is not None:
        log_bytes = settings.size_bytes + settings.segment_bytes + _grown(flow, broker.check_every)
        found.append((log_bytes, log_bytes + _grown(flow, settings.delete_delay), Rule.SIZE))
    if settings.time is not None and flow is not None and not settings.compacts:
        rest = span(settings, flow) + broker.check_every
        log_bytes = _came(flow, settings.time) + _came(flow, rest)
        found.append((log_bytes, log_bytes + _grown(flow, settings.delete_delay), Rule.TIME))
    if not found:
        why = _MERGED if settings.compacts else "the rate of records is not known yet"
        return Bound(age=age, age_by=age_by, why=why)
    log_bytes, disk_bytes, by = min(found)
    return Bound(log_bytes, disk_bytes, by, age, age_by, _segments(settings, log_bytes, age))


def span(settings: LogSettings, flow: Flow | None) -> timedelta:
    """The longest time that one segment holds the records of: over a quiet weekend it is not rolled."""
    filled = None if flow is None else flow.longest(settings.segment_bytes)
    return settings.segment_time if filled is None else min(settings.segment_time, filled)


def breaches(
    settings: LogSettings,
    found: Bound,
    *,
    partition: int,
    size_bytes: int | None,
    age: timedelta | None,
    youngest: timedelta | None,
    grows: bool | None,
) -> Iterator[Breach]:
    """What of a partition is not as its bounds say, and why.

    Args:
        settings: its topic's.
        found: its bounds.
        partition: its number.
        size_bytes: what the broker says it takes.
        age: of the oldest record, by its timestamp; None where there is none.
        youngest: of the one with the greatest timestamp; below zero: it is of the future.
        grows: whether records came lately; None: nobody knows.
    """
    if not settings.deletes:
        return
    ahead = -youngest if youngest is not None else timedelta(0)
    future = settings.time is not None and ahead > max(_CLOCKS, settings.time / _MATTERS)
    if future and settings.time is not None:
        kept = roughly(ahead + settings.time)
        text = f"a record is dated {roughly(ahead)} ahead: its segment, and all after it, is kept for {kept} more"
        yield Breach(BreachKind.FUTURE, partition, text, wrong=True, measure=ahead.total_seconds())
    if grows and settings.time is not None and youngest is not None and youngest > settings.time:
        text = f"new records have timestamps {roughly(youngest)} in the past: retention deletes them at its next check"
        yield Breach(BreachKind.PAST, partition, text, wrong=True, measure=youngest.total_seconds())
    elif age is not None and found.age is not None and age > found.age and not future:
        text = f"its oldest record is {roughly(age)} old, and {roughly(found.age)} is the most that follows"
        yield Breach(BreachKind.AGE, partition, text, wrong=True, measure=age.total_seconds())
    if size_bytes is not None and found.log_bytes is not None and size_bytes > found.log_bytes and not future:
        text = f"it takes {size_bytes:,} bytes, and {found.log_bytes:,.0f} is the most that follows"
        idle = grows is False and found.by is Rule.TIME
        why = ": no record arrives, so the former rate does not apply" if idle else ""
        kind = BreachKind.IDLE if idle else BreachKind.SIZE
        yield Breach(kind, partition, text + why, wrong=not idle, measure=size_bytes)


def clean_bytes(samples: Sequence[LogSample]) -> int | None:
    """What a compacted log had when it was last seen to be compacted: smaller than before, and none the shorter.

    Args:
        samples: oldest first.
    """
    found = None
    for one, other in pairwise(samples):
        if one.size_bytes is not None and other.size_bytes is not None and one.start == other.start:
            found = other.size_bytes if other.size_bytes < one.size_bytes else found
    return found


def _age(settings: LogSettings, broker: BrokerSettings, flow: Flow | None) -> tuple[timedelta | None, Rule | None]:
    """How old a record gets. Compaction merges segments, and the whole is as young as its youngest record."""
    if settings.compacts:
        return None, None
    ages = []
    if settings.time is not None:
        ages.append((_plus(settings.time, span(settings, flow), broker.check_every), Rule.TIME))
    if settings.size_bytes is not None and flow is not None:
        pushed_out = flow.longest(settings.size_bytes + settings.segment_bytes)
        if pushed_out is not None:
            ages.append((_plus(pushed_out, broker.check_every), Rule.SIZE))
    return min(ages, default=(None, None))


def _compacted(settings: LogSettings, flow: Flow | None, clean_bytes: int | None) -> Bound:
    """A log that is only compacted has no bound of age; how large it gets follows from what is left of it.

    The cleaner begins once the part that was written since is more than `min.cleanable.dirty.ratio` of what it may
    clean, which the last segment never is.
    """
    if clean_bytes is None or settings.dirty_ratio >= 1:
        why = "it is only compacted: its age has no bound, and its size after compaction is not known yet"
        return Bound(why=why)
    log_bytes = clean_bytes / (1 - settings.dirty_ratio) + settings.segment_bytes
    return Bound(log_bytes, log_bytes + _grown(flow, settings.delete_delay), Rule.COMPACTION)


def _segments(settings: LogSettings, log_bytes: float, age: timedelta | None) -> int:
    by_size = log_bytes / max(1, settings.segment_bytes)
    by_time = age / settings.segment_time if age is not None and settings.segment_time else 0.0
    return 1 + int(max(by_size, by_time))


def _grown(flow: Flow | None, over: timedelta) -> float:
    return 0.0 if flow is None else flow.burst * over.total_seconds()


def _came(flow: Flow, over: timedelta) -> float:
    return flow.peak(over) * over.total_seconds()


def _plus(*spans: timedelta) -> timedelta:
    total = timedelta(0)
    for each in spans:
        total = timedelta.max if each > timedelta.max - total else total + each
    return total
