"""Finding and ending processes by more than their id: an id is reused, a start time together with it is not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from millrace import LAYOUT, LAYOUT_VARIABLE, ROOT_VARIABLE
from millrace.embedded.layout import Layout, write_private

PART_VARIABLE = "MILLRACE_PART"
STREAM_APP_SIGNS = (
    "spark_apps/stream.py",
    "org.apache.spark.deploy.SparkSubmit",
    "pyspark/daemon",
    "pyspark.daemon",
    ".worker_daemon",
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A process told apart from every other one that has or will have its id.

    `started` is the kernel's own start mark (clock ticks since boot on Linux), which no change of the clock moves.
    """

    pid: int
    started: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a live process, None when there is none (a zombie counts as none)."""
        started = start_mark(pid)
        return None if started is None else cls(pid, started, boot_id())

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return self.boot == boot_id() and start_mark(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class PartRecord:
    """Which process is a part's first one: the leader of its process group. `stop_signal` asks it to end in order."""

    part: str
    leader: Identity
    stop_signal: int

    def write(self, layout: Layout) -> None:
        """Store the record."""
        write_private(layout.run / f"{self.part}.json", json.dumps(asdict(self)))

    @classmethod
    def read(cls, layout: Layout, part: str) -> PartRecord | None:
        """The stored record, None when there is none that can be read."""
        try:
            document = json.loads((layout.run / f"{part}.json").read_text(encoding="utf-8"))
            return cls(document["part"], Identity(**document["leader"]), int(document["stop_signal"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def boot_id() -> str:
    """What tells this boot of the machine from the last one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


def start_mark(pid: int) -> float | None:
    """When a process started, in a unit of the system's; None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _start_mark_elsewhere(pid) if not Path("/proc/self/stat").exists() else None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else float(fields[19])


def _start_mark_elsewhere(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def left_of_part(layout: Layout, part: str, *, working_in: Path | None = None) -> list[Identity]:
    """What a former life of a part has left running: its process group, and what carries its mark.

    A group is known by its leader's id and start mark together: a group whose id now belongs to a process with
    another start mark is somebody else's. Some programs write over their environment (PostgreSQL, for one),
    therefore `working_in`, a folder only that part works in.
    """
    record = PartRecord.read(layout, part)
    group = record.leader if record and _group_is_its_own(record.leader) else None
    marks = {ROOT_VARIABLE: str(layout.root), PART_VARIABLE: part}
    found = []
    for pid in _others():
        identity = Identity.of(pid)
        if identity is None:
            continue
        in_group = group is not None and _process_group(pid) == group.pid and identity.started >= group.started
        if in_group or _carries(pid, marks) or (working_in is not None and _works_in(pid, working_in)):
            found.append(identity)
    return found


def stream_apps(root: Path) -> list[Identity]:
    """The streaming apps of a project, their JVMs and Python workers, wherever they were started from.

    They are known by the project's root in their environment together with a Spark command line: the root alone
    is not enough, for a person may have set that variable in a shell.
    """
    found = []
    for pid in _others():
        if not _carries(pid, {ROOT_VARIABLE: str(root)}):
            continue
        try:
            command_line = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            continue
        identity = Identity.of(pid)
        if identity is not None and any(sign in command_line for sign in STREAM_APP_SIGNS):
            found.append(identity)
    return found


def of_another_layout(processes: Iterable[Identity], mark: str) -> list[Identity]:
    """Return those that run code of another layout: they may import modules that are not there any more.

    Args:
        processes: of this project.
        mark: the variable that all of them carry from Millrace. A process without it is a person's, or is about to
            end: its environment is empty then.
    """
    seen = [(process, _environment(process.pid)) for process in processes]
    return [one for one, variables in seen if variables.get(mark) and variables.get(LAYOUT_VARIABLE) != str(LAYOUT)]


def end(processes: Sequence[Identity], *, grace: timedelta, ask: signal.Signals = signal.SIGTERM) -> int:
    """Ask these processes to end, kill those that have not after `grace`; returns how many had to be killed."""
    _send(processes, ask)
    if _wait_until_gone(processes, grace):
        return 0
    stubborn = [process for process in processes if process.is_alive()]
    _send(stubborn, signal.SIGKILL)
    _wait_until_gone(stubborn, timedelta(seconds=10))
    return len(stubborn)


def end_left_of_part(layout: Layout, part: str, *, grace: timedelta, working_in: Path | None = None) -> int:
    """End whatever a former life of a part has left; returns how many processes there were.

    The former leader is asked first, in the way the part wants to be asked, and only then the rest of its group.
    """
    left = left_of_part(layout, part, working_in=working_in)
    record = PartRecord.read(layout, part)
    if record and record.leader in left:
        end([record.leader], grace=grace, ask=signal.Signals(record.stop_signal))
    end([process for process in left if process.is_alive()], grace=min(grace, timedelta(seconds=3)))
    return len(left)


def _send(processes: Iterable[Identity], which: signal.Signals) -> None:
    for process in processes:
        if process.is_alive():
            try:
                os.kill(process.pid, which)
            except ProcessLookupError:
                continue


def _wait_until_gone(processes: Sequence[Identity], limit: timedelta) -> bool:
    deadline = time.monotonic() + limit.total_seconds()
    while any(process.is_alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _group_is_its_own(leader: Identity) -> bool:
    if leader.boot != boot_id():
        return False
    return start_mark(leader.pid) in (None, leader.started)


def _others() -> list[int]:
    """Every process but this one and those it was started from."""
    here = psutil.Process()
    kept = {here.pid, *(parent.pid for parent in here.parents())}
    return [pid for pid in psutil.pids() if pid not in kept]


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _carries(pid: int, marks: dict[str, str]) -> bool:
    environment = _environment(pid)
    return all(environment.get(name) == value for name, value in marks.items())


def _environment(pid: int) -> dict[str, str]:
    """Return a process's variables; none where it is gone, is going, or is somebody else's."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)") == str(folder)
    except OSError:
        return False
