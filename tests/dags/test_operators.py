"""What a task that writes to topics announces, as Airflow's own code reads it off the task when it has succeeded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.plan import ChangeResult, Outcome
from millrace.usecases.sources import LoadReport
from millrace.usecases.topics import ProvisionReport

CHECKOUT = Path(__file__).resolve().parents[2]
PURCHASES = "kafka://millrace_kafka/shop.purchases"


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.airflow import settings

    monkeypatch.setenv("MILLRACE_ROOT", str(CHECKOUT))
    platform = SimpleNamespace(settings=SimpleNamespace(root=CHECKOUT))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)


def announced(dag_id: str, task_id: str) -> set[str]:
    """What a run of the task announces; the task of the DAG, which the asset graph is made of, stays as it is."""
    from airflow.sdk.execution_time.task_runner import _build_asset_profiles

    from millrace.airflow.factory import pipeline_dags

    dag = pipeline_dags("shop")[dag_id]
    task = dag.get_task(task_id)
    running: Any = task.prepare_for_execution()
    running.execute({"dag_run": SimpleNamespace(triggering_user_name="me", run_type="manual"), "dag": dag})
    assert [asset.uri for asset in task.outlets] == [PURCHASES]
    return {profile.uri for profile in _build_asset_profiles(running.outlets)}


@pytest.mark.parametrize(("outcome", "told"), [(Outcome.DONE, {PURCHASES}), (Outcome.FOUND_DONE, set()), (None, set())])
def test_provisioning_announces_what_it_changed(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None, told: set[str]
) -> None:
    from millrace.usecases import topics

    results = (ChangeResult("create", "shop.purchases", outcome),) if outcome else ()
    monkeypatch.setattr(topics, "provision", lambda *arguments, asked: ProvisionReport("shop", results, None, ()))
    assert announced("shop.topics", "provision") == told


@pytest.mark.parametrize(("produced", "told"), [(5, {PURCHASES}), (0, set())])
def test_a_load_announces_its_topic_where_it_wrote_anything(
    monkeypatch: pytest.MonkeyPatch, produced: int, told: set[str]
) -> None:
    from millrace import wiring

    report = LoadReport("shop.cdnow", "shop.purchases", produced, 10 - produced, 10)
    monkeypatch.setattr(wiring, "load_source", lambda *arguments: report)
    assert announced("shop.source.cdnow", "load") == told
