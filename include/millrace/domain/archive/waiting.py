"""Since when records wait to be archived, told without a record's own timestamp, which may be any number.

An offset was in the log at a moment when somebody saw the log end beyond it. So of what waits nobody knows when it
came, but that it was there at the latest: when the chain, or an audit, first saw an end beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from millrace.domain.archive.audits.findings import Breach, BreachKind, EndSeen
from millrace.domain.archive.proof.spans import Span

_KEPT = 48


def ends_beyond(offset: int, seen: Iterable[EndSeen]) -> tuple[EndSeen, ...]:
    """Ends beyond an offset, the oldest first: of each end the first moment it was seen; at most 48, oldest and newest.

    Args:
        offset: the first that is not archived.
        seen: ends, in any order.
    """
    kept: list[EndSeen] = []
    for one in sorted(seen, key=lambda each: (each.at, each.end)):
        if one.end > max([offset, *(each.end for each in kept[-1:])]):
            kept.append(one)
    return tuple(kept if len(kept) <= _KEPT else [*kept[: _KEPT // 2], *kept[-_KEPT // 2 :]])


def late(partition: int, waiting: Span, since: datetime, now: datetime, most: timedelta) -> Breach | None:
    """What waits for too long: as a breach, or None.

    Args:
        partition: its number.
        waiting: the offsets that wait.
        since: when the first of them was in the log already.
        now: the present.
        most: how long records may wait.
    """
    first, next_ = waiting
    if now - since <= most:
        return None
    text = (
        f"partition {partition} [{first}, {next_}) is not archived, and was in the log at "
        f"{since:%Y-%m-%d %H:%M:%S} UTC: that is {_minutes(now - since)} ago, and max_lag is {_minutes(most)}"
    )
    return Breach(BreachKind.LATE, text, partition, first, next_)


def _minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:,.0f} s"
