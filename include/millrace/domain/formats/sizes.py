"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def roughly_bytes(size: float) -> str:
    """Bytes in the unit that suits them, with as much of it as anybody needs: `950 B`, `1.5 GiB`, `200 MiB`."""
    if abs(size) < 1024:
        return f"{size:.0f} B"
    for unit in _UNITS:
        size /= 1024
        if abs(size) < 1023.5 or unit == _UNITS[-1]:
            break
    return f"{size:.0f} {unit}" if abs(size) >= 99.95 else f"{size:.1f} {unit}"
