"""Who is in the way, found on a real PostgreSQL."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.locks import Blocker, blockers_of
from millrace.settings import PostgresSettings
from support.waiting import Deadline, eventually, joined


class Sessions:
    """Connections to one database; a statement that waits does so in a thread."""

    def __init__(self, database: PostgresSettings, cleanup: ExitStack) -> None:
        self._database = database
        self._cleanup = cleanup

    def open(self, application: str) -> psycopg.Connection[Any]:
        return self._cleanup.enter_context(connect(self._database, application))

    def waiting(self, application: str, statement: str) -> int:
        """Runs a statement that has to wait; the backend's pid."""
        connection = self.open(application)

        def run() -> None:
            connection.execute(statement)
            connection.rollback()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._cleanup.callback(joined, thread, within=Deadline.THREAD, what=f"the end of `{statement}`")
        return connection.info.backend_pid


@pytest.fixture
def table(admin: psycopg.Connection[Any], name: str) -> str:
    admin.execute(f"CREATE SCHEMA {name}")
    admin.execute(f"CREATE TABLE {name}.rows (id int)")
    return f"{name}.rows"


@pytest.fixture
def sessions(database: PostgresSettings, table: str) -> Iterator[Sessions]:
    with ExitStack() as cleanup:
        yield Sessions(database, cleanup)


def blockers(admin: psycopg.Connection[Any], application: str) -> tuple[Blocker, ...]:
    found: tuple[Blocker, ...] = eventually(
        lambda: blockers_of(admin, application), within=Deadline.THREAD, what="somebody in the way"
    )
    return found


def test_who_holds_the_lock_is_named_and_not_who_waits_for_it_as_well(
    admin: psycopg.Connection[Any], sessions: Sessions, table: str
) -> None:
    own = f"s{uuid.uuid4().hex[:6]}#3"
    report = sessions.open("quarterly report")
    report.execute(f"SELECT count(*) FROM {table} WHERE id = 4711")
    queued = sessions.waiting("a migration", f"ALTER TABLE {table} ADD COLUMN more int")
    eventually(lambda: blockers_of(admin, "a migration"), within=Deadline.THREAD, what="the migration to wait")
    assert blockers_of(admin, own) == ()
    sessions.waiting(own, f"INSERT INTO {table} VALUES (1)")
    [found] = blockers(admin, own)
    assert found.pid == report.info.backend_pid != queued
    assert (found.user, found.application, found.state) == (
        report.info.user,
        "quarterly report",
        "idle in transaction",
    )
    assert found.since is not None
    text = str(found)
    assert text.startswith(f"pid {found.pid} (user {found.user}, quarterly report, idle in transaction since 20")
    assert "4711" not in text, "a statement may hold what people's rows say"
    report.rollback()


def test_the_applications_own_backends_are_no_strangers_in_the_way(
    admin: psycopg.Connection[Any], sessions: Sessions, table: str
) -> None:
    own = f"s{uuid.uuid4().hex[:6]}#3"
    mine, other = sessions.open(own), sessions.open("somebody else")
    mine.execute(f"LOCK TABLE {table} IN SHARE MODE")
    other.execute(f"LOCK TABLE {table} IN SHARE MODE")
    sessions.waiting(own, f"INSERT INTO {table} VALUES (1)")
    assert [found.application for found in blockers(admin, own)] == ["somebody else"]
    mine.rollback()
    other.rollback()
