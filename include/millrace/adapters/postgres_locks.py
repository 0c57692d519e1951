"""Who holds the locks that a program waits for, in words for whoever can make them let go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

_MOST = 5


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
