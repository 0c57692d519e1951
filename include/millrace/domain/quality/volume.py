"""How many rows are usual: the rate of the last looks or, once four weeks are known, of the same hour of the week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from millrace.domain.quality.results import Gain

LAST = 20
FEWEST = 5
WEEKS = 4
SETTLED = timedelta(weeks=1)
"""What was not usual is, once it has been so for this long."""
SINCE = timedelta(weeks=8)
"""How far back looks count."""
_HOUR = timedelta(hours=1)
_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual.

    Attributes:
        rows_per_hour: the median.
        basis: what it rests on, in words.
    """

    rows_per_hour: float
    basis: str

    def band(self, span: timedelta, within: float) -> tuple[int, int]:
        """The fewest and the most rows that are usual in a time.

        Args:
            span: how long it is.
            within: how far from the usual, as a share of it: 0.5 is from half to one and a half times.
        """
        expected = self.rows_per_hour * (span / _HOUR)
        return max(0, round(expected * (1 - within))), round(expected * (1 + within))


def usual(history: Sequence[tuple[datetime, Gain]], at: datetime, span: timedelta) -> Usual | str:
    """What is usual now, or why nobody knows.

    A gain counts by its rate, so that one over a long time (nobody looked) weighs like any other. The hour of a gain is
    that in which most of it came: of its middle, in UTC.

    Args:
        history: earlier gains, oldest first, each with when the look began that saw it.
        at: when the gain that is judged was seen.
        span: how long that took.
    """
    known = [(seen - gain.span / 2, gain) for seen, gain in history if gain.span > timedelta() and seen < at]
    last = known[-LAST:]
    if len(last) < FEWEST:
        return f"the usual volume is unknown before {FEWEST} checks; so far {len(last)}"
    typical = timedelta(seconds=median(gain.span.total_seconds() for _, gain in last))
    if span * 2 < typical:
        return f"{_words(span)} say nothing where {_words(typical)} are usual"
    hour = _hour(at - span / 2)
    same = [gain for middle, gain in known if _hour(middle) == hour and gain.span <= 3 * _HOUR]
    weeks = {(at - middle) // timedelta(weeks=1) for middle, gain in known if _hour(middle) == hour}
    if span <= 3 * _HOUR and len(weeks) >= WEEKS and len(same) >= WEEKS:
        day, number = hour
        return Usual(_rate(same), f"{len(weeks)} {_DAYS[day]} at {number} h UTC")
    return Usual(_rate([gain for _, gain in last]), f"the last {len(last)} looks")


def _rate(gains: Sequence[Gain]) -> float:
    return median(gain.rows / (gain.span / _HOUR) for gain in gains)


def _hour(at: datetime) -> tuple[int, int]:
    moment = at.astimezone(UTC)
    return moment.weekday(), moment.hour


def _words(span: timedelta) -> str:
    return f"{span.total_seconds() / 60:,.1f} minutes"
