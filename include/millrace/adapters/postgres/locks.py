"""Locks that others hold: who they are, and how to wait for one without standing in the way of everybody else.

A statement that waits for an exclusive lock makes all that come after it wait too, readers as well. So outside a
batch's own transaction nobody waits for long at a time: step back, let the queue through, try again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

import psycopg
import structlog

from millrace.errors import Code, MillraceError, UnreachableError

log = structlog.get_logger()

Answer = TypeVar("Answer")

LOCK_TIMEOUT = timedelta(seconds=1)
LOCKS_WITHIN = timedelta(seconds=45)
STATEMENT_TIMEOUT = timedelta(seconds=30)


def bounds(lock_timeout: timedelta, statement_timeout: timedelta) -> str:
    """A statement after which those that follow in its transaction are bounded."""
    lock, whole = (bound // timedelta(milliseconds=1) for bound in (lock_timeout, statement_timeout))
    return f"SELECT set_config('lock_timeout', '{lock}', true), set_config('statement_timeout', '{whole}', true)"


BOUNDS = bounds(LOCK_TIMEOUT, STATEMENT_TIMEOUT)
"""How a transaction begins that is no batch's."""

_ASKING_SECONDS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_MOST = 5


class LockedError(UnreachableError):
    """Somebody holds a lock for longer than it is waited for."""

    usual_code = Code.DATABASE_LOCKED


@dataclass(frozen=True, slots=True)
class Blocker:
    """A backend that others wait for. Its statement is not among this: it may hold what people's rows say.

    Attributes:
        state: what it does, by `pg_stat_activity`; `prepared transaction` where no backend is left (then `pid` is 0).
        since: when its statement began; its last one, where it is idle in a transaction.
    """

    pid: int
    user: str
    application: str
    state: str
    since: datetime | None

    def __str__(self) -> str:
        if not self.pid:
            return "a prepared transaction (see pg_prepared_xacts)"
        named = f", {self.application}" if self.application else ""
        since = f", {self.state} since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return f"pid {self.pid} (user {self.user}{named}{since})"


def blockers_of(connection: psycopg.Connection[Any], application_name: str) -> tuple[Blocker, ...]:
    """Who keeps any backend of an application waiting right now, the longest at it first; at most five.

    Who waits itself is left out for whom it waits for, and so are the application's own backends. Source: PostgreSQL's
    `pg_blocking_pids`, which names 0 for a prepared transaction.
    """
    connection.execute(f"SELECT set_config('statement_timeout', '{_ASKING_SECONDS}s', false)")
    found = connection.execute(
        """
        WITH RECURSIVE waiting AS MATERIALIZED (
            SELECT pid, unnest(pg_blocking_pids(pid)) AS behind FROM pg_stat_activity WHERE wait_event_type = 'Lock'
        ), own AS MATERIALIZED (
            SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s
        ), chain (pid) AS (
            SELECT behind FROM waiting WHERE pid IN (SELECT pid FROM own)
            UNION
            SELECT waiting.behind FROM chain JOIN waiting ON waiting.pid = chain.pid
        )
        SELECT pid, coalesce(usename::text, ''), coalesce(application_name, ''), coalesce(state, ''), query_start
        FROM chain LEFT JOIN pg_stat_activity USING (pid)
        WHERE pid NOT IN (SELECT pid FROM waiting) AND pid NOT IN (SELECT pid FROM own)
        ORDER BY query_start NULLS FIRST LIMIT %(most)s
        """,
        {"name": application_name, "most": _MOST},
    ).fetchall()
    return tuple(Blocker(*row) for row in found)


def in_turns(
    attempt: Callable[[], Answer],
    blockers: Callable[[], Sequence[Blocker]],
    *,
    doing: str,
    where: str,
    within: timedelta = LOCKS_WITHIN,
) -> Answer:
    """Try what needs a lock, again and again, with growing pauses in which whoever queues behind gets through.

    Args:
        attempt: one transaction with `BOUNDS`, which fails where a lock is not had in time.
        blockers: who is in the way; asked from another thread while a later attempt waits.
        doing: the statement's name, for people.
        where: the database.
        within: how long to go on.

    Raises:
        LockedError: the lock was not had in time; it says who is in the way.
    """
    deadline = time.monotonic() + within.total_seconds()
    pause, known = _FIRST_PAUSE, ()  # type: tuple[float, Sequence[Blocker]]
    while True:
        with _Asking(blockers) as asking:
            try:
                return attempt()
            except MillraceError as error:
                if not is_locked(error):
                    raise
                last = error
        known = asking.found or known
        who = "; ".join(map(str, known)) or "a session that ended its lock before it was read"
        if time.monotonic() + pause > deadline:
            waited = f"{within.total_seconds():.0f} s"
            raise LockedError(
                f"the statement `{doing}` did not get its lock within {waited}; blocked by: {who}",
                where=where,
                next_step="wait for these sessions, or end them with pg_terminate_backend(pid); Millrace retries",
            ) from last
        log.warning("lock_waited_for", doing=doing, held_by=who)
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_locked(error: MillraceError) -> bool:
    """Whether an error comes from a lock that was not had in time; SQLAlchemy wraps what the driver raised."""
    cause = error.__cause__
    return isinstance(getattr(cause, "orig", cause), psycopg.errors.LockNotAvailable)


class _Asking:
    """Asks who is in the way, in the midst of an attempt that lasts; what fails about it is left out."""

    def __init__(self, blockers: Callable[[], Sequence[Blocker]]) -> None:
        self._blockers = blockers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="blockers", daemon=True)
        self.found: Sequence[Blocker] = ()

    def __enter__(self) -> _Asking:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if error is not None:  # what succeeded waits for nobody
            self._thread.join(timeout=_ASKING_SECONDS)

    def _ask(self) -> None:
        if self._over.wait(LOCK_TIMEOUT.total_seconds() / 2):
            return
        try:
            self.found = self._blockers()
        except (MillraceError, psycopg.Error) as error:
            log.warning("blockers_not_seen", error=str(error))
