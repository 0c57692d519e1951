"""What the control database holds, as values. All but the desired state is a copy or a log for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.formats.undeclared import UndeclaredFields
from millrace.domain.streams.supervision import DesiredState, StreamState

SHORTEST_REASON = 5
"""Characters of a reason in the action log, wherever a person is asked for one."""


@dataclass(frozen=True, slots=True)
class DesiredStream:
    """What people want of one stream, and the number of its latest start.

    `epoch` 0 means never started. Attempts older than `backoff_reset_at` no longer count against the stream. `host` is
    the identity of the host it belongs to, None before its first start; `end_now`: a stop does not wait for a batch.
    """

    stream: str
    state: DesiredState
    epoch: int
    accept_recreated: bool
    backoff_reset_at: datetime | None
    changed_at: datetime
    changed_by: str
    reason: str
    host: str | None = None
    end_now: bool = False


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
    how many of its records had timestamps that were cut to microseconds; `undeclared` counts the fields that no schema
    names; `lag` is how many records up to the last stable offset were not read when that batch was over, None where the
    brokers did not say.
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
    lag: int | None = None
    undeclared: UndeclaredFields = field(default_factory=UndeclaredFields)

    @property
    def has_several_topics(self) -> bool:
        """Return whether the positions are of more than one topic: a name then needs its topic beside it."""
        return len({partition.rpartition("/")[0] for partition in self.positions}) > 1


BATCH_STEPS = ("plan", "copy", "check", "merge", "group")
HISTORY_KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class BatchSecond:
    """What the batches of one epoch that ended within one second did together: history for people.

    `at` is the second; `seconds` is how long they took, `steps` that by step; `lag` is what the last of them left.
    """

    stream: str
    epoch: int
    at: datetime
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    lag: int | None = None

    @staticmethod
    def of(progress: StreamProgress, steps: Mapping[str, float]) -> BatchSecond:
        """The second of one batch."""
        return BatchSecond(
            progress.stream,
            progress.epoch,
            progress.at.replace(microsecond=0),
            1,
            progress.rows_in,
            progress.rows_out,
            progress.quarantined,
            progress.batch_seconds,
            dict(steps),
            progress.lag,
        )

    def with_one_more(self, other: BatchSecond) -> BatchSecond:
        """This second and a later batch in it."""
        names = dict.fromkeys((*self.steps, *other.steps))
        return replace(
            other,
            batches=self.batches + other.batches,
            rows_in=self.rows_in + other.rows_in,
            rows_out=self.rows_out + other.rows_out,
            quarantined=self.quarantined + other.quarantined,
            seconds=self.seconds + other.seconds,
            steps={name: self.steps.get(name, 0.0) + other.steps.get(name, 0.0) for name in names},
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the batches of a stream that ended within one part of a time did together.

    `steps` are seconds by step; `lag` is the greatest, None where none was known.
    """

    at: datetime
    batches: int
    rows_in: int
    rows_out: int
    quarantined: int
    steps: Mapping[str, float]
    lag: int | None


@dataclass(frozen=True, slots=True)
class StreamLook:
    """How a stream was when somebody last supervised it: a copy for people, nothing is decided by it.

    `until` is when something is due, as the end of a backoff; `wished_at` is the `changed_at` of the wish it knew of;
    `host` is the identity of the host that looked.
    """

    stream: str
    at: datetime
    state: StreamState
    epoch: int | None
    since: datetime | None
    why: str
    until: datetime | None
    wished_at: datetime | None = None
    host: str | None = None


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


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """What is written down about one stream's past: attempts and actions newest first, buckets oldest first."""

    attempts: Sequence[Attempt]
    actions: Sequence[Action]
    buckets: Sequence[Bucket]


class AppendOnly(StrEnum):
    """What keeps the action log append-only."""

    PERMISSION = "permission"  # the role that writes it has no other right; the trigger stands behind that
    TRIGGER = "trigger"  # the role that writes it owns it, so only the trigger refuses


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What an upgrade did. `before` is None for an empty database; `applied` is empty where nothing was to do.

    `aside` says why streams that write to Kafka or S3 cannot keep their state in the database yet; empty where they
    can.
    """

    address: str
    before: str | None
    after: str
    applied: tuple[str, ...]
    append_only: AppendOnly
    aside: str = ""
