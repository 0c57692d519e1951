"""The platform's own DAGs. They read no declaration, so that a broken one takes nothing else down."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from millrace.airflow.alarms.operators import TellAlarms, WaitForAlarm
from millrace.airflow.groups.operators import CheckGroups, TakeSnapshots
from millrace.airflow.shared import names
from millrace.airflow.shared.defaults import RETRIED, common
from millrace.airflow.streams.operators import SuperviseStreams

OWNER = "millrace"


def platform_dags() -> dict[str, DAG]:
    """`millrace.supervise`, `millrace.alarms`, `millrace.snapshots` and `millrace.groups` by their ids."""
    made = (_supervise_dag(), _alarms_dag(), _snapshots_dag(), _groups_dag())
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
            "`wait` is parked until an alarm is new, has grown tenfold, or has a notifier to try again; `tell` then "
            "calls the notifiers of the environment file and fails, naming each alarm. A red run is a breach, not a "
            "fault of this DAG. Green: notifiers that had failed were tried again, and all delivered."
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


def _snapshots_dag() -> DAG:
    dag = DAG(
        dag_id=names.SNAPSHOTS,
        description="Every minute, look at every log and every consumer group of every cluster.",
        doc_md=(
            "One run an hour, parked: a snapshot a minute is taken where triggers run, and costs no worker. Its log "
            "says what each one cost, and what could not be asked. Red: no snapshot could be taken in that hour.\n\n"
            "What is seen: `millrace groups list`, `show` and `lag`. Snapshots are kept for seven days."
        ),
        schedule="@continuous",
        allowed_run_types=["scheduled"],
        **common(OWNER, ["groups"]),
    )
    TakeSnapshots(task_id="take", doc_md="A snapshot a minute, until the hour is over.", dag=dag)
    return dag


def _groups_dag() -> DAG:
    dag = DAG(
        dag_id=names.GROUPS,
        description="Every five minutes, see whether declared readers get on.",
        doc_md=(
            "Reads the snapshots of DAG `millrace.snapshots`. Red: a declared stream or backup is stuck, or something "
            "new may go wrong with its consumer group (a foreign member, offsets that were deleted unread); an alarm "
            "is open until it is over. All other groups are information: a line each in the log.\n\n"
            "By hand: `millrace groups list`."
        ),
        schedule="*/5 * * * *",
        dagrun_timeout=timedelta(minutes=10),
        **common(OWNER, ["groups"]),
    )
    doc_md = "Each line of the error is a breach. Waits a little for a snapshot, as after a start."
    CheckGroups(task_id="check", doc_md=doc_md, dag=dag, retries=3, retry_delay=timedelta(seconds=30))
    return dag
