"""The rules of an archive's chain: the next manifest, and the ranges that it covers.

Only the app that keeps the backup writes the chain. `adapters.chain.writer` keeps others from writing beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan, Seen
from millrace.domain.archive.proof.partition import Cause, Label, PartitionState, Tile
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer

LOOK_AGAIN_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ReadRanges:
    """What to read next. `lost` is gone already: the next object of its partition will begin behind it."""

    read: tuple[PartitionSpan, ...]
    lost: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True)
class Recreated:
    """The topic is gone, or another one has its name: this chain is complete. `lost` was never read."""

    lost: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Diverged:
    """The log ended below what is archived: no more objects are written until somebody acknowledges these offsets.

    The look that showed it has to be written (`Kind.LOOK`) before anything else: a log grows, and then shows nothing.
    """

    tiles: tuple[Tile, ...]


def next_ranges(tiling: Tiling, log: ObservedLog) -> ReadRanges | Recreated | Diverged:
    """What a chain needs next: from its end, or from the log's start where that is later, to the log's end.

    Whoever reads a range must fail where the log by then begins beyond its first offset: what is read in silence from a
    later one on looks absent before it, and a new leader's log may begin lower again at the next look.

    Args:
        tiling: the chain up to its head.
        log: looked at after the head was read. Of partitions that have no bounds there nothing is to be read.
    """
    coverage = tiling.end(log)
    tails = [
        Tile(tile.partition, max(tile.first, covered.archived_to), tile.next, tile.label, tile.cause)
        for covered in coverage.partitions
        for tile in covered.tiles
        if tile.label is Label.LOST and tile.next > covered.archived_to
    ]
    if coverage.gone:
        return Recreated(tuple(tails))
    unseen = set(coverage.unseen)
    diverged = [
        tile
        for covered in coverage.partitions
        for tile in covered.unacknowledged
        if tile.label is Label.DIVERGED and tile.cause is not Cause.CUT and tile.first < covered.archived_to
    ]
    if diverged:
        return Diverged(tuple(diverged))
    read = [
        PartitionSpan(tile.partition, tile.first, tile.next)
        for covered in coverage.partitions
        for tile in covered.tiles
        if tile.label is Label.PENDING and tile.partition not in unseen
    ]
    return ReadRanges(tuple(read), tuple(tails))


def follow(
    tiling: Tiling,
    writer: Writer,
    kind: Kind,
    log: ObservedLog,
    *,
    objects: Sequence[ObjectEntry] = (),
    acknowledged: Sequence[PartitionSpan] = (),
    by: str = "",
    reason: str = "",
) -> Manifest:
    """The manifest that comes next.

    Args:
        tiling: the chain up to its head.
        writer: who writes it.
        kind: what it is for.
        log: as it was after the read.
        objects: what is new, or expires; in any order.
        acknowledged: what somebody knows to be lost; in any order.
        by: who asked for it.
        reason: why.

    Raises:
        ValueError: the proof would find fault with it for ever: objects that overlap, reach beyond the log, or are of a
            partition that has diverged; an expiry of what is not there; a topic that is gone and has no chain.
    """
    for entry in objects:
        if fault := _fault(tiling, kind, log, entry):
            raise ValueError(f"{tiling.incarnation}, {entry}: {fault}")
    here = tiling.incarnation
    alive = log.topic_id == here.topic_id
    return Manifest(
        sequence=tiling.head.sequence + 1,
        previous=tiling.head.sha256,
        epoch=writer.epoch,
        instance=writer.instance,
        kind=kind,
        topic=here.topic,
        topic_id=here.topic_id,
        at=log.at,
        partitions=max(tiling.known, log.partitions if alive else 0),
        seen=_worth_saying(tiling, kind, log.seen(), log.at, objects) if alive else (),
        delete_retention_ms=log.delete_retention_ms if alive else None,
        objects=tuple(sorted(objects, key=lambda entry: (entry.partition, entry.first))),
        acknowledged=tuple(sorted(acknowledged, key=lambda span: (span.partition, span.first))),
        gone=not alive,
        by=by,
        reason=reason,
    )


def _fault(tiling: Tiling, kind: Kind, log: ObservedLog, entry: ObjectEntry) -> str:
    if kind is Kind.EXPIRY:
        fault = tiling.expiry_fault(entry)
        return fault and f"nothing there to expire: {fault}"
    state, bounds = tiling.partitions.get(entry.partition), log.bounds.get(entry.partition)
    if state and entry.first < state.next:
        return f"it overlaps with what is archived to {state.next}"
    if bounds and entry.next > bounds.end:
        return f"it reaches beyond the log, which ended at {bounds.end} afterwards"
    if state and state.has_diverged():
        return "its partition has diverged"
    return ""


def _worth_saying(
    tiling: Tiling, kind: Kind, all_of_them: tuple[Seen, ...], at: datetime, objects: Sequence[ObjectEntry]
) -> tuple[Seen, ...]:
    """All bounds; in a data manifest, of which there may be one a minute, of partitions without objects only hourly.

    Idle ones are looked at too, so that of what they get later it can be told whether it was read late.
    """
    brought = {entry.partition for entry in objects}
    return tuple(
        seen
        for seen in all_of_them
        if kind is not Kind.DATA
        or seen.partition in brought
        or seen.partition not in tiling.partitions
        or _is_news(tiling.partitions[seen.partition], seen, at)
    )


def _is_news(state: PartitionState, seen: Seen, at: datetime) -> bool:
    """Whether a look may not be left out: it shows a log that ends too early, or begins too late, or it is time."""
    shorter = seen.end < max(state.next, state.look.end)
    gone = seen.start > max(state.next, state.look.start)
    return shorter or gone or abs(at - state.look.at) >= LOOK_AGAIN_AFTER
