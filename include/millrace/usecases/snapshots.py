"""Taking snapshots of clusters into the control database, one a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.snapshots import SNAPSHOT_EVERY
from millrace.usecases.groups import clusters

if TYPE_CHECKING:
    from millrace.wiring import Platform

_EARLY = timedelta(seconds=10)  # a snapshot that is due within this is taken now: a clock that jitters leaves none out


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of one cluster's turn: a snapshot with its cost, one that somebody else has taken, or a failure."""

    kafka: str
    stored: bool
    text: str
    failed: bool = False


def take_due(platform: Platform, now: datetime) -> Sequence[Taken]:
    """Take a snapshot of every cluster that has none of this minute; one that fails does not keep the others from it.

    Two that do this at once take one snapshot each at most, and one of them may be dropped.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return [taken for kafka in clusters(platform.settings.root) if (taken := _take(platform, kafka, now))]


def _take(platform: Platform, kafka: str, now: datetime) -> Taken | None:
    store = platform.control().snapshots
    newest = store.newest(kafka)
    if newest is not None and timedelta(0) <= now - newest.at < SNAPSHOT_EVERY - _EARLY:
        return None
    try:
        snapshot = platform.cluster_reader(kafka).take()
    except Exception as error:  # whatever a client meets in one cluster, the others come next
        return Taken(kafka, False, f"{kafka}: {error}", failed=True)
    stored = store.add(kafka, snapshot)
    partitions = sum(len(topic.logs) for topic in snapshot.topics.values())
    cost = f"{snapshot.requests} requests, {snapshot.seconds:.1f} s"
    text = f"{kafka}: {partitions:,} partitions, {len(snapshot.groups):,} groups, {cost}"
    faults = "".join(f"\n  not known: {fault}" for fault in snapshot.faults)
    return Taken(kafka, stored, text + faults)


def tidy(platform: Platform, now: datetime) -> int:
    """Let go of the days that are older than snapshots are kept; how many.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control().snapshots.tidy(now)
