"""The declared app of a name: a stream, or the backup of a pipeline."""

from __future__ import annotations

from pathlib import Path

from millrace.declarations import load_pipeline
from millrace.declarations.project import file_of
from millrace.domain.declaration.pipeline import App, Pipeline, is_backup
from millrace.errors import UsageError


def declared_app(root: Path, name: str) -> tuple[Pipeline, App]:
    """The app of this name, PIPELINE.STREAM or PIPELINE.backup, with the pipeline that declares it.

    Raises:
        UsageError: no declaration names it.
        InvalidDeclarationError: its declaration is wrong.
    """
    pipeline_name, dot, short = name.partition(".")
    if not dot:
        raise UsageError(
            f"`{name}` is not a stream's full name", next_step="write PIPELINE.STREAM; see `millrace streams list`"
        )
    pipeline = load_pipeline(root, pipeline_name)
    try:
        return pipeline, pipeline.app(short)
    except KeyError:
        raise _unknown(pipeline, name) from None


def _unknown(pipeline: Pipeline, name: str) -> UsageError:
    if is_backup(name):
        what, step = f"no topic of pipeline {pipeline.name} is backed up", "declare `backup` on one of its topics"
    else:
        what = f"pipeline {pipeline.name} has no stream {name.partition('.')[2]}"
        step = f"its streams are: {', '.join(app.qualified_name for app in pipeline.apps) or 'none'}"
    return UsageError(what, where=file_of(pipeline.name), next_step=step)
