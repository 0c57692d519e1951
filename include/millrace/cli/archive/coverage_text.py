"""How far topics are archived, as bars on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from millrace.cli.terminal.output import Text
from millrace.domain.archive.audits.bars import Shade, bar
from millrace.domain.archive.audits.findings import Audit, PartitionAudit, summed_up
from millrace.domain.archive.proof.partition import Label
from millrace.usecases.archive.audit_page import headline, told

_SHOWN = 50
_LINES = 20
_OTHER_COLUMNS = 72
_GLYPHS = {
    Shade.ARCHIVED: ("█", "=", "green", "archived"),
    Shade.EXPIRED: ("░", "-", "bright_black", "expired"),
    Shade.PENDING: ("▒", ".", "yellow", "waits"),
    Shade.UNSURE: ("▓", "~", "cyan", "a tombstone may be missing"),
    Shade.KNOWN: ("x", "x", "magenta", "lost and known of"),
    Shade.UNKNOWN: ("?", "?", "blue", "not told"),
    Shade.LOST: ("!", "!", "bold red", "lost"),
}


def print_coverage(console: Console, audits: Sequence[Audit]) -> None:
    """Print a bar a partition: at most fifty a topic, those with the worst news, in order.

    Args:
        console: where to. What it cannot show is drawn in ASCII; no label is told by its colour alone.
        audits: of which topics.
    """
    for audit in audits:
        console.print(Text(f"{audit.incarnation}, {audit.app}: {headline(audit)}"), soft_wrap=True)
        worst = sorted(audit.partitions, key=lambda part: (-_worst(part), part.partition))
        for part in sorted(worst[:_SHOWN], key=lambda part: part.partition):
            console.print(_line(console, part), soft_wrap=True)
        if left := worst[_SHOWN:]:
            news = sum(1 for part in left if any(_news(part)))
            rest = f"{news:,} of them not all archived" if news else "all archived"
            console.print(Text(f"  and {len(left):,} more partitions, {rest}"), soft_wrap=True)
        _list(console, list(summed_up(audit)))
        _list(console, list(_waiting(audit)))
    if audits:
        glyphs = (f"{_glyph(console, shade)[0]} {words}" for shade, (*_, words) in _GLYPHS.items())
        console.print(Text("  " + "   ".join(glyphs)), soft_wrap=True)


def _list(console: Console, lines: Sequence[str]) -> None:
    """The first twenty lines, and how many more there are."""
    more = [f"and {len(lines) - _LINES:,} more lines: `--json` has them"] if len(lines) > _LINES else []
    for line in [*lines[:_LINES], *more]:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _waiting(audit: Audit) -> Iterator[str]:
    """The ranges that wait; what waits for too long is told as a breach too."""
    for part in audit.partitions:
        for tile in part.tiles:
            if tile.label is Label.PENDING:
                since = f", seen first at {part.waiting_since:%Y-%m-%d %H:%M:%S} UTC" if part.waiting_since else ""
                yield f"partition {part.partition} [{tile.first}, {tile.next}) waits{since}"


def _worst(part: PartitionAudit) -> Shade:
    return max(bar(part, 1), default=Shade.ARCHIVED)


def _line(console: Console, part: PartitionAudit) -> Text:
    line = Text(f"  {part.partition:>6} ")
    width = max(10, min(100, console.width - _OTHER_COLUMNS))
    cells = bar(part, width)
    for shade in cells:
        glyph, style = _glyph(console, shade)
        line.append(glyph, style)
    line.append(" " * (width - len(cells)))
    line.append(f" {part.records:>12,} records {_percent(part):>7}  {', '.join(_news(part)) or 'all archived'}")
    return line


def _percent(part: PartitionAudit) -> str:
    """How far the archive reaches, rounded down: 100% is said of nothing less."""
    length = part.end - part.begin
    reached = min(max(part.archived_to - part.begin, 0), length)
    tenths = reached * 1000 // length if length else 1000
    return f"to {tenths // 10}%" if tenths % 10 == 0 else f"to {tenths / 10:.1f}%"


def _news(part: PartitionAudit) -> Iterator[str]:
    for label, word in (
        (Label.LOST, "lost"),
        (Label.DIVERGED, "diverged"),
        (Label.EXPIRED, "expired"),
        (Label.PENDING, "waiting"),
    ):
        if part.offsets(label):
            yield f"{told([part], label)} {word}"
    if part.more_tiles:
        yield f"{part.more_tiles:,} more ranges not named"
    if part.late:
        yield "a tombstone may be missing"


def _glyph(console: Console, shade: Shade) -> tuple[str, str]:
    glyph, plain, style, _ = _GLYPHS[shade]
    return (glyph if console.encoding.lower().startswith("utf") else plain), style
