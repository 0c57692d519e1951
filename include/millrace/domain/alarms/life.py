"""The life of an open alarm: how bad it is, when it is raised again, and when a notifier is tried again.

Every function takes an alarm as its row says it is, and returns the alarm as the row should say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import RETRY_AFTER, Extent, Notified
from millrace.domain.alarms.kinds import measure_of

GROWS_BY = 10
"""An alarm is raised again when its measure is so many times what people know."""
AGAIN_AFTER = timedelta(hours=1)
"""People hear of one alarm again at most this often."""
FAULTS_KNOWN = 20
"""At most so many faults of one alarm count as known; when one more comes, an older one is news again."""
_COMMA = ", "


def has_grown(kind: str, known: Extent, seen: Extent) -> bool:
    """Return whether a breach is so much worse than people know that they have to hear of it again.

    A measure or fault that is unknown on either side says nothing. From a measure of 0 every growth counts. One fault
    that people do not know is enough; fewer faults than they know are no growth.
    """
    if _new_faults(known, seen):
        return True
    if known.measure is None or seen.measure is None or known.measure == seen.measure:
        return False
    if measure_of(kind).shrinks:
        return seen.measure * GROWS_BY <= known.measure
    return seen.measure >= known.measure * GROWS_BY


def seen_again(alarm: Alarm, detail: str, extent: Extent, now: datetime) -> Alarm:
    """Return an open alarm after one more look at its cause.

    People know the measure that they heard of or acknowledged last, and all faults that they heard of or acknowledged
    since the alarm was opened. So faults that alternate are raised once each. The alarm is raised again when the
    present extent has grown from that, at the earliest an hour after people last heard of it. Until then the alarm
    keeps the worst that was seen, so that a loss which is reported once is not forgotten. An extent that people heard
    of without a number or fault takes the first that is seen.
    """
    if not alarm.is_known:
        return alarm if _is_less(alarm.kind, extent, alarm.extent) else replace(alarm, detail=detail, extent=extent)
    known = _completed(alarm.known, extent)
    grown = has_grown(alarm.kind, known, extent)
    waits = alarm.raise_at is not None
    if not waits or (grown and not _is_less(alarm.kind, extent, alarm.extent)):
        alarm = replace(alarm, detail=detail, extent=extent)
    raise_at = alarm.raise_at if waits else _raise_at(alarm, now) if grown else None
    return raised_if_due(replace(alarm, known=known, raise_at=raise_at), now)


def raised_if_due(alarm: Alarm, now: datetime) -> Alarm:
    """Return an alarm raised again, where it waits for that and the hour is over; it loses its acknowledgement."""
    if alarm.raise_at is None or alarm.raise_at > now:
        return alarm
    return replace(
        alarm,
        raised=alarm.raised + 1,
        raised_at=alarm.raise_at,
        raise_at=None,
        known_at=None,
        told_at=None,
        retry_at=None,
        notified=(),
        acknowledged_at=None,
        acknowledged_by=None,
        acknowledged_reason=None,
    )


def acknowledged(alarm: Alarm, actor: str, reason: str, now: datetime) -> Alarm:
    """Return an alarm that somebody has taken up, as bad as it is now; the first acknowledgement stays."""
    if alarm.acknowledged_at is not None:
        return alarm
    return replace(
        alarm,
        known=_known_with(alarm.known, alarm.extent),
        raise_at=None,
        acknowledged_at=now,
        acknowledged_by=actor,
        acknowledged_reason=reason,
    )


def in_turn(alarms: Sequence[Alarm], notifiers: Collection[str]) -> list[Alarm]:
    """Return alarms in the order in which one run calls its notifiers for them.

    The alarms that a notifier was called for least often come first, and among them one of each kind in turn. So a
    notifier that is skipped after some failures in a row meets other alarms in its next run.
    """
    places: Counter[tuple[int, str]] = Counter()
    order = {}
    for alarm in alarms:
        called = _least_called(alarm, notifiers)
        order[alarm.identity] = (called, places[called, alarm.kind])
        places[called, alarm.kind] += 1
    return sorted(alarms, key=lambda alarm: order[alarm.identity])


def told(
    alarm: Alarm, read: Alarm, failures: Mapping[str, str], now: datetime, *, skipped: Collection[str] = ()
) -> Alarm:
    """Return an alarm after one round of its notifiers.

    It counts as told once every notifier has delivered it or has failed four times. People know it from the first
    delivery on, as bad as it was then. An alarm that grew meanwhile waits to be raised again.

    Args:
        alarm: as its row is now.
        read: as the notifiers had it.
        failures: every notifier of the round, with the class of its error; empty where it delivered.
        now: the present.
        skipped: the notifiers among `failures` that were not called.
    """
    if alarm.raised != read.raised or alarm.told_at is not None:
        return alarm  # raised again meanwhile, which this round does not tell; or told by somebody else
    notified = _after_round(alarm, read, failures, skipped)
    waits = [now + RETRY_AFTER[each.failed - 1] for each in notified if each.is_due]
    after = replace(alarm, notified=notified, retry_at=min(waits, default=None), told_at=None if waits else now)
    if alarm.known_at is not None or (waits and not any(each.told for each in notified)):
        return after
    known = alarm.known if alarm.acknowledged_at else _known_with(alarm.known, read.extent)
    grown = has_grown(alarm.kind, known, alarm.extent)
    return replace(after, known=known, known_at=now, raise_at=now + AGAIN_AFTER if grown else None)


def growth(kind: str, known: Extent, seen: Extent) -> str:
    """Return in words what made an alarm be raised again; empty where nothing did."""
    parts = []
    if new := _new_faults(known, seen):
        parts.append(f"new fault {_joined(new)}, known: {known.fault}")
    if known.measure is not None and seen.measure is not None and known.measure != seen.measure:
        parts.append(f"from {known.measure:,.0f} to {in_words(kind, seen)}")
    return ", ".join(parts)


def in_words(kind: str, extent: Extent) -> str:
    """Return an extent for people, such as `9,000,000 offsets`; empty where nothing is known."""
    number = "" if extent.measure is None else f"{extent.measure:,.0f} {measure_of(kind).unit}".rstrip()
    return ", ".join(filter(None, (number, extent.fault)))


def _raise_at(alarm: Alarm, now: datetime) -> datetime:
    """Return when an alarm that has grown may be raised; a clock that was set back delays it by an hour at most."""
    return now if alarm.known_at is None else max(now, min(alarm.known_at, now) + AGAIN_AFTER)


def _is_less(kind: str, seen: Extent, kept: Extent) -> bool:
    """Return whether an extent is less bad than the one that is kept; a number is more than none."""
    if kept.measure is None or seen.measure is None:
        return kept.measure is not None
    return seen.measure > kept.measure if measure_of(kind).shrinks else seen.measure < kept.measure


def _faults(extent: Extent) -> set[str]:
    return set(filter(None, extent.fault.split(_COMMA)))


def _joined(faults: Iterable[str]) -> str:
    return _COMMA.join(sorted(faults))


def _new_faults(known: Extent, seen: Extent) -> set[str]:
    """Return the faults that are seen and that people do not know; none where they know of no fault at all."""
    return _faults(seen) - _faults(known) if known.fault else set()


def _known_with(known: Extent, heard: Extent) -> Extent:
    """Return the extent that people know once they have heard of this one, or acknowledged it."""
    new = sorted(_faults(heard))
    old = sorted(_faults(known) - _faults(heard))
    return Extent(heard.measure, _joined([*new, *old][:FAULTS_KNOWN]))


def _completed(known: Extent, seen: Extent) -> Extent:
    return Extent(seen.measure if known.measure is None else known.measure, known.fault or seen.fault)


def _least_called(alarm: Alarm, notifiers: Collection[str]) -> int:
    """Return how often the notifier was called for an alarm that was called least, among those still due."""
    known = {each.name: each for each in alarm.notified}
    due = [known.get(name, Notified(name)) for name in notifiers]
    return min((each.called for each in due if each.is_due), default=0)


def _after_round(
    alarm: Alarm, read: Alarm, failures: Mapping[str, str], skipped: Collection[str]
) -> tuple[Notified, ...]:
    """Return how the notifiers fared; one that is declared no more is dropped unless it has delivered."""
    before = {each.name: each for each in read.notified}
    kept = {each.name: each for each in alarm.notified if each.told or each.name in failures or not each.is_due}
    for name, error in failures.items():
        mine = kept.get(name, Notified(name))
        called = mine.called + (name not in skipped)
        if not error:
            kept[name] = replace(mine, told=True, error="", called=called)
        elif not mine.told and mine.failed == before.get(name, Notified(name)).failed:
            kept[name] = replace(mine, failed=mine.failed + 1, error=error, called=called)
        # else another round has counted meanwhile
    return tuple(kept.values())
