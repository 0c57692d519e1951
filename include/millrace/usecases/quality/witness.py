"""Who can tell that an offset held no record: the archive, and behind it the log itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.quality.books import Doubt, Finding
from millrace.domain.quality.witness import Witness
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import DataLossError, DeclarationError, MillraceError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

MOST_READ = 20_000_000
"""So many offsets of the log a run reads again, or one entry's, where that has more."""


@dataclass(slots=True)
class Judged:
    """What became of doubts.

    Attributes:
        findings: what is left of those that were judged.
        unasked: the ranges of those that were not: there was too much to read, or a server did not answer.
        problem: why a server did not.
    """

    findings: list[Finding] = field(default_factory=list)
    unasked: list[OffsetRange] = field(default_factory=list)
    problem: MillraceError | None = None


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

    def judge(self, doubts: Sequence[Doubt]) -> Judged:
        """What of these doubts is left once everybody who can tell has been asked."""
        judged = Judged()
        if not doubts:
            return judged
        try:
            archives = self._archives(doubts)
            open_: dict[TopicPartition, list[Doubt]] = {}
            for doubt in doubts:
                if not _of(archives, doubt).is_enough_for(doubt):
                    open_.setdefault(doubt.range.partition, []).append(doubt)
            logs = self._logs(open_)
        except MillraceError as error:
            return Judged([], [doubt.range for doubt in doubts], error)
        for partition, waiting in open_.items():
            for stretch in _stretches(waiting):
                self._judge_stretch(stretch, archives, logs.get(partition), judged)
        return judged

    def _judge_stretch(
        self,
        stretch: Sequence[Doubt],
        archives: Mapping[TopicPartition, Witness],
        bounds: LogBounds | None,
        judged: Judged,
    ) -> None:
        partition = stretch[0].range.partition
        absent = [span for doubt in stretch for span in doubt.absent]
        first, next_ = (absent[0][0], absent[-1][1]) if bounds else (0, 0)
        if bounds:
            first, next_ = max(first, bounds.start), min(next_, bounds.end)
        log = Witness()
        if first < next_:
            if judged.problem is not None or (self._read and self._read + next_ - first > MOST_READ):
                judged.unasked += [doubt.range for doubt in stretch]
                return
            self._read += next_ - first
            try:
                log = self._log(partition, first, next_)
            except MillraceError as error:
                judged.problem = error
                judged.unasked += [doubt.range for doubt in stretch]
                return
        for doubt in stretch:
            here = doubt.range
            finding = (_of(archives, doubt) + log.within(here.first, here.next)).judge(doubt)
            judged.findings += [finding] if finding else []

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
            self.platform.archive.reader().look_through(incarnation, seen.see)
            for number, witness in seen.witnesses().items():
                found[TopicPartition(incarnation.topic, incarnation.topic_id, number)] = witness
        return found

    def _logs(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        """The bounds of those partitions that the topics still have, under the same ids."""
        wanted = set(partitions)
        if not wanted:
            return {}
        log = self.platform.kafka.logs(self.pipeline.kafka)
        there = wanted.intersection(log.partitions({partition.topic for partition in wanted}))
        return log.bounds(there) if there else {}

    def _log(self, partition: TopicPartition, first: int, next_: int) -> Witness:
        """What the log has in a range; nothing where it expired, or the topic went, while it was read.

        Raises:
            UnreachableError: a broker does not answer.
        """
        self.progress(f"reading {partition} again, {next_ - first:,} offsets")
        holes: list[Span] = []
        at = first
        reader = self.platform.kafka.records(self.pipeline.kafka)
        try:
            for record in reader.between(partition.topic, partition.partition, first, next_):
                if record.offset > at:
                    holes.append((at, record.offset))
                at = record.offset + 1
        except (DataLossError, DeclarationError):
            return Witness()
        if partition not in self.platform.kafka.logs(self.pipeline.kafka).partitions([partition.topic]):
            return Witness()  # it was made again meanwhile: those were another topic's records
        holes.append((at, next_))
        whole = Spans([(first, next_)])
        return Witness(whole, Spans(holes), whole)


def _of(archives: Mapping[TopicPartition, Witness], doubt: Doubt) -> Witness:
    """What the archive knows of one doubt's range."""
    witness = archives.get(doubt.range.partition)
    return witness.within(doubt.range.first, doubt.range.next) if witness else Witness()


def _stretches(doubts: Sequence[Doubt]) -> Iterable[list[Doubt]]:
    """Doubts of one partition whose ranges adjoin, to be read in one go, in parts that are not all too long."""
    stretch: list[Doubt] = []
    for doubt in sorted(doubts, key=lambda doubt: doubt.range.first):
        if stretch and (
            stretch[-1].range.next != doubt.range.first or doubt.range.next - stretch[0].range.first > MOST_READ // 4
        ):
            yield stretch
            stretch = []
        stretch.append(doubt)
    if stretch:
        yield stretch


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
