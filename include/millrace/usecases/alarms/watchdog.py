"""The watchdog: it tells people of an outage of the control database, for which nobody else could.

It keeps in a file what supervision knows, and tells from that file. It needs neither Airflow nor its database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.alarms.outage import (
    MOST_KEPT,
    OUTAGE_AFTER,
    Decision,
    LastKnown,
    Message,
    OpenAlarm,
    Outage,
    decide,
)
from millrace.domain.declaration.pipeline import Environment, Notifier
from millrace.domain.formats.durations import roughly
from millrace.errors import MillraceError
from millrace.usecases.alarms.notifiers import Tell, notifiers_of, webhook_notifier
from millrace.usecases.alarms.notify import ANSWERS_WITHIN, error_within

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

LOOK_EVERY = timedelta(seconds=10)
LOOK_WITHIN = timedelta(seconds=30)
"""How long the database may take: a server that was stopped in the middle of a statement never answers."""
MAY_HAVE_DELIVERED = (TimeoutError, ConnectionError)
"""Errors of a notifier after which people may have heard all the same."""
LONGEST_CAUSE = 200


class Files(Protocol):
    """Where the watchdog keeps what outlives it."""

    def outage(self) -> Outage:
        """Return how the outage stands."""

    def save_outage(self, state: Outage) -> None:
        """Keep it; `OSError` where that fails."""

    def last_known(self) -> LastKnown | None:
        """Return what supervision last knew."""

    def save_last_known(self, known: LastKnown) -> None:
        """Keep it; `OSError` where that fails."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the watchdog works with.

    Attributes:
        subject: the control database's address.
        host: the name of this host.
        look: reads what supervision knows; it fails where the database does not answer.
        notifiers: those that can be used, by name, read anew during an outage.
        say: writes a line for the log.
        now: this host's clock.
    """

    subject: str
    host: str
    look: Callable[[], LastKnown]
    notifiers: Callable[[], Sequence[tuple[str, Tell]]]
    say: Callable[[str], None]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    outage_after: timedelta = OUTAGE_AFTER
    answers_within: timedelta = ANSWERS_WITHIN
    look_within: timedelta = LOOK_WITHIN


class StillRunningError(TimeoutError):
    """A call was not made, for the one before it has not ended."""


class Watchdog:
    """Looks at the control database again and again.

    Guarantees: no error of the database, of a file or of a notifier ends a look. A call that hangs holds one thread,
    however often it is due again.
    """

    def __init__(self, watched: Watched, files: Files) -> None:
        self._watched = watched
        self._files = files
        self._state = files.outage()
        self._look = _OneAtATime()
        self._calls: dict[str, _OneAtATime] = {}
        self._said: dict[str, str] = {}

    def look(self) -> None:
        """Look once, and tell people what is due."""
        cause = self._cause()
        notifiers = dict(self._watched.notifiers()) if cause or self._state.since else {}
        now = self._watched.now()
        found = decide(self._state, not cause, now, list(notifiers), outage_after=self._watched.outage_after)
        self._state = found.state
        self._say_once("control database", cause or "answers")
        if found.message is None:
            return self._save()
        if found.message is Message.OUTAGE:  # kept before the calls: who is killed at one must not make it twice
            self._state = self._state.paged(found.notifiers, now)
        self._save()
        alarm = self._alarm(found, cause, now)
        failed = [name for name in found.notifiers if not self._may_have_heard(name, notifiers[name], alarm)]
        self._state = self._state.ended(failed if found.message is Message.OUTAGE else (), self._watched.now())
        return self._save()

    def _cause(self) -> str:
        """Return why the database does not answer; empty where it does, and what is known is then kept."""
        answers: list[LastKnown] = []
        error = self._look.error_of(lambda: answers.append(self._watched.look()), self._watched.look_within)
        if error is not None:
            text = error.what if isinstance(error, MillraceError) else f"{type(error).__name__}: {error}"
            return text[:LONGEST_CAUSE]
        self._try_to_write(lambda: self._files.save_last_known(answers[0]))
        return ""

    def _may_have_heard(self, name: str, notify: Tell, alarm: Alarm) -> bool:
        call = self._calls.setdefault(name, _OneAtATime())
        error = call.error_of(lambda: notify(alarm), self._watched.answers_within)
        if error is not None:
            self._watched.say(f"{name} did not deliver: {type(error).__name__}: {error}")
        else:
            self._watched.say(f"delivered by {name}: {alarm.detail}")
        return error is None or isinstance(error, MAY_HAVE_DELIVERED)

    def _alarm(self, found: Decision, cause: str, now: datetime) -> Alarm:
        lasted, host = roughly(found.lasted), self._watched.host
        if found.message is Message.OVER:
            detail, closed_at = f"the control database answers {host} again after {lasted}", now
        else:
            known = self._files.last_known()
            knows = f"{known}." if known else "The state of its streams is not known."
            detail = f"the control database has not answered {host} for {lasted} ({cause}). Streams continue. {knows}"
            closed_at = None
        return Alarm(0, AlarmKind.CONTROL_DOWN, self._watched.subject, detail, now - found.lasted, closed_at, None)

    def _save(self) -> None:
        self._try_to_write(lambda: self._files.save_outage(self._state))

    def _try_to_write(self, write: Callable[[], None]) -> None:
        """Write a file; where that fails people have to be told all the same."""
        try:
            write()
        except OSError as error:
            self._say_once("files", f"cannot be written: {error}")

    def _say_once(self, about: str, text: str) -> None:
        if text != self._said.get(about):
            self._said[about] = text
            self._watched.say(f"{about}: {text}")


class _OneAtATime:
    """Calls with a deadline, of which none begins before the former one has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def error_of(self, act: Callable[[], None], within: timedelta) -> BaseException | None:
        """Return why the call failed, or that it did not end in time."""
        if not self._lock.acquire(blocking=False):
            return StillRunningError("the previous call has not ended")

        def run() -> None:
            try:
                act()
            finally:
                self._lock.release()

        return error_within(within, run)


def look_at(platform: Platform, now: datetime | None = None) -> LastKnown:
    """Return what supervision knows now.

    Raises:
        UnreachableError: the control database does not answer.
    """
    control = platform.control
    stream_count, streams = control.hosts.last_seen(MOST_KEPT)
    alarms = tuple(OpenAlarm(each.kind, each.subject, each.opened_at) for each in control.alarms.list(limit=MOST_KEPT))
    return LastKnown(now or datetime.now(UTC), streams, stream_count, alarms, control.alarms.count_open())


def usable(environment: Environment) -> tuple[Notifier, ...]:
    """Return the environment's notifiers that work without Airflow."""
    return tuple(each for each in environment.notifiers if not each.needs_airflow)


class UsableNotifiers:
    """The notifiers that work without Airflow; those of the last sound environment file while it has errors.

    Where the environment declares none, `log` is used.
    """

    def __init__(self, platform: Platform, read: Callable[[], Environment], say: Callable[[str], None]) -> None:
        self._platform = platform
        self._read = read
        self._say = say
        self._known = Environment("embedded")

    def __call__(self) -> list[tuple[str, Tell]]:
        """Return them by name."""
        try:
            self._known = self._read()
        except (MillraceError, OSError) as error:
            self._say(f"the notifiers of the last valid environment file are used: {error}")
        environment = replace(self._known, notifiers=usable(self._known))
        folder = self._platform.settings.state_folder
        return notifiers_of(environment, folder, lambda notifier: webhook_notifier(self._platform, notifier))
