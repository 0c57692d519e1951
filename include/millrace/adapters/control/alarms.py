"""Alarms: every breach opens one row, which stays open until it is over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.rows import alarm_of, alarm_values
from millrace.domain.alarms import life as domain
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.errors import Code, UsageError
from millrace.settings import PostgresSettings

_PRESENT = sa.func.clock_timestamp().label("present")
_INSERTED = sa.literal_column("(xmax = 0)", sa.Boolean).label("inserted")  # xmax is 0 for a row that was not there


class AlarmTable:
    """Open and past alarms; at most one open per kind and subject."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def open(self, kind: AlarmKind, subject: str, detail: str, extent: Extent = UNKNOWN) -> bool:
        """Open an alarm, or hold the open one against what is seen now; `domain/alarms/life.py` decides.

        Args:
            kind: what went wrong.
            subject: with what.
            detail: the same for people.
            extent: how bad it is.

        Returns:
            True where people have to hear of it: it was opened now, or raised again.

        Guarantees: of many at once one opens it, and one raises it again.
        """
        alarm = tables.alarm
        statement = (
            insert(alarm)
            .values(kind=kind, subject=subject, detail=detail, measure=extent.measure, fault=extent.fault)
            .on_conflict_do_update(  # changes nothing, and locks the row that is there already
                index_elements=[alarm.c.kind, alarm.c.subject],
                index_where=sa.text("closed_at is null"),
                set_={"kind": kind},
            )
            .returning(*alarm.c, _PRESENT, _INSERTED)
        )
        with translated(self._settings), self._engine.begin() as connection:
            row = connection.execute(statement).one()
            if row.inserted:
                return True
            before = alarm_of(row)
            return _save(connection, before, domain.seen_again(before, detail, extent, row.present))

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
        """Return alarms, newest first.

        With `only_untold`: those whose notifiers are to be called now. Alarms that no notifier was called for come
        first, oldest first; then those that were retried longest ago. So none waits for ever.
        """
        alarm = tables.alarm
        order = (alarm.c.retry_at.asc().nulls_first(), alarm.c.id) if only_untold else (alarm.c.id.desc(),)
        query = sa.select(alarm).order_by(*order).limit(limit)
        if only_open:
            query = query.where(alarm.c.closed_at.is_(None))
        if only_untold:
            is_due = sa.or_(alarm.c.retry_at.is_(None), alarm.c.retry_at <= sa.func.clock_timestamp())
            query = query.where(alarm.c.told_at.is_(None), alarm.c.acknowledged_at.is_(None), is_due)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(alarm_of(row) for row in connection.execute(query).all())

    def count_open(self) -> int:
        """Return how many alarms are open, acknowledged ones too."""
        query = sa.select(sa.func.count()).select_from(tables.alarm).where(tables.alarm.c.closed_at.is_(None))
        with translated(self._settings), self._engine.begin() as connection:
            return connection.scalar(query) or 0

    def get(self, identity: int) -> Alarm:
        """The alarm of this number.

        Raises:
            UsageError: there is none.
        """
        with translated(self._settings), self._engine.begin() as connection:
            return _get(connection, identity)

    def acknowledge(self, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
        """Note who has taken an alarm up, here and in the action log; the alarm, and whether nobody had before.

        Guarantees: the first acknowledgement stays; of two at once one is the first. It covers the alarm as bad as it
            is at that moment, which the returned alarm says.

        Raises:
            UsageError: there is no alarm of this number.
        """
        with translated(self._settings), self._engine.begin() as connection:
            found, present = _locked(connection, identity)
            taken = domain.acknowledged(found, actor, reason, present)
            if taken is found:
                return found, False
            _save(connection, found, taken)
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
            return taken, True

    def raise_due(self, limit: int = 1_000) -> int:
        """Raise the alarms again that grew within the hour after people heard of them, once that hour is over.

        Does not guarantee anything about alarms that somebody else changes at this moment: the next call finds them.

        Returns:
            How many.
        """
        alarm = tables.alarm
        query = (
            sa.select(alarm, _PRESENT)
            .where(alarm.c.raise_at <= sa.func.clock_timestamp())
            .order_by(alarm.c.raise_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        with translated(self._settings), self._engine.begin() as connection:
            found = [(alarm_of(row), row.present) for row in connection.execute(query).all()]
            return sum(_save(connection, each, domain.raised_if_due(each, present)) for each, present in found)

    def record_round(self, read: Alarm, failures: Mapping[str, str], *, skipped: Collection[str] = ()) -> Alarm:
        """Note what came of one round of an alarm's notifiers; the alarm as it is then.

        Args:
            read: the alarm as the notifiers had it.
            failures: every notifier of the round, with the class of its error; empty where it delivered.
            skipped: the notifiers among `failures` that were not called.

        Guarantees: an alarm that grew or was raised again meanwhile does not count as told with its new extent.
        """
        with translated(self._settings), self._engine.begin() as connection:
            found, present = _locked(connection, read.identity)
            after = domain.told(found, read, failures, present, skipped=skipped)
            _save(connection, found, after)
            return after


def _locked(connection: sa.Connection, identity: int) -> tuple[Alarm, datetime]:
    """Lock an alarm's row; the alarm, and the database's time, by which all of an alarm is timed."""
    query = sa.select(tables.alarm, _PRESENT).where(tables.alarm.c.id == identity).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise _absent(identity)
    return alarm_of(row), row.present


def _save(connection: sa.Connection, before: Alarm, after: Alarm) -> bool:
    """Write an alarm whose row is locked, where it changed. Return True, and log it, where it was raised again."""
    if after != before:
        connection.execute(tables.alarm.update().where(tables.alarm.c.id == after.identity).values(alarm_values(after)))
    if after.raised == before.raised:
        return False
    control_log.append(
        connection,
        actor="millrace",
        action="alarm.raise",
        subject=after.subject,
        reason=domain.growth(after.kind, after.known, after.extent),
        before={
            "extent": domain.in_words(before.kind, before.known),
            "acknowledged_by": before.acknowledged_by or "",
            "acknowledged_reason": before.acknowledged_reason or "",
        },
        after={
            "alarm": str(after.identity),
            "kind": after.kind,
            "extent": domain.in_words(after.kind, after.extent),
        },
        outcome="done",
    )
    return True


def _get(connection: sa.Connection, identity: int) -> Alarm:
    row = connection.execute(sa.select(tables.alarm).where(tables.alarm.c.id == identity)).one_or_none()
    if row is None:
        raise _absent(identity)
    return alarm_of(row)


def _absent(identity: int) -> UsageError:
    return UsageError(
        f"alarm {identity} is unknown",
        next_step="run `millrace alarms list --all` for the known alarms",
        code=Code.UNKNOWN_NAME,
    )
