"""Bars of a stream's past lie where their numbers say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from millrace.domain.streams.control import Bucket
from millrace.web.chart import HEIGHT, WIDTH, charts

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
PART = timedelta(seconds=30)  # of an hour


def bucket(number: int, rows: int, *, bad: int = 0, batches: int = 2, lag: int | None = 0) -> Bucket:
    steps = {"plan": 0.2, "copy": 1.0, "merge": 0.8}
    return Bucket(NOON + number * PART, batches, rows, rows - bad, bad, steps, lag)


def test_a_time_without_batches_has_words_and_no_bars() -> None:
    for chart in charts([], NOON, PART):
        assert not chart.bars
        assert "nothing in this time" in chart.summary
        assert [tick.text for tick in chart.ticks] == ["12:00", "12:15", "12:30", "12:45"]


def test_bars_stand_at_their_time_and_the_greatest_fills_the_height() -> None:
    rows, seconds, lag = charts([bucket(0, 300, bad=60), bucket(60, 600, lag=50)], NOON, PART)
    first, bad, second = rows.bars
    assert (first.x, second.x) == (0, WIDTH / 2)
    assert (second.height, second.y) == (HEIGHT, 0)
    assert first.height + bad.height == HEIGHT / 2
    assert bad.y + bad.height == first.y  # one stands on the other
    assert rows.summary == "rows a second: at most 20.0 rows/s, last 20.0 rows/s"
    assert bad.title == "12:00:00 UTC, bad: 2.0 rows/s"
    assert [bar.kind for bar in seconds.bars[:3]] == ["plan", "copy", "merge"]
    assert seconds.summary == "seconds a batch: at most 1.000 s, last 1.000 s"
    assert [bar.kind for bar in lag.bars] == ["lag"]


def test_a_lag_that_nobody_knew_has_no_bar() -> None:
    *_, lag = charts([bucket(0, 1, lag=None)], NOON, PART)
    assert not lag.bars
