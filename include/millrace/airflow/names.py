"""The ids of Millrace's DAGs. Imports nothing of Airflow."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.domain.declaration import Pipeline, SourceProgram, Stream

SUPERVISE = "millrace.supervise"
ALARMS = "millrace.alarms"
PAGES = "millrace"
"""Airflow shows the pages under /plugin/PAGES, and under that, in its frame, the path of any page of its server."""


def topics(pipeline: Pipeline) -> str:
    """The DAG that keeps a pipeline's topics."""
    return f"{pipeline.name}.topics"


def source(program: SourceProgram) -> str:
    """The DAG that loads a source."""
    return f"{program.pipeline}.source.{program.name}"


def stream(declared: Stream) -> str:
    """The DAG that watches a stream."""
    return f"{declared.pipeline}.stream.{declared.name}"


def watch(qualified_name: str) -> str:
    """The same, of a stream that perhaps no declaration names any more."""
    pipeline, _, name = qualified_name.partition(".")
    return f"{pipeline}.stream.{name}"


def stream_of(dag_id: str) -> str:
    """The stream, PIPELINE.STREAM, that a DAG watches; empty where it watches none."""
    pipeline, _, name = dag_id.partition(".stream.")
    return f"{pipeline}.{name}" if name and "." not in pipeline + name else ""


def operate(pipeline: Pipeline) -> str:
    """The form that starts and stops a pipeline's streams."""
    return f"{pipeline.name}.operate"


def rewind(pipeline: Pipeline) -> str:
    """The form that rewinds one of a pipeline's streams."""
    return f"{pipeline.name}.rewind"


def of_pipeline(pipeline: Pipeline) -> Iterator[str]:
    """Every DAG of a pipeline, in the order they are made."""
    yield topics(pipeline)
    yield from map(source, pipeline.sources)
    yield from map(stream, pipeline.streams)
    if pipeline.streams:
        yield operate(pipeline)
        yield rewind(pipeline)
