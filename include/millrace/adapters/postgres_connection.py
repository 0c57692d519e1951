"""Connections to sink databases, and what it means when one breaks."""

from __future__ import annotations

from typing import Any

import psycopg

from millrace.errors import UnreachableError
from millrace.settings import PostgresSettings

_CONNECT_SECONDS = 10


def connect(settings: PostgresSettings, application_name: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection to a sink database, in UTC.

    Raises:
        UnreachableError: the server does not answer or does not let this role in.
    """
    try:
        return psycopg.connect(
            host=settings.host,
            port=settings.port,
            dbname=settings.database,
            user=settings.user,
            password=settings.password,
            application_name=application_name,
            connect_timeout=_CONNECT_SECONDS,
            options="-c timezone=UTC -c datestyle=ISO -c client_min_messages=warning",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        )
    except psycopg.OperationalError as error:
        raise unreachable(settings, error) from error


def unreachable(settings: PostgresSettings, error: psycopg.Error) -> UnreachableError:
    """The error for a server that went away; its text holds no password."""
    return UnreachableError(
        f"the sink database does not answer: {str(error).strip()}",
        where=f"{settings.host}:{settings.port}/{settings.database}",
        next_step="see that PostgreSQL runs and lets this role in; `./millrace doctor` tries the connection",
    )
