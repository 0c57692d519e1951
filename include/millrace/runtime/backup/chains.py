"""One topic's chain while its app keeps it: what is known of it beside the chain itself, all of which may be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millrace.adapters.archive.cutting import Copied
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import Waiting
from millrace.domain.archive.proof.partition import Tile
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.groups.commits import BackupMetadata, Committed
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class TopicChain:
    """A chain that this epoch has taken over.

    Attributes:
        writer: writes it.
        log: the last look at the topic.
        committed: whether the group's commits name the head.
        since: of each partition, a moment before which its first unarchived record was not there.
        offset_bytes: what an offset of each partition weighed when it was last read.
        written_at: when the last object of each partition was written.
        absent_since: since when nobody knows a topic of this name.
        noted: losses for which a look was written.
        told: losses that somebody was told of; None: nobody was told anything yet.
    """

    writer: ArchiveWriter
    log: ObservedLog
    committed: bool = False
    since: dict[int, datetime] = field(default_factory=dict)
    offset_bytes: dict[int, float] = field(default_factory=dict)
    written_at: dict[int, datetime] = field(default_factory=dict)
    absent_since: datetime | None = None
    noted: set[Tile] = field(default_factory=set)
    told: set[Tile] | None = None

    @property
    def here(self) -> Incarnation:
        """The topic, and which of its lives."""
        return self.tiling.incarnation

    @property
    def tiling(self) -> Tiling:
        """The chain up to its head."""
        return self.writer.tiling

    @property
    def is_there(self) -> bool:
        """Return whether the topic was there at the last look."""
        return self.log.topic_id == self.here.topic_id

    @property
    def silent(self) -> frozenset[int]:
        """The partitions whose bounds the last look did not tell."""
        return frozenset(range(self.log.partitions)) - self.log.bounds.keys()

    @property
    def has_all_bounds(self) -> bool:
        """Return whether the last look told the bounds of every partition."""
        return not self.silent

    def partition(self, number: int) -> TopicPartition:
        """One of its partitions."""
        return TopicPartition(self.here.topic, self.here.topic_id, number)

    def saw(self, log: ObservedLog) -> None:
        """Take a look in: where nothing is left to archive, what comes later came after it."""
        self.log, self.absent_since = log, None
        for number, bounds in log.bounds.items():
            state = self.tiling.partitions.get(number)
            if state is not None and bounds.end <= state.next:
                self.since[number] = log.at
            elif number not in self.since:
                known = state is not None and state.look.end <= state.next
                self.since[number] = state.look.at if state is not None and known else LONG_AGO

    def knows(self, log: ObservedLog) -> bool:
        """Return whether the chain says of every partition how far its log reached."""
        states = self.tiling.partitions
        return all(n in states and states[n].look.end >= bounds.end for n, bounds in log.bounds.items())

    def waiting(self, spans: tuple[PartitionSpan, ...]) -> Iterator[Waiting]:
        """What waits to be archived."""
        for span in spans:
            number = span.partition
            yield Waiting(
                OffsetRange(self.partition(number), span.first, span.next),
                self.since[number],
                self.offset_bytes.get(number),
                self.written_at.get(number),
            )

    def wrote(self, copied: Copied, planned_at: datetime) -> None:
        """Remember what an object of a manifest was like.

        Args:
            copied: what was archived.
            planned_at: the look by which it was planned: what was not there yet came after it.
        """
        number, read = copied.read.partition.partition, copied.read
        self.offset_bytes[number] = max(1.0, copied.weight / (copied.next - read.range.first))
        self.written_at[number] = planned_at
        if copied.next == read.range.next and read.whole:
            self.since[number] = planned_at

    def commits(self, app: str, epoch: int) -> Mapping[TopicPartition, Committed]:
        """What the group is told: what of each partition is read next, and which manifest says so."""
        head = self.tiling.head
        found = {}
        for number, state in self.tiling.partitions.items():
            bounds = self.log.bounds.get(number)
            offset = max(state.next, min(bounds.start, bounds.end)) if bounds else state.next
            said = BackupMetadata(app, self.here.topic_id, epoch, offset, head.sequence, head.sha256)
            found[self.partition(number)] = Committed(offset, said.encode())
        return found

    def losses(self, log: ObservedLog) -> set[Tile]:
        """What is lost or diverged, by the chain and this look, and nobody has said that they know."""
        found = {tile for covered in self.tiling.end(log).partitions for tile in covered.unacknowledged}
        if log.topic_id == self.here.topic_id:  # what was said of a partition that gives no answer is not over
            found |= {tile for tile in self.told or () if tile.partition not in log.bounds and not self._knows_of(tile)}
        return found

    def _knows_of(self, tile: Tile) -> bool:
        """Return whether the chain itself accounts for these offsets, so that no look at the log is needed."""
        state = self.tiling.partitions.get(tile.partition)
        return state is not None and tile.next <= state.next
