"""Holds of topics; each row stays when it has ended, with when."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import sqlalchemy as sa

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.locks import transaction_lock
from millrace.domain.retention.holds import MADE_AGAIN, Hold, extended
from millrace.settings import PostgresSettings


class HoldTable:
    """Open and past holds; at most one open a topic and Connection."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def working(self, kafka: str, topic: str) -> AbstractContextManager[bool]:
        """Whether the right to begin or end a hold of this topic is ours until the block ends; never waits for it."""
        return transaction_lock(self._engine, self._settings, f"topic_hold:{kafka}/{topic}")

    def begin(self, hold: Hold) -> Hold:
        """Store a hold; the open one of this very topic is extended by it. One of a former topic of that name ends.

        To be called while the right to it is ours.
        """
        table = tables.topic_hold
        with translated(self._settings), self._engine.begin() as connection:
            query = table.select().where(*_open(hold.kafka, hold.topic)).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is not None and row.topic_id == hold.topic_id:
                known = extended(_hold(row), hold)
                values = {
                    "after": dict(known.after),
                    "until": known.until,
                    "actor": known.actor,
                    "reason": known.reason,
                }
                changed = table.update().where(table.c.id == known.identity).values(values).returning(table)
                return _hold(connection.execute(changed).one())
            if row is not None:
                _end(connection, _hold(row), hold.began_at, hold.actor, hold.reason, {}, MADE_AGAIN)
            return _hold(connection.execute(table.insert().values(_values(hold)).returning(table)).one())

    def list(self, kafka: str | None = None, *, only_open: bool = True, limit: int = 1_000) -> tuple[Hold, ...]:
        """Holds by topic, the newest of each first; `kafka`: of the cluster of this Connection alone.

        All that are open; with those that have ended `limit` at most.
        """
        table = tables.topic_hold
        query = table.select().order_by(table.c.connection, table.c.topic, table.c.id.desc())
        query = query if only_open else query.limit(limit)
        if kafka is not None:
            query = query.where(table.c.connection == kafka)
        if only_open:
            query = query.where(table.c.ended_at.is_(None))
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(_hold(row) for row in connection.execute(query).all())

    def end(
        self,
        hold: Hold,
        *,
        at: datetime,
        actor: str,
        reason: str,
        after: Mapping[str, str],
        outcome: str,
    ) -> bool:
        """Note that a hold has ended, here and in the action log, both or neither; whether it was open until now.

        Args:
            hold: which.
            at: when.
            actor: who ended it.
            reason: why.
            after: the topic's limits from now on.
            outcome: what came of it.
        """
        with translated(self._settings), self._engine.begin() as connection:
            return _end(connection, hold, at, actor, reason, after, outcome)


def _end(
    connection: sa.Connection,
    hold: Hold,
    at: datetime,
    actor: str,
    reason: str,
    after: Mapping[str, str],
    outcome: str,
) -> bool:
    table = tables.topic_hold
    ended = table.update().where(table.c.id == hold.identity, table.c.ended_at.is_(None)).values(ended_at=at)
    if not connection.execute(ended).rowcount:
        return False
    control_log.append(
        connection,
        actor=actor,
        action="topic.hold.end",
        subject=hold.topic,
        reason=reason,
        before=dict(hold.after),
        after=after,
        outcome=outcome,
    )
    return True


def _open(kafka: str, topic: str) -> tuple[sa.ColumnElement[bool], ...]:
    table = tables.topic_hold
    return table.c.connection == kafka, table.c.topic == topic, table.c.ended_at.is_(None)


def _values(hold: Hold) -> dict[str, object]:
    return {
        "connection": hold.kafka,
        "topic": hold.topic,
        "topic_id": hold.topic_id,
        "before": dict(hold.before),
        "found": dict(hold.found),
        "after": dict(hold.after),
        "began_at": hold.began_at,
        "until": hold.until,
        "actor": hold.actor,
        "reason": hold.reason,
    }


def _hold(row: sa.Row[tuple[object, ...]]) -> Hold:
    values = dict(row._mapping)
    kafka, identity = values.pop("connection"), values.pop("id")
    for name in ("began_at", "until", "ended_at"):
        values[name] = values[name] and values[name].astimezone(UTC)  # the driver gives them in the server's zone
    return Hold(kafka=kafka, identity=identity, **values)
