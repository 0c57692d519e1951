"""Tests that end a life's connections must not crash the process that runs them."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from millrace.embedded.stack import Stack
from support.stack import control_databases
from support.stack.faults import hang_up
from support.waiting import Deadline, eventually, joined

SLOW = "SELECT pg_sleep(0.5)"


class ClosedConnection(psycopg.Connection[Any]):
    """Remembers its transaction status when it was first closed."""

    closed_while: TransactionStatus | None = None

    def close(self) -> None:
        self.closed_while = self.closed_while or self.info.transaction_status
        super().close()


def execute(connection: psycopg.Connection[Any]) -> None:
    connection.execute(SLOW)


def copy(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY ({SLOW}) TO STDOUT") as rows:
        list(rows)


@pytest.mark.parametrize("use", [execute, copy])
def test_a_connection_is_not_closed_while_another_thread_uses_it(postgres: Stack, use: Any) -> None:
    connection = ClosedConnection.connect(**control_databases.on(postgres).superuser_of("postgres").keywords())
    broken: list[psycopg.Error] = []

    def run() -> None:
        try:
            use(connection)
        except psycopg.Error as error:
            broken.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(
        lambda: connection.info.transaction_status is TransactionStatus.ACTIVE,
        within=Deadline.THREAD,
        what="the thread at work",
    )
    hang_up(connection)
    joined(thread, within=Deadline.THREAD, what="the end of the thread")
    assert broken
    assert connection.closed
    assert connection.closed_while is not TransactionStatus.ACTIVE
