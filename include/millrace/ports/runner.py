"""Runners of stream apps: they start apps and find them again by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from millrace.domain.streams.vitals import STUCK_AFTER, Vitals


class RunState(StrEnum):
    """What a runner knows of one submitted app."""

    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  # it is gone and left no exit code


@dataclass(frozen=True, slots=True)
class Submission:
    """What a runner is asked to start: one instance of one epoch of a stream."""

    stream: str  # PIPELINE.STREAM
    epoch: int
    instance: str
    arguments: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()  # names of the only Connections the app may see
    stuck_after: timedelta = STUCK_AFTER  # how long it may take to start


@dataclass(frozen=True, slots=True)
class RunningApp:
    """One app as its runner sees it.

    `handle` is the runner's own name for it, stable over restarts of Millrace; `phase` is what the driver last said
    of itself (`starting`, `running`, `draining`, `ended`), empty where that is not known. `vitals` of a living app
    say how it gets on; None where that is not known either.
    """

    stream: str
    epoch: int
    instance: str
    handle: str
    state: RunState
    started_at: datetime | None = None
    stopping_since: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    detail: str = ""
    phase: str = ""
    vitals: Vitals | None = None


class StreamRunner(Protocol):
    """Starts stream apps somewhere and finds them again by name, also after a lost answer."""

    kind: str

    def submit(self, submission: Submission) -> RunningApp:
        """Start an app. May raise after the app was started: `find` settles it, never trust.

        Raises:
            UnreachableError: the runner does not answer.
            PartFailedError: the app could not be started.
        """
        ...

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        """Every app of this stream that is alive, newest epoch first, whoever started it.

        Args:
            stream: PIPELINE.STREAM.
            fresh: look anew. Else a look of up to a second ago may do, though not from before an own submit or kill.
        """
        ...

    def find_all(self) -> Mapping[str, Sequence[RunningApp]]:
        """Every living app by stream, also of streams that no declaration names any more."""
        ...

    def status(self, stream: str, epoch: int) -> RunningApp | None:
        """The app of this epoch, living or ended; None where it was never submitted here."""
        ...

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """What the driver of this epoch said last, at most so many lines; none where it left no log."""
        ...

    def stop(self, app: RunningApp) -> None:
        """Ask the app to finish its batch, commit and exit 0. Returns at once."""
        ...

    def kill(self, app: RunningApp) -> None:
        """End the app and all its processes now. Returns when none is left."""
        ...
