"""The folder of one test run: everything a run makes lies in it, every process of a run is known by it.

So a run that was killed is found by the next one, which ends what it left and removes it. A process belongs to a run
when it carries the run's variable, which everything inherits, or when it is an app of a project in the run's folder:
apps start from an allow-list of variables, of which the project's root is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from millrace import ROOT_VARIABLE
from millrace.cli.checks.turn import runs_folder
from millrace.embedded.processes import Identity, end
from millrace.embedded.progress import Silent
from millrace.embedded.stack import Stack
from support.waiting import Deadline, exit_code_of, in_background, in_time

RUN_VARIABLE = "MILLRACE_TEST_RUN"
OWNER = "owner.lock"
KEEPER_LOG = "keeper.log"
PACKAGE = Path(__file__).resolve().parents[3] / "include"
STACKS = "stacks"
TEMPORARY = "tmp"
PYTEST = "pytest"
ROUNDS = 10


@dataclass
class Owned:
    """What this process holds of its run: the lock that says it lives, its keeper, the temporary folder it had before.

    The keeper waits at the other end of a pipe: it is told nothing, and ends with what is left of the run once nobody
    holds this end, however that came about.
    """

    lock: IO[str]
    keeper: subprocess.Popen[bytes]
    former_temporary: str | None


_owned: dict[Path, Owned] = {}


def open_run() -> Path:
    """A new run's folder; whatever this process starts from now on carries its mark and puts its files there."""
    runs_folder().mkdir(mode=0o700, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="new-", dir=runs_folder())).resolve()
    (draft / STACKS).mkdir()
    (draft / TEMPORARY).mkdir()
    lock = (draft / OWNER).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = draft.rename(draft.with_name(draft.name.replace("new-", "run-", 1)))
    _owned[folder] = Owned(lock, _start_keeper(folder), os.environ.get("TMPDIR"))
    os.environ[RUN_VARIABLE] = str(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / TEMPORARY)
    return folder


def _start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    """A process outside of the run's session and mark, that outlives this one if need be."""
    with (folder / KEEPER_LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "support.checks.keeper", str(folder)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": f"{PACKAGE}{os.pathsep}{Path(__file__).parents[2]}"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def close_run(folder: Path, within: Deadline = Deadline.STACK) -> int:
    """Stop the stacks of a run in order, end whatever else of it is there, remove it; how much else there was.

    A stack that does not stop in order is ended like everything else: a broken one must not hold up the next run. Where
    something cannot be ended the folder stays, so that a later run finds it.

    Args:
        folder: the run's.
        within: how long each stack may take to stop in order.
    """
    owned = _owned.pop(folder, None)
    if owned:
        tempfile.tempdir = None
        os.environ["TMPDIR"] = owned.former_temporary or ""
        del os.environ[RUN_VARIABLE]
    left = 0
    try:
        stops = [in_background(partial(_stop, Stack(root), within)) for root in sorted((folder / STACKS).glob("*"))]
        for stop in stops:  # each has its deadline
            stop.result()
    finally:
        left = end_all(folder)
        if not processes_of(folder):
            for entry in folder.iterdir():
                if entry.name != OWNER:  # it goes last: without it nobody knows whose the rest is
                    shutil.rmtree(entry, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        if owned:
            owned.lock.close()
            _end_keeper(owned.keeper)
    return left


def _end_keeper(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin
    keeper.stdin.close()
    exit_code_of(keeper, within=Deadline.STACK, what="the end of the run's keeper")


def _stop(stack: Stack, within: Deadline) -> None:
    try:
        in_time(lambda: stack.stop(Silent()), within=within, what=f"the end of {stack.root}")
    except Exception:  # whatever a stack of another version or a broken one raises
        traceback.print_exc()


def forgotten_runs() -> Iterator[Path]:
    """The folders of runs whose process is gone, killed before it could close them; each is locked while it is given.

    A run holds the lock of its owner's file as long as it lives, and the system frees it when it dies.
    """
    for folder in sorted(runs_folder().glob("run-*")):
        try:
            lock = (folder / OWNER).open("r+")
        except OSError:  # closed meanwhile
            continue
        with lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (folder / OWNER).exists():  # not closed between the two
                yield folder.resolve()


def close_forgotten(folder: Path, within: Deadline) -> None:
    """Close one run whose process is gone, once nobody else looks at it; nothing where somebody else has closed it."""
    try:
        lock = (folder / OWNER).open("r+")
    except OSError:
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / OWNER).exists():
            close_run(folder, within)


def end_all(folder: Path) -> int:
    """Kill every process of a run; how many there were."""
    ended = 0
    for _ in range(ROUNDS):  # what was forked while we looked is seen in the next round
        if not (members := processes_of(folder)):
            break
        ended += len(members)
        end(members, grace=timedelta())
    return ended


def processes_of(folder: Path) -> Sequence[Identity]:
    """Every living process of a run but the caller and those it was started from."""
    here = psutil.Process()
    kept = {here.pid, *(parent.pid for parent in here.parents())}
    pids = [pid for pid in psutil.pids() if pid not in kept and _belongs(pid, folder)]
    return [identity for pid in pids if (identity := Identity.of(pid))]


def _belongs(pid: int, folder: Path) -> bool:
    process = psutil.Process
    try:
        environment = process(pid).environ()
        works_in = Path(process(pid).cwd())
    except (psutil.Error, OSError):
        return False
    roots = (environment.get(RUN_VARIABLE), environment.get(ROOT_VARIABLE))
    if any(root and Path(root).is_relative_to(folder) for root in roots):
        return True
    # PostgreSQL and Airflow write over their environment; a person's shell, which has one, may well stand here
    rewritten = not environment or works_in.parts[-2:] == ("postgres", "data")
    return rewritten and works_in.is_relative_to(folder)
