"""What the control database holds, as values. All but the desired state is a copy or a log for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from millrace.domain.streams import DesiredState

SHORTEST_REASON = 5
"""Characters of a reason in the action log, wherever a person is asked for one."""


@dataclass(frozen=True, slots=True)
class DesiredStream:
    """What people want of one stream, and the number of its latest start.

    `epoch` 0 means never started. Attempts older than `backoff_reset_at` no longer count against the stream.
    """

    stream: str
    state: DesiredState
    epoch: int
    accept_recreated: bool
    backoff_reset_at: datetime | None
    changed_at: datetime
    changed_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The one instance that may run an epoch of a stream."""

    stream: str
    epoch: int
    instance: str
    host: str
    claimed_at: datetime


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at running an epoch. `ended_at` None: not known to have ended."""

    stream: str
    epoch: int
    runner: str
    submitted_at: datetime
    instance: str | None = None
    handle: str | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    outcome: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a stream was when it last said so: a copy for people, never a position to start from.

    `positions` are next offsets by `topic/partition`; `batch_seconds` is how long the last batch took; `truncated` is
    how many of its records had timestamps that were cut to microseconds.
    """

    stream: str
    epoch: int
    timeline: int
    at: datetime
    batch_id: int
    rows_in: int
    rows_out: int
    quarantined: int
    batch_seconds: float
    last_error: str | None
    positions: Mapping[str, int]
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the action log: who did what to what, when and why, with the facts before and after."""

    identity: int
    at: datetime
    actor: str
    action: str
    subject: str
    reason: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    outcome: str


class AlarmStanding(StrEnum):
    """How it stands with an alarm."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"  # its cause is still there, and somebody has taken it up
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A breach. One is open per kind and subject at a time; `told_at` None means that nobody was told yet.

    One that somebody acknowledged stays open until its cause is over, and nobody is told of it any more.
    """

    identity: int
    kind: str
    subject: str
    detail: str
    opened_at: datetime
    closed_at: datetime | None
    told_at: datetime | None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_reason: str | None = None

    @property
    def standing(self) -> AlarmStanding:
        """How it stands with it."""
        if self.closed_at is not None:
            return AlarmStanding.OVER
        return AlarmStanding.OPEN if self.acknowledged_at is None else AlarmStanding.ACKNOWLEDGED


class AppendOnly(StrEnum):
    """What keeps the action log append-only."""

    PERMISSION = "permission"  # the role that writes it has no other right; the trigger stands behind that
    TRIGGER = "trigger"  # the role that writes it owns it, so only the trigger refuses


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What an upgrade did. `before` is None for an empty database; `applied` is empty where nothing was to do."""

    address: str
    before: str | None
    after: str
    applied: tuple[str, ...]
    append_only: AppendOnly
