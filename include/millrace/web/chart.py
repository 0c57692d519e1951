"""A stream's past as bars: numbers in, coordinates out. The template draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.domain.streams.control import BATCH_STEPS, Bucket
from millrace.usecases.streams.pages import BUCKETS

WIDTH, HEIGHT = 720, 120
TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, in the chart's own units: `kind` is its class in the style sheet, `title` what it says."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A time below the bars."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars over a time. `top` is what the full height means, `summary` the chart in words."""

    name: str
    top: str
    summary: str
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    legend: Sequence[tuple[str, str]] = ()


Part = tuple[str, float]
"""A kind and its amount: a bar is made of such parts, from below."""


def charts(buckets: Sequence[Bucket], since: datetime, bucket: timedelta) -> tuple[Chart, Chart, Chart]:
    """Rows a second, seconds a batch by step, and lag."""
    seconds = bucket.total_seconds()

    def rows(found: Bucket) -> list[Part]:
        bad = found.quarantined / seconds
        return [("rows", found.rows_in / seconds - bad), ("bad", bad)]

    def steps(found: Bucket) -> list[Part]:
        return [(step, found.steps.get(step, 0.0) / found.batches) for step in BATCH_STEPS]

    def lag(found: Bucket) -> list[Part]:
        return [] if found.lag is None else [("lag", float(found.lag))]

    draw = _Drawing(buckets, since, bucket)
    return (
        draw.chart("rows a second", rows, "{:,.1f} rows/s", (("rows", "read"), ("bad", "quarantined"))),
        draw.chart("seconds a batch", steps, "{:,.3f} s", tuple((step, step) for step in BATCH_STEPS)),
        draw.chart("lag", lag, "{:,.0f} records"),
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    buckets: Sequence[Bucket]
    since: datetime
    bucket: timedelta

    def chart(
        self,
        name: str,
        parts: Callable[[Bucket], list[Part]],
        unit: str,
        legend: Sequence[tuple[str, str]] = (),
    ) -> Chart:
        measured = [(found, parts(found)) for found in self.buckets]
        sums = [sum(amount for _, amount in made) for _, made in measured]
        top = max(sums, default=0.0)
        bars = [bar for found, made in measured for bar in self._bars(found, made, top, unit)]
        last = f", last {unit.format(sums[-1])}" if sums else ""
        summary = f"{name}: at most {unit.format(top)}{last}" if sums else f"{name}: nothing in this time"
        return Chart(name, unit.format(top), summary, bars, list(self._ticks()), legend)

    def _bars(self, found: Bucket, parts: list[Part], top: float, unit: str) -> Iterator[Bar]:
        width = WIDTH * self.bucket / self._whole
        x = WIDTH * ((found.at - self.since) / self._whole)
        y = float(HEIGHT)
        for kind, amount in parts:
            if amount <= 0 or top <= 0:
                continue
            height = max(HEIGHT * amount / top, 1.0)
            y -= height
            title = f"{found.at:%H:%M:%S} UTC, {kind}: {unit.format(amount)}"
            yield Bar(round(x, 2), round(y, 2), round(width * 0.9, 2), round(height, 2), kind, title)

    @property
    def _whole(self) -> timedelta:
        return self.bucket * BUCKETS

    def _ticks(self) -> Iterator[Tick]:
        for number in range(TICKS):
            at = self.since + self._whole * number / TICKS
            yield Tick(WIDTH * number / TICKS, f"{at:%H:%M}")
