"""The action log: who did what to what, when and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.streams.control import Action

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def list_actions(platform: Platform, *, subject: str | None = None, limit: int = 50) -> tuple[Action, ...]:
    """The latest entries, newest first; only those of `subject` and what is under it, where one is named."""
    return platform.control.log.list(subject=subject, limit=limit)
