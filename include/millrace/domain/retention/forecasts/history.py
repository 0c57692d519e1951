"""What is kept of topics so that they can be forecast, and of forecasts so that they can be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.domain.groups.snapshots import LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.forecasts.errors import Comparison, PastError, compare
from millrace.domain.retention.forecasts.estimates import Estimate, Forecast, Limits, Now
from millrace.domain.retention.inflow import Point

DAYS_KEPT = timedelta(days=400)
FORECASTS_KEPT = timedelta(days=200)
_NEAR = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class TopicLook:
    """One topic as it was at one time.

    Attributes:
        topic: its name.
        topic_id: its own id: one that was deleted and made again has another.
        at: when, UTC.
        ends: the sum of its partitions' end offsets.
        record_bytes: what an offset took on disk, on average; None where it held none.
        size_bytes: of the leaders' replicas of all its partitions.
        partitions: how many it had.
    """

    topic: str
    topic_id: str
    at: datetime
    ends: int
    record_bytes: float | None
    size_bytes: int
    partitions: int


@dataclass(frozen=True, slots=True)
class MadeForecast:
    """A forecast, whose it is, and how far those before it were off."""

    topic: str
    topic_id: str
    forecast: Forecast
    past: tuple[PastError, ...] = ()


@dataclass(frozen=True, slots=True)
class DueEstimate:
    """An estimate whose time has come, with what was seen of the topic on that day.

    Attributes:
        topic: its name.
        topic_id: the id it had when the forecast was made.
        made_at: when that was.
        limits: the limits it counted on.
        estimate: what it said.
        actual: the look at the topic.
    """

    topic: str
    topic_id: str
    made_at: datetime
    limits: Limits
    estimate: Estimate
    actual: TopicLook


def looks_of(snapshot: Snapshot) -> list[TopicLook]:
    """The topics of a snapshot; one of which a partition is not known, or its size, is left out."""
    looks = (look_of(name, seen, snapshot.at) for name, seen in snapshot.topics.items())
    return [look for look in looks if look is not None]


def look_of(topic: str, seen: TopicSeen, at: datetime) -> TopicLook | None:
    """One topic as a snapshot has it; None where a partition is not known, or the size of one."""
    logs = [log for log in seen.logs if log is not None]
    sizes = [log.size_bytes for log in logs if log.size_bytes is not None]
    if not logs or not len(sizes) == len(logs) == len(seen.logs):
        return None
    records, size = sum(log.end - log.start for log in logs), sum(sizes)
    return TopicLook(
        topic, seen.topic_id, at, sum(log.end for log in logs), size / records if records else None, size, len(logs)
    )


def points_of(looks: Iterable[TopicLook], topic_id: str) -> list[Point]:
    """The looks at one topic as its forecast wants them: of this id alone, oldest first, each time once.

    What an offset took where the topic held none is as at the look before, or else after.
    """
    own = {look.at: look for look in looks if look.topic_id == topic_id}
    ordered = [own[at] for at in sorted(own)]
    known = [look.record_bytes for look in ordered if look.record_bytes is not None]
    size = known[0] if known else 0.0
    points = []
    for look in ordered:
        size = size if look.record_bytes is None else look.record_bytes
        points.append(Point(look.at, look.ends, size))
    return points


def now_of(look: TopicLook, logs: Iterable[LogSeen | None]) -> Now:
    """A topic as it is. Of what ever came in, a partition's share is that of its end offset."""
    ends = [0 if log is None else log.end for log in logs]
    shares = tuple(end / look.ends for end in ends) if look.ends else ()
    return Now(look.size_bytes, look.partitions, shares)


def judged(due: DueEstimate, limits: Limits) -> Comparison | None:
    """An estimate beside what there was; None where they cannot be compared.

    So it is where the topic was made again meanwhile, its limits are others than those counted on, or nobody looked
    within three hours of the time.

    Args:
        due: the estimate.
        limits: those in force now.
    """
    far = abs(due.actual.at - due.estimate.at) > _NEAR
    if far or due.actual.topic_id != due.topic_id or limits != due.limits:
        return None
    return compare(due.estimate, due.actual.size_bytes)
