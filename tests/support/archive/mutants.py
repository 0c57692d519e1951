"""Faults for the archive's proof: each replaces one function of the package with one that lacks something."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millrace.adapters.archive import writer as archive_writer
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.chain import ReadRanges
from millrace.domain.archive.manifest import ObjectEntry, PartitionSpan
from millrace.domain.archive.proof import coverage, tiling
from millrace.domain.archive.proof.coverage import PartitionCoverage
from millrace.domain.archive.proof.partition import Cause, Label, PartitionState, Tile
from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.archive.proof.summary import PartitionSummary
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.streams.position import LogBounds
from millrace.errors import FencedError
from support.archive import model as archive_model

Plain = Callable[..., Any]
Fault = Callable[[Plain], Plain]
"""Makes the faulty function from the plain one."""


def loses_nothing_as(cause: Cause) -> Fault:
    def fault(plain: Plain) -> Plain:
        def lose(self: PartitionState, first: int, next_: int, why: Cause) -> Iterator[Tile]:
            return iter(()) if why is cause else plain(self, first, next_, why)

        return lose

    return fault


def forgets_the_log_start(plain: Plain) -> Plain:
    """Count an object in as if no look before had shown where the log begins."""

    def bring(self: PartitionState, *given: object) -> list[Tile]:
        look, self.look = self.look, replace(self.look, start=0)
        tiles = list(plain(self, *given))
        self.look = look
        return tiles

    return bring


def keeps_as_it_was(attribute: str) -> Fault:
    """Call the plain function and put one set of offsets back."""

    def fault(plain: Plain) -> Plain:
        def keeping(self: PartitionState, *given: object) -> list[Tile]:
            before = Spans(getattr(self, attribute))
            tiles = list(plain(self, *given))
            setattr(self, attribute, before)
            return tiles

        return keeping

    return fault


def sees_no_divergence(plain: Plain) -> Plain:
    kept = keeps_as_it_was("diverged")(plain)

    def see(self: PartitionState, *given: object) -> list[Tile]:
        return [tile for tile in kept(self, *given) if tile.label is not Label.DIVERGED]

    return see


def nothing_is_late_soon_after_a_look(plain: Plain) -> Plain:
    def late_below(self: PartitionState, entry: ObjectEntry, *given: object) -> int:
        below: int = plain(self, entry, *given)
        return entry.first if below == self.look.end else below

    return late_below


def nothing_is_late_beyond_a_look(plain: Plain) -> Plain:
    def late_below(self: PartitionState, *given: object) -> int:
        return min(plain(self, *given), self.look.end)

    return late_below


def acknowledges_all(plain: Plain) -> Plain:
    def acknowledge(self: PartitionState, acknowledged: Iterable[PartitionSpan], log_start: int) -> None:
        spans = list(acknowledged)
        plain(self, spans, log_start)
        self.acknowledged.update((span.first, span.next) for span in spans)

    return acknowledge


def counts_what_is_lost_as_holes(plain: Plain) -> Plain:
    """Take from the holes of an expired object what was lost of it, too."""

    def expire(self: PartitionState, entry: ObjectEntry) -> list[Tile]:
        for spans in self.lost.values():
            self.holes -= sum(next_ - first for first, next_ in spans.within(entry.first, entry.next))
        return list(plain(self, entry))

    return expire


def replaces_every_label(plain: Plain) -> Plain:
    def unless(self: PartitionState, others: object, first: int, next_: int, label: Label) -> Iterator[Tile]:
        return plain(self, (), first, next_, label)  # type: ignore[no-any-return]

    return unless


def covers_without(label: Label, cause: Cause | None = None) -> Fault:
    """Leave tiles out that only the log shows as it is now."""

    def fault(plain: Plain) -> Plain:
        def cover(state: PartitionState, bounds: LogBounds | None, gone: bool) -> PartitionCoverage:
            def kept(tiles: Iterable[Tile]) -> tuple[Tile, ...]:
                return tuple(tile for tile in tiles if not left_out(tile))

            def left_out(tile: Tile) -> bool:
                diverged = any(state.diverged.within(tile.first, tile.next))
                told = diverged if label is Label.DIVERGED else tile.next <= state.next
                return tile.label is label and (cause is None or tile.cause is cause) and not told

            found: PartitionCoverage = plain(state, bounds, gone)
            return replace(found, tiles=kept(found.tiles), unacknowledged=kept(found.unacknowledged))

        return cover

    return fault


def begins_where_it_was_seen(plain: Plain) -> Plain:
    def new(self: Tiling, number: int, first_seen: int) -> PartitionState:
        return replace(plain(self, number, first_seen), begin=first_seen, next=first_seen)

    return new


def does_nothing(plain: Plain) -> Plain:
    return lambda *_: iter(())


def reads_what_is_lost(plain: Plain) -> Plain:
    def next_ranges(read: Tiling, log: ObservedLog) -> object:
        found = plain(read, log)
        if not isinstance(found, ReadRanges):
            return found
        tiles = [tile for part in read.end(log).partitions for tile in part.tiles if tile.label is Label.LOST]
        lost = [PartitionSpan(tile.partition, tile.first, tile.next) for tile in tiles]
        return replace(found, read=tuple(sorted([*lost, *found.read], key=lambda span: (span.partition, span.first))))

    return next_ranges


def takes_over_a_newer_epoch(plain: Plain) -> Plain:
    def take_over(store: Any, read: Tiling, writer: Any, look: Callable[[], Any]) -> ArchiveWriter:
        try:
            return plain(store, read, writer, look)  # type: ignore[no-any-return]
        except FencedError:
            chain = ArchiveWriter(store, read, writer)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tiling, "link_faults", lambda *_: iter(()))
                patch.setattr(archive_writer, "link_faults", lambda *_: iter(()))
                chain._chain._write(chain._takeover(look()))
            return chain

    return take_over


def outside_begins_with_a_range(plain: Plain) -> Plain:
    def outside(self: Spans, first: int, next_: int) -> Iterator[Span]:
        for inside_first, _ in self.within(first, next_):
            if first < inside_first:
                yield first, inside_first
            first = inside_first
        if first < next_:
            yield first, next_

    return outside


def cuts_off_what_it_touches(plain: Plain) -> Plain:
    def add(self: Spans, first: int, next_: int) -> None:
        plain(self, first, next_)
        if first < next_:
            self._nexts[bisect_right(self._firsts, first) - 1] = next_

    return add


def only_lost_is_a_breach(plain: Plain) -> Plain:
    def without(tiles: Iterable[Tile], acknowledged: Spans) -> Iterator[Tile]:
        return plain((tile for tile in tiles if tile.label is Label.LOST), acknowledged)  # type: ignore[no-any-return]

    return without


def forgets_what_is_acknowledged(plain: Plain) -> Plain:
    def state(self: PartitionSummary) -> PartitionState:
        found: PartitionState = plain(self)
        found.acknowledged = Spans()
        return found

    return state


MUTANTS = [
    pytest.param(PartitionState, "_lose", loses_nothing_as(Cause.TRIMMED), 2, id="absent and trimmed is no hole"),
    pytest.param(PartitionState, "bring", forgets_the_log_start, 55, id="a log start is remembered"),
    pytest.param(PartitionState, "see", keeps_as_it_was("cut"), 12, id="what was cut off before it was read is told"),
    pytest.param(PartitionState, "_lose", loses_nothing_as(Cause.UNREAD), 2, id="a gap is lost"),
    pytest.param(PartitionState, "see", sees_no_divergence, 14, id="a log that ends too early has diverged"),
    pytest.param(PartitionState, "_late_below", nothing_is_late_soon_after_a_look, 3, id="late by the look before"),
    pytest.param(PartitionState, "_late_below", nothing_is_late_beyond_a_look, 4, id="late after a long time"),
    pytest.param(PartitionState, "expire", keeps_as_it_was("expired"), 1, id="what expired is noted"),
    pytest.param(PartitionState, "acknowledge", acknowledges_all, 14, id="only what is lost is acknowledged"),
    pytest.param(PartitionState, "expire", counts_what_is_lost_as_holes, 2, id="what expired is counted"),
    pytest.param(PartitionState, "_unless", replaces_every_label, 2, id="lost stays lost"),
    pytest.param(tiling, "cover", covers_without(Label.LOST, Cause.UNREAD), 7, id="lost before it was read"),
    pytest.param(tiling, "cover", covers_without(Label.LOST, Cause.RECREATED), 0, id="lost by deletion"),
    pytest.param(tiling, "cover", covers_without(Label.DIVERGED), 12, id="the log's end now"),
    pytest.param(tiling, "cover", covers_without(Label.PENDING), 0, id="what is to come"),
    pytest.param(Tiling, "_new", begins_where_it_was_seen, 19, id="a later partition begins at 0"),
    pytest.param(Tiling, "_expire", does_nothing, 1, id="an expiry is one"),
    pytest.param(archive_model, "next_ranges", reads_what_is_lost, 95, id="what to read"),
    pytest.param(ArchiveWriter, "take_over", takes_over_a_newer_epoch, 9, id="an older epoch ends"),
    pytest.param(Spans, "outside", outside_begins_with_a_range, 1, id="what is outside"),
    pytest.param(Spans, "add", cuts_off_what_it_touches, 4, id="ranges that touch"),
    pytest.param(coverage, "_without", only_lost_is_a_breach, 13, id="diverged is a breach"),
    pytest.param(PartitionSummary, "state", forgets_what_is_acknowledged, 14, id="summaries know what is acknowledged"),
]
"""The class or module, the function's name, the fault, and the first story in which it is noticed alone.

The numbers hold for stories without threads. Threads take the dice in another order, and so tell other stories.
"""
