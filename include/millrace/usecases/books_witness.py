"""Who can tell that an offset held no record: the archive, and behind it the log itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.spans import Span, Spans
from millrace.domain.declaration import Pipeline
from millrace.domain.offsets import TopicPartition
from millrace.domain.quality.books import Doubt, Finding
from millrace.domain.quality.witness import Witness
from millrace.errors import DataLossError

if TYPE_CHECKING:
    from millrace.wiring import Platform

MOST_READ = 20_000_000
"""So many offsets of the log a run reads again at most."""


@dataclass(slots=True)
class Witnesses:
    """The archives and the log of a stream's topics.

    Attributes:
        platform: the adapters.
        pipeline: whose stream it is.
        progress: told what is being asked.
    """

    platform: Platform
    pipeline: Pipeline
    progress: Callable[[str], object] = field(default=lambda _: None)
    _read: int = 0

    def judge(self, doubts: Sequence[Doubt]) -> tuple[Finding, ...]:
        """What of these doubts is left once everybody who can tell has been asked.

        Raises:
            UnreachableError: the bucket or a broker does not answer.
        """
        if not doubts:
            return ()
        known = self._archives(doubts)
        findings = []
        for doubt in doubts:
            partition = doubt.range.partition
            witness = known.get(partition, Witness())
            if not witness.is_enough_for(doubt):
                witness += self._log(partition, tuple(doubt.absent.minus(witness.holes)))
            finding = witness.judge(doubt)
            if finding is not None:
                findings.append(finding)
        return tuple(findings)

    def _archives(self, doubts: Iterable[Doubt]) -> dict[TopicPartition, Witness]:
        """What the archives know of the ranges in doubt; each chain is read once."""
        topics = (*self.pipeline.topics, *self.pipeline.references)
        backed_up = {topic.name for topic in topics if topic.backup is not None}
        asked: dict[Incarnation, dict[int, Span]] = {}
        for doubt in doubts:
            partition = doubt.range.partition
            if partition.topic not in backed_up:
                continue
            of_topic = asked.setdefault(Incarnation(partition.topic, partition.topic_id), {})
            first, next_ = of_topic.get(partition.partition, (doubt.range.first, doubt.range.next))
            of_topic[partition.partition] = (min(first, doubt.range.first), max(next_, doubt.range.next))
        found: dict[TopicPartition, Witness] = {}
        for incarnation, spans in asked.items():
            self.progress(f"asking the archive of {incarnation.topic}")
            seen = _Seen(spans)
            self.platform.archive_reader().look_through(incarnation, seen.see)
            for number, witness in seen.witnesses().items():
                found[TopicPartition(incarnation.topic, incarnation.topic_id, number)] = witness
        return found

    def _log(self, partition: TopicPartition, absent: Sequence[Span]) -> Witness:
        """What the log has from the first to the last of these offsets, as far as it still reaches back."""
        log = self.platform.kafka_log(self.pipeline.kafka)
        if not absent or partition not in log.partitions([partition.topic]):
            return Witness()
        bounds = log.bounds([partition])[partition]
        first, next_ = max(absent[0][0], bounds.start), min(absent[-1][1], bounds.end)
        if first >= next_ or self._read + next_ - first > MOST_READ:
            return Witness()
        self._read += next_ - first
        self.progress(f"reading {partition} again, {next_ - first:,} offsets")
        holes: list[Span] = []
        at = first
        records = self.platform.topic_reader(self.pipeline.kafka).between(
            partition.topic, partition.partition, first, next_
        )
        try:
            for record in records:
                if record.offset > at:
                    holes.append((at, record.offset))
                at = record.offset + 1
        except DataLossError:  # expired while it was read
            return Witness()
        holes.append((at, next_))
        return Witness(Spans([(first, next_)]), Spans(holes))


@dataclass(slots=True)
class _Seen:
    """What an archive's objects know of some ranges, by partition."""

    spans: Mapping[int, Span]
    _knows: dict[int, list[Span]] = field(default_factory=dict)
    _holes: dict[int, list[Span]] = field(default_factory=dict)

    def see(self, entry: ObjectEntry) -> None:
        first, next_ = self.spans.get(entry.partition, (0, 0))
        if entry.first < next_ and first < entry.next:
            self._knows.setdefault(entry.partition, []).append((entry.first, entry.next))
            self._holes.setdefault(entry.partition, []).extend(entry.holes)

    def witnesses(self) -> dict[int, Witness]:
        return {
            number: Witness(Spans(sorted(knows)), Spans(sorted(self._holes.get(number, ()))))
            for number, knows in self._knows.items()
        }
