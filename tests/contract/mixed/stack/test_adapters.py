"""The adapters of a process keep connections between calls, and give them back when they are closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from millrace.adapters.control.store import ControlStore
from millrace.wiring.platform import Adapters
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import Databases


def connections_to(port: int) -> set[int]:
    """Return the local ports of this process's connections to a port."""
    found = psutil.Process().net_connections("tcp")
    open_ = (one for one in found if one.status == psutil.CONN_ESTABLISHED)
    return {one.laddr.port for one in open_ if one.raddr and one.raddr.port == port}


def test_adapters_that_are_closed_keep_no_connection_and_work_again(kafka: Stack, control_databases: Databases) -> None:
    settings, database = kafka.settings(), control_databases.create_upgraded().working
    broker = int(settings.kafka().bootstrap_servers.rpartition(":")[2])
    platform = Adapters(settings, control=ControlStore(database))
    for _ in range(2):
        before = {port: connections_to(port) for port in (database.port, broker)}
        platform.control.check()
        platform.kafka.cluster().take()
        kept = {port: connections_to(port) - known for port, known in before.items()}
        assert all(kept.values()), kept
        platform.close()
        eventually(
            lambda kept=kept: not any(connections_to(port) & mine for port, mine in kept.items()),
            within=Deadline.THREAD,
            what="the connections to be closed",
        )
