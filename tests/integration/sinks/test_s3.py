"""A stream that writes a dataset, from a topic to objects by event date, also after resets by the stock tool.

In the first tier, `test_values.py` writes a dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime

import pytest

from millrace.embedded.stack import Stack
from support.sinks.dataset_apps import DatasetApp

FIRST_MS = 1_764_000_000_000
SCHEMA = "id INT NOT NULL, bought_at TIMESTAMP"
TRANSFORM = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        return frame.select("id", "bought_at", F.array(F.col("id")).alias("ids"), "_source")
"""
Row = tuple[int, int, date | None]  # timeline, id, event date


class Purchases(DatasetApp):
    """A stream whose sink is a dataset, by the date of `bought_at`."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, event_date="bought_at", schema=SCHEMA, transform=TRANSFORM)

    def put(self, ids: Sequence[int]) -> None:
        """Produce a record of each of these, a second apart, in three days by turns, some without one."""
        for id_ in ids:
            at = None if id_ % 7 == 6 else f"2025-11-{24 + id_ % 3}T23:59:59.5Z"
            self.produce([{"id": id_, "bought_at": at}], timestamp=FIRST_MS + 1000 * id_)

    def rows_there(self) -> Counter[Row]:
        """Every row that counts."""
        snapshot = self.reader.snapshot()
        assert snapshot is not None
        rows = [row for table in self.reader.rows(snapshot) for row in table.to_pylist()]
        assert all(row["ids"] == [row["id"]] for row in rows)
        assert all((row["bought_at"] and row["bought_at"].date()) == row["event_date"] for row in rows)
        return Counter((row["_timeline"], row["id"], row["event_date"]) for row in rows)


def expected(timeline: int, ids: Sequence[int]) -> Counter[Row]:
    return Counter((timeline, id_, None if id_ % 7 == 6 else date(2025, 11, 24 + id_ % 3)) for id_ in ids)


@pytest.fixture
def app(kafka: Stack, postgres: Stack, s3: Stack) -> Purchases:
    return Purchases(s3)


@pytest.mark.full
def test_rows_reach_their_dates_and_a_reset_to_a_time_replaces_exactly_its_range(app: Purchases) -> None:
    app.put(range(80))
    app.produce([b"not json"], timestamp=FIRST_MS + 80_000)
    with app.running():
        app.until(lambda: app.done() == 81, "all records to be done")
        assert app.rows_there() == expected(1, range(80))
        assert app.quarantine() == [("not_json",)]
    at = datetime.fromtimestamp((FIRST_MS + 70_000) / 1000, UTC)
    app.reset("--to-datetime", at.strftime("%Y-%m-%dT%H:%M:%S.000"))
    app.put([80, 81])  # so that the end of the range that is read again can be seen
    with app.running():
        app.until(lambda: app.done() == 83, "the range to be read again")
    assert app.rows_there() == expected(1, range(70)) + expected(2, range(70, 82))
    assert app.quarantine("rule, timeline") == [("not_json", 2)]
    assert sorted(row["id"] for row in app.rows_by_another_reader()) == list(range(82))


@pytest.mark.full
def test_each_way_of_a_stock_reset_replaces_exactly_its_range(app: Purchases) -> None:
    app.put(range(60))
    with app.running():
        app.until(lambda: app.done() == 60, "all records to be done")
    assert app.rows_there() == expected(1, range(60))
    at = datetime.fromtimestamp((FIRST_MS + 57_000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    more = 60
    for timeline, where in enumerate((("--to-offset", "3"), ("--to-datetime", at), ("--to-earliest",)), 2):
        before = app.rows_there()
        app.reset(*where)
        app.put([more])
        more += 1
        with app.running():
            app.until(lambda end=more: app.done() == end, "the range to be read again")
        after = app.rows_there()
        assert sorted(id_ for _, id_, _ in after.elements()) == list(range(more))
        again = {id_ for at_timeline, id_, _ in after if at_timeline == timeline}
        assert after - before == expected(timeline, sorted(again))
        if where[0] == "--to-datetime":
            assert again == set(range(57, more))
        elif where[0] == "--to-earliest":
            assert again == set(range(more))
        else:
            assert len(again) == more - 2 * 3
