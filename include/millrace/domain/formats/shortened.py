"""Long lists for people: the first entries, and the number of the others."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(entries: Sequence[object], most: int, *, between: str = ", ") -> str:
    """Return the first `most` entries in one line, as `a, b and 3 more`."""
    *lines, last = shortened_lines(entries, most) or [""]
    if len(entries) > most:
        return f"{between.join(lines)} {last}"
    return between.join([*lines, last])


def shortened_lines(entries: Sequence[object], most: int) -> list[str]:
    """Return the first `most` entries, and a line `and 3 more` where there are more."""
    left = len(entries) - most
    return [*map(str, entries[:most]), *([f"and {left:,} more"] if left > 0 else [])]
