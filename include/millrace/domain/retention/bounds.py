"""Upper bounds of how much a partition's log takes and how old its oldest record gets, and what breaks them.

Kafka deletes whole segments: by time once a segment's youngest record is older than `retention.ms`, by size as long as
the rest still has `retention.bytes`. It looks every `log.retention.check.interval.ms`, and the files go
`file.delete.delay.ms` later. A segment is rolled when a record comes that does not fit in `segment.bytes`, or that is
`segment.ms` younger than the segment's first one; where no record comes, none is rolled. So a record stays for
`retention.ms`, the time its segment spans, and one interval at most. Source: `UnifiedLog` and `LogManager`, Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

from millrace.domain.durations import roughly
from millrace.domain.headroom import Rule
from millrace.domain.retention.flow import Flow
from millrace.domain.retention.settings import BrokerSettings, LogSettings
from millrace.domain.snapshots import LogSample

_CLOCKS = timedelta(seconds=1)  # producers' and brokers' may differ so much before a record is called of the future
_LONGEST = timedelta.max.total_seconds() / 2


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
    IDLE = "idle"  # no record comes, so no segment is rolled
    PAST = "dated-back"  # records are dated so that retention deletes them as soon as it looks
    AGE = "too-old"
    SIZE = "too-large"


@dataclass(frozen=True, slots=True)
class Breach:
    """One bound that does not hold in one partition; `wrong`: nothing that is known explains it."""

    kind: BreachKind
    partition: int
    text: str
    wrong: bool = False


def bound(settings: LogSettings, broker: BrokerSettings, flow: Flow | None, clean_bytes: int | None = None) -> Bound:
    """The bounds of one partition.

    Args:
        settings: its topic's.
        broker: its broker's.
        flow: bytes a second that come in, measured over times as long as the topic keeps; None where nobody knows.
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
    if settings.time is not None and flow is not None:
        kept = settings.time + span(settings, flow) + broker.check_every
        found.append((flow.peak * _seconds(kept), flow.peak * _seconds(kept + settings.delete_delay), Rule.TIME))
    if not found:
        return Bound(age=age, age_by=age_by, why="nobody knows yet how fast records come")
    log_bytes, disk_bytes, by = min(found)
    segments = None if flow is None else _segments(settings, log_bytes, age)
    return Bound(log_bytes, disk_bytes, by, age, age_by, segments)


def span(settings: LogSettings, flow: Flow | None) -> timedelta:
    """The longest time that one segment holds the records of."""
    if flow is None or flow.least <= 0:
        return settings.segment_time
    return min(settings.segment_time, _time(settings.segment_bytes / flow.least))


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
    if ahead > _CLOCKS and settings.time is not None:
        kept = roughly(ahead + settings.time)
        text = f"a record is dated {roughly(ahead)} ahead: its segment, and all after it, is kept for {kept} more"
        yield Breach(BreachKind.FUTURE, partition, text, wrong=True)
    if grows and settings.time is not None and youngest is not None and youngest > settings.time:
        text = f"records that came lately are dated {roughly(youngest)} back: retention deletes them when it next looks"
        yield Breach(BreachKind.PAST, partition, text, wrong=True)
    elif age is not None and found.age is not None and age > found.age and ahead <= _CLOCKS:
        text = f"its oldest record is {roughly(age)} old, and {roughly(found.age)} is the most that follows"
        yield _exceeded(BreachKind.AGE, partition, text, grows)
    if size_bytes is not None and found.log_bytes is not None and size_bytes > found.log_bytes and ahead <= _CLOCKS:
        text = f"it takes {size_bytes:,} bytes, and {found.log_bytes:,.0f} is the most that follows"
        yield _exceeded(BreachKind.SIZE, partition, text, grows)


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


def _exceeded(kind: BreachKind, partition: int, text: str, grows: bool | None) -> Breach:
    if grows is False:
        why = "no record comes, so its last segment is not rolled, and the rate is not what it was"
        return Breach(BreachKind.IDLE, partition, f"{text}: {why}")
    return Breach(kind, partition, text, wrong=True)


def _age(settings: LogSettings, broker: BrokerSettings, flow: Flow | None) -> tuple[timedelta | None, Rule | None]:
    ages = []
    if settings.time is not None:
        ages.append((settings.time + span(settings, flow) + broker.check_every, Rule.TIME))
    if settings.size_bytes is not None and flow is not None and flow.least > 0:
        fills = (settings.size_bytes + settings.segment_bytes) / flow.least
        ages.append((_time(fills) + broker.check_every, Rule.SIZE))
    return min(ages, default=(None, None))


def _compacted(settings: LogSettings, flow: Flow | None, clean_bytes: int | None) -> Bound:
    """A log that is only compacted has no bound of age; how large it gets follows from what is left of it.

    The cleaner begins once the part that was written since is more than `min.cleanable.dirty.ratio` of what it may
    clean, which the last segment never is.
    """
    if clean_bytes is None or settings.dirty_ratio >= 1:
        why = "it is only compacted: it has no bound of age, and how large it is when it is clean was not seen yet"
        return Bound(why=why)
    log_bytes = clean_bytes / (1 - settings.dirty_ratio) + settings.segment_bytes
    return Bound(log_bytes, log_bytes + _grown(flow, settings.delete_delay), Rule.COMPACTION)


def _segments(settings: LogSettings, log_bytes: float, age: timedelta | None) -> int:
    by_size = log_bytes / max(1, settings.segment_bytes)
    by_time = age / settings.segment_time if age is not None and settings.segment_time else 0.0
    return 1 + int(max(by_size, by_time))


def _grown(flow: Flow | None, over: timedelta) -> float:
    return 0.0 if flow is None else max(flow.peak, flow.burst) * _seconds(over)


def _seconds(over: timedelta) -> float:
    return over.total_seconds()


def _time(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, _LONGEST))
