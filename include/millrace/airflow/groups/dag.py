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
        description="Take a snapshot of the logs and consumer groups of each cluster every minute.",
        doc_md=(
            "A run is deferred for an hour. The triggerer takes a snapshot a minute, so it needs no worker. The log "
            "has the cost of each snapshot, and the servers that did not answer. Red: no snapshot succeeded in that "
            "hour.\n\n"
            "`millrace groups list`, `show` and `lag` show the result. Snapshots are kept for seven days."
        ),
        **continuous(PLATFORM, ["groups"]),
    )
    TakeSnapshots(task_id="take", doc_md="Takes a snapshot a minute until the hour is over.", dag=dag)
    return dag


def groups_dag() -> DAG:
    """Return `millrace.groups`."""
    dag = DAG(
        dag_id=names.GROUPS,
        description="Check every five minutes that declared readers make progress.",
        doc_md=(
            "Reads the snapshots of DAG `millrace.snapshots`. Red: a declared stream or backup is stuck, or its "
            "consumer group has a new risk (a foreign member, offsets that were deleted unread). An alarm is open "
            "until the breach is over. The log has one line for each other group, for information only.\n\n"
            "By hand: `millrace groups list`."
        ),
        **every_five_minutes(PLATFORM, ["groups"]),
    )
    doc_md = "Each line of the error is a breach. Retries while a snapshot is missing, as after a start."
    CheckGroups(task_id="check", doc_md=doc_md, dag=dag, retries=3, retry_delay=timedelta(seconds=30))
    return dag
