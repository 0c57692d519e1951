"""The connection to the control database: a small pool, and its errors in Millrace's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy import exc

from millrace.adapters.postgres.connection import address
from millrace.adapters.postgres.locks import bounds
from millrace.errors import Code, UnreachableError
from millrace.settings import PostgresSettings

CONNECT_TIMEOUT_SECONDS = 5


_BOUNDS = bounds(timedelta(seconds=5), timedelta(seconds=15))


def open_engine(settings: PostgresSettings, *, application_name: str = "millrace control") -> sa.Engine:
    """An engine that connects lazily; a connection that died in the pool is replaced before use.

    Guarantees: a server that cannot be connected to is given up after five seconds, one that vanished in
    the middle of a statement after 20; a statement after 15, and one that waits for a lock after five.
    """
    arguments = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "application_name": application_name,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "tcp_user_timeout": 20_000,
        "prepare_threshold": None,  # prepared statements do not survive a pooler between us and the server
    }
    engine = sa.create_engine(
        control_url(settings), pool_size=2, max_overflow=4, pool_pre_ping=True, connect_args=arguments
    )
    # In each transaction: what is set when a connection is made does not survive a pooler either.
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_BOUNDS))
    return engine


def control_url(settings: PostgresSettings) -> sa.URL:
    """Where the database is, as SQLAlchemy wants it."""
    return sa.URL.create(
        "postgresql+psycopg",
        username=settings.user,
        password=settings.password,
        host=settings.host,
        port=settings.port,
        database=settings.database,
        query=dict(settings.tls),
    )


@contextmanager
def translated(settings: PostgresSettings) -> Iterator[None]:
    """Turn the driver's errors into Millrace's.

    Raises:
        UnreachableError: no connection, a lost one, or a database without Millrace's tables.
    """
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise UnreachableError(
            f"the control database does not answer: {_first_line(error)}",
            where=address(settings),
            next_step="run `millrace doctor` to check the database and connection millrace_control; "
            "running streams continue without it",
            code=Code.CONTROL_UNREACHABLE,
        ) from error
    except exc.ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) not in _NOT_OURS:
            raise
        raise UnreachableError(
            f"the control database does not have the version that this Millrace needs: {_first_line(error)}",
            where=address(settings),
            next_step="run `millrace control upgrade`",
            code=Code.CONTROL_VERSION,
        ) from error


_NOT_OURS = frozenset({"42P01", "42703", "42501"})  # undefined table, undefined column, insufficient privilege


def _first_line(error: exc.SQLAlchemyError) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
