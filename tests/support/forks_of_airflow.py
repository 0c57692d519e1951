"""A process that has imported Airflow and no line of Millrace: each script runs in a fork of it.

To import Airflow takes a processor for six seconds; a fork of a process that has it begins at once, and sees nothing of
what another fork has imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.waiting import Deadline

_FORKING = """
import airflow.triggers.base
from airflow.sdk import DAG, Asset
DAG("any", schedule="@daily")
Asset(name="any", uri="kafka://any/any")

import json, os, sys, traceback
for line in sys.stdin:
    to_read, to_write = os.pipe()
    if (child := os.fork()) == 0:
        found = {"error": "it printed no answer"}
        try:
            exec(json.loads(line), {"__name__": "script", "answer": lambda value: found.update(answer=value, error="")})
        except BaseException:
            found = {"error": traceback.format_exc()}
        with os.fdopen(to_write, "w") as stream:
            json.dump(found, stream)
        os._exit(0)
    os.close(to_write)
    with os.fdopen(to_read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    print("answer:" + (text or json.dumps({"error": "it ended without an answer"})), flush=True)
"""


class ForksOfAirflow:
    """Runs scripts, one at a time, each in a fork of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, script: str) -> Any:
        """Return what a script gives to `answer(...)`, as JSON has it.

        Args:
            script: Python text. It ends by itself.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(script) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer:"):
                found = json.loads(line.removeprefix("answer:"))
                assert not found["error"], found["error"]
                return found["answer"]
        raise AssertionError(f"the process that forks has ended with {self._process.wait(Deadline.COMMAND.seconds)}")


@contextmanager
def forks_of_airflow(variables: Mapping[str, str]) -> Iterator[ForksOfAirflow]:
    """Start the process, and end it after use. A script that is at work then is waited for.

    Args:
        variables: its environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKING], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield ForksOfAirflow(process)
        process.stdin and process.stdin.close()
        process.wait(Deadline.COMMAND.seconds)
    finally:
        process.kill()
        process.wait()
