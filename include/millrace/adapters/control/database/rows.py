"""Rows of the control database as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from millrace.adapters.control.database.tables import stream_progress
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import Extent, Notified
from millrace.domain.formats.undeclared import UndeclaredFields, UndeclaredName
from millrace.domain.streams.control import Action, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.supervision import DesiredState, StreamState

Row = sa.Row[tuple[object, ...]]
_UNDECLARED_VERSION = 1


def desired_of(row: Row) -> DesiredStream:
    """A row of `desired_state`."""
    values = dict(row._mapping)
    return DesiredStream(**values | {"state": DesiredState(values["state"])})


def look_of(row: Row) -> StreamLook:
    """A row of `stream_look`."""
    values = dict(row._mapping)
    return StreamLook(**values | {"state": StreamState(values["state"])})


def progress_of(row: Row) -> StreamProgress:
    """Return a stream's progress from its row of `stream_progress`."""
    values = dict(row._mapping)
    return StreamProgress(**values | {"undeclared": _undeclared_of(values)})


def progress_values(progress: StreamProgress) -> dict[str, object]:
    """Return the row of `stream_progress` for a stream's progress."""
    names = [
        {"topic": each.topic, "name": each.name, "records": each.records, "column": each.column}
        for each in progress.undeclared.names
    ]
    undeclared = {
        "version": _UNDECLARED_VERSION,
        "batch": [progress.epoch, progress.batch_id],
        "records": progress.undeclared.records,
        "names": names,
    }
    values = {column.name: getattr(progress, column.name) for column in stream_progress.c}
    return values | {"positions": dict(progress.positions), "undeclared": undeclared}


def _undeclared_of(values: Mapping[str, Any]) -> UndeclaredFields:
    """Return the undeclared fields of a row; none where another release wrote the row or the document."""
    given = values["undeclared"]
    is_of_batch = given.get("batch") == [values["epoch"], values["batch_id"]]
    if given.get("version") != _UNDECLARED_VERSION or not is_of_batch:
        return UndeclaredFields()
    names = (UndeclaredName(each["topic"], each["name"], each["records"], each["column"]) for each in given["names"])
    return UndeclaredFields(given["records"], tuple(names))


def alarm_of(row: Row) -> Alarm:
    """Return an alarm from its row of `alarm`."""
    values = row._mapping
    return Alarm(
        identity=values["id"],
        kind=values["kind"],
        subject=values["subject"],
        detail=values["detail"],
        opened_at=values["opened_at"],
        closed_at=values["closed_at"],
        told_at=values["told_at"],
        acknowledged_at=values["acknowledged_at"],
        acknowledged_by=values["acknowledged_by"],
        acknowledged_reason=values["acknowledged_reason"],
        extent=Extent(values["measure"], values["fault"]),
        known=Extent(values["known_measure"], values["known_fault"]),
        known_at=values["known_at"] or values["told_at"],  # the latter alone where an older release told it
        raised=values["raised"],
        raised_at=values["raised_at"],
        raise_at=values["raise_at"],
        retry_at=values["retry_at"],
        notified=tuple(Notified(**each) for each in values["notified"]),
    )


def alarm_values(alarm: Alarm) -> dict[str, object]:
    """Return the columns of an alarm that change while it is open."""
    return {
        "detail": alarm.detail,
        "told_at": alarm.told_at,
        "acknowledged_at": alarm.acknowledged_at,
        "acknowledged_by": alarm.acknowledged_by,
        "acknowledged_reason": alarm.acknowledged_reason,
        "measure": alarm.extent.measure,
        "fault": alarm.extent.fault,
        "known_measure": alarm.known.measure,
        "known_fault": alarm.known.fault,
        "known_at": alarm.known_at,
        "raised": alarm.raised,
        "raised_at": alarm.raised_at,
        "raise_at": alarm.raise_at,
        "retry_at": alarm.retry_at,
        "notified": [asdict(each) for each in alarm.notified],
    }


def action_of(row: Row) -> Action:
    """A row of `action_log`."""
    values = dict(row._mapping)
    return Action(
        identity=values["id"],
        at=values["at"],
        actor=values["actor"],
        action=values["action"],
        subject=values["subject"],
        reason=values["reason"],
        before=values["before"] or {},
        after=values["after"] or {},
        outcome=values["outcome"],
    )
