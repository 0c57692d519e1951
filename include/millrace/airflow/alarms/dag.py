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
        description="One red run for every breach; it calls the environment's notifiers.",
        doc_md=(
            "`wait` is parked until an alarm is new, has grown tenfold, or has a notifier to try again; `tell` then "
            "calls the notifiers of the environment file and fails, naming each alarm. A red run is a breach, not a "
            "fault of this DAG. Green: notifiers that had failed were tried again, and all delivered."
        ),
        **continuous(PLATFORM, ["alarms"]),
    )
    wait = WaitForAlarm(task_id="wait", doc_md="Nothing to tell.", dag=dag)
    doc_md = "Fails on purpose: each line of the error is an alarm."
    tell = TellAlarms(task_id="tell", doc_md=doc_md, dag=dag, **RETRIED)
    wait >> tell
    return dag
