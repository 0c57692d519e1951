"""Alarms: telling people, once each, of every breach that opened a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.domain.declaration import Environment, Notifier
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.domain.control import Alarm
    from millrace.wiring import Platform

LOG_FILE = "alarms.log"
OVERDUE_AFTER = timedelta(minutes=2)

Tell = Callable[["Alarm"], None]


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm that people were told of now, and the notifiers that failed to tell them."""

    alarm: Alarm
    failures: tuple[str, ...] = ()

    def __str__(self) -> str:
        failed = f" (not told by {'; '.join(self.failures)})" if self.failures else ""
        return f"{self.alarm.kind} of {self.alarm.subject}: {self.alarm.detail}{failed}"


def untold(platform: Platform, *, older_than: timedelta = timedelta(), now: datetime | None = None) -> Sequence[Alarm]:
    """Alarms that nobody was told of and nobody has acknowledged, oldest first.

    Raises:
        UnreachableError: the control database does not answer.
    """
    before = (now or datetime.now(UTC)) - older_than
    found = platform.control().alarms.list(only_open=False, only_untold=True)
    return [alarm for alarm in found if alarm.opened_at <= before]


def list_alarms(platform: Platform, *, also_over: bool = False, limit: int = 200) -> Sequence[Alarm]:
    """The alarms whose cause is still there, acknowledged ones too, newest first; `also_over`: all there ever were.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control().alarms.list(only_open=not also_over, limit=limit)


def show(platform: Platform, identity: int) -> Alarm:
    """One alarm.

    Raises:
        UsageError: there is none of this number.
        UnreachableError: the control database does not answer.
    """
    return platform.control().alarms.get(identity)


def acknowledge(platform: Platform, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
    """Say that somebody has taken an alarm up: it stays open, and nobody is told of it any more.

    Returns:
        The alarm, and whether this was the first acknowledgement. A later one changes nothing.

    Raises:
        UsageError: there is none of this number.
        UnreachableError: the control database does not answer.
    """
    return platform.control().alarms.acknowledge(identity, actor=actor, reason=reason)


def tell(platform: Platform, alarms: Sequence[Alarm], notifiers: Sequence[tuple[str, Tell]]) -> list[Told]:
    """Tell people of alarms by every notifier, then mark them told.

    An alarm counts as told although a notifier failed: the failure is in the result, which the caller makes loud.
    Otherwise a dead notifier would repeat the others' messages for ever.

    Does not guarantee that an alarm is told only once: who dies between telling and marking tells again.

    Raises:
        UnreachableError: the control database does not answer.
    """
    told = []
    for alarm in alarms:
        failures = []
        for name, notify in notifiers:
            try:
                notify(alarm)
            except Exception as error:  # any notifier may fail in its own way; the others still have to tell
                failures.append(f"{name}: {type(error).__name__}: {error}")
        platform.control().alarms.mark_told(alarm.identity)
        told.append(Told(alarm, tuple(failures)))
    return told


def notifiers_of(
    environment: Environment, state_folder: Path, load: Callable[[Notifier], Tell]
) -> list[tuple[str, Tell]]:
    """The environment's notifiers by name. `log` is built in; all others are loaded by `load`.

    Where the environment names none, `log` alone: an alarm never goes nowhere.
    """
    found: list[tuple[str, Tell]] = []
    for notifier in environment.notifiers or (Notifier("log"),):
        tell_one = log_notifier(state_folder / LOG_FILE) if notifier.kind == "log" else load(notifier)
        found.append((notifier.kind, tell_one))
    return found


def log_notifier(file: Path) -> Tell:
    """A notifier that appends one JSON line an alarm."""

    def write(alarm: Alarm) -> None:
        line = json.dumps(
            {
                "schema": "millrace.alarm/1",
                "id": alarm.identity,
                "kind": alarm.kind,
                "subject": alarm.subject,
                "detail": alarm.detail,
                "opened_at": alarm.opened_at.isoformat(),
                "told_at": datetime.now(UTC).isoformat(),
            }
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")

    return write


def environment_of(root: Path) -> Environment:
    """The environment file in force.

    Raises:
        UsageError: there is no such environment, or it has errors.
    """
    from millrace.spec.environment import environment_name, read_environment

    name = environment_name(None)
    overlay, findings = read_environment(root, name)
    if overlay is None:
        raise UsageError(
            f"the environment `{name}` has errors: {'; '.join(map(str, findings))}",
            where=f"include/environments/{name}.yaml",
            next_step="run `millrace spec check`",
        )
    return overlay.environment
