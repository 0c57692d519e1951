"""The DAG that audits the archives of a pipeline. `streams/dag.py` watches the app that writes them."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.archive.operators import AuditArchive
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, hourly
from millrace.domain.declaration.pipeline import BackupApp, Pipeline


def audit_dag(pipeline: Pipeline, backup: BackupApp) -> DAG:
    """A task a topic: one that is broken, or large, holds up no other."""
    dag = DAG(
        dag_id=names.backup_audit(pipeline),
        description=f"Prove the backup of {pipeline.name}, hourly; once a day closely.",
        doc_md=(
            f"Holds the archive that **{backup.qualified_name}** writes against the topics, a task a topic: the chain, "
            "its objects, the log. Once a day a task looks deep: it walks the whole chain, reads what is new, of the "
            "rest a thirtieth, and holds a sample against Kafka.\n\n"
            "Red: something is broken, lost without somebody's knowledge, or waits for longer than `max_lag`; the "
            "first lines of the log name the offsets, and one alarm a kind is open until it is over. Evidence lies in "
            "the bucket under `audit/TOPIC/`. By hand: `millrace backup audit [TOPIC] --deep`."
        ),
        schedule=hourly(names.backup_audit(pipeline)),
        **common(pipeline.owner, [pipeline.name, "backup"]) | {"max_active_tasks": 2},
    )
    for topic in backup.topics:
        AuditArchive(
            task_id=topic.name,
            pipeline=pipeline.name,
            topic=topic.name,
            inlets=[topic_asset(pipeline.kafka, topic.name)],
            doc_md="Repeatable: each try is an audit of its own.",
            dag=dag,
            **RETRIED,
        )
    return dag
