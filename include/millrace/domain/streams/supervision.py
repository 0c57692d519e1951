"""Streams as people want them and as they are, and what to do about the difference.

`decide` is pure: it looks at one stream and names one next step. Whoever calls it does the step and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from itertools import takewhile

from millrace.domain.streams.vitals import Vitals, trouble

GRACE = timedelta(seconds=60)
FIRST_BACKOFF = timedelta(seconds=5)
LONGEST_BACKOFF = timedelta(minutes=5)
HEALTHY_AFTER = timedelta(minutes=10)
_MOST_DOUBLED = 5
SETTLING = timedelta(seconds=15)


class DesiredState(StrEnum):
    """What an operator wants of a stream. A new stream is stopped until it is first started."""

    RUNNING = "running"
    STOPPED = "stopped"


class ExitReason(IntEnum):
    """The exit codes of a stream's driver: why it ended."""

    STOPPED = 0  # as asked: the batch finished, its offsets committed
    FAILED = 1  # anything not listed here; starting again may help
    CLAIM_LOST = 10  # another instance has this epoch
    FENCED = 11  # a newer epoch has taken over
    MEMBERSHIP_LOST = 12  # the consumer group no longer counts this driver as its member
    RECREATED = 13  # a topic of the same name, but another id, until an operator accepts it
    REFUSED = 14  # what it met may not be decided by the machine: a start position, rights, what is there already
    DATA_LOSS = 15  # records on the way to being read are gone
    DECLARATION = 16  # declaration or app are wrong; starting again cannot help
    UNREACHABLE = 17  # a server did not answer
    KILLED = 137  # ended by SIGKILL, 128 + 9


HOPELESS = {
    ExitReason.RECREATED: "a topic that it reads was deleted and created again; check it, then run `millrace streams "
    "accept`",
    ExitReason.REFUSED: "it was refused; an operator has to decide: read its log",
    ExitReason.DATA_LOSS: "unread records are gone; read the offsets in its log",
    ExitReason.DECLARATION: "its declaration or app is wrong; repair it, then run `millrace streams start`",
}


@dataclass(frozen=True, slots=True)
class Desired:
    """What an operator wants of one stream, since when, and from when on failures count.

    `end_now`: a stop does not wait for the batch in flight.
    """

    state: DesiredState
    epoch: int  # the last epoch that was raised for this stream; 0 before the first start
    changed_at: datetime | None = None
    backoff_reset_at: datetime | None = None
    accept_recreated: bool = False
    end_now: bool = False


class Phase(StrEnum):
    """What a driver says of itself in its `status.json`."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LivingApp:
    """An app of the stream that is alive now. `stopping_since` is when it was first asked to stop.

    `vitals` None: it says nothing of itself that this version understands, and is taken to get on.
    """

    epoch: int
    stopping_since: datetime | None = None
    phase: str = ""
    vitals: Vitals | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the stream. `ended_at` None: no end is known; `answered`: the runner said that it took it."""

    epoch: int
    submitted_at: datetime
    answered: bool = False
    ended_at: datetime | None = None
    exit_code: int | None = None

    @property
    def hopeless(self) -> ExitReason | None:
        """The reason why starting again cannot help, if the attempt ended by one."""
        return next((reason for reason in HOPELESS if reason == self.exit_code), None)


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there, in any order: living apps, past attempts, and whether a declaration names the stream."""

    apps: Sequence[LivingApp] = ()
    attempts: Sequence[Attempt] = ()
    declared: bool = True

    @property
    def newest(self) -> LivingApp | None:
        """The living app of the highest epoch."""
        return max(self.apps, key=lambda app: app.epoch, default=None)


@dataclass(frozen=True, slots=True)
class Adopt:
    """An app of this epoch runs as wanted: watch it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Start:
    """Raise the epoch to this one and submit an app."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until`. `backoff` tells a wait after a failure from a wait for an end or an answer."""

    until: datetime
    why: str
    backoff: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the app of this epoch to finish its batch and end."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the app of this epoch now: its grace is over, or it would not hear of a stop."""

    epoch: int
    why: str = "its grace was over"


@dataclass(frozen=True, slots=True)
class Restart:
    """End the app of this epoch now, for it does not answer; the next look starts the next epoch."""

    epoch: int
    why: str
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The app of this epoch lives and gets nowhere, for a reason that a new start would not mend: tell people."""

    epoch: int
    why: str
    fault: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Start no more until an operator does: the reason will not go away by itself."""

    reason: ExitReason
    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """All is as wanted, or it is not Millrace's to change."""

    why: str


Action = Adopt | Start | Wait | Drain | Kill | Restart | Stuck | GiveUp | Nothing


def decide(desired: Desired | None, observed: Observed, now: datetime, *, grace: timedelta = GRACE) -> Action:
    """The one next step for a stream.

    Args:
        desired: what an operator wants; None where nobody ever wanted anything.
        observed: what is alive and what was tried.
        now: the present.
        grace: how long an app may take to stop before it is killed.

    Guarantees:
        Never `Start` while an app is alive, or before the backoff of the last failures is over. A stop is asked
        for at once and enforced after `grace`, or as soon as the app does not answer; `end_now` leaves no grace. An
        undeclared stream is stopped by an operator's wish only and never started.

    Does not guarantee:
        That only one app runs: the claim and the fences of the sinks do. Deciding twice only wastes a start.
    """
    if desired is None:
        return Nothing("never started")
    newest = observed.newest
    older = sorted((app for app in observed.apps if app is not newest), key=lambda app: app.epoch)
    if desired.state is DesiredState.STOPPED and desired.end_now and observed.apps:
        return Kill(observed.apps[0].epoch, "stopped with --now")
    if older:
        return _end(older[0], now, grace)
    if desired.state is DesiredState.STOPPED:
        return _end(newest, now, grace) if newest else _unsettled(observed, now) or Nothing("stopped as desired")
    if newest:
        return _end(newest, now, grace) if newest.stopping_since else _watch(newest, desired, observed)
    if not observed.declared:
        return Nothing("no declaration names this stream, so it is not started")
    return _start_or_wait(desired, observed, now)


def _end(app: LivingApp, now: datetime, grace: timedelta) -> Action:
    if app.stopping_since is None:
        return Drain(app.epoch)
    found = trouble(app.vitals) if app.vitals else None
    if found and found.restart:
        return Kill(app.epoch, found.why)
    deadline = app.stopping_since + grace
    doing = f": {app.vitals.doing}" if app.vitals else ""
    return Kill(app.epoch) if now >= deadline else Wait(deadline, f"epoch {app.epoch} finishes its batch{doing}")


def _watch(app: LivingApp, desired: Desired, observed: Observed) -> Action:
    found = trouble(app.vitals, patience=_patience(app, desired, observed)) if app.vitals else None
    if found is None:
        return Adopt(app.epoch)
    restart = found.restart and observed.declared
    return (Restart if restart else Stuck)(app.epoch, found.why, found.fault)


def _patience(app: LivingApp, desired: Desired, observed: Observed) -> int:
    """How many times the bound a start may take: twice as many after each before it that was killed.

    Many that start at once on one machine are all slow; killing them all in time would go on for ever.
    """
    before = sorted((each for each in observed.attempts if each.epoch < app.epoch), key=lambda each: -each.epoch)
    in_a_row = _failures_that_count(before, desired.backoff_reset_at)
    killed = len(list(takewhile(lambda each: each.exit_code == ExitReason.KILLED, in_a_row)))
    return 1 << min(killed, _MOST_DOUBLED)


def _unsettled(observed: Observed, now: datetime) -> Wait | None:
    """Return the wait for a submit without an answer: its app may still appear."""
    last = max(observed.attempts, key=lambda attempt: attempt.epoch, default=None)
    if last and last.ended_at is None and not last.answered and now < last.submitted_at + SETTLING:
        return Wait(last.submitted_at + SETTLING, f"epoch {last.epoch} may still start: its submit is not answered yet")
    return None


def _start_or_wait(desired: Desired, observed: Observed, now: datetime) -> Action:
    if wait := _unsettled(observed, now):
        return wait
    attempts = sorted(observed.attempts, key=lambda attempt: attempt.epoch, reverse=True)
    counted = _failures_that_count(attempts, desired.backoff_reset_at)
    if counted and (reason := counted[0].hopeless) and not _accepted(reason, desired):
        return GiveUp(reason, HOPELESS[reason])
    if counted:
        until = _ended(counted[0]) + backoff(len(counted))
        if now < until:
            return Wait(until, _failure_text(counted), backoff=True)
    highest = max([desired.epoch, *(attempt.epoch for attempt in attempts)])
    return Start(highest + 1)


def _failures_that_count(attempts: Sequence[Attempt], reset_at: datetime | None) -> list[Attempt]:
    """The attempts in a row, newest first, up to an operator's start or one that ran well for long."""
    counted: list[Attempt] = []
    for attempt in attempts:
        if reset_at is not None and attempt.submitted_at < reset_at:
            break
        healthy = _ended(attempt) - attempt.submitted_at >= HEALTHY_AFTER
        if healthy and counted:
            break
        counted.append(attempt)
        if healthy:
            break
    return counted


def backoff(failures: int) -> timedelta:
    """How long to wait after this many failures in a row: 5 s, doubled each time, at most 5 minutes."""
    if failures <= 0:
        return timedelta()
    doubled: int = 1 << min(failures - 1, 16)
    return min(FIRST_BACKOFF * doubled, LONGEST_BACKOFF)


def _accepted(reason: ExitReason, desired: Desired) -> bool:
    return reason is ExitReason.RECREATED and desired.accept_recreated


def _ended(attempt: Attempt) -> datetime:
    return attempt.ended_at or attempt.submitted_at


def _failure_text(counted: Sequence[Attempt]) -> str:
    times = "once" if len(counted) == 1 else f"{len(counted)} times in a row"
    return f"it ended {times}, last with {exit_text(counted[0].exit_code)}"


class StreamState(StrEnum):
    """How a stream is, in one word for people."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STUCK = "stuck"  # its app runs but makes no progress
    DRAINING = "draining"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"  # until an operator starts it
    RECREATED = "recreated"  # given up too, until an operator accepts the new topic
    UNDECLARED = "undeclared"  # no declaration names it
    HOST_LOST = "host lost"  # the host it belongs to is silent
    UNKNOWN = "unknown"  # the control database does not answer, so nobody knows what is wanted


_AT_ITS_END = frozenset({Phase.DRAINING.value, Phase.ENDED.value})


def state_of(observed: Observed, action: Action) -> StreamState:
    """How a stream is, given what is there and what `decide` says of it."""
    newest = observed.newest
    if newest:
        if isinstance(action, Restart | Stuck):
            return StreamState.STUCK
        if newest.stopping_since or newest.phase in _AT_ITS_END or action == Drain(newest.epoch):
            return StreamState.DRAINING
        if not observed.declared:
            return StreamState.UNDECLARED
        return StreamState.RUNNING if newest.phase == Phase.RUNNING else StreamState.STARTING
    if not observed.declared:
        return StreamState.UNDECLARED
    match action:
        case GiveUp(reason=ExitReason.RECREATED):
            return StreamState.RECREATED
        case GiveUp():
            return StreamState.GIVEN_UP
        case Wait(backoff=True):
            return StreamState.BACKING_OFF
        case Wait() | Start():
            return StreamState.STARTING
        case _:
            return StreamState.STOPPED


def exit_text(code: int | None) -> str:
    """An exit code in words, for instance `fenced (11)`."""
    if code is None:
        return "no exit code"
    try:
        return f"{ExitReason(code).name.lower().replace('_', ' ')} ({code})"
    except ValueError:
        return f"signal {code - 128}" if code > 128 else f"exit code {code}"
