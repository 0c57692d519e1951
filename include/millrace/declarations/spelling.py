"""Durations, sizes, rates and growth as declarations spell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from math import isclose

from millrace.declarations.fields import Wrong
from millrace.declarations.rates import DAYS_OF, SECONDS_OF, parse_growth, parse_rate

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


def spell_rate(per_second: float) -> str:
    """A rate in the unit that needs the fewest decimals: `500/s`, `30/min`."""
    values = {f"/{unit}": per_second * seconds for unit, seconds in SECONDS_OF.items()}
    return _shortest(values, per_second, parse_rate)


def spell_growth(per_day: float) -> str:
    """A growth in the span that needs the fewest decimals: `5%/month`, `-20%/year`."""
    values = {f"%/{span}": ((1 + per_day) ** days - 1) * 100 for span, days in DAYS_OF.items()}
    return _shortest(values, per_day, parse_growth)


def _shortest(values: Mapping[str, float], meant: float, parse: Callable[[object], float]) -> str:
    """The value with the fewest decimals that is read back as it was meant, as far as a float is exact."""
    for decimals in range(10):
        for unit, value in values.items():
            text = f"{round(value, decimals) + 0.0:.{decimals}f}{unit}"
            with suppress(Wrong):
                if isclose(parse(text), meant, rel_tol=1e-9, abs_tol=1e-14):
                    return text
    unit, value = next(iter(values.items()))
    return f"{value:.9f}{unit}"
