"""What a drill prints of itself."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(["", title, *("  " + line for line in lines)])
