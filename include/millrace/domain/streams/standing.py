"""How it stands with a stream, for people: whether somebody has to act, and why, from what is written down about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.streams.control import Attempt, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.supervision import DesiredState, ExitReason, StreamState

UNSEEN_AFTER = timedelta(minutes=10)
"""Every stream is looked at each five minutes by `millrace.supervise`, and far oftener by its own DAG."""
BEHIND_AFTER = timedelta(minutes=1)
QUARANTINE_WINDOW = timedelta(hours=1)


class Level(IntEnum):
    """How much a stream needs somebody, the most first."""

    WRONG = 0
    WARNING = 1
    CHANGING = 2
    FINE = 3
    OFF = 4


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """All that is written down about one stream, as one look into the control database found it.

    `last_end` is the last attempt that has ended; `quarantined` counts the last hour's; `alarms` are open ones.
    """

    stream: str
    desired: DesiredStream | None = None
    look: StreamLook | None = None
    progress: StreamProgress | None = None
    last_end: Attempt | None = None
    alarms: Sequence[Alarm] = ()
    quarantined: int = 0

    @property
    def wanted(self) -> DesiredState:
        """What people want of it; a new stream is stopped until it is first started."""
        return self.desired.state if self.desired else DesiredState.STOPPED

    @property
    def state(self) -> StreamState:
        """How it was at the last look."""
        return self.look.state if self.look else StreamState.UNKNOWN

    @property
    def last_error(self) -> str:
        """Return why its present epoch ended, if not as asked; else what that epoch last said."""
        return last_error(self.progress, self.last_end, self.look.epoch if self.look else None)

    @property
    def former_error(self) -> str:
        """Return how the epoch before the present one ended, if not as asked."""
        return former_error(self.last_end, self.look.epoch if self.look else None)


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with a stream, and why."""

    level: Level
    why: str


def last_error(progress: StreamProgress | None, last_end: Attempt | None, epoch: int | None) -> str:
    """Return what went wrong last in a stream's present epoch; empty where nothing did, or it stopped as asked.

    Args:
        progress: the latest.
        last_end: the last attempt that has ended.
        epoch: of the living app, else of the last attempt; None where nobody knows, which leaves no error out.
    """
    if last_end and (epoch is None or last_end.epoch >= epoch) and (text := _end_text(last_end)):
        return text
    is_present = progress is not None and epoch in (None, progress.epoch)
    return (progress.last_error if progress and is_present else None) or ""


def former_error(last_end: Attempt | None, epoch: int | None) -> str:
    """Return how the epoch before the present one ended, if not as asked."""
    return _end_text(last_end) if last_end and epoch is not None and last_end.epoch < epoch else ""


def _end_text(end: Attempt) -> str:
    if end.exit_code == ExitReason.STOPPED:
        return ""
    return f"epoch {end.epoch}: {end.outcome}. {end.detail or ''}".strip()  # no exit code: killed with its guard


def standing(facts: StreamFacts, now: datetime) -> Standing:
    """How it stands with a stream: the worst that is so, and every reason, the worst first."""
    reasons = sorted(_reasons(facts, now), key=lambda reason: reason.level)
    if not reasons:
        return Standing(Level.FINE, "")
    texts = dict.fromkeys(reason.why for reason in reasons if reason.why)
    return Standing(reasons[0].level, "; ".join(texts))


_OF_STATE = {
    StreamState.GIVEN_UP: Level.WRONG,
    StreamState.RECREATED: Level.WRONG,
    StreamState.STUCK: Level.WRONG,
    StreamState.BACKING_OFF: Level.WARNING,
    StreamState.UNDECLARED: Level.WARNING,
    StreamState.STARTING: Level.CHANGING,
    StreamState.DRAINING: Level.CHANGING,
}


def _reasons(facts: StreamFacts, now: datetime) -> Iterator[Standing]:
    if facts.wanted is DesiredState.STOPPED and not _lives(facts):
        yield Standing(Level.OFF, _stopped(facts.desired))
    else:
        yield from _of_look(facts, now)
    told = facts.look.why if facts.look else ""
    for alarm in facts.alarms:
        if told and told in alarm.detail:
            continue  # it says the same
        yield Standing(Level.WARNING, f"alarm {alarm.kind}: {alarm.detail}")
    if facts.quarantined:
        yield Standing(Level.WARNING, f"{facts.quarantined:,} bad records in the last hour")
    if facts.state is StreamState.RUNNING and facts.progress:
        yield from _behind(facts.progress)


def _lives(facts: StreamFacts) -> bool:
    return facts.state not in (StreamState.STOPPED, StreamState.UNKNOWN, StreamState.UNDECLARED)


def _stopped(desired: DesiredStream | None) -> str:
    if desired is None:
        return "never started"
    return f"stopped by {desired.changed_by}: {desired.reason}"


def _of_look(facts: StreamFacts, now: datetime) -> Iterator[Standing]:
    seen = facts.look
    if seen is None or now - seen.at > UNSEEN_AFTER:
        yield Standing(Level.WRONG, "nothing supervises it: check Airflow's scheduler and triggerer")
    if seen is None:
        return
    if seen.state in _OF_STATE:
        yield Standing(_OF_STATE[seen.state], seen.why or seen.state.value)
    elif seen.state is StreamState.STOPPED:
        yield Standing(Level.CHANGING, "should run, not started yet")


def _behind(progress: StreamProgress) -> Iterator[Standing]:
    """Behind: at the pace of its last batch it would take more than a minute to read what waits."""
    if not progress.lag:
        return
    pace = progress.rows_in / progress.batch_seconds if progress.batch_seconds > 0 else 0.0
    if pace <= 0:
        yield Standing(Level.WARNING, f"behind by {progress.lag:,} records, and its last batch read none")
        return
    seconds = progress.lag / pace
    if seconds > BEHIND_AFTER.total_seconds():
        about = f"about {seconds / 60:,.0f} min at the pace of its last batch"
        yield Standing(Level.WARNING, f"behind by {progress.lag:,} records, {about}")
