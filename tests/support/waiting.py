"""Waiting with a deadline, instead of sleeping: one table of deadlines, and one error when one passes.

A deadline is no statement about speed. It only ends a test that would hang, so each is several times what an idle
machine needs, and no test asserts one. A run prints the longest wait of each kind at its end.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import IO, Any, AnyStr, TypeVar

Found = TypeVar("Found")

FACTOR = 6
SHORTEST_SECONDS = 30.0


class Deadline(Enum):
    """What is waited for, and the seconds it takes on an idle machine of two cores at most."""

    THREAD = ("a thread or a callback of the test's own process", 3)
    PROCESS = ("a small process: to start, to say a word, to end", 3)
    KILLED = ("processes that were killed or stopped: to be so", 2)
    COMMAND = ("one command of Millrace or of Kafka: to end", 20)
    METADATA = ("a topic, a partition, a configuration, a commit: to be known to every client", 3)
    SESSION = ("a group: its coordinator, a rebalance, the end of a member's session", 15)
    SERVER = ("a server: to start, to come back after a kill", 15)
    STACK = ("the whole stack: to start", 60)
    SPARK = ("a JVM with its Python workers: to be at work", 15)
    STREAM = ("a stream: its driver to start, to take over, to do what is there, to end", 30)
    AIRFLOW = ("Airflow: to read a file, to run a DAG, to park a task, to come back after a kill", 45)
    PAGE = ("a page: to show what it should", 5)
    LONG = ("the long form of a drill, or a benchmark: to be through its millions of records", 300)

    def __init__(self, what: str, idle_seconds: float) -> None:
        self.what = what
        self.seconds = max(SHORTEST_SECONDS, FACTOR * idle_seconds)
        self.every = timedelta(seconds=min(max(0.1, idle_seconds / 100), 0.5))
        """How often a condition is asked: each time may cost a server 30 ms of processor time."""


class DeadlinePassedError(AssertionError):
    """Something did not happen in time; says what was waited for and what was seen last."""

    def __init__(self, within: Deadline, what: str, seen: object) -> None:
        self.within = within
        super().__init__(f"waited {within.seconds:g} s ({within.name}) for {what}; seen last: {seen!r}")


@dataclass
class Longest:
    """The longest wait of one kind in this run that ended well."""

    seconds: float = 0.0
    what: str = ""


longest_waits: dict[Deadline, Longest] = {}


def eventually(
    condition: Callable[[], Found],
    *,
    within: Deadline,
    what: str,
    every: timedelta | None = None,
    ignoring: tuple[type[Exception], ...] = (),
) -> Found:
    """The first true value of `condition`, asked again and again until the deadline.

    Args:
        condition: asked again while what it gives is false.
        within: the deadline.
        what: is waited for, in words.
        every: the pause between two looks; the deadline's own where nothing is said.
        ignoring: errors that count as false.

    Raises:
        DeadlinePassedError: it was not true in time.
    """
    began = time.monotonic()
    while True:
        try:
            seen: object = (found := condition())
            if found:
                _note(within, what, began)
                return found
        except ignoring as error:
            seen = error
        if time.monotonic() > began + within.seconds:
            raise DeadlinePassedError(within, what, seen)
        time.sleep((every or within.every).total_seconds())


def line_of(stream: IO[AnyStr] | None, *, within: Deadline = Deadline.PROCESS, what: str) -> AnyStr:
    """The next line that a process writes, its end included; empty where it writes no more.

    Raises:
        DeadlinePassedError: it neither wrote nor ended in time. The thread that reads stays until it does.
    """
    assert stream is not None
    return in_time(stream.readline, within=within, what=what)


def in_time(call: Callable[[], Found], *, within: Deadline, what: str) -> Found:
    """The result of a call that cannot be given a deadline itself, made in a thread of its own.

    Raises:
        DeadlinePassedError: it did not return in time.
        BaseException: whatever the call raised.
    """
    return result_of(in_background(call), within=within, what=what)


def in_background(call: Callable[[], Found]) -> Future[Found]:
    """Make a call in a thread that nobody has to join: one that hangs holds up neither the test nor the run's end."""
    answer: Future[Found] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def at_once(calls: Sequence[Callable[[], Found]], *, within: Deadline, what: str) -> list[Found]:
    """The results of calls that are made at the same time, each in a thread of its own.

    Raises:
        DeadlinePassedError: one did not return in time.
        BaseException: whatever a call raised.
    """
    answers = [in_background(call) for call in calls]
    return [result_of(answer, within=within, what=what) for answer in answers]


def result_of(future: Future[Found], *, within: Deadline = Deadline.METADATA, what: str) -> Found:
    """A future's result.

    Raises:
        DeadlinePassedError: there was none in time.
    """
    began = time.monotonic()
    try:
        found = future.result(within.seconds)
    except FutureTimeoutError:
        if future.done():  # the call's own
            raise
        raise DeadlinePassedError(within, what, "no answer") from None
    _note(within, what, began)
    return found


def exit_code_of(process: subprocess.Popen[Any], *, within: Deadline = Deadline.PROCESS, what: str) -> int:
    """How a process ended.

    Raises:
        DeadlinePassedError: it still runs.
    """
    began = time.monotonic()
    try:
        code = process.wait(within.seconds)
    except subprocess.TimeoutExpired:
        raise DeadlinePassedError(within, what, f"process {process.pid} runs") from None
    _note(within, what, began)
    return code


def output_of(
    process: subprocess.Popen[AnyStr], *, within: Deadline = Deadline.PROCESS, what: str, given: AnyStr | None = None
) -> AnyStr:
    """What a process writes until its end, after `given` was written to it and its input closed.

    Raises:
        DeadlinePassedError: it still runs.
    """
    began = time.monotonic()
    try:
        output, _ = process.communicate(given, within.seconds)
    except subprocess.TimeoutExpired as error:
        raise DeadlinePassedError(within, what, error.output) from None
    _note(within, what, began)
    return output


def joined(thread: threading.Thread, *, within: Deadline = Deadline.THREAD, what: str) -> None:
    """Wait for the end of a thread.

    Raises:
        DeadlinePassedError: it still runs.
    """
    began = time.monotonic()
    thread.join(within.seconds)
    if thread.is_alive():
        raise DeadlinePassedError(within, what, f"{thread.name} runs")
    _note(within, what, began)


def happened(event: threading.Event, *, within: Deadline = Deadline.THREAD, what: str) -> None:
    """Wait until an event of another thread is set.

    Raises:
        DeadlinePassedError: it is not.
    """
    began = time.monotonic()
    if not event.wait(within.seconds):
        raise DeadlinePassedError(within, what, "it did not happen")
    _note(within, what, began)


def _note(within: Deadline, what: str, began: float) -> None:
    took = time.monotonic() - began
    if took > longest_waits.setdefault(within, Longest()).seconds:
        longest_waits[within] = Longest(took, what)
