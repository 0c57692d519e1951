"""Whose turn it is: of a user's test runs that start servers, one is at work on a machine, the others wait for it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from millrace.errors import RefusedError

VARIABLE = "MILLRACE_TEST_TURN"
"""In the environment of a run whose caller has taken the turn for it: the descriptor of the locked file."""

NEEDED_GB = 7.0
PATIENCE = timedelta(minutes=10)
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 60.0


def runs_folder() -> Path:
    """Where the test runs of this user have their folders."""
    return Path(tempfile.gettempdir()) / f"millrace-tests-{os.geteuid()}"


def available_gb() -> float:
    """The memory that new processes can have, in 10^9 bytes."""
    return float(psutil.virtual_memory().available) / 1e9


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn, once it is taken: the lock is free when this process and all that inherited `descriptor` are gone."""

    descriptor: int

    @classmethod
    def take(
        cls,
        folder: Path,
        who: str,
        tell: Callable[[str], None],
        *,
        available: Callable[[], float] | None = None,
        patience: timedelta = PATIENCE,
    ) -> Turn:
        """Wait for the runs before this one, however long they take, then for enough memory.

        Args:
            folder: the runs folder, where the lock is.
            who: what others are told they wait for.
            tell: is given a line of what is waited for, at first and then every minute.
            available: the available memory in 10^9 bytes, by default `available_gb`.
            patience: how long memory is waited for.

        Raises:
            RefusedError: there was never enough memory.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        turn = cls(os.open(folder / "turn.lock", os.O_RDWR | os.O_CREAT, 0o600))
        try:
            turn._wait_for_others(tell)
            since = datetime.now().astimezone().strftime("%H:%M:%S")
            os.ftruncate(turn.descriptor, 0)
            os.pwrite(turn.descriptor, f"{who} (process {os.getpid()}, since {since})".encode(), 0)
            _wait_for_memory(tell, available or available_gb, patience)
        except BaseException:
            turn.give_back()
            raise
        return turn

    def give_back(self) -> None:
        """Let the next run begin."""
        os.close(self.descriptor)

    def _wait_for_others(self, tell: Callable[[str], None]) -> None:
        told = float("-inf")
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = os.pread(self.descriptor, 4096, 0).decode(errors="replace") or "a run that just begins"
                if time.monotonic() > told + _TELL_SECONDS:
                    tell(f"waiting for another test run: {holder}")
                    told = time.monotonic()
                time.sleep(_LOOK_SECONDS)


def _wait_for_memory(tell: Callable[[str], None], available: Callable[[], float], patience: timedelta) -> None:
    deadline, told = time.monotonic() + patience.total_seconds(), float("-inf")
    while (free := available()) < NEEDED_GB:
        if time.monotonic() > deadline:
            raise RefusedError(
                f"{free:.1f} GB of memory are available, a run that starts servers needs {NEEDED_GB:.0f}; "
                f"waited {patience} for them",
                next_step="end what else runs on this machine (`./millrace down` in other checkouts), run it again",
            )
        if time.monotonic() > told + _TELL_SECONDS:
            tell(f"waiting for memory: {free:.1f} GB are available, a run that starts servers needs {NEEDED_GB:.0f}")
            told = time.monotonic()
        time.sleep(_LOOK_SECONDS)
