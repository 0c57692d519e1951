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
        description=f"Audit the backup of {pipeline.name} every hour, and once a day in depth.",
        doc_md=(
            f"Compares the archive that **{backup.qualified_name}** writes with its topics, one task a topic: the "
            "chain of manifests, the objects and the log. Once a day a task audits in depth. It then checks the whole "
            "chain, reads all new objects and a thirtieth of the others, and compares a sample with Kafka.\n\n"
            "Red: something is broken, lost without an acknowledgement, or waits for longer than `max_lag`. The first "
            "lines of the log name the offsets. One alarm of each kind is open until its fault is over. The bucket "
            "keeps the evidence under `audit/TOPIC/`. By hand: `millrace backup audit [TOPIC] --deep`."
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
            doc_md="Repeatable: each try is a new audit.",
            dag=dag,
            **RETRIED,
        )
    return dag
