"""Desired states, starts and looks of streams, and their hosts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol

from millrace.domain.alarms.outage import LastSeen
from millrace.domain.streams.control import Attempt, Claim, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.hosts import Heartbeat, Host, HostSign
from millrace.domain.streams.supervision import DesiredState


class Streams(Protocol):
    """Desired state, claims, attempts and progress. `stream` is always the qualified name, PIPELINE.STREAM."""

    def supervising(self, stream: str) -> AbstractContextManager[bool]:
        """Hold the right to supervise a stream: the block gets False at once where somebody else does."""
        ...

    def desired(self, stream: str) -> DesiredStream | None:
        """Return what is wanted of a stream; None where nobody ever said (treat it as stopped)."""
        ...

    def all_desired(self) -> tuple[DesiredStream, ...]:
        """Return what is wanted of every stream anybody ever said something about, by name."""
        ...

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
        """Say what is wanted, and write that to the action log in the same transaction."""
        ...

    def raise_epoch(self, stream: str, expected: int, *, host: str, above: int = 0) -> int | None:
        """Begin a start on this host: the new epoch, which is `expected` + 1, or `above` + 1 where that is more."""
        ...

    def consume_acceptance(self, stream: str) -> bool:
        """Take back `accept_recreated` once a start has made use of it; whether it was set."""
        ...

    def claimed(self, stream: str, epoch: int) -> Claim | None:
        """Who claimed an epoch."""
        ...

    def record_submitted(
        self, stream: str, epoch: int, *, runner: str, instance: str | None = None, handle: str | None = None
    ) -> None:
        """Note that an epoch is being submitted. Call it before the submit, and again with what the runner answered."""
        ...

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
        """Note how an epoch ended; False where that was noted before. `at` None: now."""
        ...

    def attempts(self, stream: str, *, last: int = 20) -> tuple[Attempt, ...]:
        """The last attempts of a stream, newest epoch first."""
        ...

    def forget_history(self, before: datetime, *, at_most: int = 50000) -> int:
        """Delete seconds of history that are older, the oldest first; how many that were."""
        ...

    def save_look(self, look: StreamLook) -> None:
        """Keep how a stream was when it was last supervised; an older look of the same host changes nothing."""
        ...

    def forget_looks(self, before: datetime) -> int:
        """Delete looks that are older, of streams that nobody ever wanted anything of; how many that were."""
        ...

    def look(self, stream: str) -> StreamLook | None:
        """Return how a stream was when it was last supervised."""
        ...

    def progress(self, stream: str) -> StreamProgress | None:
        """A stream's latest progress."""
        ...

    def all_progress(self) -> tuple[StreamProgress, ...]:
        """The latest progress of every stream that ever ran, by name."""
        ...


class Hosts(Protocol):
    """Owners of streams, heartbeats of apps, signs of hosts. Times and ages are by the database's clock."""

    def give_sign(self, host: Host) -> None:
        """Note that this host is there now."""
        ...

    def sign(self, identity: str) -> HostSign | None:
        """Return the newest sign of a host; None where it never gave one."""
        ...

    def heartbeat(self, stream: str) -> Heartbeat | None:
        """Return the heartbeat of a stream's newest app; None where none was ever given."""
        ...

    def newest_of_twin(self, host: Host) -> Heartbeat | None:
        """Return the newest heartbeat that bears this host's identity from another boot or process namespace."""
        ...

    def last_seen(self, most: int) -> tuple[int, tuple[LastSeen, ...]]:
        """Return how many streams are wanted running, and how the first `most` of them by name were last seen."""
        ...

    def take(self, stream: str, host: Host, *, was: str | None, epoch: int = 0) -> bool:
        """Have a stream belong to this host if it still belongs to `was` (None: to none); False where it does not."""
        ...

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
        """Take a stream over for good; its open attempts end as `host lost`, and the action log says so."""
        ...
