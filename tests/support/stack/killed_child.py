"""A test's own function in a process that is gone in the middle: no `finally`, no farewell of a client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from millrace.domain.streams.supervision import ExitReason
from support.streams.project import TESTS
from support.waiting import Deadline

LIFE_SECONDS = 300
CHILD = """
import importlib
import sys

sys.path[:0] = sys.argv[1:3]
importlib.import_module(sys.argv[3]).live_in_child(*sys.argv[4:])
"""


def alarmed() -> None:
    """End this process by itself some time, for its test may be killed."""
    signal.alarm(LIFE_SECONDS)


def die() -> None:
    """Be gone at once."""
    os._exit(int(ExitReason.KILLED))


def must_be_killed(test_file: str, told: object, *arguments: str) -> None:
    """Run `live_in_child(*arguments)` of a test's file, with JSON on its standard input, and see it die."""
    file = Path(test_file)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(TESTS), str(file.parent), file.stem, *arguments],
        input=json.dumps(told),
        env={**os.environ, "PYTHONPATH": str(TESTS.parent / "include")},
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )
    assert done.returncode == ExitReason.KILLED, done.stdout + done.stderr
