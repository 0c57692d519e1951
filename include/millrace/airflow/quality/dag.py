"""The DAG that checks the quality of what a stream wrote."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from millrace.airflow.quality.operators import CheckQuality
from millrace.airflow.shared import names
from millrace.airflow.shared.assets import topic_asset
from millrace.airflow.shared.defaults import RETRIED, common, often
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.rules import StreamQuality

LONGEST = timedelta(minutes=30)
"""A check ends itself within twenty minutes; what hangs beside it is ended then."""


def quality_dag(pipeline: Pipeline, stream: Stream, quality: StreamQuality) -> DAG:
    """A look as often as declared."""
    dag = DAG(
        dag_id=names.quality(stream),
        description=f"Hold {stream.sink.named} against the rules {quality.name}.",
        doc_md=_doc(stream, quality),
        schedule=often(names.quality(stream), quality.every),
        params={"from": _time("From"), "to": _time("To")},
        **common(pipeline.owner, [pipeline.name, "quality"]),
    )
    CheckQuality(
        task_id="check",
        pipeline=pipeline.name,
        stream=stream.name,
        inlets=[topic_asset(pipeline.kafka, topic) for topic in stream.reads],
        execution_timeout=LONGEST,
        doc_md="Each line of the error is a broken rule. Skipped: there were no rows, which is no success.",
        dag=dag,
        **RETRIED,
    )
    return dag


def _doc(stream: Stream, quality: StreamQuality) -> str:
    rows = "\n".join(f"| `{rule.name}` | {rule.kind} | {rule.severity.value} |" for rule in quality.rules)
    return (
        f"Every {spell_duration(quality.every)} it holds the rows that {stream.sink.named} gained since what "
        f"is proven against the rules of `include/quality/{quality.name}.yaml`, by Great Expectations, inside the "
        "database.\n\n"
        f"| rule | kind | severity |\n|---|---|---|\n{rows}\n\n"
        "Red: a rule of severity fail is broken, or could not be tried; an alarm for each is open until it is over. "
        "Those rows are looked at again until they are right or somebody accepts them. Skipped: there were no rows.\n\n"
        "**Trigger** with `from` and `to` checks the rows of that time instead, by their records' timestamps; that "
        f"moves nothing. By hand: `millrace quality check {stream.qualified_name}`, `quality show`, `quality accept`."
    )


def _time(title: str) -> Param:
    text: dict[str, Any] = {"type": ["null", "string"], "default": None, "title": title}
    return Param(**text, description="A time with its zone, as 2026-05-01T08:00:00+02:00. Both, or none.")
