"""Who used the processors and the memory: by part of the stack, from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
OTHERS = "other programs"

_MEASURING = "-m bench."  # the benchmark's own programs

# The first mark found in a process's command line names its part; the order matters.
_MARKS = (
    ("kafka.Kafka ", "Kafka broker"),
    ("s3proxy", "object store"),
    ("org.gaul", "object store"),
    ("SparkSubmit", "stream: JVM"),  # its command line names the workers' program too
    ("worker_daemon", "stream: Python workers"),
    ("runners.guard", "stream: guard"),
    ("stream.py", "stream: driver's Python"),
    ("airflow api", "Airflow api-server"),
    ("airflow api_server", "Airflow api-server"),
    ("gunicorn", "Airflow api-server"),
    ("airflow scheduler", "Airflow scheduler and its executor"),
    ("airflow executor", "Airflow scheduler and its executor"),
    ("airflow worker", "Airflow scheduler and its executor"),
    ("airflow triggerer", "Airflow triggerer"),
    ("airflow dag-processor", "Airflow dag-processor"),
    ("airflow", "Airflow, the rest"),
    ("postgres", "PostgreSQL"),
    ("supervisord", "supervisor"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since boot of one stack's parts and of the whole machine, at one moment."""

    at: float
    parts: Mapping[str, float]
    machine: float

    def since(self, earlier: Usage) -> Usage:
        """What was used from an earlier moment on; `at` becomes a duration."""
        parts = {name: used - earlier.parts.get(name, 0.0) for name, used in self.parts.items()}
        return Usage(self.at - earlier.at, {k: v for k, v in parts.items() if v > 0}, self.machine - earlier.machine)

    @property
    def others(self) -> float:
        """CPU seconds of what is no part of the stack."""
        return max(0.0, self.machine - sum(self.parts.values()))


def usage(root: Path) -> Usage:
    """What each part of this root's stack has used. Processes that ended count with the one that waited for them."""
    parts: Counter[str] = Counter()
    for part, process in processes_of(root):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        parts[part] += times.user + times.system + times.children_user + times.children_system
    return Usage(time.monotonic(), dict(parts), _machine())


def processes_of(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Each process that carries the root in its command line, folder or environment, and its part."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            command = " ".join(process.cmdline())
            if _MEASURING in command:
                continue
            if str(root) in command or str(root) in _environment(process.pid) or str(root) in process.cwd():
                yield _part(process, command), process
        except (psutil.Error, OSError):
            continue


def _part(process: psutil.Process, command: str) -> str:
    if process.name() == "postgres":
        return "PostgreSQL"
    return next((part for mark, part in _MARKS if mark in command), "the rest")


def _environment(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")


def _machine() -> float:
    """Busy seconds of all processors: user, nice, system, irq, softirq, steal."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / TICKS_PER_SECOND


def pss_bytes(pid: int) -> int:
    """The memory of a process, shared pages divided by who shares them; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


@dataclass
class MemorySampler:
    """Sums the PSS of a whole stack once a second while it is entered; keeps the peak and its parts."""

    root: Path
    peak: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def peak_bytes(self) -> int:
        """The largest sum."""
        return sum(self.peak.values())

    def __enter__(self) -> MemorySampler:
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            now: Counter[str] = Counter()
            for part, process in processes_of(self.root):
                now[part] += pss_bytes(process.pid)
            self.samples += 1
            if sum(now.values()) > self.peak_bytes:
                self.peak = dict(now)
