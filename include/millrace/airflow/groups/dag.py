"""The DAGs that snapshot clusters and check the readers of them."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from millrace.airflow.groups.operators import CheckGroups, TakeSnapshots
from millrace.airflow.shared import names
from millrace.airflow.shared.defaults import PLATFORM, continuous, every_five_minutes


def snapshots_dag() -> DAG:
    """Return `millrace.snapshots`."""
    dag = DAG(
        dag_id=names.SNAPSHOTS,
        description="Every minute, look at every log and every consumer group of every cluster.",
        doc_md=(
            "One run an hour, parked: a snapshot a minute is taken where triggers run, and costs no worker. Its log "
            "says what each one cost, and what could not be asked. Red: no snapshot could be taken in that hour.\n\n"
            "What is seen: `millrace groups list`, `show` and `lag`. Snapshots are kept for seven days."
        ),
        **continuous(PLATFORM, ["groups"]),
    )
    TakeSnapshots(task_id="take", doc_md="A snapshot a minute, until the hour is over.", dag=dag)
    return dag


def groups_dag() -> DAG:
    """Return `millrace.groups`."""
    dag = DAG(
        dag_id=names.GROUPS,
        description="Every five minutes, see whether declared readers get on.",
        doc_md=(
            "Reads the snapshots of DAG `millrace.snapshots`. Red: a declared stream or backup is stuck, or something "
            "new may go wrong with its consumer group (a foreign member, offsets that were deleted unread); an alarm "
            "is open until it is over. All other groups are information: a line each in the log.\n\n"
            "By hand: `millrace groups list`."
        ),
        **every_five_minutes(PLATFORM, ["groups"]),
    )
    doc_md = "Each line of the error is a breach. Waits a little for a snapshot, as after a start."
    CheckGroups(task_id="check", doc_md=doc_md, dag=dag, retries=3, retry_delay=timedelta(seconds=30))
    return dag
