"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def about(size_bytes: float) -> str:
    """A size in the unit that suits it, with three digits of it at least: `0 B`, `812 B`, `13.2 MiB`, `1,204 PiB`."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    for unit in _UNITS:
        size_bytes /= 1024
        if abs(size_bytes) < 1000 or unit == _UNITS[-1]:
            digits = 0 if abs(size_bytes) >= 100 else 1 if abs(size_bytes) >= 10 else 2
            return f"{size_bytes:,.{digits}f} {unit}"
    raise AssertionError("unreachable")
