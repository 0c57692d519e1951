"""What people ask the apps that keep backups; each row stays when it was done, with when."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.expiry import Done, Expiry
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.settings import PostgresSettings

_AT_ONCE = 1_000


class BackupTable:
    """Acknowledgements and expiries that apps have to write into their chains."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def acknowledge(self, asked: Sequence[Acknowledgement], about: str) -> list[int]:
        """Ask for these, and say so in the action log, both or neither; the numbers of their rows.

        Args:
            asked: at least one, all of one app, by one person and for one reason.
            about: what they are about, for the action log.
        """
        table, first = tables.backup_acknowledgement, asked[0]
        with translated(self._settings), self._engine.begin() as connection:
            added = table.insert().returning(table.c.id, sort_by_parameter_order=True)
            numbers = [int(number) for number in connection.execute(added, [_values(one) for one in asked]).scalars()]
            control_log.append(
                connection,
                actor=first.by,
                action="backup.acknowledge",
                subject=first.app,
                reason=first.reason,
                before={},
                after={"topic": str(first.incarnation), "about": about},
                outcome="asked",
            )
        return numbers

    def known(self, here: Incarnation) -> tuple[Acknowledgement, ...]:
        """All that was ever asked of one incarnation, done or not."""
        table = tables.backup_acknowledgement
        query = table.select().where(table.c.topic == here.topic, table.c.topic_id == here.topic_id)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(_acknowledgement(row) for row in connection.execute(query.order_by(table.c.id)).all())

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

    def expire(self, asked: Expiry) -> int | None:
        """Ask for this, and say so in the action log, both or neither; the number of its row.

        Returns:
            None where the same chain has one that waits: nothing is asked then.
        """
        table, here = tables.backup_expiry, asked.incarnation
        added = (
            insert(table)
            .values(
                app=asked.app,
                topic=here.topic,
                topic_id=here.topic_id,
                sequence=asked.sequence,
                by=asked.by,
                reason=asked.reason,
            )
            .on_conflict_do_nothing(
                index_elements=[table.c.app, table.c.topic, table.c.topic_id], index_where=table.c.taken_at.is_(None)
            )
            .returning(table.c.id)
        )
        with translated(self._settings), self._engine.begin() as connection:
            number = connection.scalar(added)
            if number is not None:
                control_log.append(
                    connection,
                    actor=asked.by,
                    action="backup.expire",
                    subject=asked.app,
                    reason=asked.reason,
                    before={},
                    after={"topic": str(here), "manifests_to": str(asked.sequence)},
                    outcome="asked",
                )
        return None if number is None else int(number)

    def expiries(self, app: str) -> tuple[Expiry, ...]:
        """What was asked of an app and is not done, the oldest first; at most a thousand at a time."""
        table = tables.backup_expiry
        query = table.select().where(table.c.app == app, table.c.taken_at.is_(None)).order_by(table.c.id)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(_expiry(row) for row in connection.execute(query.limit(_AT_ONCE)).all())

    def expired(self, identity: int, done: Done) -> None:
        """It was done, as far as it was. Said twice, the first time counts."""
        table = tables.backup_expiry
        told = table.update().where(table.c.id == identity, table.c.taken_at.is_(None))
        with translated(self._settings), self._engine.begin() as connection:
            connection.execute(told.values(taken_at=sa.func.now(), reached=done.reached, fault=done.fault))

    def last_fault(self, app: str, here: Incarnation) -> str:
        """Why the last expiry that an app did of a chain was not done whole; empty where it was, or there was none."""
        table = tables.backup_expiry
        of_chain = (table.c.app == app, table.c.topic == here.topic, table.c.topic_id == here.topic_id)
        query = sa.select(table.c.fault).where(*of_chain, table.c.taken_at.is_not(None)).order_by(table.c.id.desc())
        with translated(self._settings), self._engine.begin() as connection:
            return str(connection.scalar(query.limit(1)) or "")


def _expiry(row: sa.Row[tuple[object, ...]]) -> Expiry:
    values = row._mapping
    return Expiry(
        identity=values["id"],
        app=values["app"],
        incarnation=Incarnation(values["topic"], values["topic_id"]),
        sequence=values["sequence"],
        by=values["by"],
        reason=values["reason"],
    )


def _values(asked: Acknowledgement) -> dict[str, object]:
    here, span = asked.incarnation, asked.span
    return {
        "app": asked.app,
        "topic": here.topic,
        "topic_id": here.topic_id,
        "partition": span.partition if span else None,
        "first": span.first if span else None,
        "next": span.next if span else None,
        "sequence": asked.sequence,
        "by": asked.by,
        "reason": asked.reason,
        "fault": asked.fault,
    }


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
        fault=values["fault"],
    )
