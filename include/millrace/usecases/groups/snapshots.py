"""Taking snapshots of clusters into the control database, one a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.formats.printable import printable
from millrace.domain.groups.snapshots import SNAPSHOT_EVERY, Snapshot
from millrace.usecases.groups.listing import clusters
from millrace.usecases.retention.alarms import watch
from millrace.usecases.retention.readers import Memory

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_EARLY = timedelta(seconds=10)  # a snapshot that is due within this is taken now: a clock that jitters leaves none out


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of one cluster's turn: a snapshot with its cost, one that somebody else has taken, or a failure."""

    kafka: str
    stored: bool
    text: str
    failed: bool = False


def take_due(platform: Platform, now: datetime, memories: dict[str, Memory] | None = None) -> Sequence[Taken]:
    """Take a snapshot of every cluster that has none of this minute; one that fails does not keep the others from it.

    Each is held against its readers at once: who may lose what it has not read opens an alarm. Two that do this at once
    take one snapshot each at most, and one of them may be dropped.

    Args:
        platform: the adapters.
        now: the present.
        memories: what former calls remember, by cluster.

    Raises:
        UnreachableError: the control database does not answer.
    """
    kept = {} if memories is None else memories
    found = [
        _take(platform, kafka, now, kept.setdefault(kafka, Memory())) for kafka in clusters(platform.settings.root)
    ]
    return [taken for taken in found if taken]


def _take(platform: Platform, kafka: str, now: datetime, memory: Memory) -> Taken | None:
    store = platform.control.snapshots
    newest = store.newest(kafka)
    if newest is not None and timedelta(0) <= now - newest.at < SNAPSHOT_EVERY - _EARLY:
        return None
    try:
        snapshot = platform.kafka.cluster(kafka).take()
    except Exception as error:  # whatever a client meets in one cluster, the others come next
        return Taken(kafka, False, f"{kafka}: {error}", failed=True)
    stored = store.add(kafka, snapshot)
    partitions = sum(len(topic.logs) for topic in snapshot.topics.values())
    cost = f"{snapshot.requests} requests, {snapshot.seconds:.1f} s"
    text = f"{kafka}: {partitions:,} partitions, {len(snapshot.groups):,} groups, {cost}"
    faults = "".join(f"\n  not known: {printable(fault)}" for fault in snapshot.faults)
    return Taken(kafka, stored, text + faults + _watched(platform, kafka, snapshot, memory))


def _watched(platform: Platform, kafka: str, snapshot: Snapshot, memory: Memory) -> str:
    """What of its readers is to be told; what fails here is told too, for the snapshot is taken."""
    try:
        return "".join(f"\n  headroom: {line}" for line in watch(platform, kafka, snapshot, memory))
    except Exception as error:
        return f"\n  headroom not known: {error}"


def tidy(platform: Platform, now: datetime) -> int:
    """Let go of the days that are older than snapshots are kept; how many.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control.snapshots.tidy(now)
