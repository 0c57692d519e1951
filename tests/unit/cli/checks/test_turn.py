"""Whose turn it is: one at a time, freed by the holder's end, and only with enough memory."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.cli.checks.turn import NEEDED_GB, Turn
from millrace.errors import RefusedError
from support.waiting import Deadline, eventually, in_background, line_of, output_of, result_of

HOLDER = """
import sys
from pathlib import Path
from millrace.cli.checks.turn import Turn
turn = Turn.take(Path(sys.argv[1]), "the holder", print, available=lambda: 99.0)
print("holds", flush=True)
input()
"""


def enough() -> float:
    return NEEDED_GB


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert line_of(process.stdout, what="the holder to have the turn") == "holds\n"
    yield process
    process.kill()
    output_of(process, what="the holder's death")


def test_the_second_waits_says_for_whom_and_goes_on_when_the_first_was_killed(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    told: list[str] = []
    waiting = in_background(lambda: Turn.take(tmp_path, "me", told.append, available=enough))
    eventually(lambda: told, within=Deadline.THREAD, what="the second to say that it waits")
    assert told[0].startswith(f"waiting for another test run: the holder (process {holder.pid}, since ")
    assert not waiting.done()
    holder.kill()
    turn = result_of(waiting, within=Deadline.PROCESS, what="the second's turn")
    assert (tmp_path / "turn.lock").read_text().startswith(f"me (process {os.getpid()}, since ")
    turn.give_back()


def test_the_turn_is_held_for_as_long_as_anybody_has_inherited_it(tmp_path: Path) -> None:
    turn = Turn.take(tmp_path, "me", print, available=enough)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(turn.descriptor,))
    turn.give_back()
    with (tmp_path / "turn.lock").open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        output_of(child, what="the child's end", given=b"\n")
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_memory_is_waited_for(tmp_path: Path) -> None:
    told: list[str] = []
    freed = threading.Event()
    waiting = in_background(
        lambda: Turn.take(tmp_path, "me", told.append, available=lambda: 9.0 if freed.is_set() else 2.5)
    )
    eventually(lambda: told, within=Deadline.THREAD, what="the wait for memory to be told")
    assert told == ["waiting for memory: 2.5 GB are available, a run that starts servers needs 7"]
    freed.set()
    result_of(waiting, within=Deadline.THREAD, what="the turn").give_back()


def test_too_little_memory_for_too_long_is_refused_and_the_turn_given_back(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"2\.5 GB of memory are available, .* needs 7"):
        Turn.take(tmp_path, "me", print, available=lambda: 2.5, patience=timedelta())
    Turn.take(tmp_path, "the next", print, available=enough).give_back()
