"""The processes of stream apps on this machine, found by name in /proc and never by a process id alone.

Every process of an app carries two variables from its guard on: `MILLRACE_ROOT` and `MILLRACE_APP`. Children
inherit them whatever session or process group they move to (PySpark's daemon calls setpgid), and a process cannot
change what /proc/PID/environ shows, so they name an app's processes also when guard and driver are dead. A process id
is used together with its start time, through a pidfd: a reused id is never signalled.

Standard library only: the guard imports this module.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from millrace import ROOT_VARIABLE

APP_VARIABLE = "MILLRACE_APP"
NAMESPACE_FILE = ".millrace/process-namespace"
PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_ZOMBIE_STATES = frozenset("ZX")
_AT_UID, _AT_EUID = 11, 12  # linux/auxvec.h


@dataclass(frozen=True, slots=True, order=True)
class AppName:
    """Which instance of which epoch of which stream a process belongs to."""

    stream: str
    epoch: int
    instance: str

    def __str__(self) -> str:
        return f"{self.stream}#{self.epoch}#{self.instance}"

    @classmethod
    def parse(cls, text: str) -> AppName | None:
        """The name as `APP_VARIABLE` carries it; None where it is something else."""
        parts = text.split("#")
        if len(parts) != 3 or not parts[1].isdigit():
            return None
        return cls(parts[0], int(parts[1]), parts[2])

    def arguments(self) -> tuple[str, ...]:
        """How guard and driver carry the name on their command lines."""
        return ("--stream", self.stream, "--epoch", str(self.epoch), "--instance", self.instance)


@dataclass(frozen=True, slots=True)
class Process:
    """One living process. `started_ticks` (since boot) together with `pid` names it for ever."""

    pid: int
    parent: int
    session: int
    started_ticks: int

    @property
    def started_at(self) -> datetime:
        """When it was started, by the machine's clock."""
        return datetime.fromtimestamp(_boot_seconds() + self.started_ticks / _TICKS_PER_SECOND, UTC)


@dataclass(slots=True)
class AppProcesses:
    """The living processes of one app: its guard and its driver where they live, and all with its mark."""

    name: AppName
    guard: Process | None = None
    driver: Process | None = None
    all: list[Process] = field(default_factory=list)


def app_folder(root: Path, stream: str, epoch: int) -> Path:
    """Where one app's log, status and exit code are."""
    return root / ".millrace" / "streams" / stream / str(epoch)


def mark_namespace(root: Path) -> None:
    """Note that this root's apps run where this process does: in another process namespace nobody sees them."""
    (root / NAMESPACE_FILE).write_text(process_namespace(), encoding="utf-8")


def is_elsewhere(root: Path) -> bool:
    """Whether this root's apps were noted to run in another process namespace, a container's."""
    try:
        return (root / NAMESPACE_FILE).read_text(encoding="utf-8") != process_namespace()
    except FileNotFoundError:
        return False


def process_namespace() -> str:
    """Return this process's namespace of process ids, with the machine's boot: two that differ see other processes.

    Source: pid_namespaces(7).
    """
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink(PROC / 'self/ns/pid')}\n"


def processes() -> Iterator[Process]:
    """Every living process that this user may look at; zombies are not living."""
    for entry in os.listdir(PROC):
        if entry.isdigit() and (found := process(int(entry))):
            yield found


def process(pid: int) -> Process | None:
    """The living process of this id, None where there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command name before it may hold blanks and brackets
    if fields[0] in _ZOMBIE_STATES:
        return None
    return Process(pid, parent=int(fields[1]), session=int(fields[3]), started_ticks=int(fields[19]))


def owner_of(root: Path) -> int | None:
    """The user whose apps are this root's: who owns its `.millrace`, or where that is gone the root itself."""
    for folder in (root / ".millrace", root):
        with contextlib.suppress(FileNotFoundError):
            return folder.stat().st_uid
    return None


def name_of(pid: int, root: Path) -> AppName | None:
    """Which app of this root the process belongs to; None where it belongs to none.

    Variables and arguments are what anybody may give a process of his own: only those of the root's owner count.
    """
    environment = _zero_separated(pid, "environ")
    if f"{ROOT_VARIABLE}={root}" not in environment:
        return None
    prefix = f"{APP_VARIABLE}="
    name = next((AppName.parse(entry[len(prefix) :]) for entry in environment if entry.startswith(prefix)), None)
    return name if name and _runs_as(pid, owner_of(root)) else None


def _runs_as(pid: int, user: int | None) -> bool:
    """Whether a process is this user's, and was when it was given its variables and arguments.

    A set-user-id program keeps its caller's real id, or takes its owner's as `sudo` does before it asks for the
    password; the two ids that the kernel noted at its start differ either way.
    """
    try:
        status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        auxiliary = (PROC / str(pid) / "auxv").read_bytes()
    except OSError:  # ended meanwhile
        return False
    real, effective = next(line.split()[1:3] for line in status.splitlines() if line.startswith("Uid:"))
    at_start = dict(struct.iter_unpack("@LL", auxiliary))
    same_at_start = _AT_UID in at_start and at_start[_AT_UID] == at_start.get(_AT_EUID)
    return int(real) == int(effective) == user and same_at_start


def apps_of(root: Path, wanted: Callable[[AppName], bool] = lambda name: True) -> list[AppProcesses]:
    """Every app of this root that has a living process, by name."""
    found: dict[AppName, AppProcesses] = {}
    for one in processes():
        name = name_of(one.pid, root)
        if name is None or not wanted(name):
            continue
        app = found.setdefault(name, AppProcesses(name))
        app.all.append(one)
        _put_in_role(app, one)
    return [found[name] for name in sorted(found)]


class SharedScan:
    """One scan of /proc for everybody of this process who looks at about the same time.

    Safe between threads: who comes while a scan is taken waits for it.

    Args:
        root: whose apps are looked for.
        tick_seconds: how old a scan may be.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, root: Path, tick_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._tick_seconds = tick_seconds
        self._clock = clock
        self._scanning = threading.Lock()
        self._remembering = threading.Lock()
        self._known: tuple[float, list[AppProcesses]] | None = None
        self._changes = 0  # that this process made itself
        self.taken = 0

    def apps(self, *, fresh: bool = False) -> list[AppProcesses]:
        """Return every app that has a living process, by name.

        Args:
            fresh: take a scan that begins now. Whoever concludes something from an absence needs that.
        """
        asked_at = self._clock()
        with self._scanning:
            with self._remembering:
                oldest = asked_at if fresh else asked_at - self._tick_seconds
                if self._known is not None and self._known[0] >= oldest:
                    return self._known[1]
                began, changes = self._clock(), self._changes
            found = apps_of(self._root)
            with self._remembering:
                self.taken += 1
                self._known = (began, found) if changes == self._changes else None
            return found

    def forget(self) -> None:
        """Have the next look take a scan of its own, because this process started or ended an app."""
        with self._remembering:
            self._changes += 1
            self._known = None


def _put_in_role(app: AppProcesses, one: Process) -> None:
    arguments = _zero_separated(one.pid, "cmdline")
    if not _names(arguments, app.name):
        return
    before_command = arguments[: arguments.index("--")] if "--" in arguments else []
    if _names(before_command, app.name):
        app.guard = _older(app.guard, one)
    else:  # a forked child of the driver has the same command line: the driver is the oldest
        app.driver = _older(app.driver, one)


def _older(known: Process | None, other: Process) -> Process:
    if known is None or (other.started_ticks, other.pid) < (known.started_ticks, known.pid):
        return other
    return known


def _names(arguments: list[str], name: AppName) -> bool:
    wanted = name.arguments()
    pairs = set(itertools.pairwise(arguments))
    return all(pair in pairs for pair in zip(wanted[::2], wanted[1::2], strict=True))


def _zero_separated(pid: int, file: str) -> list[str]:
    try:
        content = (PROC / str(pid) / file).read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return []
    return content.decode("utf-8", "surrogateescape").split("\0")


def descendants(pid: int) -> list[Process]:
    """Every living process below this one."""
    children: dict[int, list[Process]] = {}
    for one in processes():
        children.setdefault(one.parent, []).append(one)
    below: list[Process] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            below.append(child)
            waiting.append(child.pid)
    return below


def send(target: Process, number: int) -> bool:
    """Signal exactly this process; False where it has ended, also if its id was given to another."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        now = process(target.pid)
        if now is None or now.started_ticks != target.started_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def end_all(select: Callable[[], Iterable[Process]], *, within: float = 15.0, reap: bool = False) -> bool:
    """Kill everything `select` names until it names nothing.

    Each round first freezes what is there, so that what forks faster than it can be listed stands still, then kills.

    Args:
        select: lists the processes that have to go; called again each round.
        within: seconds after which it gives up.
        reap: whether the caller is their parent and has to collect them.

    Returns:
        Whether none is left.
    """
    deadline = time.monotonic() + within
    while True:
        frozen: set[Process] = set()
        while fresh := [one for one in select() if one not in frozen]:
            for one in fresh:
                send(one, signal.SIGSTOP)
            frozen.update(fresh)
            if time.monotonic() > deadline:
                break
        for one in frozen:
            send(one, signal.SIGKILL)
        if reap:
            _reap_ended()
        if not frozen:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _reap_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _boot_seconds() -> float:
    with (PROC / "stat").open(encoding="ascii") as lines:
        return next(float(line.split()[1]) for line in lines if line.startswith("btime "))
