"""Alarms: every breach opens one row, which stays open until it is over."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters import control_tables as tables
from millrace.adapters.control_connection import translated
from millrace.domain.control import Alarm
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

    def close(self, kind: str, subject: str) -> bool:
        """Close the open alarm of this kind and subject; whether there was one."""
        alarm = tables.alarm
        statement = (
            alarm.update()
            .where(alarm.c.kind == kind, alarm.c.subject == subject, alarm.c.closed_at.is_(None))
            .values(closed_at=sa.func.now())
        )
        with translated(self._settings), self._engine.begin() as connection:
            return connection.execute(statement).rowcount > 0

    def list(self, *, only_open: bool = True, only_untold: bool = False, limit: int = 200) -> tuple[Alarm, ...]:
        """Alarms, newest first."""
        alarm = tables.alarm
        query = sa.select(alarm).order_by(alarm.c.id.desc()).limit(limit)
        if only_open:
            query = query.where(alarm.c.closed_at.is_(None))
        if only_untold:
            query = query.where(alarm.c.told_at.is_(None))
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(
                Alarm(row.id, row.kind, row.subject, row.detail, row.opened_at, row.closed_at, row.told_at)
                for row in connection.execute(query)
            )

    def mark_told(self, identity: int) -> bool:
        """Note that people were told of an alarm; whether it was untold until now."""
        alarm = tables.alarm
        statement = (
            alarm.update().where(alarm.c.id == identity, alarm.c.told_at.is_(None)).values(told_at=sa.func.now())
        )
        with translated(self._settings), self._engine.begin() as connection:
            return connection.execute(statement).rowcount > 0
