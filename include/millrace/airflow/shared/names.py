"""The ids of Millrace's DAGs. Imports nothing of Airflow."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.domain.declaration.pipeline import App, Pipeline, SourceProgram, Stream, is_backup
from millrace.domain.sinks.capabilities import Capability

SUPERVISE = "millrace.supervise"
ALARMS = "millrace.alarms"
SNAPSHOTS = "millrace.snapshots"
GROUPS = "millrace.groups"
PLATFORM = (SUPERVISE, ALARMS, SNAPSHOTS, GROUPS)
PAGES = "millrace"
"""Airflow shows the pages under /plugin/PAGES, and under that, in its frame, the path of any page of its server."""


def topics(pipeline: Pipeline) -> str:
    """The DAG that keeps a pipeline's topics."""
    return f"{pipeline.name}.topics"


def retention(pipeline: Pipeline) -> str:
    """The DAG that looks at what a pipeline's topics keep."""
    return f"{pipeline.name}.retention"


def source(program: SourceProgram) -> str:
    """The DAG that loads a source."""
    return f"{program.pipeline}.source.{program.name}"


def app(declared: App) -> str:
    """The DAG that watches a stream or a backup."""
    return watch(declared.qualified_name)


def watch(qualified_name: str) -> str:
    """The same, of one that perhaps no declaration names any more."""
    pipeline, _, name = qualified_name.partition(".")
    return qualified_name if is_backup(qualified_name) else f"{pipeline}.stream.{name}"


def stream_of(dag_id: str) -> str:
    """The stream, PIPELINE.STREAM, or the backup, PIPELINE.backup, that a DAG watches; empty where it watches none."""
    if is_backup(dag_id):
        return dag_id
    pipeline, _, name = dag_id.partition(".stream.")
    return f"{pipeline}.{name}" if name and "." not in pipeline + name else ""


def operate(pipeline: Pipeline) -> str:
    """The form that starts and stops a pipeline's streams and its backup."""
    return f"{pipeline.name}.operate"


def backup_audit(pipeline: Pipeline) -> str:
    """The DAG that audits a pipeline's backup."""
    return f"{pipeline.name}.backup_audit"


def books(pipeline: Pipeline) -> str:
    """The DAG that holds the books of a pipeline's sinks."""
    return f"{pipeline.name}.books"


def quality(stream: Stream) -> str:
    """The DAG that checks the quality of what a stream wrote."""
    return f"{stream.pipeline}.quality.{stream.name}"


def rewind(pipeline: Pipeline) -> str:
    """The form that rewinds one of a pipeline's streams."""
    return f"{pipeline.name}.rewind"


def redrive(pipeline: Pipeline) -> str:
    """The form that puts records in quarantine of a pipeline's streams through once more."""
    return f"{pipeline.name}.redrive"


def of_pipeline(pipeline: Pipeline) -> Iterator[str]:
    """Every DAG of a pipeline, in the order they are made."""
    yield topics(pipeline)
    if pipeline.topics:
        yield retention(pipeline)
    yield from map(source, pipeline.sources)
    yield from map(app, pipeline.apps)
    if pipeline.backup:
        yield backup_audit(pipeline)
    if pipeline.apps:
        yield operate(pipeline)
    if pipeline.able(Capability.REWIND):
        yield rewind(pipeline)
    if pipeline.able(Capability.REDRIVE):
        yield redrive(pipeline)
    if pipeline.able(Capability.BOOKS):
        yield books(pipeline)
    yield from (quality(stream) for stream in pipeline.able(Capability.QUALITY) if stream.quality is not None)
