"""The embedded stack as a whole: start it, stop it, say how it is."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from millrace.adapters.apps.processes import APP_VARIABLE, apps_of
from millrace.embedded import environment, ports
from millrace.embedded.credentials import Credentials
from millrace.embedded.jars import parts
from millrace.embedded.jars.java import find_java
from millrace.embedded.layout import Layout, write_private
from millrace.embedded.locking import only_one
from millrace.embedded.processes import Identity, end, end_left_of_part, left_of_part, of_another_layout, stream_apps
from millrace.embedded.progress import Progress
from millrace.embedded.servers.airflow import Airflow
from millrace.embedded.servers.kafka import Kafka
from millrace.embedded.servers.part import NotReadyError, Part, Site
from millrace.embedded.servers.postgres import Postgres
from millrace.embedded.servers.s3 import S3
from millrace.embedded.servers.watchdog import WatchdogPart, pager_connections
from millrace.embedded.supervisor import ProgramState, Supervisor
from millrace.errors import Code, MillraceError, PartFailedError, RefusedError
from millrace.settings import Settings, open_settings, read_environment_file

PARTS: dict[str, Part] = {part.name: part for part in (Kafka(), S3(), Postgres(), Airflow(), WatchdogPart())}
EVERYTHING = frozenset(PARTS)
ON_JAVA = frozenset({"kafka", "s3", "airflow"})
NEEDS = {"airflow": frozenset({"postgres"}), "watchdog": frozenset({"postgres"})}
_FIRST_TO_STOP = (*PARTS["airflow"].program_names, *PARTS["watchdog"].program_names)
STREAM_GRACE = timedelta(seconds=20)
PART_GRACE = timedelta(seconds=20)
LOG_LINES = 20
_MOST_NAMED = 10


@contextmanager
def _private_files() -> Iterator[None]:
    """Let what is made meanwhile be its owner's alone.

    The umask is the whole process's: two starts at once in one process, without a lock, may each restore the other's.
    """
    former = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(former)


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How one part is: `healthy` by a real call, with what the call said."""

    name: str
    healthy: bool
    detail: str
    ports: dict[str, int]
    programs: list[ProgramState] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StackReport:
    """What a start did: seconds downloading and seconds of its own work apart."""

    parts: list[PartStatus]
    download_seconds: float
    own_seconds: float
    control_revision: str = ""


class Stack:
    """The stack of one project.

    Args:
        root: the project's folder; dags, plugins and pipelines are read there, and all state lives in its `.millrace`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.layout = Layout(self.root)
        self.supervisor = Supervisor(self.layout)
        self._given_up = threading.Event()

    def settings(self) -> Settings:
        """The settings a command would have in this project."""
        return open_settings(self.root)

    def start(self, progress: Progress, only: Collection[str] = EVERYTHING) -> StackReport:
        """Start these parts and what they need, and wait until each answers a real call.

        Repeatable at any time: parts that run and answer are left alone, what a killed stack left is ended first.

        Raises:
            PartFailedError: a part did not come up; the end of its log is in the message.
            UnreachableError: the jars could not be downloaded.
        """
        wanted = frozenset(only).union(*(NEEDS.get(name, frozenset()) for name in only))
        self.layout.make()
        with progress, only_one(self.layout.state / "stack.lock", "millrace up", progress), _private_files():
            return self._start(wanted, progress)

    def stop(self, progress: Progress, *, wipe: bool = False) -> int:
        """Stop everything this project runs, the streaming apps included; returns how many apps there were.

        Args:
            progress: shows what is waited for.
            wipe: also remove all data, passwords and logs.
        """
        if not self.layout.state.is_dir():
            return 0
        with progress, only_one(self.layout.state / "stack.lock", "millrace down", progress):
            apps = self._stop(progress)
            if wipe:
                with progress.waiting("wipe", "removing all data"):
                    self._wipe()
            return apps

    def status(self, wanted: Collection[str] = EVERYTHING) -> list[PartStatus]:
        """These parts, each asked by a real call now."""
        site = Site(self.layout, ports.read(self.layout), Credentials.of(self.layout)) if self._was_started() else None
        states = self.supervisor.states()
        with ThreadPoolExecutor(len(PARTS)) as pool:
            chosen = [part for name, part in PARTS.items() if name in wanted]
            return list(pool.map(lambda part: self._status_of(part, site, states), chosen))

    def upgrade_control(self) -> str:
        """Bring the control database to this version's tables; returns its revision."""
        from millrace.wiring.control import upgrade_control

        return str(upgrade_control(self.settings()).after)

    def _start(self, wanted: frozenset[str], progress: Progress) -> StackReport:
        started = time.monotonic()
        self._refuse_apps_of_another_layout()
        self._make_way(progress)
        credentials = Credentials.of(self.layout)
        running = [name for name, state in self.supervisor.states().items() if state.pid]
        in_use = [port for part in PARTS.values() if set(part.program_names) & set(running) for port in part.port_names]
        site = Site(self.layout, ports.choose(self.layout, in_use=in_use), credentials)
        if not self.supervisor.is_running():
            places = {name: place for place, part in enumerate(PARTS.values()) for name in part.program_names}
            self.supervisor.start(places)
        if wanted & ON_JAVA:
            site.java = find_java(self.layout.state / "java")
        java_home = site.java.home if site.java else _former_java(self.layout)
        pagers = pager_connections(self.root, os.environ, read_environment_file(self.layout.environment_file))
        connections = environment.connections_file(pagers | environment.connections(site), java_home)
        write_private(self.layout.environment_file, connections)
        with ThreadPoolExecutor(2) as pool, self._giving_up_together():
            databases = pool.submit(self._start_databases, site, wanted, progress)
            servers = pool.submit(self._start_servers, site, wanted, progress)
            both: list[Future[Any]] = [databases, servers]
            for future in wait(both, return_when=FIRST_EXCEPTION).done:
                future.result()  # what failed first is what is told
            download_seconds, revision = servers.result(), databases.result()
        if "airflow" in wanted:
            self._bring_up(PARTS["airflow"], site, progress)
        statuses = self.status(wanted)
        own = time.monotonic() - started - download_seconds
        return StackReport(statuses, download_seconds, own, revision)

    @contextmanager
    def _giving_up_together(self) -> Iterator[None]:
        """When one of several waits fails, or the person interrupts, the others end at once too."""
        self._given_up.clear()
        try:
            yield
        except BaseException:
            self._given_up.set()
            raise

    def _start_databases(self, site: Site, wanted: frozenset[str], progress: Progress) -> str:
        """PostgreSQL, then what lives in it: these need no Java, so they go on while jars are downloaded."""
        if "postgres" not in wanted:
            return ""
        self._bring_up(PARTS["postgres"], site, progress)
        with progress.waiting("control", "control database: migrating its tables to this version"):
            revision = self.upgrade_control()
        if "watchdog" in wanted:
            self._bring_up(PARTS["watchdog"], site, progress)
        if "airflow" in wanted:
            with progress.waiting("airflow", "airflow: preparing"):
                PARTS["airflow"].prepare(site, lambda line: progress.tell("airflow", line))
        return revision

    def _start_servers(self, site: Site, wanted: frozenset[str], progress: Progress) -> float:
        """The servers that run on Java; returns the seconds spent downloading their jars."""
        jar_sets = [
            name
            for name, part in (("kafka", "kafka"), ("s3proxy", "s3"), ("spark-connector", "kafka"))
            if part in wanted
        ]
        if site.java is None or not jar_sets:
            return 0.0
        with progress.waiting("jars", "jars: checking"):
            fetched = parts.fetch(jar_sets, site.java, lambda line: progress.tell("jars", line))
        site.jars = fetched.jars
        if "spark-connector" in fetched.jars:
            parts.write_spark_jars(self.layout, fetched.jars["spark-connector"])
        names = [name for name in ("kafka", "s3") if name in wanted]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: self._bring_up(PARTS[name], site, progress), names))
        return fetched.download_seconds

    def _bring_up(self, part: Part, site: Site, progress: Progress) -> None:
        """Start one part's programs where they do not run, wait for its real call, complete it."""
        began = time.monotonic()
        with progress.waiting(part.name, f"{part.name}: preparing"):
            states = self.supervisor.states()
            absent = [name for name in part.program_names if not states[name].pid]
            if absent:
                if part.name != "airflow":  # prepared with the databases, before anything of it starts
                    part.prepare(site, lambda line: progress.tell(part.name, line))
                for program in part.programs(site):
                    program.write(self.layout)
                for name in absent:
                    self.supervisor.start_program(name)
            self._wait_ready(part, site, lambda line: progress.tell(part.name, line))
            part.complete(site, lambda line: progress.tell(part.name, line))
        verb = "ready" if absent else "already running"
        progress.say(f"{part.name}: {verb}{_addresses(part, site)} ({time.monotonic() - began:.1f} s)")

    def _wait_ready(self, part: Part, site: Site, tell: Callable[[str], None]) -> None:
        deadline = time.monotonic() + part.patience.total_seconds()
        met = ""
        while True:
            states = self.supervisor.states()
            dead = [name for name in part.program_names if name in states and states[name].state == "FATAL"]
            try:
                if not dead:
                    part.probe(site)
                    return
            except NotReadyError as error:
                met = str(error).splitlines()[0][:110]
            if self._given_up.is_set():
                raise PartFailedError(f"{part.name}: the wait was canceled", where=part.name)
            if dead or time.monotonic() > deadline:
                raise self._did_not_come_up(part, dead or list(part.program_names), met)
            restarts = [name for name in part.program_names if name in states and states[name].state == "BACKOFF"]
            tell(f"{part.name}: waiting for it to answer ({met})" + (f", restarting {restarts}" if restarts else ""))
            time.sleep(0.2)

    def _did_not_come_up(self, part: Part, programs: Sequence[str], met: str) -> PartFailedError:
        logs = [self.layout.log_file(name) for name in programs]
        tails = "\n".join(f"--- last lines of {log}\n{_tail(log)}" for log in logs)
        waited = f"within {part.patience.total_seconds():.0f} s" if met else "at all"
        return PartFailedError(
            f"{part.name} did not become ready {waited}: {met or 'its program ends repeatedly'}\n{tails}",
            where=", ".join(str(log) for log in logs),
            next_step="correct the fault in the log and run `./millrace up` again; other parts keep running",
        )

    def _refuse_apps_of_another_layout(self) -> None:
        """Refuse to run beside apps whose modules lie elsewhere now: their next import would fail in the middle.

        Raises:
            RefusedError: there are such apps.
        """
        marked = [Identity.of(one.pid) for app in apps_of(self.root) for one in app.all]
        if others := of_another_layout([one for one in marked if one], APP_VARIABLE):
            raise RefusedError(
                f"{len(others)} processes of stream apps run code whose folders have moved",
                where="processes " + ", ".join(str(process.pid) for process in others[:_MOST_NAMED]),
                next_step="run `./millrace down`, then `./millrace up`: each stream resumes from its record of work",
                code=Code.OTHER_LAYOUT,
            )

    def _make_way(self, progress: Progress) -> None:
        """End what a killed stack has left, and stop a running one whose port somebody else has taken meanwhile."""
        if self.supervisor.is_running():
            if not (why := self._why_all_anew(self.supervisor.states())):
                return
            progress.say(why)
            with progress.waiting("restart", "stopping the stack"):
                self._stop_supervised([])  # what is left is ended next
        self._end_leftovers(progress)

    def _why_all_anew(self, states: dict[str, ProgramState]) -> str:
        """Return why a stack that runs cannot be completed; empty where it can."""
        if not {name for part in PARTS.values() for name in part.program_names} <= states.keys():
            return "another version started the supervisor: restarting the whole stack"
        if self.supervisor.is_of_another_layout():
            return "the stack runs code whose folders have moved: restarting the whole stack"
        down = [part for part in PARTS.values() if not any(states[name].pid for name in part.program_names)]
        lost = ports.taken(self.layout, [name for part in down for name in part.port_names])
        return f"another program listens on {lost}: restarting the whole stack on other ports" if lost else ""

    def _end_leftovers(self, progress: Progress) -> None:
        for part in reversed(PARTS.values()):
            for name in part.program_names:
                working_in = self.layout.state / "postgres" / "data" if name == "postgres" else None
                if left_of_part(self.layout, name, working_in=working_in):
                    with progress.waiting("leftovers", f"ending orphaned processes of a former {name}"):
                        end_left_of_part(self.layout, name, grace=PART_GRACE, working_in=working_in)

    def _stop(self, progress: Progress) -> int:
        """Airflow first, so that nothing starts an app again; then the apps; then the servers they write to.

        The watchdog goes with Airflow: a database that is stopped as wanted pages nobody.

        Raises:
            PartFailedError: something could not be stopped; everything else was.
        """
        failed: list[PartFailedError] = []
        if self.supervisor.is_running():
            with progress.waiting("airflow", "stopping Airflow"):
                self._stop_programs(_FIRST_TO_STOP, failed)
        for name in _FIRST_TO_STOP:
            end_left_of_part(self.layout, name, grace=PART_GRACE)
        with progress.waiting("streams", "stopping the streaming apps"):
            apps = self._stop_stream_apps()
        with progress.waiting("servers", "stopping Kafka, S3 and PostgreSQL"):
            self._stop_supervised(failed)
            self._end_leftovers(progress)
        if failed:
            raise failed[0]
        return apps

    def _stop_supervised(self, failed: list[PartFailedError]) -> None:
        if self.supervisor.is_running():
            self._stop_programs([name for part in reversed(PARTS.values()) for name in part.program_names], failed)
        self.supervisor.shut_down()

    def _stop_programs(self, names: Collection[str], failed: list[PartFailedError]) -> None:
        """Stop these programs; what does not stop must not keep the rest from being stopped."""
        known = self.supervisor.states() or names  # a supervisor of another version does not know all of them
        try:
            self.supervisor.stop_programs([name for name in names if name in known])
        except PartFailedError as error:
            failed.append(error)

    def _stop_stream_apps(self) -> int:
        """Let the apps finish their batch; what is left after that, wherever it came from, is ended by its marks."""
        from millrace.adapters.apps.runners.process import ProcessRunner

        apps = len(stream_apps(self.root))
        ProcessRunner(self.settings()).stop_all(STREAM_GRACE)
        end(stream_apps(self.root), grace=STREAM_GRACE)
        return apps

    def _status_of(self, part: Part, site: Site | None, states: dict[str, ProgramState]) -> PartStatus:
        programs = [states[name] for name in part.program_names if name in states]
        if site is None or not all(name in site.ports for name in part.port_names):
            return PartStatus(part.name, False, "never started", {}, programs)
        numbers = {name: site.ports[name] for name in part.port_names}
        idle = [state for state in programs if not state.pid]
        if idle or not programs:
            detail = "; ".join(f"{state.name} {state.state.lower()}" for state in idle) or "the supervisor does not run"
            return PartStatus(part.name, False, detail, numbers, programs)
        try:
            return PartStatus(part.name, True, part.probe(site), numbers, programs)
        except (NotReadyError, OSError, MillraceError) as error:
            return PartStatus(part.name, False, str(error).splitlines()[0], numbers, programs)

    def _was_started(self) -> bool:
        return self.layout.credentials_file.exists() and self.layout.ports_file.exists()

    def _wipe(self) -> None:
        """Remove all state; the locks stay, for another launcher may be waiting on them."""
        for entry in self.layout.state.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.suffix != ".lock":
                entry.unlink()


def _former_java(layout: Layout) -> Path | None:
    known = read_environment_file(layout.environment_file).get(environment.JAVA_VARIABLE)
    return Path(known) if known else None


def _addresses(part: Part, site: Site) -> str:
    return "".join(f" on 127.0.0.1:{site.ports[name]}" for name in part.port_names[:1])


def _tail(log: Path) -> str:
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
