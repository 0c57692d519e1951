"""A stream that upserts, from a topic with tombstones to its table, also after resets by stock tools."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from millrace.embedded.stack import Stack
from support.streams.apps import App
from support.waiting import Deadline

FIRST_MS = 1_764_000_000_000
CUSTOMERS = 5
Record = tuple[str, int | None]


def records(first: int, end: int) -> list[Record]:
    """By turns of five customers; each seventh is a delete."""
    return [(f"c{n % CUSTOMERS}", None if n % 7 == 6 else n) for n in range(first, end)]


def last_of_each(given: Sequence[Record]) -> list[tuple[str, int]]:
    held: dict[str, int | None] = dict(given)
    return sorted((customer, amount) for customer, amount in held.items() if amount is not None)


class Upserting(App):
    """One partition's order is the order of the records."""

    key = "customer"

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, schema="customer STRING NOT NULL, amount INT NOT NULL", partitions=1)

    @property
    def writes(self) -> str:
        return f"{{postgres: {{connection: millrace_sink, table: {self.table}, mode: upsert, key: [{self.key}]}}}}"

    def put(self, given: Sequence[Record], first: int) -> None:
        """Produce them, a second apart."""
        for number, (customer, amount) in enumerate(given, first):
            body = None if amount is None else f'{{"customer":"{customer}","amount":{amount}}}'.encode()
            self._producer.produce(self.topic, body, key=customer, timestamp=FIRST_MS + 1000 * number)
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def live(self) -> list[tuple[str, int]]:
        return self.rows("customer, amount", where="NOT _deleted")

    def work(self) -> list[tuple[int, int, int]]:
        """Each timeline with where it began and where it stands."""
        asked = "SELECT timeline, first_offset, next_offset FROM millrace.progress WHERE stream = %s ORDER BY 1"
        with self.database() as connection:
            if connection.execute("SELECT to_regclass('millrace.progress')").fetchone() == (None,):
                return []
            return connection.execute(asked, (self.stream,)).fetchall()

    def replaced(self, timeline: int) -> list[tuple[str, bool]]:
        asked = "SELECT key ->> 'customer', former IS NULL FROM millrace.replaced WHERE stream = %s AND timeline = %s"
        with self.database() as connection:
            return sorted(connection.execute(asked, (self.stream, timeline)).fetchall())


@pytest.fixture
def app(kafka: Stack, postgres: Stack) -> Upserting:
    return Upserting(postgres)


def reads_again(app: Upserting, timeline: int, first: int, end: int, before: Any) -> None:
    """The next start reads exactly this range on a timeline of its own, and ends as it was."""
    with app.running():
        app.until(lambda: app.work()[-1][0] == timeline and app.work()[-1][2] == end, "the range to be read again")
    assert app.work()[-1] == (timeline, first, end)
    assert app.live() == before
    touched = {customer for customer, _ in records(first, end)}
    assert set(app.rows("customer", where=f"_timeline = {timeline}")) == {(customer,) for customer in touched}
    assert app.replaced(timeline) == [(customer, False) for customer in sorted(touched)]


@pytest.mark.full
def test_the_last_of_each_key_is_there_and_a_reset_to_a_time_ends_the_same(app: Upserting) -> None:
    given = records(0, 40)
    app.put(given, 0)
    app._producer.produce(app.topic, b"not json", key="c1", timestamp=FIRST_MS + 40_000)
    app._producer.produce(app.topic, None, key=b"\xff", timestamp=FIRST_MS + 41_000)
    app._producer.flush(Deadline.METADATA.seconds)
    with app.running():
        app.until(lambda: app.work() and app.work()[-1][2] == 42, "all records to be done")
        assert app.live() == last_of_each(given)
        assert app.quarantine() == [("invalid_utf8",), ("not_json",)]
        more = [("c0", None), ("new", 1), ("c3", 500)]
        app.put(more, 42)
        app.until(lambda: app.work()[-1][2] == 45, "what came meanwhile to be done")
        assert app.live() == last_of_each([*given, *more])
    before = app.live()
    at = datetime.fromtimestamp((FIRST_MS + 42_000) / 1000, UTC)
    app.reset("--to-datetime", at.strftime("%Y-%m-%dT%H:%M:%S.000"))
    with app.running():
        app.until(lambda: app.work()[-1][0] == 2 and app.work()[-1][2] == 45, "the range to be read again")
    assert app.work() == [(1, 0, 45), (2, 42, 45)]
    assert app.live() == before
    assert app.rows("customer", where="_timeline = 2") == [("c0",), ("c3",), ("new",)]
    assert app.replaced(2) == [("c0", False), ("c3", False), ("new", False)]


@pytest.mark.full
def test_each_way_of_a_stock_reset_reads_its_range_again_and_ends_as_a_clean_run(app: Upserting) -> None:
    given = records(0, 60)
    app.put(given, 0)
    with app.running():
        app.until(lambda: app.work() and app.work()[-1][2] == 60, "all records to be done")
    clean = app.live()
    assert clean == last_of_each(given)
    at = datetime.fromtimestamp((FIRST_MS + 57_000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    resets: tuple[tuple[Sequence[str], int], ...] = (
        (("--to-offset", "58"), 58),
        (("--to-datetime", at), 57),
        (("--to-earliest",), 0),
    )
    for timeline, (where, first) in enumerate(resets, 2):
        app.reset(*where)
        reads_again(app, timeline, first, 60, clean)
