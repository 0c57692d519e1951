"""A sample made again by Spark in a process of its own, and what that process is asked and answers.

The command line neither loads Spark nor lends it its process: what an app prints, leaks or hangs in stays with the job.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

import msgspec

from millrace.adapters.app_environment import app_environment
from millrace.adapters.process_guard import last_lines
from millrace.domain.offsets import OffsetRange
from millrace.domain.quality.recompute import Recomputed
from millrace.errors import (
    DataLossError,
    DeclarationError,
    MillraceError,
    PartFailedError,
    RecreatedTopicError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from millrace.settings import Settings

MODULE = "millrace.runtime.recompute"
LONGEST_SILENCE = timedelta(minutes=15)
"""The job is given up that says nothing for so long: longer than any statement or read of its own may take."""
_LAST_LINES = 20
_LAST_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_RAISED = (
    UsageError,
    DeclarationError,
    UnreachableError,
    RecreatedTopicError,
    RefusedError,
    DataLossError,
    PartFailedError,
)
_KINDS = {kind.__name__: kind for kind in _RAISED}


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be made again: a stream, PIPELINE.NAME, and offsets of its topics as they are now."""

    stream: str
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the job, by the name of its class."""

    kind: str
    what: str
    where: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the job: how many offsets are done, and at its end what came of it, or what ended it."""

    offsets: int = 0
    answer: Recomputed | None = None
    failure: Failure | None = None


_REQUESTS = msgspec.json.Decoder(Request)
_LINES = msgspec.json.Decoder(Said)


def read_request(given: IO[bytes]) -> Request:
    """What the job is asked, from its standard input: a line, behind which nothing comes until it is to end."""
    return _REQUESTS.decode(given.readline())


def say(said: Said, to: IO[bytes]) -> None:
    """Tell something to who waits for the job."""
    to.write(msgspec.json.encode(said) + b"\n")
    to.flush()


def failure_of(error: MillraceError) -> Failure:
    """An error as it is told."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), MillraceError.__name__)
    return Failure(kind, error.what, error.where, error.next_step)


class RecomputeJob:
    """Runs jobs in the environment of an app, but for an app's name: nobody supervises them.

    Args:
        settings: the project's.
        command: what runs the module; default this Python.
        silence: how long the job may say nothing.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
        *,
        silence: timedelta = LONGEST_SILENCE,
    ) -> None:
        self._settings = settings
        self._command = command
        self._silence = silence

    def run(
        self,
        stream: str,
        ranges: Sequence[OffsetRange],
        connections: Sequence[str],
        progress: Callable[[int], object],
    ) -> Recomputed:
        """Make the rows of these ranges again and hold them against the stored ones.

        However this ends, so does the job, and its processes with it.

        Args:
            stream: PIPELINE.NAME.
            ranges: offsets of its topics.
            connections: the Connections that the job may see.
            progress: told how many offsets are done.

        Raises:
            UnreachableError: Kafka or the sink does not answer, or a connection is not defined.
            DeclarationError: the app or the table is not what it has to be.
            PartFailedError: the job ended without an answer, or said nothing for too long.
        """
        environment = app_environment(self._settings, connections)
        with tempfile.TemporaryDirectory(prefix="millrace-recompute-", ignore_cleanup_errors=True) as folder:
            log = Path(folder) / "job.log"
            with log.open("wb") as errors:
                job = subprocess.Popen(
                    [*self._command, str(Path(folder) / "scratch")],
                    env=environment,
                    cwd=self._settings.root,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            silent = False
            try:
                for line in _lines(job, msgspec.json.encode(Request(stream, tuple(ranges))) + b"\n", self._silence):
                    said = _LINES.decode(line)
                    if said.failure is not None:
                        raise _error(said.failure)
                    if said.answer is not None:
                        return said.answer
                    progress(said.offsets)
            except TimeoutError:
                silent = True
            finally:
                _end(job)
            why = "it said nothing for too long" if silent else f"exit code {job.returncode}"
            lines = last_lines(log, _LAST_LINES)
            raise PartFailedError(
                f"the job ended without an answer: {why}",
                where=f"stream {stream}",
                next_step="\n".join(["its last lines:", *lines]) if lines else "see what ended it: it left no line",
            )


def _lines(job: subprocess.Popen[bytes], request: bytes, silence: timedelta) -> Iterator[bytes]:
    """The lines that the job says, until it ends; what it started may still hold its output open then.

    Raises:
        TimeoutError: it neither took its request nor said a line, nor ended, for so long.
    """
    assert job.stdin is not None
    assert job.stdout is not None
    to, from_ = job.stdin.fileno(), job.stdout.fileno()
    os.set_blocking(to, False)
    os.set_blocking(from_, False)
    said = b""
    deadline = time.monotonic() + silence.total_seconds()
    while time.monotonic() < deadline:
        # Before the look: what it said by then is there. It is not reaped yet, so its id stays its own.
        ended = os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        readable, writable, _ = select.select([from_], [to] if request else [], [], 0 if ended else _LOOK_SECONDS)
        if writable:
            try:
                request = request[os.write(to, request) :]
            except BrokenPipeError:  # it has ended already: its log says why
                request = b""
        if not readable:
            if ended:
                return
            continue
        if not (more := os.read(from_, 1 << 16)):
            return
        *lines, said = (said + more).split(b"\n")
        if lines:
            deadline = time.monotonic() + silence.total_seconds()
        yield from lines
    raise TimeoutError


def _kill(job: subprocess.Popen[bytes]) -> None:
    """End the job and its JVM; Python's workers end with the JVM. Only before `wait`, which frees the id."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)


def _end(job: subprocess.Popen[bytes]) -> None:
    """End what is left of the job, and see it gone: what it writes until then would be left behind."""
    _kill(job)
    for pipe in (job.stdin, job.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
    job.wait()
    deadline = time.monotonic() + _LAST_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(job.pid, 0)
            time.sleep(0.01)


def _error(failure: Failure) -> MillraceError:
    kind = _KINDS.get(failure.kind, MillraceError)
    return kind(failure.what, where=failure.where, next_step=failure.next_step)
