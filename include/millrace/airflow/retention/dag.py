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
        description=f"Check every hour what the topics of {pipeline.name} keep, and which readers may lose records.",
        doc_md=(
            f"Checks each topic of **{pipeline.name}** against the bounds of size and age that follow from its "
            "settings and its rate. Checks for each reader of them (stream, backup, any group that commits) when its "
            "unread records may be deleted. The log has a table of both. Ends holds whose time is over. Once a day it "
            "forecasts the size of topics in 7, 30 and 90 days, and when a disk is full.\n\n"
            "Red: a reader is about to lose records, a topic newly breaks a bound, or a topic's hold is over and waits "
            "for a reader. An alarm is open until the breach is over. DAG `millrace.snapshots` opens the alarm of a "
            "reader within a minute; this run repeats it.\n\n"
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
