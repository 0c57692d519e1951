"""Fixtures of the contract tests: the real parts each suite runs against."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from millrace.settings import PostgresSettings
    from support.control_databases import Databases


@pytest.fixture(scope="session")
def control_databases(idle_stack: Stack) -> Iterator[Databases]:
    """Empty control databases on the real PostgreSQL; dropped at the end of the run."""
    from support import control_databases

    databases = control_databases.on(idle_stack)
    yield databases
    databases.drop_all()


@pytest.fixture
def database(postgres: Stack) -> PostgresSettings:
    """The sink's database."""
    return postgres.settings().postgres("millrace_sink")


@pytest.fixture
def name() -> str:
    """A schema of the test's own."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def admin(database: PostgresSettings, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside those of the sink; it drops the test's schema at the end."""
    from millrace.adapters.postgres_connection import connect

    with connect(database, "test") as connection:
        connection.autocommit = True
        yield connection
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
