"""Durations and sizes as declarations spell them."""

from __future__ import annotations

from datetime import timedelta

_UNITS = (("y", 31_536_000_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_SIZES = (
    ("TiB", 1024**4),
    ("TB", 1000**4),
    ("GiB", 1024**3),
    ("GB", 1000**3),
    ("MiB", 1024**2),
    ("MB", 1000**2),
    ("KiB", 1024),
    ("KB", 1000),
    ("B", 1),
)


def spell_duration(duration: timedelta) -> str:
    """The shortest exact spelling, in whole milliseconds: `7d`, `36h`, `250ms`."""
    milliseconds = duration // timedelta(milliseconds=1)
    name, size = next((name, size) for name, size in _UNITS if milliseconds % size == 0)
    return f"{milliseconds // size}{name}"


def spell_size(size_bytes: int) -> str:
    """The exact spelling in the largest unit: `2GiB`, `500MB`, `100B`."""
    name, size = next((name, size) for name, size in _SIZES if size_bytes % size == 0)
    return f"{size_bytes // size}{name}"
