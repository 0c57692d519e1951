"""Projects with one declared topic, for commands that ask the servers of the run."""

from __future__ import annotations

from pathlib import Path

from millrace.embedded.stack import Stack


def make_project(folder: Path, stack: Stack, pipeline: str) -> Path:
    """A project with one declaration, whose connections lead to the run's stack."""
    (folder / "include/pipelines").mkdir(parents=True)
    (folder / ".millrace").mkdir()
    (folder / ".millrace/env").write_text((stack.root / ".millrace/env").read_text())
    declare(folder, pipeline, partitions=2)
    return folder


def declare(project: Path, pipeline: str, *, partitions: int) -> None:
    text = f"""
pipeline: {pipeline}
owner: me
topics:
  {pipeline}.a:
    partitions: {partitions}
    replication: 1
    value: {{format: json, schema: "id STRING"}}
"""
    (project / f"include/pipelines/{pipeline}.yaml").write_text(text)
