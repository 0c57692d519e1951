"""Class paths that a former layout left in Airflow's database and configuration still import."""

from __future__ import annotations

import inspect

import pytest

STORED = {
    "millrace.airflow.triggers.StreamWaits": "millrace.airflow.streams.triggers",
    "millrace.airflow.triggers.StreamRuns": "millrace.airflow.streams.triggers",
    "millrace.airflow.triggers.StreamStuck": "millrace.airflow.streams.triggers",
    "millrace.airflow.triggers.UntoldAlarm": "millrace.airflow.alarms.triggers",
    "millrace.airflow.group_triggers.SnapshotsTaken": "millrace.airflow.groups.triggers",
    "millrace.airflow.operators.WatchWaiting": "millrace.airflow.streams.operators",
    "millrace.airflow.operators.WatchRunning": "millrace.airflow.streams.operators",
    "millrace.airflow.operators.WatchStuck": "millrace.airflow.streams.operators",
    "millrace.airflow.operators.SuperviseStreams": "millrace.airflow.streams.operators",
    "millrace.airflow.operators.OperateStream": "millrace.airflow.streams.operators",
    "millrace.airflow.operators.WaitForAlarm": "millrace.airflow.alarms.operators",
    "millrace.airflow.operators.TellAlarms": "millrace.airflow.alarms.operators",
    "millrace.airflow.operators.ProvisionTopics": "millrace.airflow.topics.operators",
    "millrace.airflow.operators.LoadSource": "millrace.airflow.topics.operators",
    "millrace.airflow.operators.AuditArchive": "millrace.airflow.archive.operators",
    "millrace.airflow.group_operators.TakeSnapshots": "millrace.airflow.groups.operators",
    "millrace.airflow.group_operators.CheckGroups": "millrace.airflow.groups.operators",
    "millrace.airflow.plan_operators.ConfirmPlan": "millrace.airflow.plans.operators",
    "millrace.airflow.plan_operators.RunPlan": "millrace.airflow.plans.operators",
    "millrace.airflow.rewind_operators.PlanRewind": "millrace.airflow.rewind.operators",
    "millrace.airflow.rewind_operators.VerifyPlan": "millrace.airflow.rewind.operators",
    "millrace.airflow.redrive_operators.PlanRedrive": "millrace.airflow.quarantine.operators",
    "millrace.airflow.quality_operators.CheckQuality": "millrace.airflow.quality.operators",
    "millrace.airflow.books_dag.ReconcileBooks": "millrace.airflow.quality.operators",
    "millrace.airflow.books_dag.TriggerBooks": "millrace.airflow.quality.operators",
    "millrace.airflow.quality.books.ReconcileBooks": "millrace.airflow.quality.operators",
    "millrace.airflow.quality.books.TriggerBooks": "millrace.airflow.quality.operators",
    "millrace.airflow.books_dag.books_dag": "millrace.airflow.quality.dag",
    "millrace.airflow.quality.books.books_dag": "millrace.airflow.quality.dag",
    "millrace.airflow.retention_operators.CheckRetention": "millrace.airflow.retention.operators",
    "millrace.airflow.connections_file.ConnectionsFile": "millrace.airflow.shared.connections_file",
    "millrace.airflow.factory.pipeline_dags": "millrace.airflow.pipeline",
    "millrace.airflow.platform_dags.platform_dags": "millrace.airflow.platform",
    "millrace.airflow.plugin.StreamPageLink": "millrace.airflow.shared.plugin",
    "millrace.airflow.plugin.MillracePlugin": "millrace.airflow.shared.plugin",
}
"""The paths that stacks of commit 84c5f11 and of later ones had stored, and the modules that have the classes now."""


@pytest.mark.parametrize("former", STORED)
def test_airflow_imports_a_former_path_as_the_present_class(former: str) -> None:
    from airflow.sdk.module_loading import import_string

    found = import_string(former)
    assert (found.__module__, found.__qualname__) == (STORED[former], former.rpartition(".")[2])


def test_every_trigger_that_may_be_stored_names_the_path_at_which_it_is() -> None:
    from airflow.sdk.module_loading import import_string
    from airflow.triggers.base import BaseTrigger

    triggers = [import_string(path) for path, module in STORED.items() if module.endswith(".triggers")]
    assert len(triggers) == 5
    for trigger in triggers:
        assert issubclass(trigger, BaseTrigger)
        given = {name: "stopped" for name in list(inspect.signature(trigger).parameters) if name != "kwargs"}
        path, arguments = trigger(**given).serialize()
        assert import_string(path) is trigger
        assert arguments.keys() == given.keys()
