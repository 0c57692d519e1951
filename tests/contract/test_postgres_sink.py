"""The sink's promises on a real PostgreSQL: the fence, the record of work, ranges, refused rows, tables."""

from __future__ import annotations

import threading

import psycopg
import pytest

from millrace.adapters.postgres_connection import SinkStatementError, connect
from millrace.adapters.postgres_fence import Identity
from millrace.adapters.postgres_sink import PostgresSink, RowsRefusedError
from millrace.adapters.postgres_tables import TargetColumn
from millrace.domain.offsets import TopicPartition
from millrace.errors import DeclarationError, FencedError
from support.sink_writer import COLUMNS, P0, Writer
from support.waiting import Deadline, eventually, happened, joined

P1 = TopicPartition("t", "id-one", 1)


def rows(admin, name: str) -> list[tuple]:
    return admin.execute(f"SELECT _offset, name FROM {name}.rows ORDER BY 1, 2").fetchall()


def done(writer: Writer) -> int:
    return writer.sink.read_record().next_offsets[P0]


def test_a_batch_moves_rows_and_record_together(database, name, admin):
    writer = Writer(database, name, 1).ready()
    assert writer.commit(0, 3).rows_out == 3
    assert done(writer) == 3
    assert [offset for offset, _ in rows(admin, name)] == [0, 1, 2]


def test_ranges_that_were_done_before_are_skipped_or_trimmed_and_gaps_refused(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.commit(0, 5, value="first")
    assert writer.commit(2, 5, value="again").rows_out == 0
    assert writer.commit(3, 8, value="second").rows_out == 3
    assert rows(admin, name) == [(n, "first") for n in range(5)] + [(n, "second") for n in range(5, 8)]
    with pytest.raises(SinkStatementError, match="would be lost"):
        writer.commit(9, 10)
    assert done(writer) == 8


def test_positions_are_opened_twice_where_they_are_the_same_and_never_moved(database, name, admin):
    """The answer to the first commit may have been lost."""
    writer = Writer(database, name, 1).ready()
    writer.sink.open_positions(1, {P0: 0, P1: 5})
    writer.sink.open_positions(1, {P0: 0, P1: 5})
    writer.commit(0, 3)
    for elsewhere in ({P0: 0}, {P1: 6}):
        with pytest.raises(SinkStatementError, match="1 partitions stand on timeline 1 already"):
            writer.sink.open_positions(1, elsewhere)
    assert writer.sink.read_record().next_offsets == {P0: 3, P1: 5}


def test_only_the_attempts_that_reported_are_merged(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.sink.empty_staging()
    writer.stage(range(2), attempt=7, value="lost try")
    writer.stage(range(3), attempt=8, value="reported")
    writer.merge(0, 3, rows=3, attempts=[8])
    assert {value for _, value in rows(admin, name)} == {"reported"}


def test_an_older_epoch_writes_nothing_after_a_takeover(database, name, admin):
    old = Writer(database, name, 1).ready()
    old.commit(0, 2)
    new = Writer(database, name, 2).ready()
    with pytest.raises(FencedError):
        old.merge(2, 4, rows=2)
    with pytest.raises(FencedError):
        old.sink.open_positions(2, {P0: 0})
    with pytest.raises(FencedError):
        Writer(database, name, 1).sink.take_over()
    assert done(new) == 2
    assert len(rows(admin, name)) == 2


def test_a_takeover_ends_a_writer_that_holds_the_fence(database, name, admin):
    old = Writer(database, name, 1).ready()
    with connect(database, old.identity.application_name) as stopped:
        stopped.execute("SELECT * FROM millrace.fence WHERE stream = %s FOR SHARE", (old.identity.stream,))
        new = Writer(database, name, 2)
        new.sink.take_over()
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")
    assert admin.execute("SELECT epoch FROM millrace.fence WHERE stream = %s", (old.identity.stream,)).fetchone() == (
        2,
    )


def test_two_instances_of_one_epoch_do_not_share_the_fence(database, name):
    Writer(database, name, 1).ready()
    twin = PostgresSink(database, Identity(f"{name}.s", 1, "twin"), f"{name}.rows")
    with pytest.raises(FencedError):
        twin.take_over()


def test_the_record_is_only_moved_from_where_it_was_seen(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.sink.empty_staging()
    waiting = threading.Event()

    def interfere() -> None:
        with connect(database, "other") as other:
            other.execute("UPDATE millrace.progress SET next_offset = 9 WHERE stream = %s", (writer.identity.stream,))
            waiting.set()
            eventually(
                lambda: admin.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone(),
                within=Deadline.THREAD,
                what="the writer waits for the row",
            )

    thread = threading.Thread(target=interfere, daemon=True)
    thread.start()
    happened(waiting, what="somebody else's change")
    assert writer.commit(0, 2).rows_out == 0  # the range was done by somebody meanwhile: skipped, not doubled
    joined(thread, what="somebody else's transaction")
    assert done(writer) == 9


def test_rows_the_table_refuses_are_found_one_by_one(database, name, admin):
    writer = Writer(database, name, 1).ready()
    admin.execute(f"ALTER TABLE {name}.rows ADD CHECK (amount NOT IN (3, 17))")
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(0, 40)
    assert sorted(offset for _, _, offset in caught.value.sources) == [3, 17]
    assert done(writer) == 0
    assert rows(admin, name) == []
    assert writer.commit(0, 40, refused=caught.value.sources).rows_out == 38


def test_several_rows_of_one_record_need_an_ordinal(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.sink.empty_staging()
    writer.stage([0])
    writer.stage([0])
    with pytest.raises(DeclarationError, match="_ordinal"):
        writer.merge(0, 1, rows=2)
    writer.sink.empty_staging()
    writer.stage([0])
    writer.stage([0], ordinal=1)
    assert writer.merge(0, 1, rows=2).rows_out == 2


def test_a_re_run_on_a_new_timeline_replaces_its_range_and_nothing_else(database, name, admin):
    writer = Writer(database, name, 1).ready()
    writer.commit(0, 10, value="old")
    writer.sink.open_positions(2, {P0: 4})
    writer.sink.empty_staging()
    writer.stage(range(4, 7), value="new")
    writer.merge(4, 7, rows=3, timeline=2)
    assert rows(admin, name) == [(n, "new" if 4 <= n < 7 else "old") for n in range(10)]
    assert writer.sink.read_record().timeline == 2


def test_tables_grow_and_are_never_changed_otherwise(database, name, admin):
    Writer(database, name, 1).ready()
    Writer(database, name, 2).ready((*COLUMNS, TargetColumn("extra", "bigint")))
    columns = admin.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'rows'", (name,)
    ).fetchall()
    assert ("extra",) in columns
    with pytest.raises(DeclarationError, match=r"name is text, the transform now gives integer"):
        Writer(database, name, 3).ready((TargetColumn("name", "integer"),))
    admin.execute(f"ALTER TABLE {name}.rows ADD needed int NOT NULL")
    with pytest.raises(DeclarationError, match="needed is NOT NULL"):
        Writer(database, name, 4).ready()
    admin.execute(f"CREATE TABLE {name}.foreign_table (id int)")
    foreign = PostgresSink(database, Identity(f"{name}.f", 1, "i"), f"{name}.foreign_table")
    foreign.take_over()
    with pytest.raises(DeclarationError, match="not made by Millrace"):
        foreign.prepare(COLUMNS)


def test_staging_of_former_epochs_is_dropped(database, name, admin):
    Writer(database, name, 1).ready()
    Writer(database, name, 2).ready()
    left = admin.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'millrace_staging' AND tablename LIKE %s", (f"{name}%",)
    ).fetchall()
    assert sorted(left) == [(f"{name}.s#2",), (f"{name}.s#2!",)]
