"""The platform's own DAGs. They read no declaration, so that a broken one takes nothing else down."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from millrace.airflow import names
from millrace.airflow.factory import RETRIED, common
from millrace.airflow.operators import SuperviseStreams, TellAlarms, WaitForAlarm

OWNER = "millrace"


def platform_dags() -> dict[str, DAG]:
    """`millrace.supervise` and `millrace.alarms` by their ids."""
    made = (_supervise_dag(), _alarms_dag())
    return {dag.dag_id: dag for dag in made}


def _supervise_dag() -> DAG:
    dag = DAG(
        dag_id=names.SUPERVISE,
        description="Every five minutes, bring every stream to what is wanted of it.",
        doc_md=(
            "Each stream is supervised by its own DAG within seconds; this one does it for all, also where that DAG "
            "is paused, deleted or broken, and tells alarms that `millrace.alarms` has not told in time."
        ),
        schedule="*/5 * * * *",
        dagrun_timeout=timedelta(minutes=10),
        **common(OWNER, ["supervise"]),
    )
    SuperviseStreams(task_id="supervise", doc_md="One log line a stream.", dag=dag, **RETRIED)
    TellAlarms(
        task_id="overdue_alarms",
        only_overdue=True,
        doc_md="Fails, and tells, when an alarm waited for more than two minutes: the triggerer may be down.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _alarms_dag() -> DAG:
    dag = DAG(
        dag_id=names.ALARMS,
        description="One red run for every breach; it calls the environment's notifiers.",
        doc_md=(
            "`wait` is parked until a breach opened an alarm; `tell` then calls the notifiers of the environment "
            "file and fails, naming each alarm. A red run is a breach, not a fault of this DAG."
        ),
        schedule="@continuous",
        allowed_run_types=["scheduled"],
        **common(OWNER, ["alarms"]),
    )
    wait = WaitForAlarm(task_id="wait", doc_md="Nothing to tell.", dag=dag)
    doc_md = "Fails on purpose: each line of the error is an alarm."
    tell = TellAlarms(task_id="tell", doc_md=doc_md, dag=dag, **RETRIED)
    wait >> tell
    return dag
