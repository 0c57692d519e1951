"""Times as people read them."""

from __future__ import annotations

from datetime import timedelta


def roughly(span: timedelta) -> str:
    """A span in the unit that suits it, with as much of it as anybody needs: `45 s`, `12 min`, `3.5 h`, `4.0 d`."""
    seconds = span.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
