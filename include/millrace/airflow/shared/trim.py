"""Trimming old runs of Millrace's DAGs, which Airflow does not let a task do. Imports nothing of Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millrace.airflow.shared import names
from millrace.declarations import load
from millrace.settings import project_root


def commands(
    days: int, unfinished: Mapping[str, datetime], root: Path | None = None, *, now: datetime | None = None
) -> list[list[str]]:
    """The arguments of the program `airflow` that delete old runs of Millrace's DAGs, without keeping a copy.

    Airflow deletes runs, and by themselves their tasks, that began before a time, whatever their state. A run of the
    alarms or of a stream is parked for as long as nothing happens, so of DAGs with such a run only what began before
    the oldest of them goes: one command for all, for each is a start of Airflow's program.

    Args:
        days: how many days to keep, at least one.
        unfinished: when the oldest run that is not over began, by DAG.
        root: the project whose DAGs they are. Pipelines with errors are left out.
        now: the present; default the clock.

    Returns:
        One list of arguments, and another before it where a DAG is parked for longer.

    Raises:
        InvalidDeclarationError: the environment file has errors.
    """
    before = (now or datetime.now(UTC)) - timedelta(days=max(days, 1))
    project = load(root or project_root())
    dags = list(names.PLATFORM)
    dags += [name for pipeline in project.pipelines for name in names.of_pipeline(pipeline)]
    parked = {dag: unfinished[dag] for dag in dags if dag in unfinished and unfinished[dag] < before}
    others = [dag for dag in dags if dag not in parked]
    return ([_command(min(parked.values()), sorted(parked))] if parked else []) + [_command(before, others)]


def _command(before: datetime, dags: Sequence[str]) -> list[str]:
    arguments = ["db", "clean", "--clean-before-timestamp", before.isoformat(timespec="seconds")]
    return [*arguments, "--tables", "dag_run", "--dag-ids", ",".join(dags), "--skip-archive", "--yes"]
