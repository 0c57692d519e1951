"""Stored plans and the right to run one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.locks import transaction_lock
from millrace.domain.plans.plan import (
    Asked,
    ChangeResult,
    Facts,
    Outcome,
    Plan,
    PlanStatus,
    StepDone,
    StoredPlan,
    canonical,
    facts,
    parse,
)
from millrace.errors import Code, StalePlanError, UsageError
from millrace.settings import PostgresSettings


class PlanTable:
    """Plans, and what came of them."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def add(self, plan: Plan, *, asked_in: str = "") -> Plan:
        """Store a plan as open. Where an open one that says the same has not expired yet, that one is returned.

        Args:
            plan: the plan.
            asked_in: the run of a DAG, as DAG/RUN@TIME, that the plan shall be bound to for ever. Where that run has a
                plan, that one is returned, whatever it says; it is never that of another run, or of none.
        """
        table = tables.plan
        alike = (
            sa.select(table)
            .where(
                table.c.kind == plan.kind.value,
                table.c.target == plan.target,
                table.c.status == PlanStatus.OPEN.value,
                table.c.expires_at > plan.created,
                table.c.asked_in.is_(None),
            )
            .order_by(table.c.created_at.desc())
        )
        with translated(self._settings), self._engine.begin() as connection:
            if not asked_in:
                for row in connection.execute(alike).all():
                    stored = stored_plan(row).plan
                    if stored.says_the_same(plan):
                        return stored
            values = {
                "id": plan.id,
                "kind": plan.kind.value,
                "target": plan.target,
                "cluster_id": plan.cluster_id,
                "body": json.loads(canonical(plan)),
                "hash": plan.hash,
                "created_at": plan.created,
                "created_by": plan.by,
                "expires_at": plan.expires,
                "asked_in": asked_in or None,
            }
            connection.execute(insert(table).values(values).on_conflict_do_nothing())
            if asked_in:
                query = sa.select(table).where(table.c.asked_in == asked_in)
                return stored_plan(connection.execute(query).one()).plan
        return plan

    def of_run(self, asked_in: str) -> StoredPlan | None:
        """The plan that is bound to this run of a DAG, without its steps; None where there is none.

        Raises:
            StalePlanError: its content is no longer what was hashed.
        """
        query = sa.select(tables.plan).where(tables.plan.c.asked_in == asked_in)
        with translated(self._settings), self._engine.begin() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else stored_plan(row)

    def note_shown(self, plan: Plan) -> bool:
        """Write down that this very plan is shown to who asked for it; False where it is no longer open."""
        return self._change_open(plan.id, {"shown_hash": plan.hash})

    def confirm(self, plan: Plan, by: str, at: datetime) -> bool:
        """Write down who confirmed the plan that was shown; False where it is no longer open, or was not shown."""
        return self._change_open(
            plan.id, {"confirmed_by": by, "confirmed_at": at}, tables.plan.c.shown_hash == plan.hash
        )

    def refuse(self, plan: Plan) -> bool:
        """End a plan that nobody confirmed; False where it is no longer open."""
        return self._change_open(plan.id, {"status": PlanStatus.REFUSED.value, "finished_at": sa.func.now()})

    def _change_open(self, plan_id: str, values: Mapping[str, object], *more: sa.ColumnElement[bool]) -> bool:
        table = tables.plan
        only = (table.c.id == plan_id, table.c.status == PlanStatus.OPEN.value, table.c.asked_in.is_not(None), *more)
        with translated(self._settings), self._engine.begin() as connection:
            return connection.execute(table.update().where(*only).values(values)).rowcount == 1

    def get(self, plan_id: str) -> StoredPlan:
        """The plan of this id.

        Raises:
            UsageError: there is none.
            StalePlanError: its content is no longer what was hashed.
        """
        with translated(self._settings), self._engine.begin() as connection:
            row = connection.execute(sa.select(tables.plan).where(tables.plan.c.id == plan_id)).one_or_none()
            steps = steps_of(connection, plan_id)
        if row is None:
            raise UsageError(
                "the plan is unknown",
                where=plan_id,
                next_step="run `millrace plans list` for the known plans",
                code=Code.UNKNOWN_NAME,
            )
        return replace(stored_plan(row), steps=steps)

    def list(
        self, *, status: PlanStatus | None = None, target: str | None = None, limit: int = 50
    ) -> tuple[StoredPlan, ...]:
        """The latest plans, newest first, without their steps."""
        query = sa.select(tables.plan).order_by(tables.plan.c.created_at.desc()).limit(limit)
        if target is not None:
            query = query.where(tables.plan.c.target == target)
        if status is not None:
            query = query.where(tables.plan.c.status == status.value)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(stored_plan(row) for row in connection.execute(query).all())

    @contextmanager
    def running(self, plan_id: str) -> Iterator[bool]:
        """Hold the right to run a plan; False where another runner holds it.

        Guarantees: the right ends with the runner's connection, so that of a dead runner is free at once.
        """
        with transaction_lock(self._engine, self._settings, f"plan:{plan_id}") as mine:
            yield mine

    def begin(self, plan_id: str) -> PlanStatus:
        """Mark a plan as running; the status it had. Only an open or a running one is changed."""
        table = tables.plan
        with translated(self._settings), self._engine.begin() as connection:
            query = sa.select(table.c.status).where(table.c.id == plan_id).with_for_update()
            status = PlanStatus(connection.execute(query).scalar_one())
            if status is PlanStatus.OPEN:
                running = table.update().where(table.c.id == plan_id).values(status=PlanStatus.RUNNING.value)
                connection.execute(running)
            return status

    def begin_step(self, plan_id: str, step: str, detail: Facts = ()) -> None:
        """Write down that a step begins; one that was begun before begins anew."""
        table = tables.plan_step
        values = {"detail": dict(detail), "done_at": None}
        statement = insert(table).values(plan_id=plan_id, step=step, **values)
        again = statement.on_conflict_do_update(
            index_elements=[table.c.plan_id, table.c.step], set_={**values, "begun_at": sa.func.now()}
        )
        with translated(self._settings), self._engine.begin() as connection:
            connection.execute(again)

    def end_step(self, plan_id: str, step: str, detail: Facts = ()) -> None:
        """Write down that a step that was begun is done, and what is to be known of it."""
        table = tables.plan_step
        statement = (
            table.update()
            .where(table.c.plan_id == plan_id, table.c.step == step)
            .values(done_at=sa.func.now(), detail=table.c.detail.op("||")(sa.cast(dict(detail), JSONB)))
        )
        with translated(self._settings), self._engine.begin() as connection:
            connection.execute(statement)

    def finish(self, plan_id: str, status: PlanStatus, results: Sequence[ChangeResult] = ()) -> None:
        """Write how a plan ended."""
        table = tables.plan
        documents = [
            {"action": r.action, "subject": r.subject, "outcome": r.outcome.value, "error": r.error} for r in results
        ]
        statement = (
            table.update()
            .where(table.c.id == plan_id, table.c.status.in_([PlanStatus.OPEN.value, PlanStatus.RUNNING.value]))
            .values(status=status.value, finished_at=sa.func.now(), result=documents)
        )
        with translated(self._settings), self._engine.begin() as connection:
            connection.execute(statement)


def steps_of(connection: sa.Connection, plan_id: str) -> tuple[StepDone, ...]:
    """The steps of a plan, in the order they were begun."""
    table = tables.plan_step
    query = sa.select(table).where(table.c.plan_id == plan_id).order_by(table.c.begun_at, table.c.step)
    return tuple(StepDone(row.step, row.begun_at, row.done_at, facts(row.detail)) for row in connection.execute(query))


def stored_plan(row: sa.Row[tuple[object, ...]]) -> StoredPlan:
    """A row of `plan`, without its steps.

    Raises:
        StalePlanError: its content is no longer what was hashed.
    """
    values = row._mapping
    try:
        plan = parse(json.dumps(values["body"]))
    except ValueError as error:
        raise StalePlanError(f"the stored plan cannot be read: {error}", where=values["id"]) from error
    if plan.hash != values["hash"]:
        raise StalePlanError(
            "the stored plan was changed: its hash differs",
            where=values["id"],
            next_step="make a new plan, and find out who changed this row",
        )
    results = tuple(
        ChangeResult(r["action"], r["subject"], Outcome(r["outcome"]), r["error"]) for r in values["result"] or ()
    )
    asked = None
    if values["asked_in"] is not None:
        asked = Asked(
            values["asked_in"], values["shown_hash"] or "", values["confirmed_by"] or "", values["confirmed_at"]
        )
    return StoredPlan(plan, PlanStatus(values["status"]), values["finished_at"], results, asked=asked)
