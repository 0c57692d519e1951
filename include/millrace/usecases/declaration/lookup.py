"""Lookup of what declarations name: an app, a stream, a topic, or all of a cluster. An unknown name is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.declarations import InvalidDeclarationError, load, load_pipeline
from millrace.declarations.fields import nearest
from millrace.declarations.project import file_of
from millrace.domain.declaration.pipeline import App, Pipeline, Stream, Topic, is_backup
from millrace.domain.formats.printable import shown
from millrace.errors import Code, UsageError
from millrace.settings import KAFKA


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream with the pipeline that declares it."""

    pipeline: Pipeline
    stream: Stream

    @property
    def name(self) -> str:
        """PIPELINE.STREAM."""
        return self.stream.qualified_name


def all_pipelines(root: Path) -> Sequence[Pipeline]:
    """Return every pipeline of the project; one with errors is refused, never left out.

    Raises:
        InvalidDeclarationError: any of them, or the environment, has errors.
    """
    project = load(root)
    if project.findings:
        raise InvalidDeclarationError(project.findings)
    return project.pipelines


def find_app(root: Path, name: str) -> tuple[Pipeline, App] | None:
    """Return the app of this name with its pipeline; None where no declaration names it.

    Raises:
        InvalidDeclarationError: its declaration, or the environment, has errors.
    """
    pipeline_name, _, short = name.partition(".")
    if not (root / file_of(pipeline_name)).exists():
        return None
    pipeline = load_pipeline(root, pipeline_name)
    return next(((pipeline, app) for app in pipeline.apps if app.name == short), None)


def declared_app(root: Path, name: str) -> tuple[Pipeline, App]:
    """Return the app of this name, PIPELINE.STREAM or PIPELINE.backup, with the pipeline that declares it.

    Raises:
        UsageError: no declaration names it.
        InvalidDeclarationError: its declaration is wrong.
    """
    pipeline_name, dot, short = name.partition(".")
    if not dot:
        raise UsageError(
            f"`{name}` is not the full name of a stream",
            next_step="write PIPELINE.STREAM; see `millrace streams list`",
            code=Code.UNKNOWN_NAME,
        )
    pipeline = load_pipeline(root, pipeline_name)
    try:
        return pipeline, pipeline.app(short)
    except KeyError:
        raise _unknown(pipeline, name) from None


def _unknown(pipeline: Pipeline, name: str) -> UsageError:
    if is_backup(name):
        what, step = f"pipeline {pipeline.name} has no backup", "declare `backup` on one of its topics"
    else:
        what = f"pipeline {pipeline.name} has no stream {name.partition('.')[2]}"
        step = f"choose one of: {', '.join(app.qualified_name for app in pipeline.apps) or 'none'}"
    return UsageError(what, where=file_of(pipeline.name), next_step=step, code=Code.UNKNOWN_NAME)


def declared_stream(
    root: Path,
    name: str,
    *,
    backup: str = "is a backup, not a stream",
    step: str = "name a stream: see `millrace streams list`",
) -> DeclaredStream:
    """Return the stream of this name, PIPELINE.STREAM.

    Args:
        root: the project's root.
        name: PIPELINE.STREAM.
        backup: what a backup is refused with, after its name.
        step: what somebody who named a backup can do.

    Raises:
        UsageError: no declaration names it, or it is a backup.
        InvalidDeclarationError: its declaration is wrong.
    """
    pipeline, app = declared_app(root, name)
    if not isinstance(app, Stream):
        raise UsageError(f"{name} {backup}", next_step=step, code=Code.UNSUPPORTED)
    return DeclaredStream(pipeline, app)


def find_topic(root: Path, name: str) -> tuple[Pipeline, Topic] | None:
    """Return the topic of this name with its pipeline; None where no sound declaration has it."""
    return _topics(root).get(name)


def declared_topic(root: Path, name: str) -> tuple[Pipeline, Topic]:
    """Return the topic of this name, with the pipeline that declares it.

    Raises:
        UsageError: no sound declaration has it.
    """
    topics = _topics(root)
    if name not in topics:
        raise UsageError(
            f"topic `{shown(name)}` is unknown: no valid declaration has it",
            next_step=nearest(name, topics) or "declare it, and run `millrace spec check`",
            code=Code.UNKNOWN_NAME,
        )
    return topics[name]


def _topics(root: Path) -> Mapping[str, tuple[Pipeline, Topic]]:
    return {topic.name: (pipeline, topic) for pipeline in load(root).pipelines for topic in pipeline.topics}


def cluster_of(root: Path, topic: str) -> str:
    """Return the Connection of the cluster that a declared topic is on; the usual one for all others."""
    found = find_topic(root, topic)
    return KAFKA if found is None else found[0].kafka


def declared_topics(root: Path, kafka: str) -> Mapping[str, Topic]:
    """Return the topics that sound declarations have on a cluster, by their names."""
    return {name: topic for name, (pipeline, topic) in _topics(root).items() if pipeline.kafka == kafka}


def declared_groups(root: Path, kafka: str) -> Mapping[str, App]:
    """Return the apps that sound declarations have on a cluster, by their consumer groups."""
    pipelines = load(root).pipelines
    return {app.group: app for pipeline in pipelines if pipeline.kafka == kafka for app in pipeline.apps}
