"""The platform's own DAGs. They read no declaration, so that a broken one takes nothing else down."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.alarms.dag import alarms_dag
from millrace.airflow.groups.dag import groups_dag, snapshots_dag
from millrace.airflow.streams.dag import supervise_dag


def platform_dags() -> dict[str, DAG]:
    """`millrace.supervise`, `millrace.alarms`, `millrace.snapshots` and `millrace.groups` by their ids."""
    made = (supervise_dag(), alarms_dag(), snapshots_dag(), groups_dag())
    return {dag.dag_id: dag for dag in made}
