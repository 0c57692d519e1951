"""The control database itself."""

from __future__ import annotations

from millrace.domain.streams.control import MigrationReport
from millrace.settings import Settings


def upgrade(settings: Settings) -> MigrationReport:
    """Bring the control database to the version this Millrace reads and grant rights; safe to repeat and to race.

    Works as connection `millrace_control_owner`. Where that is not defined, as `millrace_control` itself, which
    then owns the tables: the action log is kept append-only by its trigger alone, and the report says so.

    Raises:
        RefusedError: the database is newer than this code, or the working role does not exist.
        UnreachableError: the database does not answer.
    """
    from millrace.wiring import upgrade_control  # use cases do not build adapters; wiring does

    return upgrade_control(settings)
