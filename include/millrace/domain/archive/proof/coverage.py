"""What the proof says in the end: for each partition how far it goes and what is not archived, and one verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Cause, Label, PartitionState, Tile
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.streams.position import LogBounds

_MOST_PROBLEMS = 1000
_TOLD_TILES = 5


class Verdict(StrEnum):
    """What a look at an archive comes to."""

    PROVEN = "proven"  # every offset is archived, absent, expired, or lost with somebody's knowledge
    PENDING = "pending"  # the same, but for records that are still to be archived, or that nobody could ask for
    BROKEN = "broken"  # something is lost, diverged, or not what it says


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with the chain or what it names, and the offsets it is about, where that can be told."""

    what: str
    sequence: int | None = None
    partition: int | None = None
    first: int | None = None
    next: int | None = None
    key: str = ""

    def __str__(self) -> str:
        where = f"manifest {self.sequence}: " if self.sequence is not None else ""
        where += f"{self.key}: " if self.key else ""
        about = f" [{self.first}, {self.next}) of partition {self.partition}" if self.first is not None else ""
        return f"{where}{self.what}{about}"


@dataclass(slots=True)
class Problems:
    """The first thousand problems, and how many there are."""

    found: list[Problem] = field(default_factory=list)
    total: int = 0

    def has_room(self) -> bool:
        """Whether one more would be kept, and not only counted."""
        return len(self.found) < _MOST_PROBLEMS

    def append(self, problem: Problem) -> None:
        """One more."""
        self.total += 1
        if self.has_room():
            self.found.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """More of them."""
        for problem in problems:
            self.append(problem)


@dataclass(frozen=True, slots=True)
class PartitionCoverage:
    """One partition from `begin` up to and without `end`, the end of the audited log.

    Attributes:
        archived_to: the offset that the next object has to begin with.
        records: how many its kept objects hold.
        holes: how many offsets of their ranges were absent for good.
        tiles: what is neither DATA nor HOLE, in order; DATA and HOLE are what is left.
        late: ranges whose holes may hide a tombstone.
        unacknowledged: what is lost, diverged or was cut off, and nobody has said that they know.
    """

    partition: int
    begin: int
    end: int
    archived_to: int
    records: int
    holes: int
    tiles: tuple[Tile, ...]
    late: tuple[tuple[int, int], ...]
    unacknowledged: tuple[Tile, ...]

    def offsets(self, label: Label) -> int:
        """How many offsets have one of the labels that `tiles` tells."""
        return sum(tile.next - tile.first for tile in self.tiles if tile.label is label)


def cover(state: PartitionState, bounds: LogBounds | None, gone: bool) -> PartitionCoverage:
    """What a partition's state comes to, beside the log as it is now.

    Args:
        state: after the last manifest; left as it is.
        bounds: of the log now; None where it has none, or no leader told them.
        gone: the topic was deleted.
    """
    lost = {cause: Spans(spans) for cause, spans in state.lost.items()}
    diverged = Spans(state.diverged)
    pending = Spans()
    end = state.look.end
    if gone:
        lost.setdefault(Cause.RECREATED, Spans()).add(state.next, end)
    elif bounds is None:
        pending.add(state.next, end)
    else:
        end = bounds.end
        lost.setdefault(Cause.UNREAD, Spans()).add(state.next, min(bounds.start, bounds.end))
        pending.add(max(state.next, bounds.start), bounds.end)
        diverged.add(max(bounds.end, state.begin), max(state.next, state.look.end))
    tiles = sorted(_tiles(state, lost, diverged, pending), key=lambda tile: tile.first)
    # What was acknowledged because the topic seemed gone counts for nothing beyond the chain's end, where it is not.
    known = state.acknowledged.below(state.next) if state.seemed_gone and not gone else state.acknowledged
    cut = [Tile(state.number, first, next_, Label.DIVERGED, Cause.CUT) for first, next_ in state.cut]
    return PartitionCoverage(
        partition=state.number,
        begin=state.begin,
        end=max(end, state.next, *(tile.next for tile in tiles)),
        archived_to=state.next,
        records=state.records,
        holes=state.holes,
        tiles=tuple(tiles),
        late=tuple(state.late.minus(state.expired)),
        unacknowledged=(*_without(tiles, known), *cut),
    )


def _tiles(state: PartitionState, lost: dict[Cause, Spans], diverged: Spans, pending: Spans) -> Iterator[Tile]:
    taken = Spans()
    for cause, spans in lost.items():
        yield from (Tile(state.number, *span, Label.LOST, cause) for span in spans)
        taken.update(spans)
    for label, spans in ((Label.DIVERGED, diverged), (Label.EXPIRED, state.expired), (Label.PENDING, pending)):
        rest = spans.minus(taken)
        yield from (Tile(state.number, *span, label) for span in rest)
        taken.update(rest)


def _without(tiles: Iterable[Tile], acknowledged: Spans) -> Iterator[Tile]:
    for tile in tiles:
        if tile.label in (Label.LOST, Label.DIVERGED):
            for first, next_ in acknowledged.outside(tile.first, tile.next):
                yield Tile(tile.partition, first, next_, tile.label, tile.cause)


@dataclass(frozen=True, slots=True)
class Coverage:
    """A whole incarnation.

    Attributes:
        sequence: of the chain's last manifest, -1 where there is none, and `sha256` of its bytes.
        gone: the topic was deleted; another one may have its name.
        unseen: partitions of which nobody told the log's bounds: nothing is proven of their ends.
        problems: what is wrong with the chain itself.
    """

    incarnation: Incarnation
    sequence: int
    sha256: str
    gone: bool
    unseen: tuple[int, ...]
    partitions: tuple[PartitionCoverage, ...]
    problems: Problems

    @property
    def verdict(self) -> Verdict:
        """Broken goes before pending; what nobody could look at is pending."""
        if self.problems.total or any(partition.unacknowledged for partition in self.partitions):
            return Verdict.BROKEN
        if self.unseen or any(partition.offsets(Label.PENDING) for partition in self.partitions):
            return Verdict.PENDING
        return Verdict.PROVEN


def tile_text(topic: str, tile: Tile) -> str:
    """Offsets with their label, as an alarm has them."""
    cause = f": {tile.cause}" if tile.cause else ""
    return f"{topic}/{tile.partition} [{tile.first}, {tile.next}) {tile.label}{cause}"


def lost_text(topic: str, tiles: Collection[Tile]) -> str:
    """What a topic has lost, as an alarm has it: the first ranges, and how many more there are."""
    offsets = sum(tile.next - tile.first for tile in tiles)
    named = sorted(tiles, key=lambda tile: (tile.partition, tile.first))[:_TOLD_TILES]
    more = f", and {len(tiles) - _TOLD_TILES} more ranges" if len(tiles) > _TOLD_TILES else ""
    return f"{offsets:,} offsets are not in the archive: {'; '.join(tile_text(topic, tile) for tile in named)}{more}"
