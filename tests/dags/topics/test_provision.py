"""The task that keeps topics: which runs of it create one, on a cluster and a control database in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fakes.logs import FakeHolds
from support.fakes.plans import FakePlans
from support.fakes.streams import FakePlatform
from support.fakes.topics import FakeTopicAdmin

CHECKOUT = Path(__file__).resolve().parents[3]
TOPIC = "shop.purchases"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeTopicAdmin:
    from millrace.airflow.shared import settings

    admin, plans, platform = FakeTopicAdmin(), FakePlans(), FakePlatform(CHECKOUT)
    platform.rooms |= {"plans": plans, "holds": FakeHolds()}
    monkeypatch.setattr(platform, "kafka_topics", lambda connection: admin, raising=False)
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)
    return admin


def run(run_type: str, user: str | None = None) -> None:
    from millrace.airflow.topics.operators import ProvisionTopics

    dag_run = SimpleNamespace(run_type=run_type, triggering_user_name=user)
    context: Any = {"dag_run": dag_run, "dag": SimpleNamespace(dag_id="shop.topics")}
    ProvisionTopics(task_id="provision", pipeline="shop").execute(context)


@pytest.mark.parametrize("run_type", ["scheduled", "operator_triggered", "backfill"])
def test_a_run_nobody_asked_for_makes_no_new_topic_and_says_what_waits_and_how_to_ask(
    cluster: FakeTopicAdmin, capsys: pytest.CaptureFixture[str], run_type: str
) -> None:
    run(run_type)
    assert not cluster.topics
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "which no scheduled run creates" in line]
    assert "[warning" in warning
    for said in (TOPIC, "trigger the DAG shop.topics", "`millrace topics plan shop`", "`millrace plans run ID`"):
        assert said in warning


def test_a_triggered_run_makes_it(cluster: FakeTopicAdmin) -> None:
    run("manual", "ann")
    assert set(cluster.topics) == {TOPIC}


def test_a_scheduled_run_keeps_what_is_there_and_makes_a_deleted_topic_not_again(
    cluster: FakeTopicAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    run("manual", "ann")
    cluster.set_config({TOPIC: {"retention.ms": "1"}})
    run("scheduled")
    assert cluster.topics[TOPIC].config["retention.ms"] != "1"
    del cluster.topics[TOPIC]
    capsys.readouterr()
    run("scheduled")
    assert not cluster.topics
    assert TOPIC in capsys.readouterr().out
