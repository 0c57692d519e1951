"""A control database and a runner in memory, with the faults that real ones cannot be asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from millrace.domain.alarms import life as domain
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration.pipeline import BackupApp, Sink
from millrace.domain.streams.control import Attempt, Claim, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.hosts import Heartbeat, Host, HostSign
from millrace.domain.streams.supervision import DesiredState
from millrace.errors import PartFailedError, UnreachableError, UsageError
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.settings import Settings
from support.fakes.platform import GroupedPlatform


@dataclass
class Clock:
    """The present, moved by hand."""

    now: datetime = datetime(2026, 5, 1, 12, tzinfo=UTC)

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


class FakeStreams:
    """Desired states and attempts. `down` makes every call fail, `busy` is a stream somebody else supervises."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._desired: dict[str, DesiredStream] = {}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self.said: dict[str, StreamProgress] = {}
        self.looks: dict[str, StreamLook] = {}
        self.claims: dict[tuple[str, int], Claim] = {}
        self.down = False
        self.busy = ""

    def _ask(self) -> None:
        if self.down:
            raise UnreachableError("the control database does not answer")

    @contextmanager
    def supervising(self, stream: str) -> Iterator[bool]:
        self._ask()
        yield stream != self.busy

    def desired(self, stream: str) -> DesiredStream | None:
        self._ask()
        return self._desired.get(stream)

    def all_desired(self) -> tuple[DesiredStream, ...]:
        self._ask()
        return tuple(self._desired[name] for name in sorted(self._desired))

    def set_desired(
        self,
        stream: str,
        *,
        actor: str,
        reason: str,
        state: DesiredState | None = None,
        accept_recreated: bool | None = None,
        reset_backoff: bool = False,
        end_now: bool = False,
    ) -> DesiredStream:
        self._ask()
        now = self._clock.now
        known = self._desired.get(stream) or DesiredStream(
            stream, DesiredState.STOPPED, 0, False, None, now, actor, reason
        )
        changed = replace(
            known,
            state=state or known.state,
            accept_recreated=known.accept_recreated if accept_recreated is None else accept_recreated,
            backoff_reset_at=now if reset_backoff else known.backoff_reset_at,
            changed_at=now,
            changed_by=actor,
            reason=reason,
            end_now=known.end_now if state is None else end_now,
        )
        self._desired[stream] = changed
        return changed

    def raise_epoch(self, stream: str, expected: int, *, host: str, above: int = 0) -> int | None:
        self._ask()
        known = self._desired[stream]
        if known.epoch != expected or known.state is not DesiredState.RUNNING or known.host not in (None, host):
            return None
        self._desired[stream] = replace(known, epoch=max(expected, above) + 1, host=host)
        return max(expected, above) + 1

    def consume_acceptance(self, stream: str) -> bool:
        known = self._desired[stream]
        self._desired[stream] = replace(known, accept_recreated=False)
        return known.accept_recreated

    def record_submitted(
        self, stream: str, epoch: int, *, runner: str, instance: str | None = None, handle: str | None = None
    ) -> None:
        self._ask()
        known = self._attempts.get((stream, epoch)) or Attempt(stream, epoch, runner, self._clock.now)
        known = replace(known, instance=instance or known.instance, handle=handle or known.handle)
        self._attempts[stream, epoch] = known

    def record_ended(
        self,
        stream: str,
        epoch: int,
        *,
        outcome: str,
        exit_code: int | None = None,
        detail: str | None = None,
        at: datetime | None = None,
    ) -> bool:
        self._ask()
        known = self._attempts[stream, epoch]
        if known.ended_at is not None:
            return False
        self._attempts[stream, epoch] = replace(
            known, ended_at=at or self._clock.now, outcome=outcome, exit_code=exit_code, detail=detail
        )
        return True

    def reckon(self, attempt: Attempt, *, ended_at: datetime) -> None:
        """Have an attempt ended at another time, as if more of it had passed since."""
        self._attempts[attempt.stream, attempt.epoch] = replace(attempt, ended_at=ended_at)

    def attempts(self, stream: str, *, last: int = 20) -> tuple[Attempt, ...]:
        self._ask()
        own = [attempt for (name, _), attempt in self._attempts.items() if name == stream]
        return tuple(sorted(own, key=lambda attempt: -attempt.epoch)[:last])

    def save_look(self, look: StreamLook) -> None:
        self._ask()
        self.looks[look.stream] = look

    def look(self, stream: str) -> StreamLook | None:
        self._ask()
        return self.looks.get(stream)

    def claimed(self, stream: str, epoch: int) -> Claim | None:
        self._ask()
        return self.claims.get((stream, epoch))

    def own(self, stream: str, host: str | None, epoch: int = 0) -> None:
        """Have a stream belong to this host, at an epoch that is not below this one."""
        known = self._desired[stream]
        self._desired[stream] = replace(known, host=host, epoch=max(known.epoch, epoch))

    def abandon(self, stream: str) -> None:
        """End all open attempts as an adoption does."""
        for key, known in self._attempts.items():
            if known.stream == stream and known.ended_at is None:
                self._attempts[key] = replace(known, ended_at=self._clock.now, outcome="host lost")

    def progress(self, stream: str) -> StreamProgress | None:
        return self.said.get(stream)

    def all_progress(self) -> tuple[StreamProgress, ...]:
        self._ask()
        return tuple(self.said[name] for name in sorted(self.said))


class FakeHosts:
    """Owners, signs and heartbeats. A sign or a heartbeat grows older with the clock."""

    def __init__(self, clock: Clock, streams: FakeStreams) -> None:
        self._clock = clock
        self._streams = streams
        self.signs: dict[str, tuple[str, datetime]] = {}
        self.beats: dict[str, tuple[Heartbeat, datetime]] = {}

    def give_sign(self, host: Host) -> None:
        self.signs[host.identity] = (host.name, self._clock.now)

    def sign(self, identity: str) -> HostSign | None:
        known = self.signs.get(identity)
        return HostSign(known[0], self._clock.now - known[1]) if known else None

    def beat(self, stream: str, epoch: int, host: Host, phase: str = "running") -> None:
        """Give an app's heartbeat now."""
        given = Heartbeat(stream, epoch, "app", host.identity, host.namespace, phase, "batch 7: copy", timedelta())
        self.beats[stream] = (given, self._clock.now)

    def heartbeat(self, stream: str) -> Heartbeat | None:
        known = self.beats.get(stream)
        return replace(known[0], age=self._clock.now - known[1]) if known else None

    def newest_of_twin(self, host: Host) -> Heartbeat | None:
        found = [
            replace(beat, age=self._clock.now - at)
            for beat, at in self.beats.values()
            if (beat.host, beat.phase) == (host.identity, "running") and beat.namespace != host.namespace
        ]
        return min(found, key=lambda beat: beat.age, default=None)

    def take(self, stream: str, host: Host, *, was: str | None, epoch: int = 0) -> bool:
        wanted = self._streams.desired(stream)
        if wanted is None or wanted.host != was:
            return False
        self._streams.own(stream, host.identity, epoch)
        return True

    def adopt(
        self,
        seen: DesiredStream,
        host: Host,
        *,
        lost_after: timedelta | None,
        actor: str,
        reason: str,
        names: tuple[str, str],
    ) -> bool:
        if self._streams.desired(seen.stream) != seen:
            return False
        self._streams.own(seen.stream, host.identity)
        self._streams.abandon(seen.stream)
        return True


def _turn(alarm: Alarm) -> tuple[bool, datetime, int]:
    """Return the place of an alarm among those that are due, as the database orders them."""
    return alarm.retry_at is not None, alarm.retry_at or alarm.opened_at, alarm.identity


class FakeAlarms:
    """Alarms; one open a kind and subject."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rows: list[Alarm] = []

    def open(self, kind: str, subject: str, detail: str, extent: Extent = UNKNOWN) -> bool:
        for row in self.rows:
            if row.kind == kind and row.subject == subject and row.closed_at is None:
                return self._replace(row, domain.seen_again(row, detail, extent, self._clock.now))
        self.rows.append(Alarm(len(self.rows) + 1, kind, subject, detail, self._clock.now, None, None, extent=extent))
        return True

    def raise_due(self) -> int:
        return sum(self._replace(row, domain.raised_if_due(row, self._clock.now)) for row in list(self.rows))

    def _replace(self, before: Alarm, after: Alarm) -> bool:
        self.rows = [after if row is before else row for row in self.rows]
        return after.raised > before.raised

    def close(self, kind: str, subject: str, *, opened_before: datetime | None = None) -> bool:
        before = list(self.rows)
        self.rows = [
            replace(row, closed_at=self._clock.now)
            if row.kind == kind
            and row.subject == subject
            and row.closed_at is None
            and (opened_before is None or row.opened_at < opened_before)
            else row
            for row in self.rows
        ]
        return before != self.rows

    def list(self, *, only_open: bool = True, only_untold: bool = False, limit: int = 200) -> tuple[Alarm, ...]:
        now = self._clock.now
        return tuple(
            row
            for row in (sorted(self.rows, key=_turn) if only_untold else reversed(self.rows))
            if (not only_open or row.closed_at is None)
            and (
                not only_untold
                or (
                    row.told_at is None
                    and row.acknowledged_at is None
                    and (row.retry_at is None or row.retry_at <= now)
                )
            )
        )[:limit]

    def get(self, identity: int) -> Alarm:
        for row in self.rows:
            if row.identity == identity:
                return row
        raise UsageError(f"alarm {identity} is unknown")

    def acknowledge(self, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
        known = self.get(identity)
        taken = domain.acknowledged(known, actor, reason, self._clock.now)
        self._replace(known, taken)
        return taken, taken is not known

    def record_round(self, read: Alarm, failures: Mapping[str, str], *, skipped: Collection[str] = ()) -> Alarm:
        known = self.get(read.identity)
        after = domain.told(known, read, failures, self._clock.now, skipped=skipped)
        self._replace(known, after)
        return after

    @property
    def open_kinds(self) -> list[str]:
        """The kinds of open alarms, in the order they were opened."""
        return [row.kind for row in self.rows if row.closed_at is None]


@dataclass
class FakeRunner:
    """Apps in memory. `lose_answer`: submit starts the app and raises; `refuse`: it raises and starts nothing."""

    clock: Clock
    kind: str = "fake"
    apps: dict[tuple[str, int], RunningApp] = field(default_factory=dict)
    blind: bool = False  # a scan that is shared was taken before any app began
    submissions: list[Submission] = field(default_factory=list)
    lose_answer: bool = False
    refuse: bool = False
    phase: str = "running"
    said: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def submit(self, submission: Submission) -> RunningApp:
        self.submissions.append(submission)
        if self.refuse:
            raise PartFailedError("no such program")
        app = RunningApp(
            submission.stream,
            submission.epoch,
            submission.instance,
            f"handle-{submission.epoch}",
            RunState.RUNNING,
            started_at=self.clock.now,
            phase=self.phase,
        )
        self.apps[submission.stream, submission.epoch] = app
        if self.lose_answer:
            raise PartFailedError("nobody answered in time")
        return app

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        return () if self.blind and not fresh else self.find_all().get(stream, ())

    def find_all(self) -> Mapping[str, Sequence[RunningApp]]:
        found: dict[str, list[RunningApp]] = {}
        for app in sorted(self.apps.values(), key=lambda app: -app.epoch):
            if app.state is RunState.RUNNING:
                found.setdefault(app.stream, []).append(app)
        return found

    def status(self, stream: str, epoch: int) -> RunningApp | None:
        return self.apps.get((stream, epoch))

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        return self.said.get((stream, epoch), [])[-count:]

    def stop(self, app: RunningApp) -> None:
        self.apps[app.stream, app.epoch] = replace(app, stopping_since=app.stopping_since or self.clock.now)

    def kill(self, app: RunningApp) -> None:
        if self.apps[app.stream, app.epoch].state is RunState.RUNNING:
            self.end(app.stream, app.epoch, 137)

    def end(self, stream: str, epoch: int, code: int | None, detail: str = "") -> None:
        """The app ends; without a code it is lost."""
        state = RunState.LOST if code is None else RunState.EXITED
        ended_at = None if code is None else self.clock.now
        known = self.apps[stream, epoch]
        self.apps[stream, epoch] = replace(known, state=state, exit_code=code, ended_at=ended_at, detail=detail)


@dataclass
class FakePlatform(GroupedPlatform):
    """What the use cases of streams work with."""

    root: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.streams = FakeStreams(self.clock)
        self.alarms = FakeAlarms(self.clock)
        self.logged: list[dict[str, object]] = []
        self.app_runner = FakeRunner(self.clock)
        self.hosts = FakeHosts(self.clock, self.streams)
        self.here = Host("here", "alpha", "boot 1")
        self.signed: dict[str, float] = {}
        self.epochs: dict[str, int | None] = {
            "fence": 0,
            "group": 0,
            "dataset": 0,
            "chains": 0,
        }  # None: it does not answer
        self.asked: list[str] = []
        self.rooms: dict[str, object] = {}  # more of the control database
        self.unanswered: dict[str, float] = {}
        self.settings = Settings(root=self.root, lookup=lambda name: None)

    @property
    def control(self) -> SimpleNamespace:
        log: Callable[..., None] = lambda **entry: self.logged.append(entry)  # noqa: E731
        return SimpleNamespace(
            streams=self.streams, alarms=self.alarms, hosts=self.hosts, log=SimpleNamespace(append=log), **self.rooms
        )

    def apps_host(self) -> Host:
        return self.here

    def apps_make_host(self) -> Host:
        return self.here

    def apps_runner(self) -> FakeRunner:
        return self.app_runner

    def apps_last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        return self.app_runner.last_lines(stream, epoch, count)

    def sinks_fences(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(epoch=lambda stream: self._epoch("fence"))

    def kafka_groups(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(newest_epoch=lambda group, topics, stream: self._epoch("group"))

    def sinks_epochs(self, sink: Sink) -> dict[str, Callable[[str], int]]:
        return {store: lambda stream: self._epoch("dataset") for store in sink.connections if sink.as_dataset}

    def archive_claims(self, app: BackupApp, kafka: str) -> SimpleNamespace:
        return SimpleNamespace(incarnations=lambda: {Incarnation(topic, "A" * 22) for topic in app.reads})

    def archive_hasty_heads(self, connection: str) -> SimpleNamespace:
        return SimpleNamespace(newest_epoch=lambda chains: self._epoch("chains"))

    def _epoch(self, of: str) -> int:
        self.asked.append(of)
        known = self.epochs[of]
        if known is None:
            raise UnreachableError(f"the {of} does not answer")
        return known
