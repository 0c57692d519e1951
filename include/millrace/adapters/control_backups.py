"""What people ask the apps that keep backups; each row stays when it was done, with when."""

from __future__ import annotations

import sqlalchemy as sa

from millrace.adapters import control_tables as tables
from millrace.adapters.control_connection import translated
from millrace.domain.archive.acknowledgement import Acknowledgement
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.settings import PostgresSettings

_AT_ONCE = 1_000


class BackupTable:
    """Acknowledgements that apps have to write into their chains."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def acknowledge(self, asked: Acknowledgement) -> int:
        """Ask for one; the number of its row."""
        here, span = asked.incarnation, asked.span
        values = {
            "app": asked.app,
            "topic": here.topic,
            "topic_id": here.topic_id,
            "partition": span.partition if span else None,
            "first": span.first if span else None,
            "next": span.next if span else None,
            "sequence": asked.sequence,
            "by": asked.by,
            "reason": asked.reason,
        }
        table = tables.backup_acknowledgement
        with translated(self._settings), self._engine.begin() as connection:
            return int(connection.execute(table.insert().values(values).returning(table.c.id)).scalar_one())

    def waiting(self, app: str) -> tuple[Acknowledgement, ...]:
        """What was asked of an app and is not done, the oldest first; at most a thousand at a time."""
        table = tables.backup_acknowledgement
        query = table.select().where(table.c.app == app, table.c.taken_at.is_(None)).order_by(table.c.id)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(_acknowledgement(row) for row in connection.execute(query.limit(_AT_ONCE)).all())

    def taken(self, identity: int) -> None:
        """It was done. Said twice, the first time counts."""
        table = tables.backup_acknowledgement
        done = table.update().where(table.c.id == identity, table.c.taken_at.is_(None)).values(taken_at=sa.func.now())
        with translated(self._settings), self._engine.begin() as connection:
            connection.execute(done)


def _acknowledgement(row: sa.Row[tuple[object, ...]]) -> Acknowledgement:
    values = row._mapping
    about_offsets = values["sequence"] is None
    return Acknowledgement(
        identity=values["id"],
        app=values["app"],
        incarnation=Incarnation(values["topic"], values["topic_id"]),
        span=PartitionSpan(values["partition"], values["first"], values["next"]) if about_offsets else None,
        sequence=values["sequence"],
        by=values["by"],
        reason=values["reason"],
    )
