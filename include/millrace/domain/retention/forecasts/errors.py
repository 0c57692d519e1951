"""How far former forecasts were off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from millrace.domain.retention.forecasts.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """A former estimate beside what happened.

    Attributes:
        days: how far ahead it looked.
        error: how much more was expected than there was, as a fraction of what there was: 0.1 is ten percent more.
        within: whether what there was lay within its band.
    """

    days: int
    error: float
    within: bool


@dataclass(frozen=True, slots=True)
class PastError:
    """What to think of the next forecast.

    Attributes:
        days: how far ahead those looked that this is of.
        error: the median of how far they were off, either way, as a fraction.
        within: how many had what happened within their band.
        count: of how many.
    """

    days: int
    error: float
    within: int
    count: int


def compare(former: Estimate, actual_bytes: int) -> Comparison:
    """An estimate and the bytes that there were at its time; of an empty topic every byte too many counts whole."""
    error = (former.expected - actual_bytes) / max(1, actual_bytes)
    return Comparison(former.days, error, former.low <= actual_bytes <= former.high)


def errors(past: Sequence[Comparison]) -> tuple[PastError, ...]:
    """What is known of the forecasts' errors, by how far ahead they looked, nearest first."""
    return tuple(
        PastError(days, median(abs(one.error) for one in own), sum(one.within for one in own), len(own))
        for days in sorted({one.days for one in past})
        if (own := [one for one in past if one.days == days])
    )
