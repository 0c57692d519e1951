"""What the snapshots that are kept say of one that was just taken. Where they cannot be asked nothing is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.groups.snapshots import SNAPSHOTS_KEPT, LogSample, Partition, Snapshot
from millrace.domain.retention.flow import Flow, flow, weight_of
from millrace.domain.retention.readers import Position
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

RATES_OVER = timedelta(hours=1)
_SCALES = ((SNAPSHOTS_KEPT, 84), (timedelta(hours=6), 24), (RATES_OVER, 12), (timedelta(minutes=5), 10))


def _average(sample: LogSample) -> float:
    """The bytes that an offset takes, of all that a log holds; 1 where nobody knows."""
    count = sample.end - sample.start
    return sample.size_bytes / count if sample.size_bytes and count > 0 else 1.0


class Measured:
    """Asks the snapshots of one cluster.

    Args:
        platform: the adapters.
        kafka: the cluster's Connection.
        seen: how it is now.

    Attributes:
        not_known: what could not be asked, a line each.
    """

    def __init__(self, platform: Platform, kafka: str, seen: Snapshot) -> None:
        self.not_known: list[str] = []
        self._platform = platform
        self._kafka = kafka
        self._seen = seen

    def samples(self, topics: Collection[str]) -> Mapping[Partition, Sequence[LogSample]]:
        """Logs over all the time that snapshots are kept, closer together towards now; how they are now at the end."""
        at = self._seen.at
        found: dict[Partition, dict[datetime, LogSample]] = defaultdict(dict)
        for over, parts in _SCALES:
            for partition, own in self._samples(topics, at - over, parts).items():
                found[partition].update({sample.at: sample for sample in own})
        return {
            partition: self._with_now(partition, [own[when] for when in sorted(own)])
            for partition, own in found.items()
        }

    def flows(self, topics: Collection[str], over: timedelta) -> Mapping[Partition, Flow]:
        """What came in over the last so long, weighed by the bytes that an offset took at most."""
        found = {}
        for partition, own in self._samples(topics, self._seen.at - over, 12).items():
            samples = self._with_now(partition, own)
            made = flow([(sample.at, sample.end) for sample in samples], weight_of(samples) or _average(samples[-1]))
            if made is not None:
                found[partition] = made
        return found

    def appended(self, positions: Sequence[Position]) -> Mapping[TopicPartition, Mapping[int, datetime]] | None:
        """When the records at these positions came at the earliest; None where it cannot be asked."""
        asked: dict[TopicPartition, set[int]] = defaultdict(set)
        for position in positions:
            asked[position.partition].add(position.offset)
        if not asked or self.not_known:
            return None
        try:
            snapshots = self._platform.control.snapshots
            return snapshots.appended(self._kafka, asked, self._seen.at - SNAPSHOTS_KEPT)
        except UnreachableError as error:
            self._gone(error)
            return None

    def resting(self, groups: Collection[str], since: datetime) -> set[str]:
        """Those of these groups that have committed nothing new since; none where nobody knows."""
        if not groups or self.not_known:
            return set()
        try:
            return self._platform.control.snapshots.resting(self._kafka, groups, since)
        except UnreachableError as error:
            self._gone(error)
            return set()

    def _samples(self, topics: Collection[str], since: datetime, parts: int) -> Mapping[Partition, Sequence[LogSample]]:
        if not topics or self.not_known:
            return {}
        try:
            snapshots = self._platform.control.snapshots
            return snapshots.samples(self._kafka, topics, since, self._seen.at, parts)
        except UnreachableError as error:
            self._gone(error)
            return {}

    def _with_now(self, partition: Partition, samples: Sequence[LogSample]) -> list[LogSample]:
        log = self._seen.log(partition)
        before = [sample for sample in samples if sample.at < self._seen.at]
        now = [] if log is None else [LogSample(self._seen.at, log.start, log.end, log.size_bytes)]
        return [*before, *now]

    def _gone(self, error: UnreachableError) -> None:
        self.not_known.append(f"what the snapshots say, as rates and when records came: {error.what}")
