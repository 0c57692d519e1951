"""A look at one stream or backup: what is wanted, lives and was tried, and what `domain.streams` makes of it.

A stream of another host is looked at in the control database alone; see `usecases.streams.owner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import CONTROL
from millrace.domain.formats.durations import roughly
from millrace.domain.streams import supervision as domain
from millrace.domain.streams.hosts import FRESH_FOR, HOST_LOST_OUTCOME, Elsewhere
from millrace.domain.streams.supervision import (
    Action,
    Desired,
    Drain,
    Kill,
    LivingApp,
    Nothing,
    Observed,
    Restart,
    Start,
    StreamState,
    Stuck,
    Wait,
)
from millrace.domain.streams.vitals import STUCK_AFTER
from millrace.errors import Code, MillraceError, UsageError
from millrace.ports.runner import RunningApp, RunState
from millrace.usecases.declaration.lookup import find_app
from millrace.usecases.streams.owner import elsewhere

if TYPE_CHECKING:
    from millrace.domain.streams.control import Attempt, DesiredStream
    from millrace.ports.platform import Platform


@dataclass(frozen=True, slots=True)
class Supervised:
    """How a stream is after a look at it. Nothing is due before `until`; `busy`: somebody else supervises it now.

    `host` is the name of the other host that it belongs to; empty where it belongs to this one, or to none.
    """

    stream: str
    state: StreamState
    epoch: int | None = None
    since: datetime | None = None
    why: str = ""
    until: datetime | None = None
    busy: bool = False
    host: str = ""

    @property
    def told(self) -> str:
        """Return the reason without the ages in it, so that it changes only with the stream."""
        return f"it belongs to {self.host}" if self.host else self.why


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that is over and not yet recorded so."""

    epoch: int
    exit_code: int | None
    at: datetime
    outcome: str
    detail: str
    lost: RunningApp | None = None  # its processes, if any, are to be swept


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a stream: what is wanted, what lives, what was tried, what ended unrecorded, and what is next."""

    stream: str
    desired: DesiredStream | None
    apps: Sequence[RunningApp]
    attempts: Sequence[Attempt]
    ended: Sequence[Ended]
    connections: tuple[str, ...]
    problem: MillraceError | None
    observed: Observed
    action: Action
    at: datetime
    stuck_after: timedelta = STUCK_AFTER
    elsewhere: Elsewhere | None = None

    @property
    def due(self) -> bool:
        """Whether there is something to do or to write down."""
        acts = isinstance(self.action, Start | Drain | Kill | Restart) and not self._cannot_start
        return acts or bool(self.ended) or self._unanswered is not None

    def of(self, epoch: int) -> list[RunningApp]:
        """The living apps of an epoch: one, or those of a claim that was lost and has not ended yet."""
        return [app for app in self.apps if app.epoch == epoch]

    @property
    def _cannot_start(self) -> bool:
        return isinstance(self.action, Start) and self.problem is not None

    @property
    def _unanswered(self) -> RunningApp | None:
        """A living app whose answer to the submit was lost."""
        known = {attempt.epoch for attempt in self.attempts if attempt.handle is not None}
        return next((app for app in self.apps if app.epoch not in known), None)

    @property
    def report(self) -> Supervised:
        """The look in words for people."""
        if self.elsewhere:
            return self._report_elsewhere(self.elsewhere)
        newest = self.apps[0] if self.apps else None
        state = domain.state_of(self.observed, self.action)
        why = getattr(self.action, "why", "") or (newest.vitals.notice if newest and newest.vitals else "")
        if self.problem and not newest:
            state, why = StreamState.GIVEN_UP, self.problem.what
        if state is StreamState.STARTING and not newest and self._is_to_stop:  # an app may still be somewhere
            state = StreamState.DRAINING
        last = self.attempts[0] if self.attempts else None
        since = newest.started_at if newest else (last.ended_at if last else None)
        epoch = newest.epoch if newest else (last.epoch if last else None)
        until = self.action.until if isinstance(self.action, Wait) else None
        return Supervised(self.stream, state, epoch, since, why, until)

    @property
    def _is_to_stop(self) -> bool:
        return self.desired is not None and self.desired.state is domain.DesiredState.STOPPED

    def _report_elsewhere(self, there: Elsewhere) -> Supervised:
        last = self.attempts[0] if self.attempts else None
        since = (last.ended_at or last.submitted_at) if last else None
        state = StreamState.DRAINING if self.apps else there.state  # what is left of it here has to end
        return Supervised(self.stream, state, last.epoch if last else None, since, there.why, host=there.name)


def look(platform: Platform, stream: str, *, now: datetime | None = None) -> Seen:
    """Look at a stream and decide, without doing anything.

    Raises:
        UnreachableError: the control database does not answer. Then nothing may be done: let running apps run.
    """
    at = now or datetime.now(UTC)
    seen = _look(platform, stream, at, fresh=False)
    return _look(platform, stream, at, fresh=True) if _concludes_from_absence(seen) else seen


def _concludes_from_absence(seen: Seen) -> bool:
    """Return whether the look says that something is not alive, which a scan made earlier cannot know."""
    if seen.elsewhere:  # nothing is alive here by what the control database says
        return False
    alive = {app.epoch for app in seen.apps}
    is_missing = any(attempt.ended_at is None and attempt.epoch not in alive for attempt in seen.attempts)
    return is_missing or (isinstance(seen.action, Start) and seen.problem is None)


def _look(platform: Platform, stream: str, at: datetime, *, fresh: bool) -> Seen:
    control = platform.control
    desired = control.streams.desired(stream)
    attempts = control.streams.attempts(stream)
    apps = platform.apps.runner().find(stream, fresh=fresh)
    if there := elsewhere(platform, desired, attempts, apps):
        return _look_elsewhere(stream, desired, attempts, apps, there, at)
    ended = [found for attempt in attempts if (found := _ended(platform, attempt, apps, at))]
    observed = Observed(
        apps=_living(apps),
        attempts=[_attempt(attempt, ended) for attempt in attempts],
    )
    action = domain.decide(_desired(desired), observed, at)
    declaration = _Declaration()
    if isinstance(action, Start | Restart):  # only a start needs the declaration
        declaration = _declaration(platform, stream)
        observed = replace(observed, declared=declaration.declared)
        action = domain.decide(_desired(desired), observed, at)
    if isinstance(action, Restart) and declaration.problem:  # it would be ended and not started again
        action = Stuck(action.epoch, action.why)
    if (ended or isinstance(action, Start)) and (wait := _wait_for_twin(platform, at)):
        ended, action = [], wait
    elif isinstance(action, Nothing) and (left := _wait_for_former_host(platform, stream, attempts, at)):
        action = left
    return Seen(
        stream,
        desired,
        apps,
        attempts,
        ended,
        declaration.connections,
        declaration.problem,
        observed,
        action,
        at,
        declaration.stuck_after,
    )


def _look_elsewhere(
    stream: str,
    desired: DesiredStream | None,
    attempts: Sequence[Attempt],
    apps: Sequence[RunningApp],
    there: Elsewhere,
    at: datetime,
) -> Seen:
    """Return the look at a stream of another host: of it, this host ends only what it has left of an older epoch."""
    observed = Observed(apps=_living(apps))
    stopped = _desired(desired)
    if stopped is not None:
        stopped = replace(stopped, state=domain.DesiredState.STOPPED)
    action = domain.decide(stopped, observed, at)
    return Seen(stream, desired, apps, attempts, (), (), None, observed, action, at, elsewhere=there)


def _wait_for_twin(platform: Platform, at: datetime) -> Wait | None:
    """Return how long this host must wait for apps that bear its identity and cannot be seen from here.

    They are alive where the state folder was copied to a second machine, and may be where a container was killed.
    """
    host = platform.apps.host()
    found = platform.control.hosts.newest_of_twin(host) if host.identity else None
    if found is None or not found.is_fresh:
        return None
    why = (
        f"epoch {found.epoch} of {found.stream} gave a heartbeat {roughly(found.age)} ago with this host's "
        "identity, in another boot or container; if the state folder was copied, delete .millrace/host.json here"
    )
    return Wait(at + FRESH_FOR - found.age, why)


def _wait_for_former_host(platform: Platform, stream: str, attempts: Sequence[Attempt], at: datetime) -> Wait | None:
    """Return how long an adopted stream cannot be called stopped: an app of its former host gives heartbeats."""
    if not attempts or attempts[0].outcome != HOST_LOST_OUTCOME:
        return None
    beat = platform.control.hosts.heartbeat(stream)
    if beat is None or beat.host == platform.apps.host().identity or not beat.is_fresh:
        return None
    why = f"epoch {beat.epoch} on its former host gave a heartbeat {roughly(beat.age)} ago"
    return Wait(at + FRESH_FOR - beat.age, why)


def _living(apps: Sequence[RunningApp]) -> list[LivingApp]:
    return [LivingApp(app.epoch, app.stopping_since, app.phase, app.vitals) for app in apps]


def _desired(row: DesiredStream | None) -> Desired | None:
    if row is None:
        return None
    return Desired(row.state, row.epoch, row.changed_at, row.backoff_reset_at, row.accept_recreated, row.end_now)


def _attempt(row: Attempt, ended: Sequence[Ended]) -> domain.Attempt:
    now_known = next((found for found in ended if found.epoch == row.epoch), None)
    return domain.Attempt(
        epoch=row.epoch,
        submitted_at=row.submitted_at,
        answered=row.handle is not None,
        ended_at=now_known.at if now_known else row.ended_at,
        exit_code=now_known.exit_code if now_known else row.exit_code,
    )


def _ended(platform: Platform, attempt: Attempt, apps: Sequence[RunningApp], now: datetime) -> Ended | None:
    """The end of an attempt that is recorded as open and no longer lives."""
    if attempt.ended_at is not None or any(app.epoch == attempt.epoch for app in apps):
        return None
    app = platform.apps.runner().status(attempt.stream, attempt.epoch)
    if app and app.state is RunState.EXITED:
        outcome = domain.exit_text(app.exit_code)
        return Ended(attempt.epoch, app.exit_code, app.ended_at or now, outcome, app.detail)
    if app and app.state is RunState.RUNNING:
        return None  # it appeared while we looked
    if attempt.handle is None and now < attempt.submitted_at + domain.SETTLING:
        return None  # whoever submits it may still be at it
    if app:
        return Ended(attempt.epoch, None, now, "lost", app.detail, lost=app)
    return Ended(attempt.epoch, None, now, "never started", "the runner knows nothing of it")


def connections_of(platform: Platform, stream: str) -> tuple[str, ...]:
    """The names of the connections a stream's app may see.

    Raises:
        InvalidDeclarationError: its declaration is wrong.
        UsageError: no declaration names it.
    """
    found = _declaration(platform, stream)
    if found.problem:
        raise found.problem
    if not found.declared:
        raise UsageError(
            f"no declaration names {stream}",
            next_step="declare it again, or read the folder of its logs",
            code=Code.UNKNOWN_NAME,
        )
    return found.connections


@dataclass(frozen=True, slots=True)
class _Declaration:
    """What a start takes from a stream's declaration: the connections its app may see, and how long it may take."""

    connections: tuple[str, ...] = ()
    stuck_after: timedelta = STUCK_AFTER
    problem: MillraceError | None = None
    declared: bool = True


def _declaration(platform: Platform, stream: str) -> _Declaration:
    try:
        found = find_app(platform.settings.root, stream)
    except MillraceError as error:
        return _Declaration(problem=error)
    if found is None:
        return _Declaration(declared=False)
    pipeline, declared = found
    return _Declaration(tuple(dict.fromkeys((pipeline.kafka, *declared.connections, CONTROL))), declared.stuck_after)
