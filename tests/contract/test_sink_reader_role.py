"""The role of the embedded stack that may read what streams wrote, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.embedded.credentials import Credentials

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from millrace.settings import PostgresSettings
    from support.control_databases import Databases


@pytest.fixture
def reader(postgres: Stack) -> PostgresSettings:
    return postgres.settings().postgres("millrace_sink_reader")


def test_it_reads_what_the_sinks_role_makes_and_made(
    reader: PostgresSettings, admin: psycopg.Connection[Any], name: str
) -> None:
    from millrace.adapters.postgres_tables import ensure_schema

    with admin.transaction(), admin.cursor() as cursor:
        ensure_schema(cursor)
    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows AS SELECT 1 AS one")
    with psycopg.connect(**reader.keywords(), autocommit=True) as connection:
        assert connection.execute(f"SELECT one FROM {name}.rows").fetchall() == [(1,)]
        connection.execute("SELECT count(*) FROM millrace.progress")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {}.rows VALUES (2)",
        "UPDATE {}.rows SET one = 2",
        "DELETE FROM {}.rows",
        "TRUNCATE {}.rows",
        "DROP TABLE {}.rows",
        "CREATE TABLE {}.mine (one int)",
        "CREATE SCHEMA mine",
        "CREATE TEMPORARY TABLE mine (one int)",
        "DELETE FROM millrace.progress",
    ],
)
def test_it_changes_nothing(
    reader: PostgresSettings, admin: psycopg.Connection[Any], name: str, statement: str
) -> None:
    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows AS SELECT 1 AS one")
    with psycopg.connect(**reader.keywords(), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute(statement.format(name))
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.format(name))


def test_a_start_lets_it_read_what_was_there_before_it_and_passes_by_what_is_not_the_sinks(
    reader: PostgresSettings, admin: psycopg.Connection[Any], name: str, control_databases: Databases
) -> None:
    from millrace.embedded.postgres import _let_read

    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows AS SELECT 1 AS one")
    admin.execute(f"REVOKE ALL ON {name}.rows FROM {reader.user}")
    admin.execute(f"REVOKE ALL ON SCHEMA {name} FROM {reader.user}")
    superuser = control_databases.superuser_of(reader.database)
    control_databases.execute(superuser, f"CREATE TABLE {name}.another AS SELECT 2 AS two")
    with psycopg.connect(**reader.keywords(), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT one FROM {name}.rows")
        _let_read(admin)
        assert connection.execute(f"SELECT one FROM {name}.rows").fetchall() == [(1,)]
    control_databases.execute(superuser, f"DROP TABLE {name}.another")


@pytest.mark.parametrize("database", ["airflow", "millrace_control"])
def test_it_sees_no_other_database(reader: PostgresSettings, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(**replace(reader, database=database).keywords())


def test_a_stack_of_before_gets_it_a_password_and_keeps_the_others() -> None:
    from dataclasses import asdict

    made = asdict(Credentials.make())
    del made["database_passwords"]["millrace_sink_reader"]
    read = Credentials.read(json.dumps(made))
    assert read.database_passwords.pop("millrace_sink_reader")
    assert asdict(read) == made
