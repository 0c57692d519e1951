"""Audits with partitions of any kind, made by hand: for what shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from millrace.domain.archive.audits.findings import Audit, PartitionAudit
from millrace.domain.archive.proof.partition import Cause, Label, Tile
from millrace.domain.archive.proof.spans import Span
from support.archive.audits.in_memory import Audits


def part(
    number: int = 0,
    *tiles: Tile,
    begin: int = 0,
    end: int = 10_000,
    archived_to: int | None = None,
    unacknowledged: Sequence[Tile] = (),
    late: Sequence[Span] = (),
    more_tiles: int = 0,
    waiting_since: datetime | None = None,
) -> PartitionAudit:
    """A partition; archived up to its end where nothing else is said."""
    reached = end if archived_to is None else archived_to
    known, late_spans = tuple(unacknowledged), tuple(late)
    return PartitionAudit(number, begin, end, reached, 7, 1, tiles, more_tiles, known, late_spans, waiting_since, ())


def lost(first: int, next_: int, number: int = 0) -> Tile:
    """Offsets that are lost."""
    return Tile(number, first, next_, Label.LOST, Cause.UNREAD)


def of(*parts: PartitionAudit, **changes: object) -> Audit:
    """An audit in which these partitions are."""
    return replace(Audits().audit(), partitions=parts, **changes)  # type: ignore[arg-type]


def of_every_label() -> Audit:
    """Bars in which each shade is, a partition of nothing, and one that nobody could look at."""
    return of(
        part(
            0,
            lost(3000, 3400),
            Tile(0, 9000, 10_000, Label.PENDING),
            archived_to=9000,
            unacknowledged=[lost(3200, 3400)],
            late=[(5000, 5500)],
        ),
        part(1, Tile(1, 0, 4000, Label.EXPIRED)),
        part(2),
        part(3, lost(5, 6, 3), more_tiles=40),
        part(4, end=0),
        unseen=(9,),
        notes=("a note",),
    )
