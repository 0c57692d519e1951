"""The ledger is true after every batch: of each offset it says whether it is a row, in quarantine, or neither."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from psycopg import sql

from millrace.adapters.postgres.connection import connect
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import DeclarationError
from support.sinks.table_columns import OWN_WITH_KEY
from support.sinks.writer import P0, Writer

P1 = TopicPartition("t", "id-one", 1)


class Ledger:
    """A writer whose batches leave records out, and what the ledger says of them."""

    def __init__(self, database, name: str, admin) -> None:
        self.database, self.name, self.admin = database, name, admin
        self.writer = Writer(database, name, 1).ready()
        self.stream = self.writer.identity.stream

    def commit(self, first, end, *, kept: Iterable[int], bad: Iterable[int] = (), read=None, timeline=1):
        """A batch of partition 0 that read so many records, kept some as rows and put others aside."""
        kept, bad = list(kept), list(bad)
        self.writer.sink.begin_batch()
        self.writer.stage(kept)
        with connect(self.database, "stage") as connection:
            for offset in bad:
                connection.execute(
                    sql.SQL(
                        "INSERT INTO {} (_attempt, _topic_id, _partition, _offset, _ordinal, topic, headers, rule, "
                        "error) VALUES (1, %s, 0, %s, 0, 't', '[]', 'not_json', 'why')"
                    ).format(self.writer.sink.staging.bad_records),
                    (P0.topic_id, offset),
                )
        records = {("t", 0): end - first if read is None else read}
        self.writer.merge(first, end, rows=len(kept), bad_records=len(bad), timeline=timeline, records=records)

    def entries(
        self, columns: str = "first_offset, next_offset, records, sources, quarantined, dropped"
    ) -> list[tuple]:
        query = f"SELECT {columns} FROM millrace.ledger WHERE stream = %s ORDER BY topic_id, partition, first_offset"
        return self.admin.execute(query, (self.stream,)).fetchall()

    def absent(self) -> list[int]:
        query = (
            "SELECT generate_series(lower(one), upper(one) - 1) FROM millrace.ledger, unnest(absent) AS one "
            "WHERE stream = %s ORDER BY 1"
        )
        return [offset for (offset,) in self.admin.execute(query, (self.stream,))]

    def age(self) -> None:
        """Let every entry be so old that it grows no more."""
        self.admin.execute("UPDATE millrace.ledger SET began_at = began_at - interval '1 hour'")


@pytest.fixture
def ledger(database, name, admin) -> Ledger:
    return Ledger(database, name, admin)


def test_an_entry_says_what_became_of_every_offset_and_how_many_records_there_were(ledger):
    ledger.commit(0, 10, kept=[0, 1, 5, 6], bad=[3], read=8)
    assert ledger.entries() == [(0, 10, 8, 4, 1, 3)]
    assert ledger.absent() == [2, 4, 7, 8, 9]


def test_a_batch_without_any_row_is_booked_too_and_one_without_offsets_is_not(ledger):
    ledger.commit(0, 4, kept=[], read=4)
    ledger.commit(4, 4, kept=[])
    assert ledger.entries() == [(0, 4, 4, 0, 0, 4)]
    assert ledger.absent() == [0, 1, 2, 3]


def test_batches_that_follow_one_another_share_an_entry_while_it_is_young(ledger):
    ledger.commit(0, 5, kept=range(4))
    ledger.commit(5, 9, kept=range(5, 9))
    assert ledger.entries("first_offset, next_offset, batches, dropped") == [(0, 9, 2, 1)]
    ledger.age()
    ledger.commit(9, 12, kept=[11])
    assert ledger.entries("first_offset, next_offset, batches, dropped") == [(0, 9, 2, 1), (9, 12, 1, 2)]
    assert ledger.absent() == [4, 9, 10]


def test_an_entry_is_of_one_epoch(ledger, database, name):
    ledger.commit(0, 5, kept=range(5))
    ledger.writer = Writer(database, name, 2).ready()
    ledger.commit(5, 6, kept=[5])
    assert ledger.entries("first_offset, next_offset, epoch") == [(0, 5, 1), (5, 6, 2)]


def test_an_entry_of_many_absent_ranges_is_not_written_again_with_each_batch(ledger):
    chance = random.Random(1)
    ledger.commit(0, 6_000, kept=[n for n in range(6_000) if chance.random() < 0.5])
    ledger.commit(6_000, 6_001, kept=[6_000])
    assert ledger.entries("next_offset") == [(6_000,), (6_001,)]


def test_what_is_on_record_already_is_not_counted_twice(ledger):
    ledger.commit(0, 5, kept=range(5))
    ledger.writer.sink.begin_batch()
    ledger.writer.stage([3, 4, 6])
    ledger.writer.merge(3, 8, rows=3, records={("t", 0): 5})
    # of the batch's five records, nobody knows how many lie behind what was done before
    assert ledger.entries() == [(0, 5, 5, 5, 0, 0), (5, 8, None, 1, 0, None)]
    assert ledger.absent() == [5, 7]


def test_a_rewind_replaces_what_was_booked_and_leaves_the_pieces_around_it(ledger):
    ledger.commit(0, 20, kept=[n for n in range(20) if n != 2 and n != 17])
    ledger.writer.sink.open_positions(2, {P0: 5})
    ledger.commit(5, 10, kept=[5, 6], timeline=2)
    assert ledger.entries("timeline, first_offset, next_offset, records, dropped") == [
        (1, 0, 5, 5, None),
        (2, 5, 10, 5, 3),
        (1, 10, 20, 10, None),
    ]
    assert ledger.absent() == [2, 7, 8, 9, 17]
    ledger.commit(10, 25, kept=range(10, 25), timeline=2)
    assert ledger.entries("timeline, first_offset, next_offset") == [(1, 0, 5), (2, 5, 25)]
    assert ledger.absent() == [2, 7, 8, 9]


@pytest.mark.parametrize(("read", "left"), [(20, (5, 10)), (16, (4, 8)), (18, (None, None))])
def test_of_a_cut_entry_the_records_are_known_where_all_offsets_or_no_absent_one_held_one(ledger, read, left):
    ledger.commit(0, 20, kept=[n for n in range(20) if n not in (2, 7, 12, 17)], read=read)
    ledger.writer.sink.open_positions(2, {P0: 5})
    ledger.commit(5, 10, kept=range(5, 10), timeline=2)
    [first, _, last] = ledger.entries("records")
    assert (first[0], last[0]) == left


def test_rows_that_name_a_source_outside_their_batch_move_nothing(ledger):
    ledger.writer.sink.begin_batch()
    ledger.writer.stage([0, 1, 7])
    with pytest.raises(DeclarationError, match="1 of 3 rows have a `_source` that is not in their batch"):
        ledger.writer.merge(0, 5, rows=3)
    assert ledger.entries() == []
    assert ledger.admin.execute(f"SELECT count(*) FROM {ledger.name}.rows").fetchone() == (0,)


def test_each_partition_has_its_own_entries(ledger):
    ledger.writer.sink.open_positions(1, {P1: 100})
    ledger.writer.sink.begin_batch()
    ledger.writer.stage([0, 1])
    ranges = [OffsetRange(P0, 0, 2), OffsetRange(P1, 100, 103)]
    ledger.writer.merge_ranges(ranges, rows=2, records={("t", 0): 2, ("t", 1): 3})
    assert ledger.entries("partition, first_offset, next_offset, records, dropped") == [
        (0, 0, 2, 2, 0),
        (1, 100, 103, 3, 3),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_stream_lived_through_its_entries_are_disjoint_and_true(ledger, seed):
    """Drops, gaps, quarantine, rewinds to anywhere, and breaks: against a plain account in Python."""
    chance = random.Random(seed)
    state: dict[int, str] = {}
    at, timeline = 0, 1
    for _ in range(25):
        if chance.random() < 0.2 and at:
            timeline, at = timeline + 1, chance.randrange(at + 1)
            ledger.writer.sink.open_positions(timeline, {P0: at})
        if chance.random() < 0.2:
            ledger.age()
        end = at + chance.randrange(1, 30)
        for offset in range(at, end):
            state[offset] = chance.choice(["row"] * 4 + ["bad", "dropped", "hole"])
        fate = {what: [n for n in range(at, end) if state[n] == what] for what in ("row", "bad", "hole")}
        ledger.commit(at, end, kept=fate["row"], bad=fate["bad"], read=end - at - len(fate["hole"]), timeline=timeline)
        at = end
        held = ledger.entries("first_offset, next_offset, records, sources, quarantined, dropped, timeline")
        assert [offset for entry in held for offset in range(entry[0], entry[1])] == sorted(state)
        assert ledger.absent() == sorted(n for n, what in state.items() if what in ("dropped", "hole"))
        for first, next_, records, sources, quarantined, dropped, _ in held:
            here = [state[n] for n in range(first, next_)]
            assert records in (None, len(here) - here.count("hole"))
            if dropped is not None:
                assert (sources, quarantined, dropped) == tuple(map(here.count, ("row", "bad", "dropped")))


def test_a_batch_waits_for_nobody_who_holds_another_part_of_a_partitioned_table(database, name, admin):
    """As the table of a year is dropped, or an index of it made."""
    Ledger(database, name, admin)
    admin.execute(f"DROP TABLE {name}.rows")
    admin.execute(
        f"CREATE TABLE {name}.rows (name text, amount numeric(12,2), {OWN_WITH_KEY}) PARTITION BY RANGE (_offset)"
    )
    for at in (0, 100):
        admin.execute(f"CREATE TABLE {name}.part{at} PARTITION OF {name}.rows FOR VALUES FROM ({at}) TO ({at + 100})")
    made = Ledger.__new__(Ledger)
    made.database, made.name, made.admin = database, name, admin
    made.writer = Writer(database, name, 2).ready()
    made.stream = made.writer.identity.stream
    with connect(database, "maintenance") as other:
        other.execute(f"LOCK TABLE {name}.part100 IN ACCESS EXCLUSIVE MODE")
        for first in range(0, 60, 5):  # also once the statements are prepared
            made.commit(first, first + 5, kept=[first])
    assert made.entries("next_offset, dropped") == [(60, 48)]


def test_a_trigger_that_takes_rows_away_again_is_the_tables_own_affair(ledger):
    ledger.admin.execute(
        f"CREATE FUNCTION {ledger.name}.away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"DELETE FROM {ledger.name}.rows WHERE _offset = 1; RETURN NULL; END $$; "
        f"CREATE TRIGGER away AFTER INSERT ON {ledger.name}.rows EXECUTE FUNCTION {ledger.name}.away()"
    )
    ledger.commit(0, 3, kept=range(3))
    assert ledger.entries() == [(0, 3, 3, 2, 0, 1)]
