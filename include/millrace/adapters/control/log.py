"""The action log: append-only, by permission and by trigger."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.rows import action_of
from millrace.domain.streams.control import Action
from millrace.settings import PostgresSettings


def append(
    connection: sa.Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    reason: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    outcome: str,
) -> None:
    """Append an entry inside the caller's transaction, so that both happen or neither."""
    connection.execute(
        tables.action_log.insert().values(
            actor=actor,
            action=action,
            subject=subject,
            reason=reason,
            before=dict(before),
            after=dict(after),
            outcome=outcome,
        )
    )


class ActionLog:
    """Who did what to what, when and why."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def append(
        self,
        *,
        actor: str,
        action: str,
        subject: str,
        reason: str,
        before: Mapping[str, str] | None = None,
        after: Mapping[str, str] | None = None,
        outcome: str = "done",
    ) -> None:
        """Append one entry.

        Args:
            actor: `cli:USER`, `airflow:USER`, `dag:DAG_ID`.
            action: `NOUN.VERB`, for instance `topic.create`.
            subject: what it was done to: a topic, a stream, a plan.
            reason: why, in the actor's words.
            before: what was so, as far as it matters; never secrets, never rows of people.
            after: what is so now.
            outcome: `done`, or what came of it instead.
        """
        with translated(self._settings), self._engine.begin() as connection:
            append(
                connection,
                actor=actor,
                action=action,
                subject=subject,
                reason=reason,
                before=before or {},
                after=after or {},
                outcome=outcome,
            )

    def list(self, *, subject: str | None = None, limit: int = 50) -> tuple[Action, ...]:
        """The latest entries, newest first. `subject` also matches what is under it (`shop`: `shop.purchases` too)."""
        log = tables.action_log
        query = sa.select(log).order_by(log.c.id.desc()).limit(limit)
        if subject is not None:
            query = query.where(
                sa.or_(log.c.subject == subject, log.c.subject.startswith(f"{subject}.", autoescape=True))
            )
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(action_of(row) for row in connection.execute(query))
