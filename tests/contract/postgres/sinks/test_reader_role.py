"""The role of the embedded stack that may read what streams wrote, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from millrace.embedded.credentials import Credentials
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from millrace.settings import PostgresSettings
    from support.stack.control_databases import Databases


@pytest.fixture
def reader(postgres: Stack) -> PostgresSettings:
    return postgres.settings().postgres("millrace_sink_reader")


def test_it_reads_what_the_sinks_role_makes_and_made(
    reader: PostgresSettings, admin: psycopg.Connection[Any], name: str
) -> None:
    from millrace.adapters.postgres.schema import ensure_schema

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
    from millrace.embedded.servers.postgres import _let_read

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


class Meanwhile:
    """A connection on which something else happens right before a statement that grants."""

    def __init__(self, connection: psycopg.Connection[Any], happens: Callable[[], object]) -> None:
        self._connection = connection
        self._happens = happens
        self.grants = 0

    def execute(self, statement: Any, *values: Any) -> Any:
        if not isinstance(statement, str) and statement.as_string(self._connection).startswith("GRANT SELECT"):
            self.grants += 1
            self._happens()
        return self._connection.execute(statement, *values)


def test_a_start_passes_by_tables_that_a_stream_drops_meanwhile(admin: psycopg.Connection[Any], name: str) -> None:
    from millrace.embedded.servers.postgres import READER, _let_read

    admin.execute(f"CREATE SCHEMA {name}")
    for table in ("one", "two"):
        admin.execute(f"CREATE TABLE {name}.{table} AS SELECT 1")
        admin.execute(f"REVOKE ALL ON {name}.{table} FROM {READER}")
    seen = Meanwhile(admin, lambda: admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE"))
    _let_read(cast("psycopg.Connection[Any]", seen))
    assert seen.grants == 2


def test_a_start_gets_past_who_grants_the_same_meanwhile(
    reader: PostgresSettings, admin: psycopg.Connection[Any], database: PostgresSettings, name: str
) -> None:
    from millrace.embedded.servers.postgres import _let_read

    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows AS SELECT 1 AS one")
    admin.execute(f"REVOKE ALL ON {name}.rows FROM {reader.user}")
    tries = []
    with psycopg.connect(**database.keywords()) as other, ThreadPoolExecutor(1) as later:

        def grants_too() -> None:
            tries.append(name)
            if len(tries) == 1:
                other.execute(f"GRANT SELECT ON {name}.rows TO {reader.user}")
                later.submit(commits_once_waited_for)

        def commits_once_waited_for() -> None:
            with psycopg.connect(**database.keywords(), autocommit=True) as looking:
                query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
                asked = (f'GRANT SELECT ON "{name}"%',)
                eventually(lambda: looking.execute(query, asked).fetchall(), within=Deadline.SERVER, what="the grant")
            other.commit()

        _let_read(cast("psycopg.Connection[Any]", Meanwhile(admin, grants_too)))
    assert len(tries) == 2
    with psycopg.connect(**reader.keywords(), autocommit=True) as connection:
        assert connection.execute(f"SELECT one FROM {name}.rows").fetchall() == [(1,)]


def test_a_start_with_all_granted_grants_nothing(admin: psycopg.Connection[Any], name: str) -> None:
    from millrace.embedded.servers.postgres import _let_read

    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows AS SELECT 1 AS one")
    _let_read(admin)
    seen = Meanwhile(admin, lambda: None)
    _let_read(cast("psycopg.Connection[Any]", seen))
    assert seen.grants == 0


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
