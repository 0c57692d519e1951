"""The folder of one test run: everything a run makes lies in it, every process of a run is known by it.

So a run that was killed is found by the next one, which ends what it left and removes it. A process belongs to a run
when it carries the run's variable, which everything inherits, or when it is an app of a project in the run's folder:
apps start from an allow-list of variables, of which the project's root is one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import psutil

from millrace.embedded.processes import ROOT_VARIABLE, Identity, end
from millrace.embedded.progress import Silent
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError
from support.waiting import Deadline, DeadlinePassedError, in_time

RUN_VARIABLE = "MILLRACE_TEST_RUN"
OWNER = "owner.json"
STACKS = "stacks"
TEMPORARY = "tmp"
PYTEST = "pytest"
ROUNDS = 10


def runs_folder() -> Path:
    """Where the runs of this user have their folders."""
    return Path(tempfile.gettempdir()) / f"millrace-tests-{os.geteuid()}"


def open_run() -> Path:
    """A new run's folder; whatever this process starts from now on carries its mark and puts its files there."""
    runs_folder().mkdir(mode=0o700, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runs_folder())).resolve()
    identity = Identity.of(os.getpid())
    assert identity is not None
    (folder / OWNER).write_text(json.dumps(asdict(identity)))
    (folder / STACKS).mkdir()
    (folder / TEMPORARY).mkdir()
    os.environ[RUN_VARIABLE] = str(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / TEMPORARY)
    return folder


def close_run(folder: Path) -> int:
    """Stop the stacks of a run in order, end whatever else of it is there, remove it; how much else there was.

    A stack that does not stop in order is ended like everything else: a broken one must not hold up the next run.
    """
    for root in sorted((folder / STACKS).glob("*")):
        try:
            in_time(lambda root=root: Stack(root).stop(Silent()), within=Deadline.STACK, what=f"the end of {root}")  # type: ignore[misc]
        except (DeadlinePassedError, MillraceError, OSError) as error:
            print(f"{root} did not stop in order: {error}", flush=True)
    left = end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return left


def forgotten_runs() -> list[Path]:
    """The folders of runs whose process is gone: killed before it could close them."""
    found = []
    for folder in runs_folder().glob("run-*"):
        try:
            owner = Identity(**json.loads((folder / OWNER).read_text()))
        except (OSError, ValueError, TypeError):  # just being made
            continue
        if not owner.is_alive():
            found.append(folder.resolve())
    return found


def end_all(folder: Path) -> int:
    """Kill every process of a run; how many there were."""
    ended = 0
    for _ in range(ROUNDS):  # what was forked while we looked is seen in the next round
        if not (members := processes_of(folder)):
            break
        ended += len(members)
        end(members, grace=timedelta())
    else:
        print(f"still there after {ROUNDS} rounds of killing: {processes_of(folder)}", flush=True)
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
    # PostgreSQL writes over its environment; a person's shell may well stand in a run's folder
    return works_in.is_relative_to(folder) and works_in.parts[-2:] == ("postgres", "data")
