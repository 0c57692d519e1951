"""A table of one row a key, on a real PostgreSQL: which row is the last, what deletes leave, what rewinds replace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from millrace.adapters.sinks.postgres import upsert as postgres_upsert
from millrace.adapters.sinks.postgres.upsert import PostgresUpsert
from millrace.domain.sinks.batch import Written
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import DeclarationError, RowsRefusedError, SinkFailedError
from millrace.settings import PostgresSettings
from support.sinks.table_columns import OWN_UPSERTED
from support.sinks.worlds import COLUMNS, P0, P1, TOPIC, TOPIC_ID, Commit, Row, UpsertWorld, Writer, place, row, rows

PARTITIONS = tuple(TopicPartition(TOPIC, TOPIC_ID, number) for number in range(3))


@pytest.fixture
def world(database: PostgresSettings, name: str, admin: psycopg.Connection[Any]) -> UpsertWorld:
    return UpsertWorld(database, name, admin)


def one(offset: int, amount: int | None, *, customer: str = "c", **more: Any) -> Row:
    return replace(row(offset), customer=customer, amount=amount, second=more.pop("second", offset), **more)


def apply(writer: Writer, *given: Row, ends: dict[int, int] | None = None, timeline: int = 1) -> None:
    """One batch of rows of any partitions, each range from where the record of work ends."""
    record = writer.sink.read_record().next_offsets
    upto = {number: 1 + max((r.offset for r in given if r.partition == number), default=-1) for number in (0, 1, 2)}
    upto |= ends or {}
    ranges = [
        OffsetRange(place, at, max(at, upto[place.partition])) for place, at in record.items() if upto[place.partition]
    ]
    writer.sink.begin_batch()
    done = writer.write(given)
    writer.sink.commit_batch(timeline, ranges, Written(done.attempts, done.rows))


def amounts(world: UpsertWorld) -> dict[str, int | None]:
    """What the table says of each customer that is not deleted."""
    return {r.customer: None if r.amount is None else int(r.amount) for _, r in world.contents() if not r.deleted}


# Which is the last


def test_within_a_partition_the_offset_decides_whatever_the_clock_says(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10, second=100))
    apply(writer, one(1, 11, second=50))
    assert amounts(world) == {"c": 11}
    apply(writer, one(2, 12, second=9), one(3, 13, second=5))
    assert amounts(world) == {"c": 13}


def test_among_partitions_the_timestamp_decides_then_the_partition(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(5, 10, second=100))
    apply(writer, one(0, 20, second=99, partition=1))
    assert amounts(world) == {"c": 10}
    apply(writer, one(1, 21, second=100, partition=1))
    assert amounts(world) == {"c": 21}
    apply(writer, one(6, 16, second=100))
    assert amounts(world) == {"c": 21}, "at one and the same time the greater partition wins, whoever comes last"


def test_within_a_batch_the_last_of_each_key_takes_its_place(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    given = [*rows(0, 9, amount=100), *rows(0, 6, partition=1, amount=500)]
    random.Random(1).shuffle(given)
    apply(writer, *given)
    assert world.contents() == world.expected([Commit(1, [], given)])


def test_of_one_record_the_last_ordinal_counts(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10, ordinal=0), one(0, 11, ordinal=1), one(0, 7, customer="another", ordinal=0))
    assert amounts(world) == {"c": 11, "another": 7}
    with pytest.raises(DeclarationError, match="one record for one key: partition 0, offset 1"):
        apply(writer, one(1, 12), one(1, 13))
    assert writer.done == 1
    assert amounts(world) == {"c": 11, "another": 7}


# Deletes


def test_a_deleted_key_leaves_a_marker_and_what_is_older_does_not_come_back(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10, second=10))
    apply(writer, one(1, None, second=20, deleted=True))
    assert amounts(world) == {}
    assert [(r.customer, r.amount, r.deleted) for _, r in world.contents()] == [("c", None, True)]
    apply(writer, one(0, 99, second=15, partition=1))
    assert amounts(world) == {}
    apply(writer, one(1, 30, second=30, partition=1))
    assert amounts(world) == {"c": 30}


def test_a_key_that_was_never_there_is_deleted_too(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, None, second=20, deleted=True))
    apply(writer, one(0, 10, second=10, partition=1))
    assert amounts(world) == {}


# Rewinds


def test_a_rewind_applies_again_on_its_timeline_and_ends_as_a_clean_run(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    given = rows(0, 9, amount=100)
    apply(writer, *given)
    clean = amounts(world)
    writer.sink.open_positions(2, {P0: 2, P1: 0})
    apply(writer, given[2], timeline=2)
    assert amounts(world)["c2"] == 102, "what is read again counts, though a later record has been there"
    apply(writer, *given[3:], timeline=2)
    assert amounts(world) == clean


def replaced(world: UpsertWorld) -> dict[str, Any]:
    asked = "SELECT key ->> 'customer', former FROM millrace.replaced WHERE stream = %s AND timeline = %s"
    return dict(world.admin.execute(asked, (world.stream, 2)).fetchall())


def test_a_rewind_keeps_what_it_replaced_once_and_nothing_that_lives_on(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, *rows(0, 2), one(2, 2, customer="old"), *rows(3, 6, amount=100))
    before = dict(world.admin.execute(f"SELECT customer, to_jsonb(r) FROM {world.name}.rows AS r").fetchall())
    assert replaced(world) == {}
    writer.sink.open_positions(2, {P0: 3, P1: 0})
    apply(writer, one(3, 1, customer="c0"), one(4, 2, customer="new"), timeline=2)
    assert replaced(world) == {"c0": before["c0"], "new": None}
    behind = [one(6, 4, customer="old"), one(7, 5, customer="later")]
    apply(writer, one(5, 3, customer="c0"), *behind, timeline=2)
    assert replaced(world)["c0"] == before["c0"], "the first time counts"
    assert set(replaced(world)) == {"c0", "new"}, "behind the former end nothing is a rewind's"
    world.admin.execute(
        f"INSERT INTO {world.name}.rows SELECT (jsonb_populate_record(NULL::{world.name}.rows, former)).* "
        "FROM millrace.replaced WHERE stream = %s AND former IS NOT NULL "
        "ON CONFLICT (customer) DO UPDATE SET amount = excluded.amount, _timeline = excluded._timeline, "
        "_offset = excluded._offset, _timestamp = excluded._timestamp",
        (world.stream,),
    )
    now = dict(world.admin.execute(f"SELECT customer, to_jsonb(r) FROM {world.name}.rows AS r").fetchall())
    assert now["c0"] == before["c0"]


def test_what_was_replaced_long_ago_is_let_go_of(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, *rows(0, 6))
    writer.sink.open_positions(2, {P0: 0, P1: 0})
    apply(writer, *rows(0, 2), timeline=2)
    assert set(replaced(world)) == {"c0", "c1"}
    world.admin.execute(
        "UPDATE millrace.replaced SET replaced_at = now() - interval '31 days' WHERE stream = %s "
        "AND key ->> 'customer' = 'c0'",
        (world.stream,),
    )
    Writer(world, 2).ready()
    assert set(replaced(world)) == {"c1"}


def test_a_start_is_not_held_up_by_what_it_cannot_let_go_of(
    world: UpsertWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: Any, cursor: Any) -> int:
        raise SinkFailedError("it takes too long")

    monkeypatch.setattr(PostgresUpsert, "_delete_replaced", busy)
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10))
    assert amounts(world) == {"c": 10}


def test_a_rewind_of_some_partitions_lets_nothing_older_back_in(world: UpsertWorld) -> None:
    """What the others gave will not come again, so it keeps its place: a deleted key stays deleted."""
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10, second=10), one(0, None, second=20, partition=1, deleted=True))
    assert amounts(world) == {}
    writer.sink.open_positions(2, {P0: 0, P1: 1})
    apply(writer, one(0, 10, second=10), timeline=2)
    assert amounts(world) == {}
    assert replaced(world) == {}
    apply(writer, one(1, 11, second=30), timeline=2)
    assert amounts(world) == {"c": 11}


def test_a_skip_lets_no_straggler_win_by_its_timeline(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(1, 10, second=100))
    writer.sink.open_positions(2, {P0: 50, P1: 0})
    apply(writer, one(0, 20, second=20, partition=1), timeline=2)
    assert amounts(world) == {"c": 10}


def test_a_rewind_that_was_broken_off_and_is_done_again_keeps_all_that_it_replaces(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, *(one(offset, offset, customer=f"k{offset}") for offset in range(6)))
    writer.sink.open_positions(2, {P0: 0, P1: 0})
    apply(writer, *(one(offset, 100, customer=f"k{offset}") for offset in range(2)), timeline=2)
    writer.sink.open_positions(3, {P0: 0, P1: 0})
    apply(
        writer, *(one(offset, 200, customer=f"k{offset}") for offset in range(5)), one(5, 0, customer="new"), timeline=3
    )
    asked = "SELECT key ->> 'customer', former ->> 'amount' FROM millrace.replaced WHERE stream = %s AND timeline = 3"
    found = dict(world.admin.execute(asked, (world.stream,)).fetchall())
    assert found == {"k0": "100.00", "k1": "100.00", **{f"k{n}": f"{n}.00" for n in range(2, 5)}, "new": None}


def test_what_a_deleted_topic_gave_gives_way_to_the_one_that_was_made_again(world: UpsertWorld) -> None:
    """Whatever the clocks say: its records come after all of the other's."""
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10, second=100))
    world.admin.execute(f"UPDATE {world.name}.rows SET _topic_id = 'id-before'")
    world.admin.execute("UPDATE millrace.progress SET topic_id = 'id-before' WHERE stream = %s", (world.stream,))
    writer.sink.open_positions(2, {P0: 0, P1: 0})
    apply(writer, one(0, 20, second=50), timeline=2)
    assert amounts(world) == {"c": 20}


def test_who_takes_the_place_of_what_is_yet_to_be_read_again_keeps_it_too(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 9, customer="d"), one(1, 10, second=100))
    writer.sink.open_positions(2, {P0: 0, P1: 0})
    apply(writer, one(0, 20, second=20, partition=1), timeline=2)
    assert replaced(world)["c"]["amount"] == 10
    apply(writer, one(0, 9, customer="d"), one(1, 10, second=100), timeline=2)
    assert amounts(world) == {"c": 10, "d": 9}


# What the table does not take


def test_a_row_without_a_key_is_refused_by_name(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    done = writer.write([one(0, 10), replace(one(1, 11), customer=None), replace(one(2, 12), customer=None)])
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 3)
    assert sorted(caught.value.sources) == [(TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2)]
    counts = writer.commit(done, 0, 3, refused=caught.value.sources)
    assert (counts.rows_out, counts.quarantined, writer.done) == (1, 2, 3)


def test_all_refused_rows_of_one_key_are_found_at_once(world: UpsertWorld) -> None:
    """One by one they would take as many rounds as there are."""
    writer = Writer(world, 1).ready()
    world.admin.execute(f"ALTER TABLE {world.name}.rows ADD CHECK (amount < 100)")
    writer.sink.begin_batch()
    given = [one(0, 10), *(one(offset, 100 + offset) for offset in range(1, 30))]
    done = writer.write(given)
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 30)
    assert sorted(offset for _, _, offset in caught.value.sources) == list(range(1, 30))
    writer.commit(done, 0, 30, refused=caught.value.sources)
    assert amounts(world) == {"c": 10}


def test_what_stands_behind_refused_rows_is_found_in_one_search(world: UpsertWorld) -> None:
    """Each record gives two rows, of its own key and of the next: what is refused of one lays another open."""
    writer = Writer(world, 1).ready()
    world.admin.execute(f"ALTER TABLE {world.name}.rows ADD CHECK (amount < 100)")
    writer.sink.begin_batch()
    given = [
        one(offset, amount, customer=f"k{offset + ordinal}", ordinal=ordinal)
        for offset in range(20)
        for ordinal, amount in enumerate((100, 1))
    ]
    given += [one(20, 100, customer="k20")]
    done = writer.write(given)
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 21)
    assert len(caught.value.sources) == 21
    assert writer.commit(done, 0, 21, refused=caught.value.sources).quarantined == 21


def test_a_search_takes_as_many_tries_as_there_are_refused_rows_however_hot_a_key_is(world: UpsertWorld) -> None:
    """Each try takes one of the server's transaction ids."""
    writer = Writer(world, 1).ready()
    world.admin.execute(f"ALTER TABLE {world.name}.rows ADD CHECK (amount <> 7)")
    writer.sink.begin_batch()
    done = writer.write([*(one(offset, 100) for offset in range(3000)), one(3000, 7, customer="bad")])
    ids = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    [(before,)] = world.admin.execute(ids).fetchall()
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 3001)
    [(after,)] = world.admin.execute(ids).fetchall()
    assert list(caught.value.sources) == [(TOPIC_ID, 0, 3000)]
    assert after - before < 100


def test_rows_of_one_record_without_a_key_are_refused_and_stop_nothing(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    nobody = replace(one(1, 11), customer=None)
    done = writer.write([one(0, 10), nobody, nobody])
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 2)
    assert list(caught.value.sources) == [(TOPIC_ID, 0, 1)]


def test_a_unique_value_that_goes_from_one_key_to_another_says_what_it_needs(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    world.admin.execute(f"ALTER TABLE {world.name}.rows ADD CONSTRAINT once UNIQUE (amount)")
    apply(writer, one(0, 1, customer="a"), one(1, 2, customer="b"))
    handed = (one(2, 3, customer="b"), one(3, 2, customer="a"))
    with pytest.raises(DeclarationError, match="but accepts each of them alone") as caught:
        apply(writer, *handed)
    assert "once" in caught.value.next_step
    assert "DEFERRABLE INITIALLY DEFERRED" in caught.value.next_step
    world.admin.execute(f"ALTER TABLE {world.name}.rows DROP CONSTRAINT once")
    world.admin.execute(
        f"ALTER TABLE {world.name}.rows ADD CONSTRAINT once UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED"
    )
    apply(writer, *handed)
    assert amounts(world) == {"a": 2, "b": 3}


def test_a_row_that_does_not_say_whether_it_is_deleted_is_refused(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    done = writer.write([one(0, 10), replace(one(1, 11, customer="d"), deleted=None)])
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 2)
    assert list(caught.value.sources) == [(TOPIC_ID, 0, 1)]


def test_a_trigger_that_drops_rows_moves_nothing(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    world.admin.execute(
        f"CREATE FUNCTION {world.name}.dropping() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.amount = 11 THEN RETURN NULL; END IF; RETURN new; END $$"
    )
    world.admin.execute(
        f"CREATE TRIGGER dropping BEFORE INSERT OR UPDATE ON {world.name}.rows FOR EACH ROW "
        f"EXECUTE FUNCTION {world.name}.dropping()"
    )
    apply(writer, one(0, 10))
    for given in (one(1, 11), one(1, 11, customer="new")):
        with pytest.raises(SinkFailedError, match="trigger or rule of the table drops rows"):
            apply(writer, given)
    assert amounts(world) == {"c": 10}


# Tables


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("CREATE TABLE {t} (customer text PRIMARY KEY, amount numeric(12,2))", "lacks _topic_id"),
        ("CREATE TABLE {t} (customer text, amount numeric(12,2), {own})", "customer may be null"),
        ("CREATE TABLE {t} (customer text NOT NULL, amount numeric(12,2), {own})", "no key on customer"),
        ("CREATE TABLE {t} (customer text NOT NULL DEFAULT 'x', amount numeric(12,2), {own})", "has a default"),
        (
            "CREATE TABLE {t} (customer text PRIMARY KEY, amount numeric(12,2), {own}); "
            "ALTER TABLE {t} ALTER _timestamp TYPE date",
            "_timestamp is not timestamp with time zone",
        ),
    ],
)
def test_a_table_that_does_not_tell_keys_apart_is_refused(world: UpsertWorld, made: str, told: str) -> None:
    world.admin.execute(f"CREATE SCHEMA {world.name}")
    world.admin.execute(made.format(t=f"{world.name}.rows", own=OWN_UPSERTED))
    with pytest.raises(DeclarationError, match=told) as caught:
        Writer(world, 1).ready()
    if told == "no key on customer":
        world.admin.execute(caught.value.next_step.removeprefix("stop the stream, then run: "))
        apply(Writer(world, 2).ready(), one(0, 10))
        assert amounts(world) == {"c": 10}


def test_a_key_of_several_columns_has_any_order_and_must_be_given(world: UpsertWorld) -> None:
    class OfTwo(UpsertWorld):
        def sink(self, epoch: int, instance: str = "") -> PostgresUpsert:
            key = ("customer", "amount")
            return PostgresUpsert(self.settings, self.identity(epoch, instance), f"{self.name}.rows", key)

    of_two = OfTwo(world.settings, world.name, world.admin)
    writer = Writer(of_two, 1).ready()
    apply(writer, one(0, 10), one(1, 11), one(2, 10))
    assert [(r.offset, int(r.amount or 0)) for _, r in of_two.contents()] == [(2, 10), (1, 11)] or [
        (r.offset, int(r.amount or 0)) for _, r in of_two.contents()
    ] == [(1, 11), (2, 10)]
    world.admin.execute(f"ALTER TABLE {world.name}.rows DROP CONSTRAINT rows_key")
    world.admin.execute(f"ALTER TABLE {world.name}.rows ADD PRIMARY KEY (amount, customer)")
    apply(Writer(of_two, 2).ready(), one(3, 10))
    with pytest.raises(DeclarationError, match="the app does not return amount"):
        Writer(of_two, 3).ready(pa.schema([COLUMNS.field("customer")]))


def test_a_table_that_is_appended_to_is_not_upserted_into_nor_the_other_way_round(world: UpsertWorld) -> None:
    from support.sinks.worlds import AppendWorld

    appended = AppendWorld(world.settings, world.name, world.admin)
    Writer(appended, 1).ready()
    with pytest.raises(DeclarationError, match="lacks _timestamp, _deleted"):
        Writer(world, 2).ready()
    world.admin.execute(f"DROP TABLE {world.name}.rows")
    Writer(world, 3).ready()
    with pytest.raises(DeclarationError, match="_timestamp is NOT NULL without a default"):
        Writer(appended, 4).ready()


def test_a_table_with_rows_is_not_taken_by_a_stream_that_has_done_nothing(world: UpsertWorld) -> None:
    """A stream that was renamed: its rows' places are those of another record of work."""
    apply(Writer(world, 1).ready(), *rows(0, 3))
    renamed = UpsertWorld(world.settings, world.name, world.admin)
    renamed.stream = f"{world.name}.renamed"
    with pytest.raises(DeclarationError, match="the table has rows of another stream"):
        Writer(renamed, 1).ready()


def test_rows_that_the_record_of_work_has_not_come_to_are_refused_too(world: UpsertWorld) -> None:
    """Schema `millrace` was restored without the table, or another stream has written."""
    writer = Writer(world, 1).ready()
    apply(writer, *rows(0, 3))
    world.admin.execute(
        "UPDATE millrace.progress SET next_offset = 1 WHERE stream = %s AND partition = 0", (world.stream,)
    )
    with pytest.raises(DeclarationError, match="rows beyond the stream's record of work"):
        apply(writer, *rows(1, 3))


def test_rows_of_a_timeline_that_the_record_of_work_does_not_know_are_refused(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    apply(writer, one(0, 10))
    world.admin.execute(f"UPDATE {world.name}.rows SET _timeline = 2")
    with pytest.raises(DeclarationError, match="rows beyond the stream's record of work"):
        apply(writer, one(1, 11))
    assert amounts(world) == {"c": 10}
    assert writer.done == 1


def test_many_partitions_have_their_staged_rows_indexed(world: UpsertWorld) -> None:
    """Each is booked by itself."""
    many = [TopicPartition(TOPIC, TOPIC_ID, number) for number in range(9)]
    writer = Writer(world, 1)
    writer.sink.take_over()
    writer.sink.open_positions(1, dict.fromkeys(many, 0))
    writer.sink.prepare(COLUMNS)
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'millrace_staging' AND tablename = %s"
    assert world.admin.execute(indexes, (f"{world.stream}#1",)).fetchone() == (1,)
    writer.sink.begin_batch()
    done = writer.write([one(0, number, customer=f"k{number}", partition=number) for number in range(9)])
    assert writer.sink.commit_batch(1, [OffsetRange(p, 0, 1) for p in many], Written(done.attempts, 9)).rows_out == 9


# The ledger


def test_the_ledger_says_what_became_of_records_that_are_no_row_any_more(world: UpsertWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    done = writer.write([one(0, 1), one(1, 2), one(3, 3)])  # of offset 2 nothing comes, 4 is bad, 5 held no record
    aside = writer.write_bad([(0, 4)])
    written = Written((*done.attempts, *aside.attempts), done.rows, aside.rows, {}, {(TOPIC, 0): 5})
    writer.sink.commit_batch(1, [OffsetRange(P0, 0, 6)], written)
    apply(writer, one(6, 4))
    asked = (
        "SELECT first_offset, next_offset, records, sources, rows_out, quarantined, dropped, absent::text "
        "FROM millrace.ledger WHERE stream = %s ORDER BY 1"
    )
    assert world.admin.execute(asked, (world.stream,)).fetchall() == [
        (0, 6, 5, 3, 3, 1, 1, "{[2,3),[5,6)}"),
        (6, 7, None, 1, 1, 0, None, "{}"),
    ]


# Any history


def history(seed: int) -> list[list[Row]]:
    """Records of three partitions whose clocks never go back, of few customers, some of them deletes, in batches."""
    chance = random.Random(seed)
    clock, offsets = [0, 0, 0], [0, 0, 0]
    batches = []
    for _ in range(chance.randint(3, 8)):
        batch = []
        for _ in range(chance.randint(0, 12)):
            number = chance.randrange(3)
            clock[number] += chance.randint(0, 3)
            gone = chance.random() < 0.2
            amount = None if gone else chance.randrange(1000)
            customer = f"c{chance.randrange(5)}"
            batch.append(Row(number, offsets[number], 0, customer, amount, clock[number], gone))
            offsets[number] += 1
        chance.shuffle(batch)
        batches.append(batch)
    return batches


def customers(given: Iterable[Row]) -> list[str]:
    return sorted({r.customer for r in given})


def state(world: UpsertWorld) -> list[Row]:
    return [r for _, r in world.contents()]


@pytest.mark.parametrize("seed", range(25))
def test_any_history_ends_as_a_plain_recomputation_also_when_it_is_rewound(world: UpsertWorld, seed: int) -> None:
    chance = random.Random(1000 + seed)
    batches = history(seed)
    everything = [r for batch in batches for r in batch]
    ends = {number: sum(r.partition == number for r in everything) for number in range(3)}
    writer = Writer(world, 1)
    writer.sink.take_over()
    writer.sink.open_positions(1, dict.fromkeys(PARTITIONS, 0))
    writer.sink.prepare(COLUMNS)
    for batch in batches:
        apply(writer, *batch)
    clean = [r for _, r in world.expected([Commit(1, [], everything)])]
    assert clean == [max((r for r in everything if r.customer == c), key=place) for c in customers(everything)]
    assert state(world) == clean
    begins = {where: chance.randint(0, ends[where.partition]) for where in PARTITIONS}
    if seed % 2:  # of some partitions only
        begins[PARTITIONS[seed % 3]] = ends[seed % 3]
    writer.sink.open_positions(2, begins)
    again = [[r for r in batch if r.offset >= begins[PARTITIONS[r.partition]]] for batch in batches]
    for batch in again:
        apply(writer, *batch, timeline=2)
    assert state(world) == clean, "what is read again ends as it was, whichever partitions it is"


# Mutants of the order


def _without(piece: str, instead: str, of: str = "_LATER") -> Callable[[pytest.MonkeyPatch], None]:
    def put(monkeypatch: pytest.MonkeyPatch) -> None:
        text = getattr(postgres_upsert, of)
        assert piece in text, "mend the mutant"
        monkeypatch.setattr(postgres_upsert, of, text.replace(piece, instead))

    return put


Scenario = Callable[[UpsertWorld], None]
MUTANTS: Sequence[tuple[str, Callable[[pytest.MonkeyPatch], None], Scenario]] = (
    (
        "timestamps within a partition",
        _without("_held._topic_id = {new}._topic_id AND", "false AND"),
        test_within_a_partition_the_offset_decides_whatever_the_clock_says,
    ),
    (
        "the last to come wins among partitions",
        _without("ELSE (_held._timestamp, _held._topic_id, _held._partition)", "ELSE true OR (now(), '', 0)"),
        test_among_partitions_the_timestamp_decides_then_the_partition,
    ),
    (
        "no marker's order",
        _without("ELSE (_held._timestamp, _held._topic_id, _held._partition)", "ELSE true OR (now(), '', 0)"),
        test_a_deleted_key_leaves_a_marker_and_what_is_older_does_not_come_back,
    ),
    (
        "any of a batch",
        _without("_offset DESC, _ordinal DESC", "_offset, _ordinal", "_LAST"),
        test_within_a_batch_the_last_of_each_key_takes_its_place,
    ),
    (
        "timelines without order",
        _without("(_held._timeline < {timeline} AND (EXISTS", "(false AND (EXISTS", "_TO_COME"),
        test_a_rewind_applies_again_on_its_timeline_and_ends_as_a_clean_run,
    ),
    (
        "what lives on is kept as replaced",
        _without("AND _named._offset < _former.next_offset", "", "_SAVED"),
        test_a_rewind_keeps_what_it_replaced_once_and_nothing_that_lives_on,
    ),
    (
        "any newer timeline wins",
        _without("AND _begun.first_offset <= _held._offset", "", "_TO_COME"),
        test_a_rewind_of_some_partitions_lets_nothing_older_back_in,
    ),
    (
        "the last former timeline alone",
        _without("_former.timeline < %(timeline)s", "_former.timeline = %(timeline)s - 1", "_SAVED"),
        test_a_rewind_that_was_broken_off_and_is_done_again_keeps_all_that_it_replaces,
    ),
    (
        "two of one record",
        _without("count(*) > 1", "count(*) > 9", "_TWICE"),
        test_of_one_record_the_last_ordinal_counts,
    ),
)


@pytest.mark.parametrize(("put", "scenario"), [pytest.param(*mutant, id=what) for what, *mutant in MUTANTS])
def test_an_order_that_is_another_is_noticed(
    world: UpsertWorld, put: Callable[[pytest.MonkeyPatch], None], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        scenario(world)
