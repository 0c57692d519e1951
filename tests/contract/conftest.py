"""Fixtures of the contract tests: the real parts each suite runs against."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from millrace.adapters.s3.store import S3Store
    from millrace.embedded.stack import Stack
    from millrace.settings import PostgresSettings, S3Settings
    from support.stack.control_databases import Databases
    from support.stack.faulty_proxy import FaultyProxy


@pytest.fixture(scope="session")
def control_databases(idle_stack: Stack) -> Databases:
    """Empty control databases on the real PostgreSQL."""
    from support.stack import control_databases

    return control_databases.on(idle_stack)


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
    from millrace.adapters.postgres.connection import connect

    with connect(database, "test") as connection:
        connection.autocommit = True
        yield connection
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture(scope="session")
def s3_settings(idle_stack: Stack) -> S3Settings:
    """The object store, started with the first test that asks for it."""
    from support.stack.embedded import start

    return start(idle_stack, "s3").settings().s3()


@pytest.fixture(scope="module")
def opened(s3_settings: S3Settings) -> Iterator[FaultyProxy]:
    """A proxy before the object store."""
    from support.stack.faulty_proxy import faulty_proxy

    with faulty_proxy(s3_settings) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def through_proxy(opened: FaultyProxy) -> S3Store:
    """The store's client behind it, with parts as small as they may be."""
    from millrace.adapters.s3.store import SMALLEST_PART, S3Store

    return S3Store(opened.settings, part_size=SMALLEST_PART, largest_put=SMALLEST_PART)


@pytest.fixture
def proxy(opened: FaultyProxy) -> FaultyProxy:
    """The proxy, which has done nothing yet."""
    opened.forget()
    return opened


@pytest.fixture
def store(proxy: FaultyProxy, through_proxy: S3Store) -> S3Store:
    """The client behind the proxy that has done nothing yet."""
    return through_proxy
