"""The DAG that looks at what a pipeline's topics keep."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.retention.operators import CheckRetention
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, hourly
from millrace.domain.declaration.pipeline import Pipeline


def retention_dag(pipeline: Pipeline) -> DAG:
    """An hourly look."""
    dag = DAG(
        dag_id=names.retention(pipeline),
        description=f"Every hour, see what the topics of {pipeline.name} keep, and who may lose what.",
        doc_md=(
            f"Holds each topic of **{pipeline.name}** against the bounds of size and age that follow from its settings "
            "and its rate, and each reader of them (stream, backup, any group that commits) against what may be "
            "deleted before it has read it; the log has a table of both. Ends holds that are over. Once a day it says "
            "what topics will be in 7, 30 and 90 days, and when a disk is full.\n\n"
            "Red: a reader is about to lose something, a topic breaks a bound that it kept before, or a topic's hold "
            "is over and waits for a reader; an alarm is open until it is over. The alarm of a reader comes from "
            "`millrace.snapshots`, within a minute; this run says it again.\n\n"
            "By hand: `millrace topics sizing`, `millrace topics headroom`, `millrace topics hold`."
        ),
        schedule=hourly(names.retention(pipeline)),
        **common(pipeline.owner, [pipeline.name, "topics"]),
    )
    CheckRetention(
        task_id="check",
        pipeline=pipeline.name,
        inlets=[topic_asset(pipeline.kafka, topic.name) for topic in pipeline.topics],
        doc_md="Each line of the error is a breach.",
        dag=dag,
        **RETRIED,
    )
    return dag
