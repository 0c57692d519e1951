"""Bars against a model that asks each offset; and nothing is shown as archived that an audit does not tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.archive.audits.bars import Shade, bar, losses
from millrace.domain.archive.audits.findings import MOST_NAMED, PartitionAudit
from millrace.domain.archive.proof.partition import Cause, Label, Tile
from support.archive.audits.made import lost, part

LABELS = [Label.LOST, Label.DIVERGED, Label.EXPIRED, Label.PENDING]


@st.composite
def partitions(draw: st.DrawFn) -> PartitionAudit:
    begin, length = draw(st.integers(0, 50)), draw(st.integers(0, 60))
    marks = sorted(draw(st.sets(st.integers(begin, begin + length), max_size=8)))
    tiles = [
        Tile(0, first, next_, draw(st.sampled_from(LABELS)))
        for first, next_ in zip(marks[::2], marks[1::2], strict=False)
    ]
    unknown = []
    for tile in tiles:
        if tile.label in (Label.LOST, Label.DIVERGED) and draw(st.booleans()):
            middle = draw(st.integers(tile.first, tile.next - 1))
            unknown.append(Tile(0, middle, tile.next, tile.label))
    late_first = draw(st.integers(begin, begin + length))
    late = [(late_first, draw(st.integers(late_first, begin + length)))] if draw(st.booleans()) else []
    more = draw(st.sampled_from([0, 3]))
    return part(0, *tiles, begin=begin, end=begin + length, unacknowledged=unknown, late=late, more_tiles=more)


def shade_of(found: PartitionAudit, offset: int) -> Shade:
    """The worst that an audit says of one offset."""
    if any(tile.first <= offset < tile.next for tile in found.unacknowledged):
        return Shade.LOST
    if found.more_tiles and offset >= max((tile.next for tile in found.tiles), default=found.begin):
        return Shade.UNKNOWN
    labels = {tile.label for tile in found.tiles if tile.first <= offset < tile.next}
    if labels & {Label.LOST, Label.DIVERGED}:
        return Shade.KNOWN
    if any(first <= offset < next_ for first, next_ in found.late):
        return Shade.UNSURE
    if Label.PENDING in labels:
        return Shade.PENDING
    return Shade.EXPIRED if Label.EXPIRED in labels else Shade.ARCHIVED


@given(partitions(), st.integers(0, 30))
def test_each_cell_shows_the_worst_of_its_offsets(found: PartitionAudit, cells: int) -> None:
    length = found.end - found.begin
    count = min(cells, length)
    expected: list[list[Shade]] = [[] for _ in range(count)]
    for offset in range(length if count else 0):
        cell = max(each for each in range(count) if each * length // count <= offset)
        expected[cell].append(shade_of(found, found.begin + offset))
    assert list(bar(found, cells)) == [max(shades) for shades in expected]


def test_what_is_not_named_is_never_shown_as_archived() -> None:
    expired = [Tile(0, 2 * number, 2 * number + 1, Label.EXPIRED) for number in range(MOST_NAMED)]
    shades = bar(part(0, *expired, more_tiles=500), 100)
    assert set(shades[:19]) == {Shade.EXPIRED}
    assert set(shades[20:]) == {Shade.UNKNOWN}
    late = [(2 * number, 2 * number + 1) for number in range(MOST_NAMED)]
    assert set(bar(part(0, late=late), 100)[20:]) == {Shade.UNKNOWN}


def test_a_range_that_is_acknowledged_in_part_is_two() -> None:
    found = part(0, lost(100, 200), unacknowledged=[lost(150, 200)])
    told = [(loss.tile.first, loss.tile.next, loss.known) for loss in losses(found)]
    assert told == [(150, 200, False), (100, 150, True)]


def test_beyond_a_thousand_ranges_nothing_is_called_acknowledged() -> None:
    tiles = [lost(4 * number, 4 * number + 1) for number in range(MOST_NAMED - 1)]
    last = lost(8000, 9000)  # of which the thousandth range that is named is only the beginning
    found = part(0, *tiles, last, unacknowledged=[*tiles, lost(8000, 8100)])
    assert [loss.known for loss in losses(found) if loss.tile.first == 8100] == [None]
    assert bar(found, 100)[85] is Shade.LOST
    cut = Tile(0, 8000, 8100, Label.DIVERGED, Cause.CUT)  # these come last: all others are named
    assert bar(part(0, *tiles, last, unacknowledged=[*tiles, cut]), 100)[85] is Shade.KNOWN
