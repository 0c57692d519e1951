"""A bounded piece of work by Spark in a process of its own, what that process is asked and what it answers.

The command line neither loads Spark nor lends it its process: what an app prints, leaks or hangs in stays with the job.
A request is a line of JSON on its standard input, behind which nothing comes until it is to end; it answers in lines.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, ClassVar

import msgspec

from millrace.adapters.apps.environment import app_environment
from millrace.adapters.apps.runners.guard import last_lines
from millrace.errors import (
    Code,
    DataLossError,
    DeclarationError,
    MillraceError,
    PartFailedError,
    RecreatedTopicError,
    RefusedError,
    UnreachableError,
    UsageError,
    code_named,
)
from millrace.settings import Settings

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

Progress = Callable[[int], object]
"""Told how much is done."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the job, by the name of its class."""

    kind: str
    what: str
    where: str
    next_step: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the job: how much is done, and at its end what came of it, as JSON, or what ended it."""

    done: int = 0
    answer: str = ""
    failure: Failure | None = None


_LINES = msgspec.json.Decoder(Said)


def answered(answer: object) -> Said:
    """The last line of a job that has done what it was asked."""
    return Said(answer=msgspec.json.encode(answer).decode())


def say(said: Said, to: IO[bytes]) -> None:
    """Tell something to who waits for the job."""
    to.write(msgspec.json.encode(said) + b"\n")
    to.flush()


def failure_of(error: MillraceError) -> Failure:
    """An error as it is told."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), MillraceError.__name__)
    return Failure(kind, error.what, error.where, error.next_step, error.code)


def error_of(failure: Failure) -> MillraceError:
    """Return the error of a job, as it was before it was told."""
    kind = _KINDS.get(failure.kind, MillraceError)
    return kind(failure.what, where=failure.where, next_step=failure.next_step, code=code_named(failure.code))


def serve(requests: msgspec.json.Decoder[Any], scratch: Path, act: Callable[[Any, Progress], object]) -> int:
    """Be the job: do what standard input asks, and answer on standard output; the exit code.

    What Spark and the app print goes to standard error. The end of standard input is the end of the job: who waited for
    it is gone.

    Args:
        requests: decodes the request.
        scratch: the folder for what is temporary.
        act: does it; what it returns is the answer.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = os.fdopen(0, "rb", buffering=0, closefd=False)
    request = requests.decode(asked.readline())
    threading.Thread(target=_end_with, args=(asked, scratch), daemon=True, name="end").start()
    try:
        answer = act(request, lambda done: say(Said(done=done), answers))
    except MillraceError as error:
        say(Said(failure=failure_of(error)), answers)
        return error.exit_code
    say(answered(answer), answers)
    return 0


def _end_with(asked: IO[bytes], scratch: Path) -> None:
    while asked.read(1):
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


class SparkJob:
    """Runs jobs of one kind in the environment of an app, but for an app's name: nobody supervises them.

    Args:
        settings: the project's.
        command: what runs the job; it is given the folder for what is temporary. Default `module`, by this Python.
        silence: how long the job may say nothing.
    """

    module: ClassVar[str]

    def __init__(
        self, settings: Settings, command: Sequence[str] = (), *, silence: timedelta = LONGEST_SILENCE
    ) -> None:
        self._settings = settings
        self._command = command or (sys.executable, "-m", self.module)
        self._silence = silence

    def _ask(self, stream: str, request: object, connections: Sequence[str], progress: Progress) -> bytes:
        """Have a job do something; its answer, as JSON.

        However this ends, so does the job, and its processes with it.

        Args:
            stream: whose rows it is about, PIPELINE.NAME.
            request: what it is asked; becomes JSON.
            connections: the Connections that the job may see.
            progress: told how much is done.

        Raises:
            UnreachableError: Kafka or the sink does not answer, or a connection is not defined.
            DeclarationError: the app or the table is not what it has to be.
            PartFailedError: the job ended without an answer, or said nothing for too long.
        """
        environment = app_environment(self._settings, connections)
        with tempfile.TemporaryDirectory(prefix="millrace-job-", ignore_cleanup_errors=True) as folder:
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
            try:
                answer = self._answer(job, msgspec.json.encode(request) + b"\n", progress)
                silent = False
            except TimeoutError:
                answer, silent = None, True
            finally:
                _end(job)
            if answer is not None:
                return answer
            why = "it said nothing for too long" if silent else f"exit code {job.returncode}"
            lines = last_lines(log, _LAST_LINES)
            raise PartFailedError(
                f"the job ended without an answer: {why}",
                where=f"stream {stream}",
                next_step="\n".join(["read its last lines:", *lines])
                if lines
                else "find out what ended it: it printed nothing",
                code=Code.APP_FAILED,
            )

    def _answer(self, job: subprocess.Popen[bytes], request: bytes, progress: Progress) -> bytes | None:
        """What the job answers; None where it ends without."""
        for line in _lines(job, request, self._silence):
            said = _LINES.decode(line)
            if said.failure is not None:
                raise error_of(said.failure)
            if said.answer:
                return said.answer.encode()
            progress(said.done)
        return None


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
