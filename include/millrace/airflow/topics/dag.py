"""The DAGs that provision a pipeline's topics and load its sources."""

from __future__ import annotations

from airflow.sdk import DAG

from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, daily
from millrace.airflow.topics.operators import LoadSource, ProvisionTopics
from millrace.domain.declaration.pipeline import Manage, Pipeline, SourceProgram, Topic


def topics_dag(pipeline: Pipeline) -> DAG:
    """Return the DAG that keeps the topics as declared."""
    managed = [topic for topic in pipeline.topics if topic.manage is Manage.FULL]
    dag = DAG(
        dag_id=names.topics(pipeline),
        description=f"Keep the topics of {pipeline.name} as declared.",
        doc_md=_topics_doc(pipeline),
        schedule=daily(pipeline.name),
        **common(pipeline.owner, [pipeline.name, "topics"]),
    )
    ProvisionTopics(
        task_id="provision",
        pipeline=pipeline.name,
        outlets=[topic_asset(pipeline.kafka, topic.name) for topic in managed],
        doc_md="Makes each safe change. Fails if a change is not safe, and names it.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _topics_doc(pipeline: Pipeline) -> str:
    rows = "\n".join(f"| `{topic.name}` | {topic.manage.value} | {_partitions(topic)} |" for topic in pipeline.topics)
    return (
        f"Compares the topics of **{pipeline.name}** with their declaration every day, and makes each change that "
        "loses nothing. A change that it may not make by itself fails the run, and the log names it.\n\n"
        "**A missing topic is created when you press Trigger**. A scheduled run creates none: its log names missing "
        "topics in a warning.\n\n"
        f"| topic | managed | partitions |\n|---|---|---|\n{rows}\n\n"
        f"By hand: `millrace topics plan {pipeline.name}`, then `millrace plans run ID`."
    )


def _partitions(topic: Topic) -> str:
    return str(topic.partitions or "as it is")


def source_dag(pipeline: Pipeline, source: SourceProgram) -> DAG:
    """Return the DAG that loads a source into its topic."""
    dag = DAG(
        dag_id=names.source(source),
        description=f"Load {source.name} into {source.writes}.",
        doc_md=(
            f"Runs `sources/{source.program}.py` and writes the records that topic `{source.writes}` does not hold "
            "yet. You may run it again, kill it, or run it twice at once: no record is written twice."
        ),
        schedule=None,
        **common(pipeline.owner, [pipeline.name, "source"]),
    )
    LoadSource(
        task_id="load",
        pipeline=pipeline.name,
        source=source.name,
        outlets=[topic_asset(pipeline.kafka, source.writes)],
        doc_md="Repeatable: no record is written twice.",
        dag=dag,
        **RETRIED,
    )
    return dag
