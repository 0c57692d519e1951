"""Shares as bars in a terminal."""

from __future__ import annotations

from rich.text import Text as RichText

CELLS = 16


def share_bar(share: float | None, *, cells: int = CELLS, style: str = "") -> RichText:
    """A bar of so many cells, of which this share is full; nothing where nobody knows the share.

    What is more than nothing fills one cell at least, and what is less than all leaves one empty.
    """
    if share is None:
        return RichText("")
    full = round(min(1.0, max(0.0, share)) * cells)
    full = min(cells - 1, max(1, full)) if 0 < share < 1 else full
    return RichText.assemble(("█" * full, style), ("░" * (cells - full), "dim"))
