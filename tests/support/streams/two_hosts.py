"""Two hosts of one control database on one machine: two roots, each with a supervisor of its own.

The oracle reads /proc itself and knows nothing of Millrace but the two variables that an app's processes carry.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from millrace.domain.streams.supervision import StreamState
from millrace.settings import open_settings, variable_name
from millrace.usecases.streams import supervise as streams
from millrace.usecases.streams.adoption import adopt
from millrace.usecases.streams.look import Supervised
from millrace.wiring import open_platform
from support.declarations import example_project
from support.stack.control_databases import ControlDatabase
from support.waiting import Deadline, eventually, exit_code_of, joined

STREAM = "shop.purchases"
SUPERVISED_EVERY_SECONDS = 0.4
SAMPLED_EVERY_SECONDS = 0.2
_SUPPORT = Path(__file__).parent


@dataclass(frozen=True, order=True)
class Living:
    """One process of an app."""

    root: str
    epoch: int
    pid: int


def living(*roots: Path) -> list[Living]:
    """Return the processes of the stream's apps under these roots; those that are zombies do not live."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().decode(errors="replace").split("\0")
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        named = dict(text.partition("=")[::2] for text in variables)
        app = named.get("MILLRACE_APP", "").split("#")
        if state not in "ZX" and app[0] == STREAM and named.get("MILLRACE_ROOT") in map(str, roots):
            found.append(Living(named["MILLRACE_ROOT"], int(app[1]), int(entry)))
    return sorted(found)


class Sampler:
    """Looks five times a second for two apps that live at once, and remembers how long the longest pair did."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self.samples = 0
        self.seen: set[tuple[str, int]] = set()
        self.longest_overlap_seconds = 0.0

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        joined(self._thread, what="the sampler")

    def _sample(self) -> None:
        since: float | None = None
        while not self._ending.wait(SAMPLED_EVERY_SECONDS):
            apps = {(one.root, one.epoch) for one in living(*self._roots)}
            self.samples += 1
            self.seen |= apps
            if len(apps) < 2:
                since = None
                continue
            since = since or time.monotonic() - SAMPLED_EVERY_SECONDS
            self.longest_overlap_seconds = max(self.longest_overlap_seconds, time.monotonic() - since)


class HostProject:
    """One host: a root with the stand-in driver, and a supervisor that looks at the stream again and again."""

    def __init__(self, root: Path, database: ControlDatabase) -> None:
        self.root = example_project(root)
        code = (_SUPPORT / "stand_in_driver.py").read_text()
        (root / "spark_apps" / "stream.py").write_text(code)
        state = root / ".millrace"
        state.mkdir(mode=0o700)
        working = database.working
        control = {
            "conn_type": "postgres",
            "host": working.host,
            "port": working.port,
            "login": working.user,
            "password": working.password,
            "schema": working.database,
        }
        nowhere = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
        connections = {"control": control, "kafka": nowhere, "sink": control}
        lines = [f"{variable_name(f'millrace_{name}')}={json.dumps(text)}\n" for name, text in connections.items()]
        (state / "env").write_text("".join(lines))
        self.platform = open_platform(open_settings(root))
        self._supervisor: subprocess.Popen[bytes] | None = None

    def supervise(self) -> None:
        """Begin to supervise, as Airflow on this host would."""
        command = [sys.executable, str(_SUPPORT / "supervising_child.py"), str(self.root), STREAM]
        self._supervisor = subprocess.Popen([*command, str(SUPERVISED_EVERY_SECONDS)], stdin=subprocess.PIPE)

    def pause(self, number: signal.Signals) -> None:
        """Stop the supervisor where it is, or let it go on."""
        assert self._supervisor
        self._supervisor.send_signal(number)

    def close(self) -> None:
        """End supervisor and apps."""
        if self._supervisor is not None:
            self._supervisor.send_signal(signal.SIGCONT)
            assert self._supervisor.stdin
            self._supervisor.stdin.close()
            exit_code_of(self._supervisor, within=Deadline.COMMAND, what="the supervisor to end")
        for one in living(self.root):
            os.kill(one.pid, signal.SIGKILL)

    def start(self) -> None:
        streams.start(self.platform, STREAM, "me", "a round")

    def stop(self, *, at_once: bool) -> Supervised:
        """Stop it as a command on this host does, until it is said to be stopped."""
        streams.stop(self.platform, STREAM, "me", "a round", hard=at_once)
        report = streams.supervise_until(
            self.platform,
            STREAM,
            "me",
            done=lambda now: now.state is StreamState.STOPPED,
            tell=lambda now: None,
            pause=lambda: time.sleep(0.1),
            within=timedelta(seconds=Deadline.STREAM.seconds),
        )
        assert report.state is StreamState.STOPPED, report
        return report

    def adopt(self) -> None:
        adopt(self.platform, STREAM, "me", "a round")


def alive(*hosts: HostProject) -> list[Living]:
    """Wait until an app lives and has claimed its epoch; its processes."""

    def running() -> list[Living]:
        found = living(*(host.root for host in hosts))
        epochs = {one.epoch for one in found}
        streams_of = hosts[0].platform.control.streams
        return found if len(epochs) == 1 and streams_of.claimed(STREAM, *epochs) else []

    return eventually(running, within=Deadline.STREAM, what="one app to run")
