"""A process that has imported Airflow and no line of Millrace: each script runs in a fork of it.

To import Airflow takes a processor for six seconds; a fork of a process that has it begins at once, and sees nothing of
what another fork has imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from support.waiting import Deadline, DeadlinePassedError, exit_code_of, in_time

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

        Raises:
            AssertionError: the script failed, or the process has ended.
            DeadlinePassedError: no answer came in time. The process is killed: it would answer the next script late.
        """
        try:
            return in_time(
                lambda: self._answer(script),
                within=Deadline.AIRFLOW,
                what="the answer of a script in a fork of Airflow",
            )
        except DeadlinePassedError:
            _kill(self._process)
            raise

    def _answer(self, script: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # a process that has ended is named below
            self._process.stdin.write(json.dumps(script) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer:"):
                found = json.loads(line.removeprefix("answer:"))
                assert not found["error"], found["error"]
                return found["answer"]
        code = exit_code_of(self._process, what="the end of the process that forks")
        raise AssertionError(f"the process that forks has ended with exit code {code}")


@contextmanager
def forks_of_airflow(variables: Mapping[str, str], program: str = _FORKING) -> Iterator[ForksOfAirflow]:
    """Start the process, and end it and its forks after use. A script that is at work then is waited for.

    Args:
        variables: its environment.
        program: the Python text that it runs.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield ForksOfAirflow(process)
        with suppress(BrokenPipeError):
            process.stdin and process.stdin.close()
        exit_code_of(process, within=Deadline.COMMAND, what="the end of the process that forks")
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the process and its forks, which are its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
