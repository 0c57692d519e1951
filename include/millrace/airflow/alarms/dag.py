"""The DAG that notifies people of alarms."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.alarms.operators import TellAlarms, WaitForAlarm
from millrace.airflow.shared import names
from millrace.airflow.shared.defaults import PLATFORM, RETRIED, continuous


def alarms_dag() -> DAG:
    """Return `millrace.alarms`."""
    dag = DAG(
        dag_id=names.ALARMS,
        description="Turn one run red for each breach, and call the environment's notifiers.",
        doc_md=(
            "Task `wait` is deferred until an alarm is new, has grown tenfold, or has a notifier to retry. Task `tell` "
            "then calls the notifiers of the environment file and fails; its error names each alarm. A red run reports "
            "a breach, not a fault of this DAG. A green run retried notifiers that had failed, and all of them "
            "delivered."
        ),
        **continuous(PLATFORM, ["alarms"]),
    )
    wait = WaitForAlarm(task_id="wait", doc_md="Waits until an alarm is due.", dag=dag)
    doc_md = "Fails on purpose: each line of the error is an alarm."
    tell = TellAlarms(task_id="tell", doc_md=doc_md, dag=dag, **RETRIED)
    wait >> tell
    return dag
