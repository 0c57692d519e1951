"""The DAGs of one pipeline, made from its declaration: `globals().update(pipeline_dags("shop"))`."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.archive.dag import audit_dag
from millrace.airflow.quality.dag import books_dag, quality_dag
from millrace.airflow.quarantine.dag import redrive_dag
from millrace.airflow.retention.dag import retention_dag
from millrace.airflow.rewind.dag import rewind_dag
from millrace.airflow.shared.settings import airflow_root
from millrace.airflow.streams.dag import backup_dag, operate_dag, stream_dag
from millrace.airflow.topics.dag import source_dag, topics_dag
from millrace.declarations import load_pipeline
from millrace.domain.sinks.capabilities import Capability


def pipeline_dags(name: str) -> dict[str, DAG]:
    """Every DAG of a pipeline by its id.

    Guarantees: one YAML file and those that refer to it are read, no server is asked, and the same declaration
    gives the same DAGs, byte by byte.

    Raises:
        InvalidDeclarationError: the declaration has errors. Airflow shows them as one import error of this file.
        UsageError: there is no such pipeline.
    """
    pipeline = load_pipeline(airflow_root(), name)
    made = [topics_dag(pipeline)]
    if pipeline.topics:
        made.append(retention_dag(pipeline))
    made += [source_dag(pipeline, source) for source in pipeline.sources]
    made += [stream_dag(pipeline, stream) for stream in pipeline.streams]
    if pipeline.backup:
        made.append(backup_dag(pipeline, pipeline.backup))
        made.append(audit_dag(pipeline, pipeline.backup))
    if pipeline.apps:
        made.append(operate_dag(pipeline))
    if pipeline.able(Capability.REWIND):
        made.append(rewind_dag(pipeline))
    if pipeline.able(Capability.REDRIVE):
        made.append(redrive_dag(pipeline))
    if pipeline.able(Capability.BOOKS):
        made.append(books_dag(pipeline))
    made += [
        quality_dag(pipeline, stream, stream.quality)
        for stream in pipeline.able(Capability.QUALITY)
        if stream.quality is not None
    ]
    return {dag.dag_id: dag for dag in made}
