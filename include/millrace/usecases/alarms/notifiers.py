"""The notifiers of an environment, and an alarm as they deliver it: a line for people and a JSON document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.domain.alarms.kinds import measure_of, runbook_of
from millrace.domain.alarms.life import growth
from millrace.domain.declaration.pipeline import Environment, Notifier
from millrace.domain.formats.printable import printable

if TYPE_CHECKING:
    from millrace.domain.alarms.alarm import Alarm
    from millrace.ports.platform import Platform

LOG_FILE = "alarms.log"
Tell = Callable[["Alarm"], None]


def described(alarm: Alarm) -> str:
    """Return an alarm in one printable line; one that was raised again says why.

    Its subject and detail may hold names of others, such as group ids, with any character in them.
    """
    why = growth(alarm.kind, alarm.known, alarm.extent) if alarm.raised > 1 and not alarm.is_known else ""
    return printable(f"{alarm.kind} of {alarm.subject}: {alarm.detail}" + (f" (raised again: {why})" if why else ""))


def notifiers_of(
    environment: Environment, state_folder: Path, load: Callable[[Notifier], Tell]
) -> list[tuple[str, Tell]]:
    """Return the environment's notifiers by name. `log` is built in; all others are loaded by `load`.

    A notifier is named by its kind; the second of a kind is `KIND#2`, so that each is tried again for itself. Where
    the environment declares none, `log` is the only one.
    """
    found: list[tuple[str, Tell]] = []
    counts: Counter[str] = Counter()
    for notifier in environment.notifiers or (Notifier("log"),):
        counts[notifier.kind] += 1
        number = counts[notifier.kind]
        name = notifier.kind if number == 1 else f"{notifier.kind}#{number}"
        tell_one = log_notifier(state_folder / LOG_FILE) if notifier.kind == "log" else load(notifier)
        found.append((name, tell_one))
    return found


def log_notifier(file: Path) -> Tell:
    """Return a notifier that appends one JSON line an alarm."""

    def write(alarm: Alarm) -> None:
        line = json.dumps(document_of(alarm))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")

    return write


def webhook_notifier(platform: Platform, notifier: Notifier) -> Tell:
    """Return a notifier that posts each alarm, with a sentence for people, to the address of its Connection."""
    connection = dict(notifier.arguments)["connection"]

    def post(alarm: Alarm) -> None:
        platform.post(connection, document_of(alarm) | {"text": f"Millrace: {described(alarm)}"})

    return post


def document_of(alarm: Alarm) -> dict[str, object]:
    """Return an alarm as a JSON document."""
    return {
        "schema": "millrace.alarm/1",
        "id": alarm.identity,
        "kind": alarm.kind,
        "subject": alarm.subject,
        "detail": alarm.detail,
        "measure": alarm.extent.measure,
        "unit": measure_of(alarm.kind).unit,
        "fault": alarm.extent.fault,
        "runbook": runbook_of(alarm.kind),
        "raised": alarm.raised,
        "opened_at": alarm.opened_at.isoformat(),
        "closed_at": alarm.closed_at.isoformat() if alarm.closed_at else None,
        "told_at": datetime.now(UTC).isoformat(),
    }
