"""What pages show, out of the control database: few statements for any number of streams, and soon or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.pool import NullPool

from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import control_url, translated
from millrace.adapters.control.database.rows import action_of, alarm_of, desired_of, look_of, progress_of
from millrace.adapters.control.plans import steps_of, stored_plan
from millrace.adapters.postgres.connection import address
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.plans.plan import PlanKind, PlanStatus, PlanSummary, StoredPlan
from millrace.domain.streams.control import BATCH_STEPS, Attempt, Bucket, StreamHistory
from millrace.domain.streams.standing import QUARANTINE_WINDOW, StreamFacts
from millrace.errors import Code, StalePlanError, UnreachableError
from millrace.settings import PostgresSettings

_SHORTEST_WAIT_SECONDS = 2  # libpq takes no shorter connect_timeout


class PageReader:
    """Reads for pages: one connection a page, closed after it, and none in between.

    Args:
        settings: the control database.
        within: how long all statements of one page may take together.
    """

    def __init__(self, settings: PostgresSettings, within: timedelta) -> None:
        self._settings = settings
        self._within = within
        milliseconds = int(within / timedelta(milliseconds=1))
        self._engine = sa.create_engine(
            control_url(settings),
            poolclass=NullPool,
            isolation_level="REPEATABLE READ",  # so that a page's figures are of one moment
            connect_args={
                "connect_timeout": _SHORTEST_WAIT_SECONDS,
                "application_name": "millrace pages",
                "options": "-c default_transaction_read_only=on "
                f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds}",
                "tcp_user_timeout": milliseconds,
                "prepare_threshold": None,
            },
        )

    @contextmanager
    def page(self) -> Iterator[PageQueries]:
        """The queries of one page, all of one moment.

        Raises:
            UnreachableError: the database does not answer, or not soon enough.
        """
        until = time.monotonic() + self._within.total_seconds()
        with translated(self._settings), self._engine.connect() as connection:
            yield PageQueries(connection, until, address(self._settings))


class PageQueries:
    """The queries of one page. Each is one statement."""

    def __init__(self, connection: sa.Connection, until: float, where: str) -> None:
        self._connection = connection
        self._until = until
        self._where = where

    def _all(self, query: sa.Select[tuple[object, ...]]) -> Sequence[sa.Row[tuple[object, ...]]]:
        if time.monotonic() > self._until:
            raise UnreachableError(
                "the control database is too slow to show a page",
                where=self._where,
                next_step="check what keeps it busy; `millrace streams list` waits longer",
                code=Code.CONTROL_UNREACHABLE,
            )
        return self._connection.execute(query).all()

    def facts(self, now: datetime, only: str | None = None) -> dict[str, StreamFacts]:
        """The facts of every stream anybody wanted anything of or looked at, by name; of one where `only` names it."""
        desired = {row.stream: desired_of(row) for row in self._all(_of(tables.desired_state, only))}
        looks = {row.stream: look_of(row) for row in self._all(_of(tables.stream_look, only))}
        progress = {row.stream: progress_of(row) for row in self._all(_of(tables.stream_progress, only))}
        ends = {row.stream: Attempt(**row._mapping) for row in self._all(_last_ends(only))}
        alarms: dict[str, list[Alarm]] = {}
        for row in self._all(_open_alarms(only)):
            alarms.setdefault(row.subject, []).append(alarm_of(row))
        quarantined = {row.stream: int(row.total) for row in self._all(_quarantined(now - QUARANTINE_WINDOW, only))}
        return {
            name: StreamFacts(
                name,
                desired.get(name),
                looks.get(name),
                progress.get(name),
                ends.get(name),
                tuple(alarms.get(name, ())),
                quarantined.get(name, 0),
            )
            for name in sorted({*desired, *looks})
        }

    def history(self, stream: str, *, since: datetime, bucket: timedelta, attempts: int, actions: int) -> StreamHistory:
        """What one stream's batches did since then in parts of a time, and its last attempts and actions."""
        table, log = tables.attempt, tables.action_log
        tried = sa.select(table).where(table.c.stream == stream).order_by(table.c.epoch.desc()).limit(attempts)
        done = sa.select(log).where(log.c.subject == stream).order_by(log.c.id.desc()).limit(actions)
        return StreamHistory(
            [Attempt(**row._mapping) for row in self._all(tried)],
            [action_of(row) for row in self._all(done)],
            [_bucket(row) for row in self._all(_buckets(stream, since, bucket))],
        )

    def plan_summaries(
        self, *, limit: int, kind: PlanKind | None = None, target: str | None = None, plan_id: str | None = None
    ) -> Sequence[PlanSummary]:
        """The latest plans, newest first; only those of a kind, of a target, or the one of this id."""
        table = tables.plan
        query = _summaries().order_by(table.c.created_at.desc()).limit(limit)
        for column, value in ((table.c.kind, kind), (table.c.target, target), (table.c.id, plan_id)):
            if value is not None:
                query = query.where(column == str(value))
        return [_summary(row) for row in self._all(query)]

    def newest_plans(self, kind: PlanKind) -> dict[str, PlanSummary]:
        """The newest plan of each target."""
        table = tables.plan
        ids = sa.select(table.c.id).where(table.c.kind == kind.value).ext(distinct_on(table.c.target))
        newest = ids.order_by(table.c.target, table.c.created_at.desc())
        return {row.target: _summary(row) for row in self._all(_summaries().where(table.c.id.in_(newest)))}

    def plans(self, kind: PlanKind, target: str, *, limit: int) -> Sequence[StoredPlan]:
        """The latest plans of a target, newest first, without their steps; one that was tampered with is left out."""
        table = tables.plan
        query = sa.select(table).where(table.c.kind == kind.value, table.c.target == target)
        found = []
        for row in self._all(query.order_by(table.c.created_at.desc()).limit(limit)):
            with suppress(StalePlanError):  # the page of the plan says so
                found.append(stored_plan(row))
        return found

    def plan(self, plan_id: str) -> StoredPlan | None:
        """One plan with its steps; None where there is none of this id.

        Raises:
            StalePlanError: its content is no longer what was hashed.
        """
        rows = self._all(sa.select(tables.plan).where(tables.plan.c.id == plan_id))
        return replace(stored_plan(rows[0]), steps=steps_of(self._connection, plan_id)) if rows else None


def _summaries() -> sa.Select[tuple[object, ...]]:
    table = tables.plan
    columns = (table.c.id, table.c.kind, table.c.target, table.c.status, table.c.created_at, table.c.expires_at)
    reason = table.c.body["reason"].astext.label("reason")
    return sa.select(*columns, table.c.created_by, table.c.confirmed_by, reason)


def _summary(row: sa.Row[tuple[object, ...]]) -> PlanSummary:
    values = row._mapping
    return PlanSummary(
        id=values["id"],
        kind=PlanKind(values["kind"]),
        target=values["target"],
        status=PlanStatus(values["status"]),
        created=values["created_at"],
        expires=values["expires_at"],
        by=values["created_by"],
        reason=values["reason"] or "",
        confirmed_by=values["confirmed_by"] or "",
    )


def _of(table: sa.Table, only: str | None) -> sa.Select[tuple[object, ...]]:
    query = sa.select(table)
    return query if only is None else query.where(table.c.stream == only)


def _last_ends(only: str | None) -> sa.Select[tuple[object, ...]]:
    """The last attempt of each stream that has ended, by the key: a stream may have thousands."""
    wanted, tried = tables.desired_state, tables.attempt
    last = (
        sa.select(tried)
        .where(tried.c.stream == wanted.c.stream, tried.c.ended_at.is_not(None))
        .order_by(tried.c.epoch.desc())
        .limit(1)
        .lateral("last_end")
    )
    query = sa.select(last).select_from(wanted.join(last, sa.true()))
    return query if only is None else query.where(wanted.c.stream == only)


def _open_alarms(only: str | None) -> sa.Select[tuple[object, ...]]:
    table = tables.alarm
    query = sa.select(table).where(table.c.closed_at.is_(None)).order_by(table.c.id)
    return query if only is None else query.where(table.c.subject == only)


def _quarantined(since: datetime, only: str | None) -> sa.Select[tuple[object, ...]]:
    table = tables.batch_second
    query = (
        sa.select(table.c.stream, sa.func.sum(table.c.quarantined).label("total"))
        .where(table.c.at >= since, table.c.quarantined > 0)
        .group_by(table.c.stream)
    )
    return query if only is None else query.where(table.c.stream == only)


def _buckets(stream: str, since: datetime, bucket: timedelta) -> sa.Select[tuple[object, ...]]:
    table = tables.batch_second
    part = sa.func.date_bin(bucket, table.c.at, since).label("part")
    steps = [sa.func.sum(sa.cast(table.c.steps[step].astext, sa.Double)).label(f"step_{step}") for step in BATCH_STEPS]
    sums = [sa.func.sum(table.c[name]).label(name) for name in ("batches", "rows_in", "rows_out", "quarantined")]
    return (
        sa.select(part, *sums, *steps, sa.func.max(table.c.lag).label("lag"))
        .where(table.c.stream == stream, table.c.at >= since)
        .group_by(part)
        .order_by(part)
    )


def _bucket(row: sa.Row[tuple[object, ...]]) -> Bucket:
    values = row._mapping
    steps = {step: float(values[f"step_{step}"] or 0.0) for step in BATCH_STEPS}
    batches, rows_in, rows_out, quarantined = (
        int(values[name]) for name in ("batches", "rows_in", "rows_out", "quarantined")
    )
    return Bucket(values["part"], batches, rows_in, rows_out, quarantined, steps, values["lag"])
