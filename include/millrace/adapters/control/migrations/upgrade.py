"""Brings the control database to the version this code reads, and sets who may do what in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql

from millrace.adapters.control.database.connection import open_engine, translated
from millrace.adapters.control.database.tables import METADATA, VERSION_TABLE
from millrace.adapters.control.forecasts import tables as control_forecast_tables
from millrace.adapters.control.quality import books as control_books
from millrace.adapters.control.quality import tables as control_quality_tables
from millrace.adapters.control.snapshots.tables import FUNCTIONS
from millrace.adapters.postgres.connection import address, connect, sink_error
from millrace.adapters.postgres.locks import BOUNDS, Blocker, blockers_of, in_turns
from millrace.adapters.postgres.schema import ensure_schema
from millrace.adapters.sinks.postgres.tables import Cursor
from millrace.domain.streams.control import AppendOnly, MigrationReport
from millrace.errors import Code, DeclarationError, RefusedError, UnreachableError
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
# A role named as one of Millrace's own schemas has it first in its path; the control tables are not in it.
_NOT_IN_OWN_SCHEMA = (
    "SELECT set_config('search_path', 'public', true) WHERE current_schema() IN ('millrace', 'millrace_staging') "
    f"AND to_regclass(format('%I.%I', current_schema(), '{VERSION_TABLE}')) IS NULL"
)
_MAY_WORK = """
SELECT has_schema_privilege(%(role)s, 'millrace', 'USAGE')
AND has_schema_privilege(%(role)s, 'millrace_staging', 'USAGE')
AND has_schema_privilege(%(role)s, 'millrace_staging', 'CREATE') AND NOT EXISTS (
    SELECT FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS _right
    WHERE relnamespace = 'millrace'::regnamespace AND relkind = 'r' AND NOT has_table_privilege(%(role)s, oid, _right)
)
"""
_ASIDE = "make what streams that write to Kafka or S3 keep"
_ASIDE_GRANTS: tuple[LiteralString, ...] = (
    "GRANT USAGE ON SCHEMA millrace TO {}",
    "GRANT USAGE, CREATE ON SCHEMA millrace_staging TO {}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA millrace TO {}",
)
_OWNERS = (
    "SELECT DISTINCT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname IN ('millrace', 'millrace_staging') "
    "ORDER BY 1"
)


def upgrade(owner: PostgresSettings, role: str) -> MigrationReport:
    """Apply the migrations that are missing and grant `role` its rights, all in one transaction.

    In another one after it, make what streams that write to Kafka or S3 keep in the database. Where that cannot be, the
    report says why: the rest of Millrace needs none of it.

    Args:
        owner: the database, as the role that owns the tables.
        role: the role Millrace works as; the owner itself where there is no other.

    Guarantees: idempotent; of two at once the second waits, then finds nothing to do; a failure leaves no trace of the
    transaction that failed. Who reads the tables meanwhile waits for a second at most: the migration steps back and
    tries again.

    Raises:
        RefusedError: the database is newer than this code, `role` does not exist, or the owner lacks a right.
        LockedError: somebody held one of its tables for too long; it says who.
        UnreachableError: the database does not answer.
    """
    engine = open_engine(owner, application_name=_APPLICATION)
    try:
        report = in_turns(
            lambda: _upgrade(engine, owner, role),
            lambda: _blockers(owner),
            doing="upgrade the control database",
            where=address(owner),
        )
        aside = in_turns(
            lambda: _prepare_aside(engine, owner, role),
            lambda: _blockers(owner),
            doing=_ASIDE,
            where=address(owner),
        )
        return replace(report, aside=aside)
    finally:
        engine.dispose()


def _blockers(owner: PostgresSettings) -> tuple[Blocker, ...]:
    with connect(owner, "millrace watch control") as connection:
        return blockers_of(connection, _APPLICATION)


def _upgrade(engine: sa.Engine, owner: PostgresSettings, role: str) -> MigrationReport:
    with _upgrading(owner), engine.begin() as connection:
        connection.exec_driver_sql(BOUNDS)
        connection.execute(sa.text(_NOT_IN_OWN_SCHEMA))
        connection.execute(_LOCK)
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
        config.attributes["connection"] = connection
        scripts = ScriptDirectory.from_config(config)
        before, after = _version(connection), str(scripts.get_current_head())
        known = [script.revision for script in scripts.walk_revisions()][::-1]
        if before is not None and before not in known:
            raise RefusedError(
                f"the control database has version {before}; this Millrace supports versions up to {after}",
                where=address(owner),
                next_step="update Millrace on this machine; the control database cannot be downgraded",
                code=Code.CONTROL_VERSION,
            )
        command.upgrade(config, "head")
        _grant(connection, owner, role)
        applied = known[known.index(before) + 1 :] if before else known
    append_only = AppendOnly.TRIGGER if role == owner.user else AppendOnly.PERMISSION
    return MigrationReport(address(owner), before, after, tuple(applied), append_only)


@contextmanager
def _upgrading(owner: PostgresSettings) -> Iterator[None]:
    """As `translated`, but for a right that the owner lacks: to upgrade is no way out of that."""
    try:
        with translated(owner):
            yield
    except UnreachableError as error:
        refused = getattr(error.__cause__, "orig", None)
        if not isinstance(refused, psycopg.errors.InsufficientPrivilege):
            raise
        raise RefusedError(
            f"the role {owner.user} lacks a right for the upgrade: {refused.diag.message_primary}",
            where=address(owner),
            next_step="make it the owner of the database and its objects, or run the upgrade as their owner",
            code=Code.MISSING_RIGHT,
        ) from refused


def _prepare_aside(engine: sa.Engine, owner: PostgresSettings, role: str) -> str:
    """Make what a sink database has of Millrace's own, for streams whose sink cannot hold it; why not, or nothing."""
    try:
        with translated(owner), engine.begin() as connection:
            connection.exec_driver_sql(BOUNDS)
            driver = connection.connection.driver_connection
            assert driver is not None
            with driver.cursor() as cursor:
                ensure_schema(cursor)
                return _let_work(cursor, owner, role)
    except DeclarationError as error:  # the server or the tables are not of a version that will do
        return error.what
    except psycopg.errors.InsufficientPrivilege as error:
        return f"the role {owner.user} lacks a right: {error.diag.message_primary}"
    except psycopg.Error as error:
        raise sink_error(owner, error, _ASIDE) from error


def _let_work(cursor: Cursor, owner: PostgresSettings, role: str) -> str:
    """Grant the working role what it lacks there; why that cannot be, or nothing."""
    asked = {"role": role}
    if cursor.execute(_MAY_WORK, asked).fetchone() == (True,):
        return ""
    if role != owner.user:
        for statement in _ASIDE_GRANTS:
            cursor.execute(sql.SQL(statement).format(sql.Identifier(role)))
        if cursor.execute(_MAY_WORK, asked).fetchone() == (True,):
            return ""
    owners = ", ".join(name for (name,) in cursor.execute(_OWNERS).fetchall())
    return (
        f"the role {role} lacks rights on the schemas millrace and millrace_staging. They belong to {owners}, and "
        f"{owner.user} cannot grant them"
    )


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
            code=Code.WRONG_CONNECTION,
        )
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    statements = [
        f"grant usage on schema public to {quoted}",
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
