"""The control database's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.declaration.sinks import CONTROL
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.adapters.control.store import ControlStore
    from millrace.domain.streams.control import MigrationReport

CONTROL_OWNER = "millrace_control_owner"


def open_control(settings: Settings) -> ControlStore:
    """Return the control database; nothing is connected to yet."""
    from millrace.adapters.control.store import ControlStore

    return ControlStore(settings.postgres(CONTROL))


def upgrade_control(settings: Settings) -> MigrationReport:
    """Bring the control database to the version this Millrace reads and grant rights; safe to repeat and to race.

    It works as connection `millrace_control_owner`, or else as `millrace_control`, which then owns the tables: the
    action log is kept append-only by its trigger alone, and the report says so.

    Raises:
        RefusedError: the database is newer than this code, or the working role does not exist.
        UnreachableError: the database does not answer.
    """
    from millrace.adapters.control.migrations.upgrade import upgrade

    working = settings.postgres(CONTROL)
    owner = settings.postgres(CONTROL_OWNER) if settings.lookup(CONTROL_OWNER) is not None else working
    return upgrade(owner, working.user)
