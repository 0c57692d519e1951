"""Asset events of the stack's Airflow: each stands for something that was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.full


def events(admin: AirflowUser, dag_id: str) -> list[str]:
    """The URIs of the assets a DAG ever announced, one an event."""
    found = admin.call("GET", f"/assets/events?source_dag_id={dag_id}&limit=100")["asset_events"]
    return [event["uri"] for event in found]


def test_a_run_that_wrote_nothing_announces_nothing(stack: Stack) -> None:
    admin = AirflowUser(stack)
    pipeline = AirflowPipeline(stack, admin, "assets")
    pipeline.deploy()
    dag_id, uri = f"{pipeline.name}.topics", f"kafka://millrace_kafka/{pipeline.name}.numbers"
    assert events(admin, dag_id) == [uri]
    assert admin.run(dag_id, {})["state"] == "success"
    assert events(admin, dag_id) == [uri]
    assert uri in {asset["uri"] for asset in admin.call("GET", "/assets?limit=1000")["assets"]}
    pipeline.withdraw()


def test_a_source_that_is_loaded_already_announces_nothing(stack: Stack) -> None:
    admin = AirflowUser(stack)
    for dag_id in ("shop.topics", "shop.source.cdnow", "shop.source.cdnow"):
        admin.wait_for_dag(dag_id)
        assert admin.run(dag_id, {})["state"] == "success"
    assert events(admin, "shop.source.cdnow") == ["kafka://millrace_kafka/shop.purchases"]
