"""What a task that writes to topics announces, as Airflow's own code reads it off the task when it has succeeded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.plans.plan import ChangeResult, Outcome
from millrace.domain.streams.hosts import Host
from millrace.usecases.topics.plan import ProvisionReport
from millrace.usecases.topics.sources import LoadReport
from support.declarations import example_project
from support.fakes.streams import FakePlatform

CHECKOUT = Path(__file__).resolve().parents[3]
PURCHASES = "kafka://millrace_kafka/shop.purchases"


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.airflow.shared import settings

    monkeypatch.setenv("MILLRACE_ROOT", str(CHECKOUT))
    platform = SimpleNamespace(settings=SimpleNamespace(root=CHECKOUT))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)


def announced(dag_id: str, task_id: str) -> set[str]:
    """What a run of the task announces; the task of the DAG, which the asset graph is made of, stays as it is."""
    from airflow.sdk.execution_time.task_runner import _build_asset_profiles

    from millrace.airflow.pipeline import pipeline_dags

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
    from millrace.usecases.topics import plan as topics

    results = (ChangeResult("create", "shop.purchases", outcome),) if outcome else ()
    monkeypatch.setattr(topics, "provision", lambda *arguments, asked: ProvisionReport("shop", results, None, ()))
    assert announced("shop.topics", "provision") == told


@pytest.mark.parametrize(("produced", "told"), [(5, {PURCHASES}), (0, set())])
def test_a_load_announces_its_topic_where_it_wrote_anything(
    monkeypatch: pytest.MonkeyPatch, produced: int, told: set[str]
) -> None:
    from millrace.wiring import sources

    report = LoadReport("shop.cdnow", "shop.purchases", produced, 10 - produced, 10)
    monkeypatch.setattr(sources, "load_source", lambda *arguments: report)
    assert announced("shop.source.cdnow", "load") == told


@pytest.fixture
def with_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    from millrace.airflow.shared import settings

    platform = FakePlatform(example_project(tmp_path))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)
    return platform


def operate(action: str) -> None:
    from millrace.airflow.streams.operators import OperateStream

    form = {"stream": "backup", "action": action, "reason": "to have a look"}
    OperateStream(task_id="operate", pipeline="shop").execute(
        {"params": form, "dag_run": SimpleNamespace(triggering_user_name="admin")}
    )


def test_the_form_starts_and_stops_a_backup_in_the_name_of_who_filled_it_in(with_backup: FakePlatform) -> None:
    operate("start")
    assert [app.epoch for app in with_backup.app_runner.find("shop.backup")] == [1]
    operate("stop")
    wanted = with_backup.streams.desired("shop.backup")
    assert wanted is not None
    assert (wanted.state.value, wanted.changed_by) == ("stopped", "airflow:admin")


def test_the_form_has_nothing_to_accept_of_a_backup_and_says_so(with_backup: FakePlatform) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="begins a new chain by itself"):
        operate("accept-recreated")
    assert with_backup.streams.desired("shop.backup") is None


def test_the_form_adopts_a_stream_of_a_lost_host(with_backup: FakePlatform) -> None:
    operate("start")
    with_backup.streams.own("shop.backup", "b")
    with_backup.app_runner.apps.clear()
    with_backup.hosts.give_sign(Host("b", "beta", "boot b"))
    with_backup.clock.pass_seconds(301)
    operate("adopt")
    assert [app.epoch for app in with_backup.app_runner.find("shop.backup")] == [2]
