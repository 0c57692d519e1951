"""Books in real databases: what is missing, doubled or false is named, nothing else is, and what is proven stays so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.domain.alarms.extent import Extent
from millrace.domain.declaration.pipeline import Pipeline, PostgresSink, Stream
from millrace.domain.quality.books import Balance, Fault, Reconciliation
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import DeclarationError, RefusedError, UnreachableError
from millrace.usecases.quality import books as quality_books
from support.fakes.platform import GroupedPlatform
from support.quality.books_made import STREAM, TABLE, TOPIC, TOPIC_ID, Made
from support.quality.sinks import Sink, open_sink

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

BEGAN = datetime(2036, 5, 4, 12, tzinfo=UTC)
P0 = TopicPartition(TOPIC, TOPIC_ID, 0)


@dataclass
class Shop(GroupedPlatform):
    """A stream with a real sink and control database; its log is gone, and nobody keeps a backup of it."""

    made: Made
    store: ControlStore
    now: datetime = BEGAN
    said: list[str] = field(default_factory=list)
    table: ClassVar[str] = TABLE

    @property
    def control(self) -> ControlStore:
        return self.store

    def sinks_books(self, connection: str) -> Any:
        return self.made.books

    def kafka_logs(self, connection: str) -> Any:
        return SimpleNamespace(partitions=lambda topics: [])

    @property
    def stream(self) -> Stream:
        return Stream("purchases", "shop", "app", (TOPIC,), PostgresSink("writer", self.table), "group")

    def reconcile(self, **more: Any) -> Reconciliation:
        """An hour later."""
        self.now += timedelta(hours=1)
        pipeline = Pipeline("shop", "me", "kafka", (), (self.stream,))
        return quality_books.reconcile(
            self,
            pipeline,
            self.stream,
            actor="me",
            now=self.now,
            progress=self.said.append,
            **more,  # type: ignore[arg-type]
        )

    def alarms(self) -> dict[str, str]:
        return {alarm.kind: alarm.detail for alarm in self.store.alarms.list() if alarm.subject == STREAM}

    def accept(self) -> None:
        quality_books.accept(self, self.stream, actor="me", reason="they are gone for good")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def opened(control_databases: Databases) -> Iterator[Sink]:
    with open_sink(control_databases) as sink:
        yield sink


@pytest.fixture
def shop(opened: Sink, control_databases: Databases) -> Iterator[Shop]:
    """Two partitions of which a thousand offsets are done, in ten batches."""
    database = control_databases.create_upgraded()
    with closing(ControlStore(database.working)) as store:
        found = Shop(Made(opened), store)
        found.made.batches(0, 1_000, each=200, partitions=(0, 1))
        yield found


def found(run: Reconciliation) -> dict[str, list[tuple[int, int]]]:
    """The ranges of each fault, whatever the partition."""
    return {fault: [s for one in run.findings if one.fault == fault for s in one.spans] for fault in faults(run)}


def faults(run: Reconciliation) -> list[Fault]:
    return sorted({one.fault for one in run.findings})


def spans(offsets: list[int]) -> list[tuple[int, int]]:
    """As ranges; no two of them touch."""
    return [(offset, offset + 1) for offset in sorted(offsets)]


def test_an_untouched_sink_is_balanced_and_what_is_proven_is_not_looked_at_again(shop):
    first = shop.reconcile()
    assert (first.balance, first.findings) == (Balance.BALANCED, ())
    assert (first.sums.offsets, first.sums.rows, first.sums.quarantined, first.sums.dropped) == (2_000, 1_780, 20, 200)
    assert shop.store.books.mark(STREAM).offsets[P0] == 1_000
    assert shop.reconcile().sums.offsets == 0
    shop.made.batch(1_000, 1_010)
    assert shop.reconcile().sums.offsets == 10


@pytest.mark.full
def test_of_a_million_rows_all_damage_is_named_and_nothing_else(shop):
    made, chance = shop.made, random.Random(7)
    made.batches(1_000, 620_000, each=50_000, partitions=(0, 1))
    assert shop.reconcile(deep=True).balance is Balance.BALANCED
    rows = [n for n in range(1, 620_000, 3) if n % 10 and n % 100 != 1]
    gone, doubled = chance.sample(rows[: len(rows) // 2], 20), chance.sample(rows[len(rows) // 2 :], 1_000)
    aside = chance.sample(range(101, 300_000, 300), 3)
    made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = ANY(%s)", gone)
    made.execute('DELETE FROM millrace.quarantine WHERE partition = 0 AND "offset" = ANY(%s)', aside)
    made.execute("UPDATE millrace.ledger SET dropped = dropped - 7 WHERE partition = 1 AND first_offset = 51000")
    run = shop.reconcile(deep=True)
    assert found(run) == {
        "contradicted": [(51_000, 101_000)],
        "missing": spans(gone + aside),
    }
    made.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT purchases_pkey")
    made.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE _partition = 0 AND _offset = ANY(%s)", doubled)
    run = shop.reconcile(deep=True)
    assert found(run) == {
        "contradicted": [(51_000, 101_000)],
        "doubled": spans(doubled),
        "missing": spans(gone + aside),
        "unkeyed": [],
    }
    assert sum(one.offsets for one in run.findings if one.fault is Fault.DOUBLED) == 1_000


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 202", {"missing": [(202, 203)]}),
        (f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset >= 998", {"missing": [(998, 1_000)]}),
        (f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset <= 3", {"missing": [(2, 4)]}),
        (
            f"INSERT INTO {TABLE} SELECT customer, _topic_id, 0, 201, 0, 1 FROM {TABLE} LIMIT 1",
            {"doubled": [(201, 202)]},  # 201 is in quarantine
        ),
        (
            f"INSERT INTO {TABLE} SELECT customer, _topic_id, 0, 210, 0, 1 FROM {TABLE} LIMIT 1",
            {"unexpected": [(210, 211)]},  # 210 was dropped
        ),
        (
            f"INSERT INTO {TABLE} SELECT customer, _topic_id, 0, 202, 1, 1 FROM {TABLE} LIMIT 1",
            {"rows": [(200, 400)]},  # a second row of a record that had one
        ),
        (
            f"INSERT INTO {TABLE} SELECT customer, _topic_id, 0, 1005, 0, 1 FROM {TABLE} LIMIT 1",
            {"outside": [(1_005, 1_006)]},
        ),
        (f"INSERT INTO {TABLE} SELECT customer, 'another', 0, 0, 0, 1 FROM {TABLE} LIMIT 1", {"strange": []}),
        ("DELETE FROM millrace.ledger WHERE partition = 0 AND first_offset = 400", {"unbooked": None}),
        (
            "UPDATE millrace.ledger SET sources = sources + 1 WHERE partition = 0 AND first_offset = 400",
            {"contradicted": [(400, 600)]},
        ),
        (
            "UPDATE millrace.ledger SET records = records - 99 WHERE partition = 0 AND first_offset = 400",
            {"contradicted": [(400, 600)]},
        ),
    ],
)
def test_each_damage_is_named_and_nothing_else(shop, damage, expected):
    shop.made.execute(damage)
    run = shop.reconcile()
    if expected == {"unbooked": None}:
        expected = {"unbooked": spans([n for n in range(400, 600) if n % 10 == 0])}
    assert found(run) == expected
    assert run.balance is (Balance.OPEN if "unbooked" in expected else Balance.BROKEN)


def test_what_does_not_balance_is_found_again_until_it_is_mended_and_the_rest_goes_on(shop):
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 602")
    assert found(shop.reconcile()) == {"missing": [(602, 603)]}
    assert sorted(shop.store.books.mark(STREAM).offsets.values()) == [0, 1_000]
    shop.made.batches(1_000, 1_100, each=100, partitions=(1,))
    again = shop.reconcile()
    assert (found(again), again.sums.offsets) == ({"missing": [(602, 603)]}, 1_100)
    shop.made.execute(f"INSERT INTO {TABLE} VALUES ('c', %s, 0, 602, 0, 1)", TOPIC_ID)
    assert shop.reconcile().balance is Balance.BALANCED
    assert sorted(shop.store.books.mark(STREAM).offsets.values()) == [1_000, 1_100]


def test_one_alarm_is_open_while_the_books_do_not_balance(shop):
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _offset IN (602, 603)")
    shop.reconcile()
    [(kind, detail)] = shop.alarms().items()
    assert kind == "books.unbalanced"
    assert [each.extent for each in shop.store.alarms.list() if each.subject == STREAM] == [Extent(4, "missing")]
    assert "broken (missing 4); missing: shop.purchases/0 [602, 604), 2 offsets" in detail
    shop.reconcile()
    assert len(shop.store.alarms.list()) == 1
    shop.made.execute(
        f"INSERT INTO {TABLE} SELECT 'c', %s, p, n, 0, 1 FROM unnest(ARRAY[0, 1]) p, unnest(ARRAY[602, 603]) n",
        TOPIC_ID,
    )
    shop.reconcile()
    assert shop.alarms() == {}


def test_what_is_accepted_alarms_no_more(shop):
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _offset = 602")
    shop.reconcile()
    shop.accept()
    assert shop.alarms() == {}
    shop.reconcile()
    assert shop.alarms() == {}


def test_a_run_that_was_killed_before_its_alarm_is_made_up_for_by_the_next(shop, monkeypatch):
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _offset = 602")
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.alarms, "open", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shop.reconcile()
    assert shop.alarms() == {}
    shop.reconcile()
    assert set(shop.alarms()) == {"books.unbalanced"}


def test_what_one_run_leaves_the_next_looks_at(shop, monkeypatch):
    monkeypatch.setattr(quality_books, "MOST_OFFSETS", 500)
    pipeline = Pipeline("shop", "me", "kafka", (), (shop.stream,))
    done = quality_books.reconcile_on(shop, pipeline, shop.stream, actor="me")  # type: ignore[arg-type]
    assert [(run.left, run.sums.offsets) for run in done] == [
        (1_500, 800),
        (1_000, 800),
        (500, 800),
        (0, 800),
    ]  # whole entries
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _offset = 2")
    assert shop.reconcile(deep=True).sums.offsets == 2_000


def test_a_deep_run_goes_back_and_its_finding_stays(shop):
    shop.reconcile()
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 602")
    assert shop.reconcile().balance is Balance.BALANCED
    assert found(shop.reconcile(deep=True)) == {"missing": [(602, 603)]}
    assert found(shop.reconcile()) == {"missing": [(602, 603)]}


def test_what_is_accepted_is_not_looked_at_again(shop):
    with pytest.raises(RefusedError, match="its books were never compared"):
        shop.accept()
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 602")
    shop.reconcile()
    shop.accept()
    assert shop.reconcile().balance is Balance.BALANCED
    with pytest.raises(RefusedError, match="its books are balanced"):
        shop.accept()
    [logged] = [entry for entry in shop.store.log.list() if entry.action == "quality.books_accept"]
    assert "missing 1" in logged.after["found"]


def test_after_a_rewind_the_books_begin_again_where_it_begins(shop):
    shop.reconcile()
    shop.made.batch(300, 500, timeline=2)
    shop.made.batch(0, 150, timeline=2, partition=1)
    run = shop.reconcile()
    assert (run.balance, run.sums.offsets) == (Balance.BALANCED, 200 + 150)
    shop.made.batch(500, 1_100, timeline=2)
    assert shop.reconcile().balance is Balance.BALANCED
    assert shop.reconcile(deep=True).balance is Balance.BALANCED
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset IN (202, 402)")
    assert found(shop.reconcile(deep=True)) == {"missing": [(202, 203), (402, 403)]}


def test_offsets_that_a_stream_was_moved_past_are_named_as_never_read(shop):
    shop.made.batch(1_500, 1_600, timeline=2)
    shop.made.batch(1_000, 1_100, timeline=2, partition=1)
    run = shop.reconcile()
    assert found(run) == {"skipped": [(1_000, 1_500)]}
    shop.accept()
    shop.made.batch(1_600, 1_700, timeline=2)
    assert shop.reconcile().balance is Balance.BALANCED


def test_a_recreated_topic_and_partitions_that_came_later_have_books_of_their_own(shop):
    shop.made.batches(0, 400, each=200, topic_id="anotheranotheranother1", timeline=2)
    shop.made.batches(0, 400, each=200, topic_id="anotheranotheranother1", timeline=2, partitions=(7,))
    assert shop.reconcile().sums.offsets == 2_000 + 800
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _topic_id LIKE 'another%%' AND _partition = 7 AND _offset = 202")
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _topic_id = '{TOPIC_ID}' AND _partition = 1 AND _offset = 203")
    run = shop.reconcile(deep=True)
    assert [(one.partition.topic_id, one.partition.partition, one.spans) for one in run.findings] == [
        ("anotheranotheranother1", 7, ((202, 203),)),
        (TOPIC_ID, 1, ((203, 204),)),
    ]


def test_offsets_without_a_record_are_open_where_nobody_can_tell(shop):
    shop.made.batches(1_000, 1_400, each=200, gaps=7)
    run = shop.reconcile()
    assert (run.balance, faults(run)) == (Balance.OPEN, [Fault.UNWITNESSED])
    assert run.sums.gaps == len(range(1_001, 1_400, 7))


def test_rows_of_several_ordinals_are_counted(shop):
    shop.made.batches(1_000, 1_400, each=200, ordinals=3)
    assert shop.reconcile().balance is Balance.BALANCED
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 1002 AND _ordinal = 1")
    assert found(shop.reconcile(deep=True)) == {"ordinals": [(1_002, 1_003)]}
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 1002 AND _ordinal = 2")
    run = shop.reconcile(deep=True)
    assert found(run) == {"rows": [(1_000, 1_200)]}
    assert "534 rows were written, 532 exist" in run.findings[0].detail


def test_a_transform_may_leave_out_some_rows_of_a_record(shop):
    """Its ordinals have gaps then, and may begin anywhere; they say where rows are missing, once any are."""
    shop.made.execute(f"UPDATE {TABLE} SET _ordinal = 5 WHERE _offset = 202")
    assert shop.reconcile().balance is Balance.BALANCED
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 203")
    assert found(shop.reconcile(deep=True)) == {"missing": [(203, 204)], "ordinals": [(202, 203)]}


@pytest.mark.parametrize("deep", [False, True])
def test_a_record_of_work_that_is_gone_is_no_empty_one(shop, deep):
    shop.reconcile()
    held = shop.made.sink.connection.execute("SELECT * FROM millrace.progress").fetchall()
    shop.made.execute("DELETE FROM millrace.progress")
    for _ in range(2):
        run = shop.reconcile(deep=deep)
        assert (run.balance, run.findings[0].detail) == (
            Balance.BROKEN,
            "its record of work is missing; an earlier run has seen it",
        )
    shop.accept()
    assert shop.reconcile().balance is Balance.EMPTY
    for row in held:
        shop.made.execute("INSERT INTO millrace.progress VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", *row)
    assert shop.reconcile().sums.offsets == 2_000


def test_a_record_of_work_that_went_back_is_told_and_what_is_done_again_is_looked_at(shop):
    """As after a failover to a standby that had not everything."""
    shop.made.batch(1_000, 1_100, timeline=2)
    shop.reconcile()
    shop.made.execute("UPDATE millrace.progress SET next_offset = 600 WHERE partition = 1")
    shop.made.execute("DELETE FROM millrace.progress WHERE timeline = 2")
    run = shop.reconcile()
    assert [(one.fault, one.partition.partition, one.spans) for one in run.findings] == [
        ("receded", 0, ((1_000, 1_100),)),
        ("receded", 1, ((600, 1_000),)),
        ("outside", 0, ((1_001, 1_100),)),
        ("outside", 1, ((601, 1_000),)),
    ]
    shop.made.batch(600, 1_000, partition=1)
    shop.made.batch(1_000, 1_100)
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _offset = 702")
    assert found(shop.reconcile()) == {"missing": [(702, 703)]}


def test_what_a_stream_writes_meanwhile_is_not_outside_of_its_record(shop, monkeypatch):
    from millrace.adapters.sinks.postgres.books import SinkBooks

    read = SinkBooks.work

    def written(books: Any, name: str) -> Any:
        answer = read(books, name)
        shop.made.batch(1_000, 1_100)
        return answer

    monkeypatch.setattr(SinkBooks, "work", written)
    assert shop.reconcile().balance is Balance.BALANCED


@pytest.mark.parametrize("name", ["_batch", "entry", "present", "place", "first_offset"])
def test_a_table_may_be_called_whatever_it_likes_and_so_may_its_columns(shop, monkeypatch, name):
    """Names of the statements' own must not hide it, nor be hidden."""
    shop.made.execute(f"ALTER TABLE {TABLE} ADD COLUMN first_offset int, ADD COLUMN next_offset int")
    shop.made.execute(f"ALTER TABLE {TABLE} ADD COLUMN here int, ADD COLUMN entry int, ADD COLUMN span int")
    shop.made.execute(f'ALTER TABLE {TABLE} RENAME TO "{name}"')
    monkeypatch.setattr("support.quality.books_made.TABLE", f"shop.{name}")
    monkeypatch.setattr(Shop, "table", f"shop.{name}")
    shop.made.batch(1_000, 1_200)
    run = shop.reconcile(deep=True)
    assert (run.balance, run.sums.rows) == (Balance.BALANCED, 2_200 * 89 // 100)


def test_a_table_that_is_not_there_is_told(shop):
    shop.made.execute("DROP TABLE shop.purchases")
    run = shop.reconcile()
    assert (run.balance, [str(one) for one in run.findings]) == (
        Balance.BROKEN,
        ["missing: table shop.purchases is not there"],
    )
    assert set(shop.store.books.mark(STREAM).offsets.values()) == {0}


def test_a_sink_of_an_older_millrace_is_told(shop):
    shop.made.execute("ALTER TABLE millrace.ledger RENAME TO kept")
    try:
        with pytest.raises(DeclarationError, match="has no ledger"):
            shop.reconcile()
    finally:
        shop.made.execute("ALTER TABLE millrace.kept RENAME TO ledger")


def test_a_rewind_that_comes_meanwhile_is_looked_at_by_the_next_run(shop, monkeypatch):
    """The record of work is read first; what it says of the old timeline proves nothing of the new one."""
    read = shop.made.books.work

    def rewound(books: Any, name: str) -> Any:
        answer = read(name)
        shop.made.batch(0, 200, timeline=2)
        shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 102")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr("millrace.adapters.sinks.postgres.books.SinkBooks.work", rewound)
        shop.reconcile()
    assert found(shop.reconcile()) == {"missing": [(102, 103)]}


def test_two_runs_at_once_do_not_move_the_mark_twice(shop, monkeypatch):
    """The one that ends later has seen the older state."""
    original, seen = shop.store.books.store, []

    def slow(run: Reconciliation, **how: Any) -> Reconciliation:
        if not seen:
            seen.append(run)
            shop.made.batch(1_000, 1_100)
            shop.reconcile()
        return original(run, **how)

    monkeypatch.setattr(shop.store.books, "store", slow)
    shop.reconcile()
    assert shop.store.books.mark(STREAM).offsets[P0] == 1_100


def test_what_a_deep_run_finds_counts_though_a_daily_one_ended_meanwhile(shop, monkeypatch):
    """It takes hours, and the stream goes on."""
    shop.reconcile()
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 202")
    original, seen = shop.store.books.store, []

    def meanwhile(run: Reconciliation, **how: Any) -> Reconciliation:
        if not seen:
            seen.append(run)
            shop.made.batch(1_000, 1_100)
            assert shop.reconcile().balance is Balance.BALANCED
        return original(run, **how)

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.books, "store", meanwhile)
        assert found(shop.reconcile(deep=True)) == {"missing": [(202, 203)]}
    assert set(shop.alarms()) == {"books.unbalanced"}
    assert found(shop.reconcile()) == {"missing": [(202, 203)]}
    shop.accept()


def test_a_deep_run_asks_no_witness_again(shop, monkeypatch):
    """What they knew may have expired since."""
    shop.made.batches(1_000, 1_400, each=200, gaps=7)
    shop.reconcile()
    shop.accept()
    shop.made.batches(1_400, 1_600, each=200, gaps=7)
    run = shop.reconcile(deep=True)
    assert [(one.fault, one.spans[0][0] >= 1_400) for one in run.findings] == [("unwitnessed", True)]
    shop.made.batch(1_200, 1_400, gaps=7, timeline=2)
    assert shop.reconcile(deep=True).findings[0].spans[0][0] == 1_200


def test_what_was_not_looked_at_is_not_accepted(shop):
    shop.made.execute(f"ALTER TABLE {TABLE} RENAME TO kept")
    assert shop.reconcile().left == 2_000
    shop.accept()
    shop.made.execute("ALTER TABLE shop.kept RENAME TO purchases")
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 202")
    assert found(shop.reconcile()) == {"missing": [(202, 203)]}


def test_where_a_witness_is_away_what_was_found_is_kept_and_the_rest_waits(shop, monkeypatch):
    shop.made.batches(1_000, 1_400, each=200, gaps=7)
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 1 AND _offset = 202")

    def away(self: Shop, connection: str) -> Any:
        raise UnreachableError("no broker answers")

    with monkeypatch.context() as patch:
        patch.setattr(Shop, "kafka_logs", away)
        run = shop.reconcile()
    assert (found(run), run.problem, run.left) == ({"missing": [(202, 203)]}, "no broker answers", 400)
    assert set(shop.alarms()) == {"books.unbalanced"}
    assert shop.store.books.mark(STREAM).offsets == {P0: 1_000, TopicPartition(TOPIC, TOPIC_ID, 1): 0}
    assert faults(shop.reconcile()) == [Fault.MISSING, Fault.UNWITNESSED]


def test_a_witness_that_is_away_alone_is_no_breach_and_proves_nothing(shop, monkeypatch):
    shop.made.batches(1_000, 1_400, each=200, gaps=7)

    def away(self: Shop, connection: str) -> Any:
        raise UnreachableError("no broker answers")

    monkeypatch.setattr(Shop, "kafka_logs", away)
    run = shop.reconcile()
    assert (run.balance, run.findings, run.left) == (Balance.OPEN, (), 400)
    assert shop.alarms() == {}


def test_a_partition_that_is_on_record_no_more_is_told_until_it_is_accepted(shop):
    shop.reconcile()
    shop.made.execute("DELETE FROM millrace.progress WHERE partition = 1")
    for _ in range(2):
        assert faults(shop.reconcile()) == [Fault.RECEDED, Fault.STRANGE]
    shop.accept()
    assert faults(shop.reconcile()) == [Fault.STRANGE]


def test_rows_of_a_stream_that_had_another_name_are_not_outside(shop):
    shop.made.execute(
        "INSERT INTO millrace.progress SELECT 'shop.former', 1, 0, topic, topic_id, partition, 1000, 1200, 1 "
        "FROM millrace.progress"
    )
    shop.made.execute(f"INSERT INTO {TABLE} VALUES ('c', %s, 0, 1100, 0, 1)", TOPIC_ID)
    assert shop.reconcile().balance is Balance.BALANCED
    shop.made.execute(f"INSERT INTO {TABLE} VALUES ('c', %s, 0, 1200, 0, 1)", TOPIC_ID)
    assert found(shop.reconcile()) == {"outside": [(1_200, 1_201)]}


def test_a_record_in_quarantine_beyond_the_record_of_work_is_outside(shop):
    shop.made.execute('UPDATE millrace.quarantine SET "offset" = 5000 WHERE partition = 0 AND "offset" = 101')
    assert found(shop.reconcile()) == {"missing": [(101, 102)], "outside": [(5_000, 5_001)]}


def test_an_alarm_that_opens_while_somebody_accepts_stays(shop, monkeypatch):
    shop.made.execute(f"DELETE FROM {TABLE} WHERE _partition = 0 AND _offset = 202")
    shop.reconcile()
    original = shop.store.books.accept

    def meanwhile(*arguments: Any, **how: Any) -> bool:
        done = original(*arguments, **how)
        shop.store.alarms.close("books.unbalanced", STREAM)
        shop.made.execute(f"INSERT INTO {TABLE} VALUES ('c', %s, 0, 1200, 0, 1)", TOPIC_ID)
        shop.reconcile()
        return done

    monkeypatch.setattr(shop.store.books, "accept", meanwhile)
    shop.accept()
    assert set(shop.alarms()) == {"books.unbalanced"}


def test_a_database_that_ends_the_connection_is_told_and_the_mark_stays(shop, control_databases, monkeypatch):
    from millrace.adapters.sinks.postgres.books import OpenBooks

    part = OpenBooks.part

    def ended(books: Any, range_: Any) -> Any:
        control_databases.end_connections(shop.made.sink.database.working)
        return part(books, range_)

    monkeypatch.setattr(OpenBooks, "part", ended)
    with pytest.raises(UnreachableError):
        shop.reconcile()
    assert shop.store.books.mark(STREAM).offsets == {}
