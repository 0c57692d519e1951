"""The files of the watchdog: what supervision last knew, and how the outage of the control database stands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from millrace.adapters.apps.runners.guard import write_json
from millrace.domain.alarms.outage import LastKnown, LastSeen, OpenAlarm, Outage, Page

LAST_KNOWN = "last-known.json"
OUTAGE = "outage.json"
_LAST_KNOWN_SCHEMA = "millrace.last-known/1"
_OUTAGE_SCHEMA = "millrace.outage/1"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OutageFiles:
    """Two files in the state folder. A damaged or missing one reads as if nothing were known.

    They are as private as the umask of the process says: the watchdog's lets nobody else read them.
    """

    folder: Path

    def outage(self) -> Outage:
        """Return how the outage stands."""
        return self._read(OUTAGE, _OUTAGE_SCHEMA, _outage) or Outage()

    def save_outage(self, state: Outage) -> None:
        """Keep how the outage stands, and which process says so.

        Raises:
            OSError: the file cannot be written.
        """
        document = {
            "schema": _OUTAGE_SCHEMA,
            "process": os.getpid(),
            "since": _text(state.since),
            "watched_from": _text(state.watched_from),
            "looked_at": _text(state.looked_at),
            "pages": {name: {"at": _text(page.at), "failed": page.failed} for name, page in state.pages.items()},
        }
        write_json(self.folder / OUTAGE, document)

    def process(self) -> int | None:
        """Return the process that kept the outage last."""
        return self._read(OUTAGE, _OUTAGE_SCHEMA, lambda document: int(document["process"]))

    def last_known(self) -> LastKnown | None:
        """Return what supervision last knew; None where nobody kept it."""
        return self._read(LAST_KNOWN, _LAST_KNOWN_SCHEMA, _last_known)

    def save_last_known(self, known: LastKnown) -> None:
        """Keep what supervision knows.

        Raises:
            OSError: the file cannot be written.
        """
        document = {
            "schema": _LAST_KNOWN_SCHEMA,
            "at": _text(known.at),
            "stream_count": known.stream_count,
            "alarm_count": known.alarm_count,
            "streams": [
                {
                    "stream": each.stream,
                    "state": each.state,
                    "epoch": each.epoch,
                    "host": each.host,
                    "look_age_seconds": _seconds(each.look_age),
                    "heartbeat_age_seconds": _seconds(each.heartbeat_age),
                }
                for each in known.streams
            ],
            "alarms": [
                {"kind": each.kind, "subject": each.subject, "opened_at": _text(each.opened_at)}
                for each in known.alarms
            ],
        }
        write_json(self.folder / LAST_KNOWN, document)

    def _read(self, name: str, schema: str, made: Callable[[dict[str, Any]], _T]) -> _T | None:
        try:
            document = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return made(document) if document["schema"] == schema else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


def _outage(document: dict[str, Any]) -> Outage:
    pages = {name: Page(_needed(page["at"]), page["failed"] is True) for name, page in document["pages"].items()}
    return Outage(_moment(document["since"]), _moment(document["watched_from"]), _moment(document["looked_at"]), pages)


def _last_known(document: dict[str, Any]) -> LastKnown:
    streams = tuple(
        LastSeen(
            str(each["stream"]),
            str(each["state"]),
            each["epoch"],
            str(each["host"]),
            _age(each["look_age_seconds"]),
            _age(each["heartbeat_age_seconds"]),
        )
        for each in document["streams"]
    )
    alarms = tuple(
        OpenAlarm(str(each["kind"]), str(each["subject"]), _needed(each["opened_at"])) for each in document["alarms"]
    )
    counts = int(document["stream_count"]), int(document["alarm_count"])
    return LastKnown(_needed(document["at"]), streams, counts[0], alarms, counts[1])


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _needed(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment


def _moment(text: str | None) -> datetime | None:
    return None if text is None else _needed(text)


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else round(age.total_seconds(), 1)


def _age(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
