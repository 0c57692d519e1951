"""Books of tables that have one row a key: quarantine and ledger are held, and the table is never read.

The role that reads them here may not read the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.adapters.sinks.postgres.books import SinkBooks
from millrace.domain.declaration.pipeline import Pipeline, PostgresSink, SinkMode, Stream
from millrace.domain.quality.books import Balance, Fault, Reconciliation
from millrace.domain.sinks.batch import Written
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import RowsRefusedError, SinkFailedError
from millrace.usecases.quality import books as quality_books
from support.fakes.platform import GroupedPlatform
from support.quality.sinks import Sink, open_sink
from support.sinks.table_columns import SOURCE
from support.sinks.worlds import P0, P1, TOPIC, TOPIC_ID, Row, UpsertWorld, Writer, row

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

KEY = ("customer",)


@dataclass
class Shop(GroupedPlatform):
    """A stream that upserts, its sink and control database; its log is gone, and nobody keeps a backup of it.

    Of the offsets every fifth is dropped, every tenth and first is bad.
    """

    opened: Sink
    store: ControlStore
    world: UpsertWorld
    now: datetime = datetime(2036, 5, 4, 12, tzinfo=UTC)

    @property
    def control(self) -> ControlStore:
        return self.store

    def sinks_books(self, connection: str) -> SinkBooks:
        return SinkBooks(self.opened.database.working)

    def kafka_logs(self, connection: str) -> Any:
        return SimpleNamespace(partitions=lambda topics: [])

    @property
    def table(self) -> str:
        return f"{self.world.name}.rows"

    def reconcile(self, *, deep: bool = False) -> Reconciliation:
        """An hour later."""
        self.now += timedelta(hours=1)
        sink = PostgresSink("writer", self.table, SinkMode.UPSERT, KEY)
        stream = Stream("s", self.world.name, "app", (TOPIC,), sink, "group")
        pipeline = Pipeline(self.world.name, "me", "kafka", (), (stream,))
        return quality_books.reconcile(self, pipeline, stream, actor="me", deep=deep, now=self.now)  # type: ignore[arg-type]

    def write(self, epoch: int, *batches: tuple[int, int], timeline: int = 1, gaps: int = 0) -> None:
        """Batches of one epoch; where the timeline is a new one it begins with the first of them."""
        writer = Writer(self.world, epoch)
        writer.sink.take_over()
        if writer.sink.read_record().timeline < timeline:
            writer.sink.open_positions(timeline, {P0: batches[0][0], P1: 0})
        writer.ready()
        for first, end in batches:
            given = [row(n, amount=1000 * timeline) for n in range(first, end) if n % 5 and n % 10 != 1]
            bad = [(0, n) for n in range(first, end) if n % 10 == 1]
            self.commit(writer, given, bad, first, end, timeline=timeline, gaps=gaps)
        writer.sink.discard()
        writer.sink.close()

    def commit(
        self,
        writer: Writer,
        given: Sequence[Row],
        bad: Sequence[tuple[int, int]],
        first: int,
        end: int,
        *,
        timeline: int = 1,
        gaps: int = 0,
    ) -> None:
        """One batch, of which so many offsets held no record."""
        writer.sink.begin_batch()
        rows, aside = writer.write(given), writer.write_bad(bad)
        attempts, records = (*rows.attempts, *aside.attempts), {(TOPIC, 0): end - first - gaps}
        written = Written(attempts, rows.rows, aside.rows, {}, records)
        writer.sink.commit_batch(timeline, [OffsetRange(P0, first, end)], written)

    def execute(self, statement: str) -> None:
        """Damage something of this stream."""
        self.opened.connection.execute(statement.format(table=self.table, stream=f"stream = '{self.world.stream}'"))

    def put_aside(self, offset: int, stream: str = "") -> None:
        """A record in quarantine that no batch wrote."""
        self.opened.connection.execute(
            'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, rule, '
            "error, epoch) VALUES (%s, 1, %s, %s, 0, %s, '[]', 'not_json', 'why', 1)",
            (stream or self.world.stream, TOPIC, TOPIC_ID, offset),
        )


@pytest.fixture(scope="module")
def opened(control_databases: Databases) -> Iterator[Sink]:
    with open_sink(control_databases) as sink:
        yield sink


@pytest.fixture
def empty(opened: Sink, control_databases: Databases) -> Iterator[Shop]:
    """Nothing is written yet."""
    database = control_databases.create_upgraded()
    name = f"t{uuid.uuid4().hex[:10]}"
    with closing(ControlStore(database.working)) as store:
        yield Shop(opened, store, UpsertWorld(opened.database.owner, name, opened.connection))


@pytest.fixture
def shop(empty: Shop) -> Shop:
    """Forty offsets in two batches that are one entry, twenty of the next epoch, and a rewind from 50 to 80."""
    empty.write(1, (0, 20), (20, 40))
    empty.execute(f"REVOKE ALL ON {{table}} FROM {empty.opened.database.working.user}")
    empty.write(2, (40, 60))
    return empty


def rewound(shop: Shop) -> Shop:
    shop.write(3, (50, 80), timeline=2)
    return shop


def found(run: Reconciliation) -> dict[Fault, list[tuple[int, int]]]:
    return {one.fault: list(one.spans) for one in run.findings}


def test_books_balance_after_batches_and_after_a_rewind_though_the_table_has_three_rows(shop):
    first = shop.reconcile()
    assert (first.balance, first.findings) == (Balance.BALANCED, ())
    assert (first.sums.offsets, first.sums.rows, first.sums.quarantined, first.sums.dropped) == (60, 42, 6, 12)
    rewound(shop)
    again = shop.reconcile()
    assert (again.balance, again.sums.offsets, again.sums.rows) == (Balance.BALANCED, 30, 21)
    assert shop.reconcile().sums.offsets == 0
    deep = shop.reconcile(deep=True)
    assert (deep.balance, deep.sums.offsets) == (Balance.BALANCED, 80)
    assert (deep.sums.rows, deep.sums.quarantined, deep.sums.absent) == (28 + 21, 4 + 3, 8 + 2 + 6)  # less the piece's
    assert len(shop.world.contents()) == 3


def test_a_table_is_not_read_whatever_it_holds(shop):
    shop.execute(
        "INSERT INTO {table} SELECT 'x' || n, 1, 'another', 7, n, 0, 9, now(), false FROM generate_series(1, 1000) n"
    )
    assert shop.reconcile().balance is Balance.BALANCED
    with (
        pytest.raises(SinkFailedError, match="permission denied for table rows"),
        shop.sinks.books("").opened(shop.world.stream, shop.table) as books,
    ):
        books.part(OffsetRange(P0, 0, 60))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ('DELETE FROM millrace.quarantine WHERE {stream} AND "offset" = 11', {"missing": [(0, 40)]}),
        ('DELETE FROM millrace.quarantine WHERE {stream} AND "offset" IN (51, 71)', {"missing": [(50, 80)]}),
        # [40, 50) is a piece of an entry that the rewind cut: how many it had is not known
        ('DELETE FROM millrace.quarantine WHERE {stream} AND "offset" = 41', {}),
        ("DELETE FROM millrace.ledger WHERE {stream} AND first_offset = 50", {"unbooked": [(50, 80)]}),
        ("DELETE FROM millrace.ledger WHERE {stream} AND first_offset = 40", {"unbooked": [(40, 50)]}),
        (
            "UPDATE millrace.ledger SET sources = sources + 1 WHERE {stream} AND first_offset = 0",
            {"contradicted": [(0, 40)]},
        ),
        (
            "UPDATE millrace.ledger SET quarantined = quarantined + 1 WHERE {stream} AND first_offset = 0",
            {"contradicted": [(0, 40)]},
        ),
        (
            "UPDATE millrace.ledger SET rows_out = 3 WHERE {stream} AND first_offset = 50",
            {"contradicted": [(50, 80)]},
        ),
        (
            "UPDATE millrace.ledger SET records = records - 9 WHERE {stream} AND first_offset = 0",
            {"contradicted": [(0, 40)]},
        ),
    ],
)
def test_each_damage_is_named_and_nothing_else(shop, damage, expected):
    rewound(shop).execute(damage)
    run = shop.reconcile()
    assert found(run) == expected
    open_or_not = Balance.OPEN if "unbooked" in expected else Balance.BROKEN
    assert run.balance is (open_or_not if expected else Balance.BALANCED)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, {"unexpected": [(5, 6)]}),  # was dropped
        (45, {"unexpected": [(45, 46)]}),  # was dropped; the entry is a piece
        (12, {"unexpected": [(0, 40)]}),  # became a row: one more than went there
        (79, {"unexpected": [(50, 80)]}),
        (500, {"outside": [(500, 501)]}),
    ],
)
def test_a_foreign_record_in_quarantine_is_named(shop, offset, expected):
    rewound(shop).put_aside(offset)
    assert found(shop.reconcile()) == expected


def test_one_too_many_does_not_make_up_for_one_that_is_missing(shop):
    shop.execute('DELETE FROM millrace.quarantine WHERE {stream} AND "offset" IN (11, 21)')
    shop.put_aside(5)
    run = shop.reconcile()
    assert found(run) == {"missing": [(0, 40)], "unexpected": [(5, 6)]}
    assert [str(one) for one in run.findings] == [
        "missing: t/0 [0, 40), 2 offsets: 4 records went to quarantine, 2 are there",
        "unexpected: t/0 [5, 6), 1 offset",
    ]
    assert shop.store.books.mark(shop.world.stream).offsets[P0] == 0


def test_another_streams_quarantine_is_not_its_own(shop):
    shop.put_aside(5, stream="other.s")
    shop.put_aside(500, stream="other.s")
    assert shop.reconcile().balance is Balance.BALANCED


def test_a_table_that_is_gone_and_one_without_its_key_are_told(shop):
    shop.execute("ALTER TABLE {table} DROP CONSTRAINT rows_key")
    run = shop.reconcile()
    assert found(run) == {"unkeyed": []}
    assert run.findings[0].detail == f"table {shop.table} has no key on customer"
    shop.execute(f"ALTER TABLE {{table}} ADD UNIQUE ({SOURCE})")
    assert found(shop.reconcile()) == {"unkeyed": []}
    shop.execute("DROP TABLE {table}")
    run = shop.reconcile()
    assert found(run) == {"missing": []}
    assert run.findings[0].detail == f"table {shop.table} is not there"


def test_offsets_without_a_record_need_a_witness_as_ever(shop):
    shop.write(3, (60, 70), gaps=1)
    run = shop.reconcile()
    assert (run.balance, found(run)) == (Balance.OPEN, {"unwitnessed": [(60, 61), (65, 66)]})


def test_several_rows_of_a_record_and_rows_that_the_table_refuses_balance(empty):
    writer = Writer(empty.world, 1).ready()
    empty.world.refuse(3)
    writer.sink.begin_batch()
    done = writer.write([row(0), row(0, ordinal=1, customers=1), row(1), row(2), row(3)])
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 5)
    writer.commit(done, 0, 5, refused=caught.value.sources)
    writer.sink.close()
    run = empty.reconcile()
    assert (run.balance, run.sums.rows, run.sums.quarantined, run.sums.dropped) == (Balance.BALANCED, 4, 1, 1)
