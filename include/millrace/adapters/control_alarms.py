"""Alarms: every breach opens one row, which stays open until it is over."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters import control_log
from millrace.adapters import control_tables as tables
from millrace.adapters.control_connection import translated
from millrace.adapters.control_rows import alarm_of
from millrace.domain.control import Alarm
from millrace.errors import UsageError
from millrace.settings import PostgresSettings


class AlarmTable:
    """Open and past alarms; at most one open per kind and subject."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def open(self, kind: str, subject: str, detail: str) -> bool:
        """Open an alarm; whether it was opened now. One that is open already keeps its time and gets the new detail."""
        alarm = tables.alarm
        statement = insert(alarm).values(kind=kind, subject=subject, detail=detail)
        opened = statement.on_conflict_do_update(
            index_elements=[alarm.c.kind, alarm.c.subject],
            index_where=sa.text("closed_at is null"),
            set_={"detail": detail},
        ).returning(sa.literal_column("(xmax = 0)", sa.Boolean))  # xmax is 0 for a row that was inserted, not updated
        with translated(self._settings), self._engine.begin() as connection:
            return bool(connection.scalar(opened))

    def close(self, kind: str, subject: str, *, opened_before: datetime | None = None) -> bool:
        """Close the open alarm of this kind and subject; whether there was one.

        Args:
            kind: what went wrong.
            subject: with what.
            opened_before: leave one alone that was opened since: who looked before knows nothing of it.
        """
        alarm = tables.alarm
        statement = (
            alarm.update()
            .where(alarm.c.kind == kind, alarm.c.subject == subject, alarm.c.closed_at.is_(None))
            .values(closed_at=sa.func.now())
        )
        if opened_before is not None:
            statement = statement.where(alarm.c.opened_at < opened_before)
        with translated(self._settings), self._engine.begin() as connection:
            return connection.execute(statement).rowcount > 0

    def list(self, *, only_open: bool = True, only_untold: bool = False, limit: int = 200) -> tuple[Alarm, ...]:
        """Alarms, newest first; those that nobody was told of oldest first, so that none waits for ever."""
        alarm = tables.alarm
        query = sa.select(alarm).order_by(alarm.c.id if only_untold else alarm.c.id.desc()).limit(limit)
        if only_open:
            query = query.where(alarm.c.closed_at.is_(None))
        if only_untold:
            query = query.where(alarm.c.told_at.is_(None), alarm.c.acknowledged_at.is_(None))
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(alarm_of(row) for row in connection.execute(query).all())

    def get(self, identity: int) -> Alarm:
        """The alarm of this number.

        Raises:
            UsageError: there is none.
        """
        with translated(self._settings), self._engine.begin() as connection:
            return _get(connection, identity)

    def acknowledge(self, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
        """Note who has taken an alarm up, here and in the action log; the alarm, and whether nobody had before.

        Guarantees: the first acknowledgement stays; of two at once one is the first.

        Raises:
            UsageError: there is no alarm of this number.
        """
        alarm = tables.alarm
        statement = (
            alarm.update()
            .where(alarm.c.id == identity, alarm.c.acknowledged_at.is_(None))
            .values(acknowledged_at=sa.func.now(), acknowledged_by=actor, acknowledged_reason=reason)
        )
        with translated(self._settings), self._engine.begin() as connection:
            first = connection.execute(statement).rowcount > 0
            found = _get(connection, identity)
            if first:
                control_log.append(
                    connection,
                    actor=actor,
                    action="alarm.acknowledge",
                    subject=found.subject,
                    reason=reason,
                    before={},
                    after={"alarm": str(identity), "kind": found.kind},
                    outcome="done",
                )
            return found, first

    def mark_told(self, identity: int) -> bool:
        """Note that people were told of an alarm; whether it was untold until now."""
        alarm = tables.alarm
        statement = (
            alarm.update().where(alarm.c.id == identity, alarm.c.told_at.is_(None)).values(told_at=sa.func.now())
        )
        with translated(self._settings), self._engine.begin() as connection:
            return connection.execute(statement).rowcount > 0


def _get(connection: sa.Connection, identity: int) -> Alarm:
    row = connection.execute(sa.select(tables.alarm).where(tables.alarm.c.id == identity)).one_or_none()
    if row is None:
        raise UsageError(
            f"there is no alarm {identity}", next_step="see `millrace alarms list --all` for those there are"
        )
    return alarm_of(row)
