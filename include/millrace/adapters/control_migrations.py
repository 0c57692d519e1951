"""Brings the control database to the version this code reads, and sets who may do what in it."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from millrace.adapters import control_books, control_forecast_tables, control_quality_tables
from millrace.adapters.control_connection import open_engine, translated
from millrace.adapters.control_snapshot_tables import FUNCTIONS
from millrace.adapters.control_tables import METADATA, VERSION_TABLE
from millrace.adapters.postgres_connection import address, connect
from millrace.adapters.postgres_locks import BOUNDS, Blocker, blockers_of, in_turns
from millrace.adapters.postgres_schema import ensure_schema
from millrace.domain.control import AppendOnly, MigrationReport
from millrace.errors import RefusedError
from millrace.settings import PostgresSettings

_LOCK = sa.text("select pg_advisory_xact_lock(hashtextextended('millrace.control.upgrade', 0))")
_APPEND_ONLY = "action_log"
_NUMBERED = (
    _APPEND_ONLY,
    "alarm",
    "backup_acknowledgement",
    "backup_expiry",
    "topic_hold",
    "quality_check",
    "quality_document",
    "books_run",
)
_KNOWN = (
    control_forecast_tables.topic_day,
    control_quality_tables.quality_check,
    control_books.books_run,
)  # tables stand in METADATA once their module is imported
_APPLICATION = "millrace control upgrade"


def upgrade(owner: PostgresSettings, role: str) -> MigrationReport:
    """Apply the migrations that are missing and grant `role` its rights, all in one transaction.

    Args:
        owner: the database, as the role that owns the tables.
        role: the role Millrace works as; the owner itself where there is no other.

    Guarantees: idempotent; of two at once the second waits, then finds nothing to do; a failure leaves no trace. Who
    reads the tables meanwhile waits for a second at most: the migration steps back and tries again.

    Raises:
        RefusedError: the database is newer than this code, or `role` does not exist.
        LockedError: somebody held one of its tables for too long; it says who.
        UnreachableError: the database does not answer.
    """
    engine = open_engine(owner, application_name=_APPLICATION)
    try:
        return in_turns(
            lambda: _upgrade(engine, owner, role),
            lambda: _blockers(owner),
            doing="upgrade the control database",
            where=address(owner),
        )
    finally:
        engine.dispose()


def _blockers(owner: PostgresSettings) -> tuple[Blocker, ...]:
    with connect(owner, "millrace watch control") as connection:
        return blockers_of(connection, _APPLICATION)


def _upgrade(engine: sa.Engine, owner: PostgresSettings, role: str) -> MigrationReport:
    with translated(owner), engine.begin() as connection:
        connection.exec_driver_sql(BOUNDS)
        connection.exec_driver_sql("SET LOCAL search_path TO public")  # not the schema of a role named `millrace`
        connection.execute(_LOCK)
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.attributes["connection"] = connection
        scripts = ScriptDirectory.from_config(config)
        before, after = _version(connection), str(scripts.get_current_head())
        known = [script.revision for script in scripts.walk_revisions()][::-1]
        if before is not None and before not in known:
            raise RefusedError(
                f"the control database is at version {before}, newer than this Millrace, which knows up to {after}",
                where=address(owner),
                next_step="update Millrace on this machine; a database is never taken back to an older version",
            )
        command.upgrade(config, "head")
        _make_sink_tables(connection)
        _grant(connection, owner, role)
        applied = known[known.index(before) + 1 :] if before else known
    append_only = AppendOnly.TRIGGER if role == owner.user else AppendOnly.PERMISSION
    return MigrationReport(address(owner), before, after, tuple(applied), append_only)


def _make_sink_tables(connection: sa.Connection) -> None:
    """Make what a sink database has of Millrace's own: for streams whose sink is none, and cannot hold it."""
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor:
        ensure_schema(cursor)


def _version(connection: sa.Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _grant(connection: sa.Connection, owner: PostgresSettings, role: str) -> None:
    if role == owner.user:
        return
    if not connection.scalar(sa.text("select 1 from pg_roles where rolname = :role"), {"role": role}):
        raise RefusedError(
            f"the role {role} of connection millrace_control does not exist",
            where=address(owner),
            next_step=f"create it in PostgreSQL with a password (create role {role} login password ...)",
        )
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    statements = [
        f"grant usage on schema public, millrace to {quoted}",
        f"grant usage, create on schema millrace_staging to {quoted}",
        f"grant select, insert, update, delete on all tables in schema millrace to {quoted}",
    ]
    for table in METADATA.tables:
        rights = "select, insert" if table == _APPEND_ONLY else "select, insert, update, delete"
        statements += [f"revoke all on {table} from {quoted}, public", f"grant {rights} on {table} to {quoted}"]
    statements.append(f"grant select on {VERSION_TABLE} to {quoted}")
    for table in _NUMBERED:
        statements.append(f"grant usage on sequence {table}_id_seq to {quoted}")
    statements += [f"grant execute on function {function} to {quoted}" for function in FUNCTIONS]
    for statement in statements:
        connection.execute(sa.text(statement))
