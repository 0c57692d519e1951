"""Hosts: each stream belongs to one, and other hosts report it without touching it.

A host is one installation: a project's root with its state folder, on one machine. Ages are counted by the control
database's clock, so that hosts whose clocks differ agree on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millrace.domain.formats.durations import roughly
from millrace.domain.streams.supervision import DesiredState, Phase, StreamState

HEARTBEAT_EVERY = timedelta(seconds=10)
FRESH_FOR = timedelta(seconds=30)
"""A heartbeat that is younger may come from a living app: three were due meanwhile."""
HOST_LOST_AFTER = timedelta(minutes=5)
SUPERVISED_EVERY = timedelta(minutes=5)
"""The longest time between two looks of one host at a stream: those of the DAG `millrace.supervise`."""

HOST_LOST_OUTCOME = "host lost"
"""How an adoption records the attempts that it ends."""


@dataclass(frozen=True, slots=True)
class Host:
    """One installation.

    Attributes:
        identity: made once, in the state folder; empty before the first start from it.
        name: the machine's name, for people.
        namespace: the machine's boot and its namespace of process ids. Two that differ see different processes.
    """

    identity: str
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class HostSign:
    """The newest sign of a host's supervision, which an app that lives on without it does not give."""

    name: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest heartbeat of a stream's newest app, as the control database has it."""

    stream: str
    epoch: int
    instance: str
    host: str
    namespace: str
    phase: str
    step: str
    age: timedelta

    @property
    def is_fresh(self) -> bool:
        """Return whether its app may be alive: the heartbeat is young and not the last one."""
        return self.age < FRESH_FOR and self.phase != Phase.ENDED


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A stream of another host, as the control database knows it.

    Attributes:
        host: the other host's identity; its name where an older version left no identity.
        name: the other host's name.
        wanted: the desired state.
        open_epoch: the newest attempt without a recorded end; None where all have one.
        heartbeat: of that attempt; None where its app has given none.
        sign: of the host; None where it never gave one, as an older version does not.
        seen: the state that the other host saw last, if it saw the present wish; else None.
        seen_why: the reason it gave.
        lost_after: how long a host may be silent.
    """

    host: str
    name: str
    wanted: DesiredState
    open_epoch: int | None
    heartbeat: Heartbeat | None
    sign: HostSign | None
    seen: StreamState | None
    seen_why: str
    lost_after: timedelta

    @property
    def is_unsupervised(self) -> bool:
        """Return whether the host's supervision has been silent for too long.

        Of a stream without an app it may only look every five minutes, so it is given that much longer.
        """
        between = timedelta() if self.open_epoch is not None else SUPERVISED_EVERY
        return self.sign is not None and self.sign.age >= self.lost_after + between

    @property
    def _app_is_silent(self) -> bool:
        beat = self.heartbeat
        return beat is None or beat.phase == Phase.ENDED or beat.age >= self.lost_after

    @property
    def is_lost(self) -> bool:
        """Return whether neither the host's supervision nor the stream's app has given a sign of life for too long."""
        return self.is_unsupervised and self._app_is_silent

    @property
    def is_well(self) -> bool:
        """Return whether the host's supervision, or the stream's app, has just given a sign of life."""
        beat = self.heartbeat
        return (self.sign is not None and self.sign.age < FRESH_FOR) or (beat is not None and beat.is_fresh)

    @property
    def misses_host(self) -> bool:
        """Return whether the stream waits for a host that is lost: an app is wanted, or its end is not known."""
        return self.is_lost and (self.wanted is DesiredState.RUNNING or self.open_epoch is not None)

    @property
    def may_be_adopted(self) -> bool:
        """Return whether another host may take the stream: as far as anybody knows, nothing of it is alive there."""
        is_at_rest = self.open_epoch is None and self.wanted is DesiredState.STOPPED
        return self.is_lost or self.sign is None or is_at_rest

    @property
    def state(self) -> StreamState:
        """Return how the stream is. It is `stopped` only once its own host has seen that wish come about."""
        if self.misses_host:
            return StreamState.HOST_LOST
        if self.seen is not None:
            return self.seen
        if self.wanted is DesiredState.STOPPED:
            return StreamState.DRAINING
        runs = self.heartbeat is not None and self.heartbeat.phase == Phase.RUNNING
        return StreamState.RUNNING if runs else StreamState.STARTING

    @property
    def why(self) -> str:
        """Return where the stream belongs, how old the newest sign is, and what its host said of it."""
        if self.sign is None:
            return (
                f"belongs to {self.name}, where an older version started it; run `millrace streams adopt` to take it "
                "over"
            )
        if self.misses_host:
            return (
                f"{self.name} has been silent for {roughly(self.sign.age)}; run `millrace streams adopt` to take the "
                "stream over"
            )
        said = f": {self.seen_why}" if self.seen_why else ""
        if self.is_unsupervised:
            said += f"; nothing supervises it: Airflow of {self.name} has been down for {roughly(self.sign.age)}"
        if self.open_epoch is not None and self.heartbeat is not None:
            return f"runs on {self.name}, last heartbeat {roughly(self.heartbeat.age)} ago{said}"
        return f"belongs to {self.name}, last sign {roughly(self.sign.age)} ago{said}"
