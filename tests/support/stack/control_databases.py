"""Empty control databases with roles as `up` makes them, on a server that is there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql

from millrace.adapters.control import migrations
from millrace.adapters.control.database.connection import open_engine
from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.settings import PostgresSettings

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack


@dataclass(frozen=True)
class ControlDatabase:
    """One database, as the role that owns it and as the role Millrace works as."""

    owner: PostgresSettings
    working: PostgresSettings


class Databases:
    """Makes databases on a server of the run's own, which goes with all that is in it: none is dropped by itself."""

    def __init__(self, superuser: PostgresSettings) -> None:
        self._superuser = superuser
        self._upgraded: ControlDatabase | None = None

    def create(self) -> ControlDatabase:
        """A new, empty database with two roles of its own."""
        name = f"control_{uuid.uuid4().hex[:10]}"
        owner = replace(self._superuser, user=f"{name}_owner", password=uuid.uuid4().hex, database=name)
        working = replace(owner, user=f"{name}_working", password=uuid.uuid4().hex)
        for role in (owner, working):
            self.execute(
                self._superuser,
                sql.SQL("create role {} login password {}").format(sql.Identifier(role.user), role.password),
            )
        make = sql.SQL("create database {} owner {}").format(sql.Identifier(name), sql.Identifier(owner.user))
        self.execute(self._superuser, make)
        return ControlDatabase(owner, working)

    def create_upgraded(self) -> ControlDatabase:
        """Return a new database with this version's tables and no rows: a copy, which is quicker than an upgrade.

        All of these databases have the same two roles.
        """
        if self._upgraded is None:
            self._upgraded = self.create()
            upgrade(self._upgraded.owner, self._upgraded.working.user)
        name, template = f"control_{uuid.uuid4().hex[:10]}", self._upgraded
        copy = sql.SQL("create database {} owner {} template {}").format(
            sql.Identifier(name), sql.Identifier(template.owner.user), sql.Identifier(template.owner.database)
        )
        self.execute(self._superuser, copy)
        return ControlDatabase(replace(template.owner, database=name), replace(template.working, database=name))

    def execute(
        self, settings: PostgresSettings, statement: str | sql.Composed, parameters: tuple[object, ...] = ()
    ) -> None:
        """Run one statement."""
        with psycopg.connect(**settings.keywords(), autocommit=True) as connection:
            connection.execute(statement, parameters or None)

    def as_superuser(self, statement: str) -> None:
        """Run one statement as the server's owner."""
        self.execute(self._superuser, statement)

    def superuser_of(self, database: str) -> PostgresSettings:
        """The server's owner, in a database that is there."""
        return replace(self._superuser, database=database)

    def query(self, settings: PostgresSettings, statement: str) -> list[tuple[object, ...]]:
        """The rows of one query."""
        with psycopg.connect(**settings.keywords(), autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def end_connections(self, settings: PostgresSettings) -> None:
        """End every connection of a role, as a restart of the server would."""
        end = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"
        self.execute(self._superuser, end, (settings.user,))


def make_version(owner: PostgresSettings, version: str) -> None:
    """The tables of an earlier version, as the release that ended with it made them."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    engine = open_engine(owner)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, version)
    finally:
        engine.dispose()


def on(stack: Stack) -> Databases:
    """Databases on the PostgreSQL of the run's stack, which is started where it is not running."""
    from support.stack import embedded as runs

    return Databases(runs.superuser(runs.start(stack, "postgres")))
