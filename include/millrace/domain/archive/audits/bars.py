"""A partition's offsets as a bar of cells: each shows the worst of what is in it, so one lost offset never vanishes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from millrace.domain.archive.audits.findings import MOST_NAMED, PartitionAudit
from millrace.domain.archive.proof.partition import Cause, Label, Tile
from millrace.domain.archive.proof.spans import Spans


class Shade(IntEnum):
    """What a cell shows: the greatest of what is in it."""

    ARCHIVED = 0  # data, and offsets that were absent for good
    EXPIRED = 1
    PENDING = 2
    UNSURE = 3  # archived, and tombstones that were there may be missing
    KNOWN = 4  # lost or diverged, and somebody said that they know
    UNKNOWN = 5  # beyond the last range that the audit names: it may be anything
    LOST = 6  # lost or diverged, not acknowledged


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets that are lost or have diverged; `known`: somebody said that they know, None: the audit does not tell."""

    tile: Tile
    known: bool | None


def losses(part: PartitionAudit) -> Iterator[Loss]:
    """What of a partition is lost or has diverged: first that of which nobody said that they know.

    Where part of a range is acknowledged, each part comes by itself.
    """
    yield from (Loss(tile, False) for tile in part.unacknowledged)
    unknown = Spans((tile.first, tile.next) for tile in part.unacknowledged)
    told_below = _told_below(part)
    for tile in part.tiles:
        if tile.label in (Label.LOST, Label.DIVERGED):
            for first, next_ in unknown.outside(tile.first, tile.next):
                middle = min(max(first, told_below), next_)
                for start, stop, known in ((first, middle, True), (middle, next_, None)):
                    if start < stop:
                        yield Loss(Tile(tile.partition, start, stop, tile.label, tile.cause), known)


def _told_below(part: PartitionAudit) -> int:
    """Up to where an audit tells what is acknowledged: it names the first thousand ranges that are not."""
    named = part.unacknowledged
    # What was cut off the log comes last, so where such a range is named, all the others are.
    if len(named) < MOST_NAMED or any(tile.cause is Cause.CUT for tile in named):
        return part.end
    return named[-1].next


def bar(part: PartitionAudit, cells: int) -> tuple[Shade, ...]:
    """The offsets from begin to end in cells of equal width; fewer cells where there are fewer offsets, none of none.

    Takes as long as there are ranges and cells. Of a partition with more ranges than its audit names, all beyond the
    last that is named is UNKNOWN, but for what is named as lost there.

    Args:
        part: the partition.
        cells: how many at most.
    """
    shades = [Shade.ARCHIVED] * max(0, min(cells, part.end - part.begin))
    for tile in part.tiles:
        if tile.label in _PLAIN:
            _paint(shades, part, tile.first, tile.next, _PLAIN[tile.label])
    for first, next_ in part.late:
        _paint(shades, part, first, next_, Shade.UNSURE)
    if part.more_tiles:
        _paint(shades, part, max((tile.next for tile in part.tiles), default=part.begin), part.end, Shade.UNKNOWN)
    if len(part.late) >= MOST_NAMED:
        _paint(shades, part, part.late[-1][1], part.end, Shade.UNKNOWN)
    for loss in losses(part):
        _paint(shades, part, loss.tile.first, loss.tile.next, Shade.KNOWN if loss.known else Shade.LOST)
    return tuple(shades)


_PLAIN = {Label.EXPIRED: Shade.EXPIRED, Label.PENDING: Shade.PENDING}


def _paint(shades: list[Shade], part: PartitionAudit, first: int, next_: int, shade: Shade) -> None:
    length, count = part.end - part.begin, len(shades)
    first, next_ = max(first, part.begin) - part.begin, min(next_, part.end) - part.begin
    if first >= next_ or not count:
        return
    # The cell of offset o is the greatest c with c * length // count <= o.
    begin, end = ((first + 1) * count - 1) // length, (next_ * count - 1) // length
    for cell in range(begin, end + 1):
        shades[cell] = max(shades[cell], shade)
