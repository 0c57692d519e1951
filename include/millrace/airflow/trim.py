"""Trimming old runs of Millrace's DAGs, which Airflow does not let a task do. Imports nothing of Airflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from millrace.airflow import names
from millrace.settings import project_root
from millrace.spec import load


def command(days: int, root: Path | None = None, *, now: datetime | None = None) -> list[str]:
    """The arguments of the program `airflow` that delete old runs of Millrace's DAGs, without keeping a copy.

    Args:
        days: how many days to keep, at least one.
        root: the project whose DAGs they are. Pipelines with errors are left out.
        now: the present; default the clock.

    Raises:
        InvalidDeclarationError: the environment file has errors.
    """
    before = (now or datetime.now(UTC)) - timedelta(days=max(days, 1))
    project = load(root or project_root())
    dags = [names.SUPERVISE]  # not the alarms: a task parked for long is the usual state there, and must stay
    dags += [name for pipeline in project.pipelines for name in names.of_pipeline(pipeline)]
    arguments = ["db", "clean", "--clean-before-timestamp", before.isoformat(timespec="seconds")]
    return [*arguments, "--tables", "dag_run", "--dag-ids", ",".join(dags), "--skip-archive", "--yes"]
