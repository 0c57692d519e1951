"""The DAGs that check the quality of what a stream wrote, and hold the books of a pipeline's sinks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from millrace.airflow.quality.operators import LONGEST_RECONCILIATION, CheckQuality, ReconcileBooks, TriggerBooks
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, daily, often
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.recompute import MOST_SAMPLED
from millrace.domain.quality.rules import StreamQuality
from millrace.domain.sinks.capabilities import Capability

LONGEST_CHECK = timedelta(minutes=30)
"""A check ends itself within twenty minutes; what hangs beside it is ended then."""


def quality_dag(pipeline: Pipeline, stream: Stream, quality: StreamQuality) -> DAG:
    """Return the DAG that checks a stream as often as declared."""
    dag = DAG(
        dag_id=names.quality(stream),
        description=f"Check {stream.sink.named} against the rules {quality.name}.",
        doc_md=_quality_doc(stream, quality),
        schedule=often(names.quality(stream), quality.every),
        params={"from": _time("From"), "to": _time("To")},
        **common(pipeline.owner, [pipeline.name, "quality"]),
    )
    CheckQuality(
        task_id="check",
        pipeline=pipeline.name,
        stream=stream.name,
        inlets=[topic_asset(pipeline.kafka, topic) for topic in stream.reads],
        execution_timeout=LONGEST_CHECK,
        doc_md="Each line of the error is a broken rule. Skipped: the check found no rows, which proves nothing.",
        dag=dag,
        **RETRIED,
    )
    return dag


def books_dag(pipeline: Pipeline) -> DAG:
    """Return the DAG of the books: a task a stream, so that one that is broken, or large, holds up no other."""
    streams = pipeline.able(Capability.BOOKS)
    dag = DAG(
        dag_id=names.books(pipeline),
        description=f"Prove every day that each record is in the sinks of {pipeline.name} once.",
        doc_md=_books_doc(pipeline),
        schedule=daily(names.books(pipeline)),
        params={
            "stream": Param(
                default=None,
                type=["null", "string"],
                enum=[None, *(stream.name for stream in streams)],
                title="Stream",
                description="Check only this stream.",
            ),
            "deep": Param(
                default=False,
                type="boolean",
                title="Deep",
                description="Start at the first offset, not at the first unproven one.",
            ),
            "sample": Param(
                default=0,
                type="integer",
                minimum=0,
                maximum=MOST_SAMPLED,
                title="Sample",
                description="Also recompute the rows of this many offsets, for transforms that shuffle.",
            ),
        },
        **common(pipeline.owner, [pipeline.name, "quality"]) | {"max_active_tasks": 2},
    )
    for stream in streams:
        ReconcileBooks(
            task_id=stream.name,
            pipeline=pipeline.name,
            stream=stream.name,
            inlets=[topic_asset(pipeline.kafka, topic) for topic in stream.reads],
            execution_timeout=LONGEST_RECONCILIATION,
            doc_md="Each line of the error is a fault of the books. Skipped: the form names another stream.",
            dag=dag,
            **RETRIED,
        )
    return dag


def books_task(dag: DAG, pipeline: Pipeline, *, after: str) -> TriggerBooks:
    """Return the task with which a form ends: it has the books of the form's stream looked at.

    Args:
        dag: the form.
        pipeline: whose form it is.
        after: what was done to the stream, in one word.
    """
    return TriggerBooks(
        task_id="books",
        books=names.books(pipeline),
        after=after,
        doc_md="Triggers the DAG that checks the books of the stream. A fault turns that DAG red, not this one. While "
        "that DAG is paused, its run waits.",
        dag=dag,
        **RETRIED,
    )


def _quality_doc(stream: Stream, quality: StreamQuality) -> str:
    rows = "\n".join(f"| `{rule.name}` | {rule.kind} | {rule.severity.value} |" for rule in quality.rules)
    return (
        f"Every {spell_duration(quality.every)} it checks the rows of {stream.sink.named} that are not proven yet "
        f"against the rules of `include/quality/{quality.name}.yaml`. Great Expectations evaluates the rules inside "
        "the database.\n\n"
        f"| rule | kind | severity |\n|---|---|---|\n{rows}\n\n"
        "Red: a rule of severity fail is broken, or could not be evaluated. An alarm for each such rule is open until "
        "its breach is over. Later runs check these rows again until they are right or somebody accepts them. Skipped: "
        "the check found no rows.\n\n"
        "**Trigger** with `from` and `to` checks the rows of that time instead, by the timestamps of their records. "
        "Such a check does not change which rows are proven. By hand: "
        f"`millrace quality check {stream.qualified_name}`, `quality show`, `quality accept`."
    )


def _time(title: str) -> Param:
    text: dict[str, Any] = {"type": ["null", "string"], "default": None, "title": title}
    return Param(**text, description="A time with its zone, such as 2026-05-01T08:00:00+02:00. Give both or none.")


def _books_doc(pipeline: Pipeline) -> str:
    rows = "\n".join(f"| `{stream.name}` | {stream.sink.named} |" for stream in pipeline.able(Capability.BOOKS))
    return (
        "Runs every day, and after each rewind or redrive by form. It accounts for every offset that a stream has "
        "processed and that is not proven yet. The offset became a row, is in quarantine, was dropped by the "
        "transform, or held no record.\n\n"
        f"| stream | writes |\n|---|---|\n{rows}\n\n"
        "Red: the first lines of the log name the offsets. One alarm of the stream is open until its books balance or "
        "somebody accepts the result. **Trigger** with `deep` starts at the first offset. With `sample` it also "
        "recomputes rows, except for a stream that upserts. By hand: "
        f"`millrace quality reconcile {pipeline.name}.STREAM`, `quality accept {pipeline.name}.STREAM --books`."
    )
