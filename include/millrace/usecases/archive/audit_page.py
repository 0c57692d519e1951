"""An audit as one HTML page that needs nothing beside it: no script, no style sheet, no request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from millrace.domain.archive.audits.bars import Shade, bar, losses
from millrace.domain.archive.audits.findings import MOST_NAMED, Audit, BreachKind, PartitionAudit
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.partition import Label
from millrace.templates import templates_of

if TYPE_CHECKING:
    from jinja2 import Environment

_CELLS = 240
_FEWEST_CELLS = 40
_CELLS_OF_A_PAGE = 24_000  # a cell is some 75 bytes where each differs from its neighbours
_SHOWN = 200
_COUNTED = (Label.LOST, Label.DIVERGED, Label.EXPIRED, Label.PENDING)
_WORDS = {
    Shade.ARCHIVED: "archived, or absent for good",
    Shade.EXPIRED: "expired",
    Shade.PENDING: "waits",
    Shade.UNSURE: "archived, a tombstone may be missing",
    Shade.KNOWN: "lost or diverged, acknowledged",
    Shade.UNKNOWN: "not named: more ranges than an audit names",
    Shade.LOST: "lost or diverged, not acknowledged",
}
# No label is told by its colour alone: the worse, the higher.
_HEIGHTS = {
    Shade.ARCHIVED: 0.5,
    Shade.EXPIRED: 0.15,
    Shade.PENDING: 0.3,
    Shade.UNSURE: 0.6,
    Shade.KNOWN: 0.75,
    Shade.UNKNOWN: 0.88,
    Shade.LOST: 1,
}


def page_of(audit: Audit) -> str:
    """The page.

    Args:
        audit: what was found. It has no keys or values of records, so neither has the page.
    """
    lost = [loss for part in audit.partitions for loss in losses(part)]
    cells = max(_FEWEST_CELLS, min(_CELLS, _CELLS_OF_A_PAGE // max(1, len(audit.partitions))))
    values = {
        "audit": audit,
        "headline": headline(audit),
        "parts": [(part, _bar(part, cells), _said(part)) for part in audit.partitions],
        "lost": sorted(lost, key=lambda loss: bool(loss.known))[:_SHOWN],
        "more_lost": max(0, len(lost) - _SHOWN),
        "breaches": audit.breaches[:_SHOWN],
        "more": sum(count for _, count in audit.counts) - len(audit.breaches[:_SHOWN]),
        "legend": [(shade.name.lower(), words) for shade, words in _WORDS.items()],
        "heights": {shade.name.lower(): height for shade, height in _HEIGHTS.items()},
        "totals": [(label.value, told(audit.partitions, label)) for label in _COUNTED],
    }
    return _environment().get_template("audit_page.html.j2").render(**values)


def headline(audit: Audit) -> str:
    """The verdict in one sentence."""
    wrong = " and ".join(f"{count:,} {_name(kind, count)}" for kind, count in audit.counts)
    if wrong:
        return f"Red: {wrong}."
    if audit.unseen:
        count = len(audit.unseen)
        noun = "partition" if count == 1 else "partitions"
        return f"No verdict on {count:,} {noun} that could not be read; no fault in the others."
    held = f"{audit.records:,} records are archived, lost {told(audit.partitions, Label.LOST)}"
    if (diverged := told(audit.partitions, Label.DIVERGED)) != "0":
        held += f", diverged {diverged}"
    if audit.offsets(Label.LOST) or audit.offsets(Label.DIVERGED):
        held += ", acknowledged"
    if audit.verdict is Verdict.PENDING:
        waiting = told(audit.partitions, Label.PENDING)
        return f"Proven, but for {waiting} offsets that wait to be archived: {held}."
    return f"Proven: {held}."


def told(parts: Sequence[PartitionAudit], label: Label) -> str:
    """How many offsets have a label; `at least`, where a partition has more ranges than its audit names."""
    count = sum(part.offsets(label) for part in parts)
    return f"{'at least ' if any(part.more_tiles for part in parts) else ''}{count:,}"


def _name(kind: BreachKind, count: int) -> str:
    words = {
        BreachKind.BROKEN: ("fault of the archive", "faults of the archive"),
        BreachKind.LOST: ("range of lost offsets", "ranges of lost offsets"),
        BreachKind.LATE: ("partition that is late", "partitions that are late"),
    }
    return words[kind][count != 1]


def _bar(part: PartitionAudit, most: int) -> list[tuple[str, int, int]]:
    """Runs of cells of one shade: its name, where the run begins and how long it is."""
    runs, at = [], 0
    for shade, cells in groupby(bar(part, most)):
        length = len(list(cells))
        runs.append((shade.name.lower(), at, length))
        at += length
    return runs


def _said(part: PartitionAudit) -> str:
    """What the bar shows, in words."""
    rest = [f"{told([part], label)} {label}" for label in _COUNTED if part.offsets(label)]
    if part.more_tiles:
        rest.append(f"{part.more_tiles:,} more ranges that are lost, diverged, expired or pending and not named")
    if part.late:
        more = "at least " if len(part.late) >= MOST_NAMED else ""
        count = sum(next_ - first for first, next_ in part.late)
        rest.append(f"{more}{count:,} offsets read so late that a tombstone may be missing")
    return ", ".join([f"{part.records:,} records and {part.holes:,} absent offsets", *rest])


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = templates_of("millrace.usecases.archive", ".")
    made.filters["count"] = lambda number: f"{number:,}"
    made.filters["moment"] = lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return made
