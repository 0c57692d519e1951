"""Connections to sink databases, and what it means when the database says no.

What to do about an error is told by its SQLSTATE alone: psycopg's own classes put a full disk, a deadlock and a
connection that is gone under one name.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

import psycopg

from millrace.errors import (
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
)
from millrace.settings import PostgresSettings

_CONNECT_WITHIN = timedelta(seconds=10)
_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c client_min_messages=warning "
    # Who waits for a lock has to see what its holder has written, whatever the role's default is.
    "-c default_transaction_isolation=read\\ committed "
    # A role's own bounds would end a large merge, and each that follows it.
    "-c statement_timeout=0 -c lock_timeout=0 "
    # A backend whose client's machine is gone would keep its locks for the two hours of the kernel's own defaults.
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)
_TRANSACTION_TIMEOUT_SINCE = 170_000
# A pooler may drop the options (PgBouncer's `ignore_startup_parameters`). Copied timestamps have no zone.
_PLAIN = (
    "SET timezone = 'UTC'; SET datestyle = 'ISO'; SET default_transaction_isolation = 'read committed'; "
    "SET statement_timeout = 0; SET lock_timeout = 0"
)
_TRANSACTIONS_UNBOUNDED = "SET transaction_timeout = 0"
# Until a server is given up that acknowledges nothing of what is sent; the kernel's own default is 15 minutes. Linux
# counts one that is there and takes nothing too, so it must be longer than a disk or a checkpoint stalls.
UNACKNOWLEDGED = timedelta(minutes=2)
PAGE_TIME = timedelta(seconds=1.5)
"""The time of the statements of one page, and of a check of declarations; a page as a whole has two seconds."""
# 25006: a server that was demoted, or is not promoted yet, goes on answering reads. 25P03 and 25P04: it ended the
# connection because a transaction idled or took too long.
_GONE_TOO = frozenset({"25006", "25P03", "25P04"})
# A refusal to connect has no SQLSTATE in libpq; these are the server's words for 53300, in English alone.
_NO_ROOM = ("too many clients", "too many connections", "remaining connection slots")


class Fault(StrEnum):
    """What an error of the database asks for."""

    GONE = "gone"  # the connection: wait, and take up again
    ROLLED_BACK = "rolled back"  # the same again
    EXHAUSTED = "exhausted"  # wait, and tell people
    REFUSED = "refused"  # some rows: find them, and leave them out
    OTHER = "other"  # nothing that a program can do


_CLASSES = {
    "08": Fault.GONE,  # connection exception
    "22": Fault.REFUSED,  # data exception
    "23": Fault.REFUSED,  # integrity constraint violation
    "40": Fault.ROLLED_BACK,  # transaction rollback
    "53": Fault.EXHAUSTED,  # insufficient resources
    "54": Fault.REFUSED,  # program limit exceeded: a row or an index entry that is too large
    "P0": Fault.REFUSED,  # raised by PL/pgSQL: a trigger's RAISE
}
REFUSED_CLASSES = tuple(sorted(name for name, fault in _CLASSES.items() if fault is Fault.REFUSED))


def fault_of(error: psycopg.Error) -> Fault:
    """What an error asks for.

    Source: PostgreSQL's table of error codes (appendix A); an error without a code is the client's own, of a
    connection that broke or was never made (psycopg has the bare `DatabaseError` for an answer that is none), unless
    it is about a value that it was given.
    """
    if error.sqlstate is None:
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return Fault.GONE if broken or type(error) is psycopg.DatabaseError else Fault.OTHER
    if error.sqlstate.startswith("57P") or error.sqlstate in _GONE_TOO:
        return Fault.GONE  # operator intervention: shut down, crashed, starting up
    return _CLASSES.get(error.sqlstate[:2], Fault.OTHER)


def sink_error(settings: PostgresSettings, error: psycopg.Error, doing: str) -> MillraceError:
    """What to raise for what the database said; it holds no password.

    Args:
        settings: the database.
        error: what psycopg raised.
        doing: the statement that failed, by its name.
    """
    return _error(fault_of(error), settings, _words(error), doing)


def connect_error(settings: PostgresSettings, error: psycopg.Error) -> MillraceError:
    """For a connection that was not made, or that broke: the server is away, or has no room for one more."""
    told = _words(error)
    no_room = any(words in told for words in _NO_ROOM)
    return _error(Fault.EXHAUSTED if no_room else Fault.GONE, settings, told, "connect")


def _words(error: psycopg.Error) -> str:
    """The database's own, with the SQLSTATE."""
    told = [error.diag.message_primary, error.diag.message_detail]
    message = "; ".join(text for text in told if text) or str(error).strip()
    return message + (f" (SQLSTATE {error.sqlstate})" if error.sqlstate else "")


def _error(fault: Fault, settings: PostgresSettings, told: str, doing: str) -> MillraceError:
    where = address(settings)
    if fault is Fault.GONE:
        return SinkUnreachableError(
            f"the sink database does not answer: {told}",
            where=where,
            next_step="check that PostgreSQL runs and lets this role log in; `./millrace doctor` tests the connection",
        )
    kind, next_step = {
        Fault.ROLLED_BACK: (SinkRolledBackError, "check which other program locks rows of the same tables"),
        Fault.EXHAUSTED: (SinkExhaustedError, "give the database disk, memory or connections; the stream waits"),
    }.get(fault, (SinkFailedError, "correct the fault that the database's own words name"))
    return kind(f"the statement `{doing}` failed: {told}", where=where, next_step=next_step)


def connect(
    settings: PostgresSettings,
    application_name: str,
    *,
    within: timedelta = _CONNECT_WITHIN,
    transactions_bounded: bool = True,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a connection to a sink database that speaks UTC, ISO dates and UTF-8, whatever database and role say.

    Args:
        settings: the database.
        application_name: how the server lists it.
        within: the time to connect.
        transactions_bounded: False lifts each time limit of the role, that of whole transactions included, and sets
            the isolation, also behind a pooler that drops startup options. It costs a round trip. True sets them by
            such options; behind such a pooler it sets them only where the session's zone or dates differ as well.

    Raises:
        SinkUnreachableError: the server does not answer or does not let this role in.
        SinkExhaustedError: it has no room for another connection.
    """
    try:
        connection = psycopg.connect(
            **settings.keywords(),  # type: ignore[arg-type]
            application_name=application_name,
            connect_timeout=int(within.total_seconds()),
            client_encoding="UTF8",
            autocommit=True,
            options=_OPTIONS,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=UNACKNOWLEDGED // timedelta(milliseconds=1),
        )
        if not transactions_bounded and connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute(f"{_PLAIN}; {_TRANSACTIONS_UNBOUNDED}")  # an older server does not know that name
        elif not transactions_bounded or not _is_plain(connection):
            connection.execute(_PLAIN)
        connection.autocommit = False
        return connection
    except psycopg.OperationalError as error:
        raise connect_error(settings, error) from error


def _is_plain(connection: psycopg.Connection[Any]) -> bool:
    """Return whether times in text mean UTC and dates are ISO. The server reports both by itself."""
    status = connection.info.parameter_status
    return status("TimeZone") == "UTC" and (status("DateStyle") or "").startswith("ISO")


def address(settings: PostgresSettings) -> str:
    """`host:port/database`: where an error happened, without user or password."""
    return f"{settings.host}:{settings.port}/{settings.database}"


def holds_unicode(connection: psycopg.Connection[Any]) -> bool:
    """Whether the database can hold every character. One in another encoding refuses those it has no place for."""
    return connection.info.parameter_status("server_encoding") == "UTF8"
