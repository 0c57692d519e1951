"""Call the notifiers for every alarm that is new or raised again, and record how each of them fared."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.alarms.life import in_turn
from millrace.domain.formats.printable import printable
from millrace.usecases.alarms.notifiers import Tell, described

if TYPE_CHECKING:
    from millrace.domain.alarms.alarm import Alarm
    from millrace.ports.platform import Platform

OVERDUE_AFTER = timedelta(minutes=2)
ANSWERS_WITHIN = timedelta(seconds=30)
"""How long a notifier may take for one alarm."""
FAILURES_IN_A_ROW = 3
"""After so many, a run calls a notifier no more: ten thousand alarms must not wait for one that hangs."""


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm after one round of its notifiers, and those that failed to tell people, with their errors."""

    alarm: Alarm
    failures: tuple[str, ...] = ()
    is_retry: bool = False

    @property
    def is_news(self) -> bool:
        """Return whether the run that told it is red: for an alarm that is new, was raised again or was not told."""
        return bool(self.failures) or not self.is_retry

    def __str__(self) -> str:
        """Return the alarm in a line, with what failed and what follows from that."""
        if not self.failures:
            return described(self.alarm)
        at = self.alarm.retry_at
        follows = "not retried" if self.alarm.told_at else "retried by the next run"
        follows = f"retried at {at:%H:%M:%S} UTC" if at else follows
        return f"{described(self.alarm)} (not delivered by {'; '.join(self.failures)}; {follows})"


def untold(platform: Platform, *, older_than: timedelta = timedelta(), now: datetime | None = None) -> Sequence[Alarm]:
    """Return the alarms whose notifiers are to be called now, and that nobody has acknowledged.

    Alarms whose hour is over since people heard of them, and that grew meanwhile, are raised again first.

    Args:
        platform: the adapters.
        older_than: only those that wait for longer; an alarm waits from the moment that its notifiers are due.
        now: the present.

    Raises:
        UnreachableError: the control database does not answer.
    """
    platform.control.alarms.raise_due()
    found = platform.control.alarms.list(only_open=False, only_untold=True)
    if not older_than:  # the database knows what is due; the clock of this host may be behind
        return found
    before = (now or datetime.now(UTC)) - older_than
    return [alarm for alarm in found if alarm.due_since <= before]


def tell(
    platform: Platform,
    alarms: Sequence[Alarm],
    notifiers: Sequence[tuple[str, Tell]],
    *,
    within: timedelta = ANSWERS_WITHIN,
) -> list[Told]:
    """Call the notifiers for each alarm, and record what came of that before the next alarm.

    A notifier that has delivered an alarm is not called for it again. One that fails, or does not answer in time, is
    tried again by a later run (`domain.alarms.extent.RETRY_AFTER`) and keeps no other from telling. After three
    failures in a row it is called no more in this run, and counts as failed for the alarms that are left. The next
    run begins with those (`domain.alarms.life.in_turn`).

    Guarantees: a notifier is called at least once for each alarm, unless it failed for three other alarms in a row in
    each of the alarm's four rounds. These are twelve different alarms if no other notifier fails.

    Does not guarantee that an alarm is told only once: a run that is killed between a call and its record tells again,
    and so may a notifier that did not answer in time. Its thread lives on until the process ends.

    Args:
        platform: the adapters.
        alarms: those that are due.
        notifiers: by name, each name once.
        within: how long a notifier may take for one alarm.

    Raises:
        UnreachableError: the control database does not answer.
    """
    calls = {name: _Calls(notify, within) for name, notify in notifiers}
    found = []
    for alarm in in_turn(alarms, calls):
        done = {each.name for each in alarm.notified if not each.is_due}
        errors = {name: each.tell(alarm) for name, each in calls.items() if name not in done}
        failures = {name: type(error).__name__ if error else "" for name, error in errors.items()}
        skipped = {name for name, error in errors.items() if isinstance(error, NotifierGivenUpError)}
        after = platform.control.alarms.record_round(alarm, failures, skipped=skipped)
        texts = tuple(printable(f"{name}: {type(error).__name__}: {error}") for name, error in errors.items() if error)
        found.append(
            Told(replace(alarm, retry_at=after.retry_at, told_at=after.told_at), texts, is_retry=bool(alarm.notified))
        )
    return found


class NotifierGivenUpError(Exception):
    """A notifier was not called, for it failed several times in a row in this run."""


class _Calls:
    """One notifier in one run."""

    def __init__(self, notify: Tell, within: timedelta) -> None:
        self._notify = notify
        self._within = within
        self._failed_in_a_row = 0

    def tell(self, alarm: Alarm) -> BaseException | None:
        """Call it; return why it did not deliver."""
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            return NotifierGivenUpError(f"not called, it failed {FAILURES_IN_A_ROW} times in a row in this run")
        error = error_within(self._within, lambda: self._notify(alarm))
        self._failed_in_a_row = self._failed_in_a_row + 1 if error else 0
        return error


def error_within(limit: timedelta, act: Callable[[], None]) -> BaseException | None:
    """Do it in a thread that nobody has to wait for; return its error, or that it takes too long.

    Guarantees: each call has a copy of the context variables, so two calls at once do not see what the other one sets.

    Does not guarantee anything about objects that calls share. A call that did not answer in time may use them at the
    same time as the next one. Airflow locks its connection to the supervisor; the task's own objects have no lock.
    """
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # any notifier may fail in its own way, `SystemExit` included
            errors.append(error)
        else:
            errors.append(None)

    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(run), name="notifier", daemon=True)
    thread.start()
    thread.join(limit / timedelta(seconds=1))
    return errors[0] if errors else TimeoutError(f"no answer within {limit.total_seconds():g} s")
