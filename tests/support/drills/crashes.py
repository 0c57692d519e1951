"""What crash drills do to a stream, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from millrace.adapters.apps.processes import Process, apps_of, process, send
from millrace.domain.streams.supervision import DesiredState
from millrace.embedded.processes import left_of_part
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError
from millrace.ports.runner import RunningApp, Submission
from millrace.usecases.streams import supervise as streams
from millrace.usecases.streams.look import Supervised
from support.checks.budget import Kind, spend
from support.drills.points import BEFORE_SINK, CLAIM, DRAIN, FORGOTTEN
from support.drills.record_check import group_ahead, rows_against_record
from support.streams.project import StreamProject, committed
from support.waiting import Deadline, DeadlinePassedError, eventually

ACTOR = "drill"
LOOK_EVERY = timedelta(milliseconds=300)


@dataclass(frozen=True)
class Hit:
    """One victim at one point, and how long until the stream was back.

    Attributes:
        running: seconds until the app ran that has the next batch on record; None for an app that outlived the kill.
        batch_after: seconds until that batch was on record.
    """

    point: str
    victim: str
    batch: int | None
    running: float | None
    batch_after: float
    result: str


@dataclass(frozen=True)
class Blow:
    """One kill that was dealt: where, to whom, in which batch, and what was wrong at that moment.

    Attributes:
        ends: the epoch that cannot go on after it; None where the app may outlive it.
    """

    point: str
    victim: str
    batch: int | None
    wrong: Sequence[str]
    ends: int | None = None
    at: float = field(default_factory=time.time)


@dataclass
class Order:
    """Where the driver shall wait for the drill: at this point, when it passes for the `passing`th time."""

    point: str
    passing: int = 1
    reconnect: bool = False
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def document(self) -> dict[str, object]:
        drill = process(os.getpid())
        assert drill
        return {
            "drill": {"pid": drill.pid, "started_ticks": drill.started_ticks},
            "point": self.point,
            "pass": self.passing,
            "reconnect": self.reconnect,
            "token": self.token,
        }


class Drill:
    """One stream under drill: supervised as the Airflow trigger does it, over and over."""

    def __init__(self, project: StreamProject) -> None:
        self.project = project
        self.platform = project.platform()
        self.hits: list[Hit] = []

    # Supervision

    def supervise(self) -> Supervised | None:
        """One look and step; None where the control database does not answer, as the trigger tries again then."""
        try:
            return streams.supervise(self.platform, self.project.stream, ACTOR)
        except MillraceError:
            self.platform = self.project.platform()
            return None

    def start(self) -> None:
        """Start as an operator does: past failures are forgotten."""
        streams.start(self.platform, self.project.stream, ACTOR, "a drill begins")

    def stop(self) -> None:
        """Stop as an operator does, and wait for the end."""
        streams.stop(self.platform, self.project.stream, ACTOR, "a drill ends")
        self.eventually(lambda: not self.apps(), what="the stream to stop")

    def apps(self) -> Sequence[RunningApp]:
        return self.platform.apps.runner().find(self.project.stream)

    def forget_failures(self) -> None:
        """Each hit begins without the backoff of the one before; its victim may have been the control database."""

        def forget() -> object:
            return self.platform.control.streams.set_desired(
                self.project.stream, actor=ACTOR, reason="next hit", state=DesiredState.RUNNING, reset_backoff=True
            )

        self.eventually(forget, what="the control database to take the wish", supervising=False)

    def eventually(
        self,
        condition: Callable[[], Any],
        *,
        what: str,
        within: Deadline = Deadline.STREAM,
        supervising: bool = True,
    ) -> Any:
        """Wait for a condition while supervising, with the end of the driver's log where it does not come."""

        def look() -> Any:
            if not (found := condition()) and supervising:
                self.supervise()
            return found

        try:
            return eventually(
                look,
                within=within,
                what=what,
                every=LOOK_EVERY,
                ignoring=(MillraceError, OSError, *_SERVER_ERRORS),
            )
        except DeadlinePassedError as error:
            error.add_note(self.last_words())
            raise

    def last_words(self) -> str:
        """The ends of the last drivers' logs."""
        folder = self.project.root / ".millrace" / "streams" / self.project.stream
        logs = sorted(folder.glob("*/driver.log"), key=lambda log: int(log.parent.name))[-2:]
        return "\n".join(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs)

    def running(self) -> RunningApp | None:
        """The one app, where there is exactly one and its query runs."""
        apps = self.apps()
        return apps[0] if len(apps) == 1 and apps[0].phase == "running" else None

    def exit_code(self, epoch: int) -> int | None:
        """How an epoch's app ended; None while it has not."""
        found = self.platform.apps.runner().status(self.project.stream, epoch)
        return found.exit_code if found else None

    # Orders for the driver's points

    def order(self, *orders: Order) -> None:
        """Replace what is ordered."""
        folder = self.project.root / "drill"
        draft = folder / "orders.new"
        draft.write_text(json.dumps([order.document() for order in orders]))
        draft.replace(folder / "orders.json")

    def reached(self, order: Order, *, supervising: bool = True) -> dict[str, Any]:
        """Wait until a driver is where it was ordered to be."""
        told = self.project.root / "drill" / f"reached-{order.token}.json"
        self.eventually(told.exists, what=f"the driver to be {order.point}", supervising=supervising)
        found: dict[str, Any] = json.loads(told.read_text())
        return found

    def go_on(self, order: Order, victim: str = "") -> None:
        """Let a held driver go on, or have it kill one of its processes."""
        go = self.project.root / "drill" / f"go-{order.token}"
        draft = go.with_suffix(".new")
        draft.write_text(victim)
        draft.replace(go)

    # Kills

    def hit(self, point: str, victim: str, *afterwards: Order, passing: int = 2) -> Blow:
        """Kill one victim at a point inside a batch; nobody supervises afterwards."""
        order = Order(point, passing)
        self.order(order)
        told = self.reached(order)
        wrong = self.group_ahead()  # at once: the next start commits again, from the record
        self.order(*afterwards)
        (app,) = self.apps()
        self._kill(victim, order)
        return Blow(point, victim, told["batch"], wrong, ends=None if victim in SERVERS else app.epoch)

    def hit_while_draining(self, victim: str) -> Blow:
        """Kill one victim when the driver was told to stop and a batch is in flight."""
        held = Order(BEFORE_SINK)
        self.order(held)
        self.reached(held)
        draining = Order(DRAIN)
        self.order(draining)
        streams.stop(self.platform, self.project.stream, ACTOR, "a drill: killed while it stops")
        told = self.reached(draining)
        self.order()
        wrong = self.group_ahead()
        self._kill(victim, draining)
        self.go_on(held)
        return Blow(DRAIN, victim, told["batch"], wrong)

    def hit_while_claiming(self, order: Order, victim: str) -> Blow:
        """Kill one victim when the driver has claimed its epoch and does not know it yet."""
        self.reached(order)
        self.order()
        self._kill(victim, order)
        return Blow(CLAIM, victim, None, [])

    def _kill(self, victim: str, held: Order) -> None:
        if server := SERVERS.get(victim):
            kill_part(self.project.stack, server)
            self.go_on(held)
        else:
            self.go_on(held, victim)

    def recovered(self, blows: Sequence[Blow]) -> None:
        """Wait until the stream goes on after these hits, and look at what it left."""
        before = self.eventually(lambda: (self.done(),), what="the sink to answer")[0]
        ended = max((blow.ends for blow in blows if blow.ends is not None), default=0)

        def goes_on() -> bool:
            app = self.running()
            return app is not None and app.epoch > ended and (self.done() > before or self.all_done())

        self.eventually(goes_on, what="the stream to go on")
        now = time.time()
        assert not self.forgotten(), "a driver was held at its point for too long: this drill shows nothing"
        since = self.running_since(self.running_alone().epoch)
        verdict = self.verdict()
        for blow in blows:
            result = "; ".join(blow.wrong) or verdict
            back = since - blow.at if since > blow.at else None
            self.hits.append(Hit(blow.point, blow.victim, blow.batch, back, now - blow.at, result))

    def forgotten(self) -> list[int]:
        """The epochs whose driver ended by itself at a point."""
        folder = self.project.root / ".millrace" / "streams" / self.project.stream
        epochs = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
        return [epoch for epoch in epochs if self.exit_code(epoch) == FORGOTTEN]

    def running_since(self, epoch: int) -> float:
        """When an epoch's query began, by the driver's own log, in seconds since 1970."""
        log = self.project.root / ".millrace" / "streams" / self.project.stream / str(epoch) / "driver.log"
        line = next(line for line in log.read_text(errors="replace").splitlines() if " event=running " in line)
        return datetime.fromisoformat(line.split()[0].removeprefix("timestamp=")).timestamp()

    # What must hold

    def done(self) -> int:
        """How many records are on record as done."""
        return sum(self.project.record_of_work().values())

    def all_done(self) -> bool:
        return self.project.record_of_work() == self.project.ends()

    def settled(self) -> bool:
        """Whether all is done and the group's commits, which follow the record of work, say so too."""
        if not self.all_done():
            return False
        group = committed(self.project)
        return all(group.get(partition, 0) == done for partition, done in self.project.record_of_work().items())

    def verdict(self) -> str:
        """`ok`, or what is wrong at this moment: group against record, rows and quarantine against record."""
        wrong = [*self.group_ahead(), *self.rows_against_record()]
        if len(self.apps()) != 1:
            wrong.append(f"{len(self.apps())} apps run")
        return "; ".join(wrong) or "ok"

    def group_ahead(self) -> list[str]:
        """Partitions whose group commit is ahead of the record of work: those records would be lost to a rewind."""
        return group_ahead(self.project)

    def rows_against_record(self) -> list[str]:
        """Partitions whose sources are not exactly those on record, each once; seen in one snapshot."""
        return rows_against_record(self.project)

    def must_be_complete(self) -> None:
        """Wait for the end; then every record of the topic is in sink or quarantine, once, and one app runs."""
        self.eventually(self.all_done, what="all records", within=Deadline.STREAM)
        self.running_alone()
        assert self.project.sink_sources() == self.project.topic_sources()
        assert not self.group_ahead()

    def running_alone(self) -> RunningApp:
        found: RunningApp = self.eventually(self.running, what="one running app")
        return found

    def close(self) -> None:
        """End every process of this drill and remove what it made."""
        self.order()
        for app in self.apps():
            for one in processes(self.project, app.epoch):
                send(one, signal.SIGCONT)
            self.platform.apps.runner().kill(app)


def _server_errors() -> tuple[type[Exception], ...]:
    import psycopg
    from confluent_kafka import KafkaException

    return (psycopg.Error, KafkaException)


_SERVER_ERRORS = _server_errors()
SUPERVISOR = "supervising process"
SERVERS = {"PostgreSQL": "postgres", "broker": "kafka", "object store": "s3"}


def kill_part(stack: Stack, part: str) -> None:
    """SIGKILL every process of a server; the stack's supervisor starts it again."""
    spend(Kind.SERVER_RESTARTS)
    data = stack.layout.state / "postgres" / "data"
    victims = left_of_part(stack.layout, part, working_in=data if part == "postgres" else None)
    assert victims, f"{part} does not run"
    for victim in victims:
        with suppress(ProcessLookupError):  # a server's worker ends with its leader
            if victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)
    eventually(
        lambda: not any(victim.is_alive() for victim in victims), within=Deadline.KILLED, what=f"{part} to be dead"
    )


def processes(project: StreamProject, epoch: int) -> list[Process]:
    """Every process of one epoch's app but its guard, which would mourn a stopped driver."""
    found = apps_of(project.root, lambda name: name.stream == project.stream and name.epoch == epoch)
    return [one for app in found for one in app.all if one != app.guard]


def freeze(project: StreamProject, epoch: int) -> list[Process]:
    """SIGSTOP a whole driver: its Python, its JVM, its workers."""
    victims = processes(project, epoch)
    assert victims
    for one in victims:
        send(one, signal.SIGSTOP)
    eventually(
        lambda: all(_is_stopped(one) for one in victims), within=Deadline.KILLED, what="the driver to be stopped"
    )
    return victims


def thaw(victims: Sequence[Process]) -> None:
    for one in victims:
        send(one, signal.SIGCONT)


def _is_stopped(one: Process) -> bool:
    try:
        text = Path(f"/proc/{one.pid}/stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] in "TtZX"


def dying_supervisor(project: StreamProject, point: str) -> Blow:
    """Supervise in a process that is killed at a point."""
    script = Path(__file__).with_name("dying_supervisor.py")
    done = subprocess.run(
        [sys.executable, str(script), str(project.root), project.stream, point],
        capture_output=True,
        text=True,
        timeout=Deadline.STREAM.seconds + Deadline.COMMAND.seconds,  # it gives up by itself after the first of them
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, f"{point} was not reached: {done.stdout}{done.stderr}"
    return Blow(point, SUPERVISOR, None, [])


def submit_again(project: StreamProject, epoch: int, instance: str) -> RunningApp:
    """Submit an epoch that nobody raised, past all supervision."""
    platform = project.platform()
    connections = ("millrace_kafka", "millrace_sink", "millrace_control")
    return platform.apps.runner().submit(Submission(project.stream, epoch, instance, (), connections))
