"""An outage of the control database: when it counts, and whom to page now.

Times are by this host's clock. One that lies in the future counts as now, for the clock may have been set back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.formats.durations import roughly

OUTAGE_AFTER = timedelta(seconds=60)
"""A database that does not answer for so long pages people: a restart is quicker."""
PAGE_EVERY = timedelta(minutes=15)
"""A notifier is called at most once in this time, whatever happens."""
RETRY_EVERY = timedelta(minutes=1)
"""The pause before a notifier that certainly did not deliver is called again."""
UNWATCHED_AFTER = timedelta(seconds=60)
"""Two looks that are farther apart leave a time that nobody watched: the program or the machine was at rest."""


class Message(StrEnum):
    """What people are told."""

    OUTAGE = "outage"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Page:
    """The newest call of a notifier.

    `failed`: it certainly did not deliver. A call that timed out, or was never recorded to the end, may have delivered.
    """

    at: datetime
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Outage:
    """What is known between two looks.

    Attributes:
        since: when the database first did not answer; None while it answers.
        watched_from: since when no look answered and none was missing; None while it answers.
        looked_at: when the newest look ended; None before the first.
        pages: the newest page of each notifier, kept when an outage is over.
    """

    since: datetime | None = None
    watched_from: datetime | None = None
    looked_at: datetime | None = None
    pages: Mapping[str, Page] = field(default_factory=dict)

    def paged(self, names: Collection[str], now: datetime) -> Outage:
        """Return the state with these notifiers called now; their outcome is not known yet."""
        return replace(self, pages={**self.pages, **{name: Page(now) for name in names}})

    def ended(self, failed: Collection[str], now: datetime) -> Outage:
        """Return the state after the calls: some certainly did not deliver."""
        pages = {name: replace(page, failed=page.failed or name in failed) for name, page in self.pages.items()}
        return replace(self, pages=pages, looked_at=now)


@dataclass(frozen=True, slots=True)
class Decision:
    """The state after a look, and the notifiers that are to be given a message."""

    state: Outage
    message: Message | None = None
    notifiers: tuple[str, ...] = ()
    lasted: timedelta = timedelta()


def decide(
    state: Outage,
    answered: bool,
    now: datetime,
    notifiers: Collection[str],
    *,
    outage_after: timedelta = OUTAGE_AFTER,
) -> Decision:
    """Return what follows from one look.

    A notifier is told of an outage once no look was answered for `outage_after`, and again every 15 minutes; when it is
    over, it is told that, if it was told of the outage.

    Args:
        state: as the look before left it.
        answered: whether the database answered.
        now: when the look ended.
        notifiers: the names of those that can be used.
        outage_after: the time in which nobody is told.
    """
    state = _not_after(state, now)
    if answered:
        over = replace(state, since=None, watched_from=None, looked_at=now)
        if state.since is None:
            return Decision(over)
        told = tuple(name for name in notifiers if _was_told(state, name))
        return Decision(over, Message.OVER if told else None, told, now - state.since)
    was_unwatched = state.looked_at is None or now - state.looked_at > UNWATCHED_AFTER
    watched_from = now if state.watched_from is None or was_unwatched else state.watched_from
    is_known = any(_was_told(state, name) for name in state.pages)
    since = state.since if state.since is not None and (is_known or not was_unwatched) else now
    state = replace(state, since=since, watched_from=watched_from, looked_at=now)
    if now - watched_from < outage_after:
        return Decision(state, lasted=now - since)
    due = tuple(name for name in notifiers if _is_due(state.pages.get(name), now))
    return Decision(state, Message.OUTAGE if due else None, due, now - since)


def _is_due(page: Page | None, now: datetime) -> bool:
    return page is None or now - page.at >= (RETRY_EVERY if page.failed else PAGE_EVERY)


def _was_told(state: Outage, name: str) -> bool:
    """Return whether a notifier may have told people of the present outage."""
    page = state.pages.get(name)
    return page is not None and not page.failed and state.since is not None and page.at >= state.since


def _not_after(state: Outage, now: datetime) -> Outage:
    """Return the state without times in the future."""

    def past(moment: datetime | None) -> datetime | None:
        return None if moment is None else min(moment, now)

    return Outage(
        since=past(state.since),
        watched_from=past(state.watched_from),
        looked_at=past(state.looked_at),
        pages={name: replace(page, at=min(page.at, now)) for name, page in state.pages.items()},
    )


MOST_KEPT = 500
"""So many streams, and so many alarms, are kept of what was last known."""
MOST_NAMED = 5
"""So many of each are named to people."""


@dataclass(frozen=True, slots=True)
class LastSeen:
    """A stream that is wanted running, as the control database last had it.

    Attributes:
        stream: the qualified name.
        state: of its last look; empty where nobody has looked at it.
        epoch: of its last look.
        host: the name of the host it belongs to; empty where it has none.
        look_age: how old its last look was; None where there was none.
        heartbeat_age: how old its app's heartbeat was; None where there was none.
    """

    stream: str
    state: str
    epoch: int | None
    host: str
    look_age: timedelta | None
    heartbeat_age: timedelta | None


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """An alarm that was open."""

    kind: str
    subject: str
    opened_at: datetime


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What supervision last knew. `stream_count` and `alarm_count` count those that are not kept, too."""

    at: datetime
    streams: tuple[LastSeen, ...]
    stream_count: int
    alarms: tuple[OpenAlarm, ...]
    alarm_count: int

    def __str__(self) -> str:
        """Return it in a sentence for people."""
        streams = _named([_stream(each) for each in self.streams], self.stream_count)
        alarms = _named([f"{each.kind} of {each.subject}" for each in self.alarms], self.alarm_count)
        return (
            f"Last known at {self.at:%Y-%m-%d %H:%M} UTC: {self.stream_count} streams should run{streams}, "
            f"{self.alarm_count} open alarms{alarms}"
        )


def _stream(seen: LastSeen) -> str:
    parts = [f"{seen.stream} {seen.state or 'not checked yet'}"]
    if seen.host:
        parts.append(f"on {seen.host}")
    if seen.heartbeat_age is not None:
        parts.append(f"heartbeat {roughly(seen.heartbeat_age)} before")
    return " ".join(parts)


def _named(texts: Sequence[str], count: int) -> str:
    named = texts[:MOST_NAMED]
    more = [f"{count - len(named)} more"] if count > len(named) else []
    return f" ({'; '.join([*named, *more])})" if named else ""
