"""A wait that runs out says what it waited for and what it saw last; one that does not gives what came."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from support.waiting import (
    Deadline,
    DeadlinePassedError,
    eventually,
    exit_code_of,
    happened,
    in_time,
    joined,
    line_of,
    output_of,
    result_of,
)

SILENT = [sys.executable, "-c", "import time; print('first', flush=True); time.sleep(60)"]
SHORT = Deadline.THREAD


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHORT, "seconds", 0.05)


def test_every_deadline_is_several_times_what_an_idle_machine_needs() -> None:
    for deadline in Deadline:
        _, idle_seconds = deadline.value
        assert deadline.seconds >= 5 * idle_seconds, deadline


def test_what_comes_is_given() -> None:
    answers = iter([0, "", "came"])
    assert eventually(lambda: next(answers), within=SHORT, what="the third") == "came"
    future: Future[int] = Future()
    future.set_result(3)
    assert result_of(future, what="a result") == 3
    assert in_time(lambda: 4, within=SHORT, what="a call") == 4


def test_the_error_of_a_call_is_its_own() -> None:
    def fail() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        in_time(fail, within=SHORT, what="a call")


@pytest.mark.usefixtures("_at_once")
def test_a_condition_says_what_it_saw_last() -> None:
    with pytest.raises(DeadlinePassedError, match=r"waited 0\.05 s \(THREAD\) for the moon; seen last: ''$"):
        eventually(lambda: "", within=SHORT, what="the moon")

    def clouded() -> bool:
        raise ValueError("a cloud")

    with pytest.raises(DeadlinePassedError, match=r"for the moon; seen last: ValueError\('a cloud'\)"):
        eventually(clouded, within=SHORT, what="the moon", ignoring=(ValueError,))


WAITS: dict[str, Callable[[subprocess.Popen[str], threading.Event], object]] = {
    "a second line": lambda process, never: line_of(process.stdout, within=SHORT, what="a second line"),
    "the end": lambda process, never: exit_code_of(process, within=SHORT, what="the end"),
    "all it writes": lambda process, never: output_of(process, within=SHORT, what="all it writes"),
    "an event": lambda process, never: happened(never, within=SHORT, what="an event"),
    "an answer": lambda process, never: result_of(Future(), within=SHORT, what="an answer"),
    "a call": lambda process, never: in_time(never.wait, within=SHORT, what="a call"),
}


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("what", WAITS)
def test_whatever_does_not_come_is_named(what: str) -> None:
    never = threading.Event()
    with subprocess.Popen(SILENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line_of(process.stdout, what="the first line") == "first\n"
            with pytest.raises(DeadlinePassedError, match=rf"waited 0\.05 s \(THREAD\) for {what}; seen last: "):
                WAITS[what](process, never)
        finally:
            never.set()
            process.kill()


@pytest.mark.usefixtures("_at_once")
def test_a_thread_that_does_not_end_is_named() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        with pytest.raises(DeadlinePassedError, match="for a thread; seen last: "):
            joined(thread, within=SHORT, what="a thread")
    finally:
        go_on.set()
    thread.join()
