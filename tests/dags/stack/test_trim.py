"""Trimming, by Airflow's own clean-up on a database of its own: old runs go, a parked one stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 5, 1, tzinfo=UTC)
DAYS_OLD = (60, 40, 30)
"""When each run of a DAG began; all of them long ago, the last one is still parked."""


@pytest.fixture
def session() -> Iterator[Any]:
    import sqlalchemy as sa
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from sqlalchemy.orm import Session

    import_all_models()
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as opened:
        yield opened
    engine.dispose()


def test_old_runs_go_and_a_parked_one_stays_with_its_task(session: Any) -> None:
    from airflow.utils.db_cleanup import run_cleanup

    from millrace.airflow.shared import trim

    ours, another = ("millrace.alarms", "shop.stream.purchases", "millrace.supervise"), "of.somebody.else"
    for dag_id in (*ours, another):
        for days in DAYS_OLD:
            parked = days == DAYS_OLD[-1] and dag_id != "millrace.supervise"
            _add(session, dag_id, days, "running" if parked else "failed")
    began = NOW - timedelta(days=DAYS_OLD[-1])
    for arguments in trim.commands(14, {"millrace.alarms": began, "shop.stream.purchases": began}, CHECKOUT, now=NOW):
        option = dict(pairwise(arguments))
        run_cleanup(
            clean_before_timestamp=datetime.fromisoformat(option["--clean-before-timestamp"]),
            table_names=[option["--tables"]],
            dag_ids=option["--dag-ids"].split(","),
            skip_archive=True,
            confirm=False,
            session=session,
        )
    for dag_id in ours[:2]:
        assert _left(session, dag_id) == {"dag_run": ["30"], "task_instance": ["30"]}
    assert _left(session, "millrace.supervise")["task_instance"] == []
    assert len(_left(session, another)["task_instance"]) == len(DAYS_OLD)


def test_however_many_are_parked_airflow_is_started_twice() -> None:
    from millrace.airflow.shared import trim

    parked = {"millrace.alarms": NOW - timedelta(days=40), "shop.stream.purchases": NOW - timedelta(days=30)}
    first, second = (dict(pairwise(arguments)) for arguments in trim.commands(14, parked, CHECKOUT, now=NOW))
    assert (first["--clean-before-timestamp"], first["--dag-ids"]) == (
        "2026-03-22T00:00:00+00:00",
        "millrace.alarms,shop.stream.purchases",
    )
    assert not parked.keys() & set(second["--dag-ids"].split(","))


def _add(session: Any, dag_id: str, days: int, state: str) -> None:
    """A run with one task, which began with it and is parked where the run goes on."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    at = NOW - timedelta(days=days)
    both = {"dag_id": dag_id, "run_id": str(days), "start_date": at}
    session.execute(DagRun.__table__.insert().values(**both, state=state, run_type="scheduled", run_after=at))
    task = {"task_id": "wait", "state": "deferred" if state == "running" else state, "pool": "default_pool"}
    session.execute(TaskInstance.__table__.insert().values(**both, **task, pool_slots=1))
    session.commit()


def _left(session: Any, dag_id: str) -> dict[str, list[str]]:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    tables = (DagRun.__table__, TaskInstance.__table__)
    return {
        table.name: [row.run_id for row in session.execute(table.select().where(table.c.dag_id == dag_id))]
        for table in tables
    }
