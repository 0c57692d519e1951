"""The supervisor that keeps the parts running: one supervisord a project, on a socket only its owner can use."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from millrace import LAYOUT, LAYOUT_VARIABLE, ROOT_VARIABLE
from millrace.embedded.layout import Layout, write_private
from millrace.embedded.processes import Identity, PartRecord, end_left_of_part, of_another_layout
from millrace.errors import Code, PartFailedError

RECORD = "supervisord"
STOP_SECONDS = 90.0
"""Three times what any program is given to end by itself before it is killed."""

ANSWER_SECONDS = 30.0
"""How long the supervisor may take over a request, each of which it answers at once."""

UNANSWERED = (OSError, xmlrpc.client.Error, http.client.HTTPException)
"""What comes of a supervisor that is not there, or dies while it is asked."""

LONGEST_SOCKET_PATH = 90
"""A socket's path may have 107 bytes; supervisord first binds one with its process id appended."""


@dataclass(frozen=True, slots=True)
class ProgramState:
    """What the supervisor says of one program. `state` is its own word: RUNNING, STARTING, BACKOFF, FATAL, ..."""

    name: str
    state: str
    pid: int
    uptime_seconds: float
    message: str


class Supervisor:
    """The supervisord of one project."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def is_running(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self._remote().supervisor.getState()["statename"] == "RUNNING")
        except UNANSWERED:
            return False

    def is_of_another_layout(self) -> bool:
        """Tell whether the supervisor that runs was started by code of another layout."""
        record = PartRecord.read(self._layout, RECORD)
        return record is not None and bool(of_another_layout([record.leader], ROOT_VARIABLE))

    def start(self, programs: Mapping[str, int]) -> None:
        """Start it with these programs, none of them started yet; what a killed one has left must be gone.

        Args:
            programs: program name to its place in the order of stopping: higher ones stop first.

        Raises:
            PartFailedError: it does not answer within 20 seconds.
        """
        end_left_of_part(self._layout, RECORD, grace=timedelta(seconds=5))
        socket = self._socket()
        socket.unlink(missing_ok=True)
        if socket.parent != self._layout.run:
            socket.parent.mkdir(mode=0o700, exist_ok=True)
            self._must_be_ours(socket.parent)
        configuration = self._layout.run / "supervisord.conf"
        write_private(configuration, self._configuration(programs))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        if "PYTHONPATH" in os.environ:  # only in a checkout whose environment was not made by the launcher
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        complaints = self._layout.log_file(f"{RECORD}-start")
        with complaints.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.supervisord", "-n", "-s", "-c", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._layout.root,
                env=environment | {ROOT_VARIABLE: str(self._layout.root), LAYOUT_VARIABLE: str(LAYOUT)},
                start_new_session=True,
            )
        identity = Identity.of(process.pid)
        if identity:
            PartRecord(RECORD, identity, int(signal.SIGTERM)).write(self._layout)
        deadline = time.monotonic() + 20
        while not self.is_running():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = complaints.read_text(errors="replace")[-1500:]
                raise PartFailedError(
                    f"the supervisor did not start\n{tail}",
                    where=str(complaints),
                    next_step=f"correct the fault above; its log is {self._layout.log_file(RECORD)}",
                )
            time.sleep(0.05)

    def states(self) -> dict[str, ProgramState]:
        """Every program's state; empty when the supervisor does not answer."""
        try:
            rows: Any = self._remote().supervisor.getAllProcessInfo()
        except UNANSWERED:
            return {}
        return {
            row["name"]: ProgramState(
                name=row["name"],
                state=row["statename"],
                pid=row["pid"],
                uptime_seconds=float(row["now"] - row["start"]) if row["pid"] else 0.0,
                message=row["spawnerr"] or row["description"],
            )
            for row in rows
        }

    def start_program(self, name: str) -> None:
        """Start one program; nothing when it runs already.

        Raises:
            PartFailedError: it cannot be started, or the supervisor does not answer.
        """
        try:
            self._remote().supervisor.startProcess(name, False)
        except xmlrpc.client.Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise PartFailedError(
                    f"the program could not be started: {fault.faultString}",
                    where=name,
                    next_step=f"read {self._layout.log_file(name)}",
                ) from fault
        except UNANSWERED as error:
            raise self._does_not_answer(name, error) from error

    def stop_programs(self, names: Collection[str], *, within: timedelta | None = None) -> None:
        """Ask these programs to end, all at once, and wait for it; one that does not is killed by the supervisor.

        Raises:
            PartFailedError: one is still there after `within`, else after `STOP_SECONDS`: it hangs in the kernel; or
                the supervisor hangs.
        """
        remote = self._remote()
        seconds = STOP_SECONDS if within is None else within.total_seconds()
        for name in names:
            try:
                remote.supervisor.stopProcess(name, False)
            except UNANSWERED as error:
                if not (isinstance(error, xmlrpc.client.Fault) and "NOT_RUNNING" in error.faultString):
                    raise self._does_not_answer(name, error) from error
        deadline = time.monotonic() + seconds
        while left := [state for name, state in self.states().items() if name in names and state.pid]:
            if time.monotonic() > deadline:
                raise PartFailedError(
                    f"a killed program did not end within {seconds:.0f} s",
                    where=", ".join(f"{state.name} (process {state.pid})" for state in left),
                    next_step="check it with `ps`; a process in state D waits for a disk or a network file system",
                )
            time.sleep(0.1)

    def shut_down(self) -> None:
        """End it and what it still runs; returns when it is gone."""
        record = PartRecord.read(self._layout, RECORD)
        with contextlib.suppress(*UNANSWERED):
            self._remote().supervisor.shutdown()
        deadline = time.monotonic() + 60
        while record and record.leader.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        end_left_of_part(self._layout, RECORD, grace=timedelta(seconds=5))
        socket = self._socket()
        socket.unlink(missing_ok=True)
        if socket.parent != self._layout.run:
            with contextlib.suppress(OSError):  # never made, or somebody else's
                socket.parent.rmdir()

    def _does_not_answer(self, name: str, error: Exception) -> PartFailedError:
        return PartFailedError(
            f"the supervisor does not answer: {error}",
            where=f"{name}, {self._layout.log_file(RECORD)}",
            next_step="run the same command again: it ends the remaining programs by their process group",
        )

    def _remote(self) -> Any:
        from supervisor.xmlrpc import SupervisorTransport, UnixStreamHTTPConnection

        socket = self._socket()

        def connection() -> Any:
            made = UnixStreamHTTPConnection("localhost")
            made.socketfile = str(socket)
            made.connect()
            made.sock.settimeout(ANSWER_SECONDS)
            return made

        transport = SupervisorTransport(None, None, f"unix://{socket}")
        transport._get_connection = connection  # its own waits for ever on a supervisor that has stopped answering
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport)

    def _socket(self) -> Path:
        usual = self._layout.run / "supervisor.sock"
        if len(os.fsencode(usual)) <= LONGEST_SOCKET_PATH:
            return usual
        digest = hashlib.sha256(os.fsencode(self._layout.root)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"millrace-{os.geteuid()}-{digest}"
        self._must_be_ours(folder)
        return folder / "supervisor.sock"

    def _must_be_ours(self, folder: Path) -> None:
        """Refuse a folder below the temporary one that another user has made, so that nobody else is talked to."""
        if not os.path.lexists(folder):
            return
        about = folder.lstat()
        if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o077:
            raise PartFailedError(
                "another user owns the folder for the supervisor's socket",
                where=str(folder),
                next_step="remove the folder, or move the project to a shorter path",
                code=Code.OTHER_USER,
            )

    def _configuration(self, programs: Mapping[str, int]) -> str:
        """Its configuration. Paths are relative to the root: it expands `%` in some of them twice."""
        run, logs = (folder.relative_to(self._layout.root) for folder in (self._layout.run, self._layout.logs))
        sections = [
            f"[unix_http_server]\nfile={_escaped(self._socket())}\nchmod=0600\n",
            f"[supervisord]\nlogfile={logs / RECORD}.log\nlogfile_maxbytes=5MB\nlogfile_backups=1\n"
            f"pidfile={run / RECORD}.pid\numask=077\nminfds=1024\n",
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n",
        ]
        return "\n".join([*sections, *(_program(name, place, logs) for name, place in programs.items())])


def _program(name: str, place: int, logs: Path) -> str:
    command = shlex.join([sys.executable, "-m", "millrace.embedded.component", name])
    whole_group = "false" if name == "postgres" else "true"
    patience = 10 if name.startswith("airflow") else 30  # seconds; Airflow's part is safe to kill, deferral outlives it
    return (
        f"[program:{name}]\ncommand={_escaped(command)}\nautostart=false\nautorestart=true\nstartsecs=2\n"
        f"startretries=5\npriority={place}\nstopsignal={'INT' if name == 'postgres' else 'TERM'}\n"
        f"stopwaitsecs={patience}\nstopasgroup={whole_group}\nkillasgroup=true\nredirect_stderr=true\n"
        f"stdout_logfile={logs / name}.log\nstdout_logfile_maxbytes=20MB\nstdout_logfile_backups=2\n"
    )


def _escaped(value: object) -> str:
    """Text as supervisord's configuration takes it: it expands `%`."""
    return str(value).replace("%", "%%")
