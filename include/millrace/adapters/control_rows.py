"""Rows of the control database as values."""

from __future__ import annotations

import sqlalchemy as sa

from millrace.domain.control import Action, Alarm, DesiredStream, StreamLook
from millrace.domain.streams import DesiredState, StreamState

Row = sa.Row[tuple[object, ...]]


def desired_of(row: Row) -> DesiredStream:
    """A row of `desired_state`."""
    values = dict(row._mapping)
    return DesiredStream(**values | {"state": DesiredState(values["state"])})


def look_of(row: Row) -> StreamLook:
    """A row of `stream_look`."""
    values = dict(row._mapping)
    return StreamLook(**values | {"state": StreamState(values["state"])})


def alarm_of(row: Row) -> Alarm:
    """A row of `alarm`."""
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
    )


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
