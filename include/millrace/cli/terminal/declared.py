"""The pipelines that a command is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from millrace import declarations
from millrace.domain.declaration.pipeline import Pipeline
from millrace.errors import MillraceError


def sound_pipelines(
    root: Path, name: str | None, environment: str | None
) -> tuple[Sequence[Pipeline], list[MillraceError]]:
    """Return one pipeline, or all that have no errors, with the errors of the others.

    Raises:
        InvalidDeclarationError: the named one has errors.
        UsageError: there is no such pipeline.
    """
    if name is not None:
        return [declarations.load_pipeline(root, name, environment)], []
    project = declarations.load(root, environment)
    return project.pipelines, [declarations.InvalidDeclarationError(project.findings)] if project.findings else []
