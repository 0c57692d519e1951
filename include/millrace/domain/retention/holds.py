"""Holds: for a time, nothing that a topic has now is deleted.

A hold raises the limits of a topic and is wanted state while it lasts. A topic without a limit gets none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from millrace.domain.retention.settings import BrokerSettings, log_settings
from millrace.domain.topics.changes import longer_limit

TIME, SIZE, POLICY = "retention.ms", "retention.bytes", "cleanup.policy"
LIMITS = (TIME, SIZE)
"""The settings that a hold raises."""

ROOM = 1.5
"""What comes in is taken for so many times the rate that was measured."""

MADE_AGAIN = "the topic was deleted and made again"
"""How a hold ends whose topic is another one now."""

_LONGEST = 2**63 - 1
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of a topic.

    Attributes:
        kafka: the Connection of its cluster.
        topic: its name.
        topic_id: which topic of that name.
        before: `retention.ms` and `retention.bytes` as they were set on the topic; None: the broker's default.
        found: the values in force then.
        after: the values in force while it is held.
        began_at: when it was first asked for.
        until: when its time is over; it may have to wait then for a reader.
        actor: who asked for it, or for more of it, last.
        reason: why.
        identity: its number; 0 before it is stored.
        ended_at: None while it is open.
    """

    kafka: str
    topic: str
    topic_id: str
    before: Mapping[str, str | None]
    found: Mapping[str, str]
    after: Mapping[str, str]
    began_at: datetime
    until: datetime
    actor: str
    reason: str
    identity: int = 0
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What one partition holds now, and how fast it grows, of its leader's replica."""

    size_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for a hold of which topic, for how long from `now` on, and why."""

    kafka: str
    topic: str
    topic_id: str
    keep_for: timedelta
    now: datetime
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """A hold before it is begun, and the bytes that it may keep beside what is there, on all brokers together."""

    hold: Hold
    need_bytes: int


def plan_hold(
    asked: Asked,
    *,
    own: Mapping[str, str],
    in_force: Mapping[str, str],
    loads: Mapping[int, Load],
    replication: int,
    known: Hold | None = None,
    broker: BrokerSettings | None = None,
) -> HoldPlan:
    """The hold that keeps all that a topic has now.

    By time it keeps longer by as long as is asked for, and by one segment and one sweep, as a record may be there for
    that much longer already. By size it keeps more by what comes in meanwhile, with room, and by one segment.

    Args:
        asked: who, what and for how long.
        own: the settings that are set on the topic itself.
        in_force: all its settings.
        loads: by partition.
        replication: replicas of a partition.
        known: the open hold of this very topic, which is extended: the later end counts, and of each limit the longer.
        broker: how often the brokers look for what is too old.

    Does not guarantee: that all is kept where more comes in than `ROOM` times the measured rate.
    """
    before = known.before if known else {key: own.get(key) for key in LIMITS}
    found = known.found if known else {key: in_force.get(key, "-1") for key in LIMITS}
    began = known.began_at if known else asked.now
    until = max(known.until, asked.now + asked.keep_for) if known else asked.now + asked.keep_for
    settings = log_settings({**in_force, **found})
    after = dict(found)
    need = 0
    if settings.deletes:
        left = (until - asked.now).total_seconds()
        if settings.time is not None:
            every = (broker or BrokerSettings()).check_every
            longer = settings.time // _MILLISECOND + (until - began + settings.segment_time + every) // _MILLISECOND
            after[TIME] = str(min(longer, _LONGEST))
        if settings.size_bytes is not None:
            size = max(
                (_grown(load, left, settings.size_bytes) for load in loads.values()), default=settings.size_bytes
            )
            after[SIZE] = str(min(size + settings.segment_bytes, _LONGEST))
        if settings.limited:
            need = math.ceil(sum(load.bytes_per_second for load in loads.values()) * left * ROOM) * replication
    after = {key: longer_limit(value, in_force.get(key, value)) for key, value in after.items()}
    hold = Hold(
        kafka=asked.kafka,
        topic=asked.topic,
        topic_id=asked.topic_id,
        before=before,
        found=found,
        after=after,
        began_at=began,
        until=until,
        actor=asked.actor,
        reason=asked.reason,
    )
    return HoldPlan(extended(known, hold) if known else hold, need)


def extended(known: Hold, more: Hold) -> Hold:
    """An open hold for which more is asked: the later end and the longer limits; what was before it stays."""
    after = {key: longer_limit(known.after.get(key, value), value) for key, value in more.after.items()}
    until = max(known.until, more.until)
    return replace(known, after=after, until=until, actor=more.actor, reason=more.reason)


def budget_of(asked_bytes: int | None, free_bytes: int | None) -> int | None:
    """How much a hold may need: what was asked for, else half of what is free; None where neither is known."""
    if asked_bytes is not None:
        return asked_bytes
    return None if free_bytes is None else free_bytes // 2


def least_kept(holds: Iterable[Hold], topic_ids: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """The limits that topics shall have at least, by name; without holds of topics that are there no more."""
    return {hold.topic: hold.after for hold in holds if topic_ids.get(hold.topic) == hold.topic_id}


def below(hold: Hold, now: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The settings by which a topic would keep less than its hold says.

    Args:
        hold: its hold.
        now: the settings that are changed, as they are.
        wanted: the same as they shall be.
    """
    short = [key for key in LIMITS if key in wanted and longer_limit(wanted[key], hold.after[key]) != wanted[key]]
    begins = "delete" in wanted.get(POLICY, "") and "delete" not in now.get(POLICY, "")
    return [*short, POLICY] if begins else short


def settled(hold: Hold, declared: Mapping[str, str]) -> dict[str, str | None]:
    """The limits of a topic after its hold: as before, or as declared where that is longer; None: the broker's default.

    One that is declared shorter than it was before the hold is a cut, which a plan makes that a person runs.
    """
    found = {}
    for key in LIMITS:
        wanted = declared.get(key)
        longer = wanted is not None and longer_limit(wanted, hold.found[key]) == wanted
        found[key] = wanted if longer else hold.before.get(key)
    return found


def left_alone(hold: Hold, in_force: Mapping[str, str]) -> list[str]:
    """The limits that somebody has made longer than the hold did: they stay as they are."""
    longer = ((key, in_force.get(key, hold.after[key])) for key in LIMITS)
    return [key for key, now in longer if now != hold.after[key] and longer_limit(now, hold.after[key]) == now]


def in_force_after(hold: Hold, settled: Mapping[str, str | None]) -> dict[str, str]:
    """The same as values in force, where the broker's default is as it was when the hold began."""
    return {key: value if value is not None else hold.found[key] for key, value in settled.items()}


def _grown(load: Load, seconds: float, limit_bytes: int) -> int:
    """The size of a partition after this time, or of one that is as large as it may be now."""
    return max(limit_bytes, load.size_bytes) + math.ceil(load.bytes_per_second * seconds * ROOM)
