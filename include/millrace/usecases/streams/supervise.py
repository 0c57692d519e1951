"""Supervise streams and backups: look, decide by `domain.streams.supervision.decide`, and do the one next step.

What is said of a stream here holds for the backup of a pipeline, PIPELINE.backup, too: it lives the same life.
Everybody who acts on a stream calls `supervise`: its own DAG, the DAG over all streams, the CLI, the operator's form.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.streams.control import HISTORY_KEPT, StreamLook
from millrace.domain.streams.supervision import DesiredState, Drain, ExitReason, Kill, Nothing, Phase, Restart, Start
from millrace.domain.streams.vitals import trouble
from millrace.errors import PartFailedError, RefusedError, UnreachableError
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.usecases.declaration.lookup import declared_app, declared_stream
from millrace.usecases.streams.alarms import set_alarms, set_host_alarm
from millrace.usecases.streams.epochs import newest_elsewhere
from millrace.usecases.streams.look import Seen, Supervised, look
from millrace.usecases.streams.owner import give_sign, take_if_found

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

log = structlog.get_logger()

BUSY_TRIES = 20
BUSY_SECONDS = 0.25
ANSWERS_WITHIN = timedelta(seconds=6)  # a heartbeat is written every five at most
LOOK_AGAIN = timedelta(seconds=0.5)
LOOKS_KEPT = timedelta(days=7)
MOST_PARTS = 20


def supervise(platform: Platform, stream: str, actor: str, *, now: datetime | None = None) -> Supervised:
    """Look at a stream and do the one next step, if nobody else is at it.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        actor: who does it, for the action log.
        now: the present; default the clock.

    Guarantees:
        Where the control database does not answer, nothing is done. Each step may be cut short anywhere and be
        done again: a raised epoch that was never submitted is skipped, a lost answer is settled by `find`. A stream of
        another host is reported and not acted on; only what this host still runs of it is ended.

    Does not guarantee:
        That only one supervisor acts: the stream's claim and its sink's fence do.

    Raises:
        UnreachableError: the control database does not answer.
    """
    give_sign(platform)
    with platform.control.streams.supervising(stream) as mine:
        seen = look(platform, stream, now=now)
        if not mine:
            return replace(seen.report, busy=True)
        if seen.elsewhere:
            return _supervise_elsewhere(platform, seen, actor)
        if isinstance(seen.action, Restart) and _answers_after_all(platform, seen):
            seen = look(platform, stream, now=now)
        _record(platform, seen)
        set_alarms(platform, seen)  # first: an app that cannot be ended is told as well
        if _act(platform, seen, actor):
            seen = look(platform, stream, now=now)
            if isinstance(seen.action, Nothing):  # it was killed to stop: nobody is told of that end
                _record(platform, seen)
        _save_look(platform, seen)
        return seen.report


def _supervise_elsewhere(platform: Platform, seen: Seen, actor: str) -> Supervised:
    """Report a stream of another host, end what is left of it here, and tell where its host is lost."""
    _act(platform, seen, actor)
    set_host_alarm(platform, seen)
    return seen.report


def _save_look(platform: Platform, seen: Seen) -> None:
    """Keep what was seen for those who read it where no runner is, as the pages do: a copy, so it may fail."""
    report = seen.report
    wished_at = seen.desired.changed_at if seen.desired else None
    host = platform.apps.host().identity or None
    found = StreamLook(
        seen.stream, seen.at, report.state, report.epoch, report.since, report.why, report.until, wished_at, host
    )
    try:
        platform.control.streams.save_look(found)
    except UnreachableError as error:
        log.warning("look_not_saved", stream=seen.stream, error=str(error))


def _answers_after_all(platform: Platform, seen: Seen) -> bool:
    """Whether an app that gave no sign of life gives one now: a machine that stood still stopped us all alike."""
    newest = seen.apps[0]
    deadline = time.monotonic() + ANSWERS_WITHIN.total_seconds()
    while time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN.total_seconds())
        app = platform.apps.runner().status(seen.stream, newest.epoch)
        found = trouble(app.vitals) if app and app.state is RunState.RUNNING and app.vitals else None
        if found is None or not found.restart:
            return True
    return False


def _record(platform: Platform, seen: Seen) -> None:
    """Write down what ended, sweep what it left, and fill in answers that were lost."""
    streams = platform.control.streams
    take_if_found(platform, seen.desired, seen.apps)
    for found in seen.ended:
        if found.lost:
            platform.apps.runner().kill(found.lost)
        streams.record_ended(
            seen.stream,
            found.epoch,
            outcome=found.outcome,
            exit_code=found.exit_code,
            detail=found.detail,
            at=found.at,
        )
    known = {attempt.epoch: attempt for attempt in seen.attempts}
    for app in seen.apps:
        attempt = known.get(app.epoch)
        if attempt is None or attempt.handle is None:
            record_answer(platform, app)
    newest = seen.apps[0] if seen.apps else None
    if newest and newest.phase == Phase.RUNNING and seen.desired and seen.desired.accept_recreated:
        streams.consume_acceptance(seen.stream)


def _act(platform: Platform, seen: Seen, actor: str) -> bool:
    """Do what was decided; whether that changed anything."""
    match seen.action:
        case Start():
            return seen.problem is None and _start(platform, seen, actor)
        case Drain(epoch=epoch):
            for app in seen.of(epoch):
                platform.apps.runner().stop(app)
            return True
        case Kill(epoch=epoch, why=why):
            for app in seen.of(epoch):
                _kill(platform, app, actor, why)
            return True
        case Restart(epoch=epoch, why=why):
            for app in seen.of(epoch):
                _kill(platform, app, actor, why)
            platform.control.streams.record_ended(
                seen.stream, epoch, outcome="stuck", exit_code=ExitReason.KILLED, detail=why
            )  # at once: an end that is found later is told as a death of its own
            return True
        case _:
            return False


def _kill(platform: Platform, app: RunningApp, actor: str, why: str) -> None:
    platform.apps.runner().kill(app)
    platform.control.log.append(
        actor=actor, action="stream.kill", subject=app.stream, reason=why, after=_epoch(app.epoch)
    )


def _epoch(epoch: int) -> dict[str, str]:
    return {"epoch": str(epoch)}


def _start(platform: Platform, seen: Seen, actor: str) -> bool:
    """Raise the epoch, write the attempt down, submit it, write the answer down: each may be the last thing done."""
    if seen.desired is None:
        return False
    epoch = raise_epoch(platform, seen)
    if epoch is None:
        return False
    arguments = ("--accept-recreated",) if seen.desired.accept_recreated else ()
    submission = Submission(
        seen.stream, epoch, uuid.uuid4().hex, arguments, seen.connections, stuck_after=seen.stuck_after
    )
    record_attempt(platform, submission)
    reason = f"wanted running since {seen.desired.changed_at:%Y-%m-%d %H:%M:%S} by {seen.desired.changed_by}"
    known = _newest_on_record(seen)
    if epoch > known + 1:
        reason += f"; sink, group or archive know epoch {epoch - 1}, the control database only {known}"
    before = _epoch(seen.desired.epoch)
    platform.control.log.append(
        actor=actor, action="stream.submit", subject=seen.stream, reason=reason, before=before, after=_epoch(epoch)
    )
    app = submit_app(platform, submission)
    if app is not None:
        record_answer(platform, app)
    return True


def raise_epoch(platform: Platform, seen: Seen) -> int | None:
    """Begin a start: the new epoch, above all that are known anywhere; None where somebody else was first."""
    expected = seen.desired.epoch if seen.desired else 0
    above = max(_newest_on_record(seen), newest_elsewhere(platform, seen.stream))
    host = platform.apps.make_host()
    give_sign(platform)  # before the stream is its own: an owner without a sign might be taken for an old one
    return platform.control.streams.raise_epoch(seen.stream, expected, host=host.identity, above=above)


def _newest_on_record(seen: Seen) -> int:
    """The greatest epoch that the control database knows: a restored one counts less than apps it then found alive."""
    raised = seen.desired.epoch if seen.desired else 0
    return max([raised, *(attempt.epoch for attempt in seen.attempts)])


def record_attempt(platform: Platform, submission: Submission) -> None:
    """Write down that an epoch is about to be submitted."""
    platform.control.streams.record_submitted(
        submission.stream, submission.epoch, runner=platform.apps.runner().kind, instance=submission.instance
    )


def submit_app(platform: Platform, submission: Submission) -> RunningApp | None:
    """Submit; where that fails, believe what `find` says. None where it did not start, which is then on record."""
    runner = platform.apps.runner()
    try:
        return runner.submit(submission)
    except (PartFailedError, RefusedError, UnreachableError) as error:
        for app in runner.find(submission.stream, fresh=True):
            if app.instance == submission.instance:
                return app
        platform.control.streams.record_ended(
            submission.stream, submission.epoch, outcome="not started", detail=str(error)
        )
        platform.control.alarms.open(
            AlarmKind.STREAM_DIED,
            submission.stream,
            f"epoch {submission.epoch} did not start: {error.what}",
            Extent(fault="not started"),
        )
        return None


def record_answer(platform: Platform, app: RunningApp) -> None:
    """Write down what the runner calls the app."""
    platform.control.streams.record_submitted(
        app.stream, app.epoch, runner=platform.apps.runner().kind, instance=app.instance, handle=app.handle
    )


def tidy(platform: Platform, now: datetime) -> int:
    """Forget what pages no longer show: history of batches, and looks at streams nobody wants any more; the rows.

    A bounded number at a time: after a long pause the next calls go on.
    """
    streams = platform.control.streams
    forgotten = 0
    for _ in range(MOST_PARTS):
        part = streams.forget_history(now - HISTORY_KEPT)
        forgotten += part
        if part == 0:
            break
    return forgotten + streams.forget_looks(now - LOOKS_KEPT)


def start(platform: Platform, stream: str, actor: str, reason: str) -> Supervised:
    """Want a stream running, forget its past failures, and supervise it at once.

    Raises:
        UsageError: no declaration names the stream.
        InvalidDeclarationError: its declaration is wrong.
    """
    declared_app(platform.settings.root, stream)
    platform.control.streams.set_desired(
        stream, actor=actor, reason=reason, state=DesiredState.RUNNING, reset_backoff=True
    )
    return supervise_at_once(platform, stream, actor)


def stop(platform: Platform, stream: str, actor: str, reason: str, *, hard: bool = False) -> Supervised:
    """Want a stream stopped, also one that no declaration names any more, and supervise it at once.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        actor: who wants it, for the action log.
        reason: why, for the action log.
        hard: end its processes now instead of asking them, on whichever host they are; the next start reads again
            what the batch in flight had not put on record.

    Raises:
        UsageError: nobody ever heard of this stream.
    """
    control = platform.control
    if control.streams.desired(stream) is None and not platform.apps.runner().find(stream):
        declared_app(platform.settings.root, stream)
    control.streams.set_desired(stream, actor=actor, reason=reason, state=DesiredState.STOPPED, end_now=hard)
    if hard:  # at once: whoever supervises it now may be in the middle of a look
        for app in platform.apps.runner().find(stream, fresh=True):
            _kill(platform, app, actor, reason)
    return supervise_at_once(platform, stream, actor)


def accept(platform: Platform, stream: str, actor: str, reason: str) -> Supervised:
    """Let the next start take topics that were deleted and made again, forget past failures, supervise at once.

    The stream's desired state stays as it is.

    Raises:
        UsageError: no declaration names the stream, or it is a backup.
        InvalidDeclarationError: its declaration is wrong.
    """
    declared_stream(
        platform.settings.root,
        stream,
        backup="is a backup: it begins a new chain by itself when a topic was deleted and created again",
        step="start it with `millrace streams start` if it is stopped",
    )
    platform.control.streams.set_desired(stream, actor=actor, reason=reason, accept_recreated=True, reset_backoff=True)
    return supervise_at_once(platform, stream, actor)


def supervise_at_once(platform: Platform, stream: str, actor: str) -> Supervised:
    """Supervise, waiting a moment for whoever is at it: they may have looked before the wish changed."""
    for _ in range(BUSY_TRIES):
        report = supervise(platform, stream, actor)
        if not report.busy:
            break
        time.sleep(BUSY_SECONDS)
    return report


def supervise_until(
    platform: Platform,
    stream: str,
    actor: str,
    *,
    done: Callable[[Supervised], bool],
    tell: Callable[[Supervised], None],
    pause: Callable[[], None],
    within: timedelta,
) -> Supervised:
    """Supervise again and again, telling how it is each time, until `done` or the time is over; the last report."""
    deadline = datetime.now(UTC) + within
    while True:
        report = supervise(platform, stream, actor)
        tell(report)
        if (done(report) and not report.busy) or datetime.now(UTC) >= deadline:
            return report
        pause()
