"""The adapters of a process keep connections between calls, and give them back when they are closed."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.waiting import Deadline

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import Databases


def test_adapters_that_are_closed_keep_no_connection_and_work_again(kafka: Stack, control_databases: Databases) -> None:
    """In a process of its own: here other tests' clients connect at any time."""
    broker = kafka.settings().kafka().bootstrap_servers.rpartition(":")[2]
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("adapters_child.py")), str(kafka.root), broker],
        input=pickle.dumps(control_databases.create_upgraded().working),
        capture_output=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )
    assert child.returncode == 0, child.stderr.decode()
    rounds = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(rounds) == 2
    for used, left in rounds:
        assert all(used), rounds
        assert left == [0, 0], rounds
