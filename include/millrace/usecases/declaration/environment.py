"""The environment file in force, for what it says of operators, notifiers, bounds and hosts."""

from __future__ import annotations

from pathlib import Path

from millrace.domain.declaration.pipeline import Environment
from millrace.errors import Code, UsageError


def environment_of(root: Path) -> Environment:
    """The environment file in force.

    Raises:
        UsageError: there is no such environment, or it has errors.
    """
    from millrace.declarations.environment import environment_name, read_environment

    name = environment_name(None)
    overlay, findings = read_environment(root, name)
    if overlay is None:
        raise UsageError(
            f"the environment `{name}` has errors: {'; '.join(map(str, findings))}",
            where=f"include/environments/{name}.yaml",
            next_step="run `millrace spec check`",
            code=Code.INVALID_DECLARATION,
        )
    return overlay.environment
