"""Records leave quarantine once, with their rows and their place in the ledger, whatever happens meanwhile."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres import redrive as postgres_redrive
from millrace.adapters.sinks.postgres.ledger import Ledger
from millrace.adapters.sinks.postgres.redrive import Put, QuarantineRedrive, TooLongError
from millrace.adapters.sinks.postgres.tables import TargetTable
from millrace.domain.quarantine.redrive import Fate, Place, Selection
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import (
    DeclarationError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
    UnreachableError,
)
from support.quarantine.redrive_bench import BAD, EVERYTHING, Bench
from support.sinks.writer import P0, Writer
from support.waiting import Deadline, eventually, joined


@pytest.fixture
def bench(database, name, admin) -> Bench:
    return Bench(database, name, admin)


def test_what_passes_is_rows_what_is_dropped_is_neither_and_what_is_bad_stays(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5, 7], dropped=[9])
    put = bench.put({2: 2, 5: 0}, {7: BAD})
    assert put == {2: Put(Fate.ROW, rows=2), 5: Put(Fate.DROPPED), 7: Put(Fate.BAD, Rule.WRONG_TYPE)}
    assert bench.rows() == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (6, 0), (8, 0)]
    assert bench.quarantine() == [7]
    assert bench.ledger() == [(10, 7, 8, 1, 2)]
    assert bench.redrives() == [(2, 2, "redrive-1"), (5, 0, "redrive-1")]
    assert bench.redrives("rule, error, former, epoch") == [("not_json", "why", [], 1)] * 2
    assert bench.unbalanced(10) == []


def test_a_record_is_read_whole(bench: Bench) -> None:
    bench.commit(0, 3, bad=[1])
    with bench.opened() as redrive:
        [(_, [held])] = redrive.parts(EVERYTHING, redrive.now())
    assert (held.topic, *held.source, held.rule, held.key, held.value) == ("t", "id-one", 0, 1, "not_json", b"k", b"v")
    assert held.headers == [{"key": "h", "value": "00ff"}]
    assert held.timestamp_ms == datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000


def test_what_stays_has_both_histories_and_the_same_again_changes_nothing(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    bench.put(bad={1: BAD}, plan="redrive-1")
    [(rule, error, former, version)] = bench.quarantine("rule, error, former, xmin::text")
    assert (rule, error) == ("wrong_type", "of another type")
    [first] = former
    assert (first["rule"], first["error"], first["plan"]) == ("not_json", "why", "redrive-1")
    assert datetime.fromisoformat(first["until"]) > datetime.now(UTC) - timedelta(minutes=5)
    assert bench.put(bad={1: BAD}, plan="redrive-2") == {1: Put(Fate.BAD, Rule.WRONG_TYPE)}
    assert bench.quarantine("xmin::text") == [version]
    for turn in range(40):
        bench.put(bad={1: Broken(Rule.NOT_JSON, f"{turn}")})
    [former] = bench.quarantine("former")
    assert [one["error"] for one in former] == ["why", *map(str, range(20, 39))]
    bench.put()
    assert [entry["error"] for entry in bench.redrives("former")[0][0]][:2] == ["why", "20"]
    assert bench.unbalanced(4) == []


def test_what_is_only_tried_leaves_everything_as_it_was(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5, 7])
    before = (bench.rows(), bench.quarantine("rule, xmin::text"), bench.ledger(), bench.redrives())
    assert bench.put({5: 0}, {7: BAD}, keep=False) == {
        2: Put(Fate.ROW, rows=1),
        5: Put(Fate.DROPPED),
        7: Put(Fate.BAD, Rule.WRONG_TYPE),
    }
    assert (bench.rows(), bench.quarantine("rule, xmin::text"), bench.ledger(), bench.redrives()) == before


def test_two_that_have_read_the_same_put_each_record_through_once(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5])
    with bench.opened("one") as one, bench.opened("two") as two:
        [(_, part)] = one.parts(EVERYTHING, one.now())
        [(_, same)] = two.parts(EVERYTHING, two.now())
        assert bench.put_part(one, part[:1]) == {2: Put(Fate.ROW, rows=1)}
        assert bench.put_part(two, same) == {2: Put(Fate.MOVED), 5: Put(Fate.ROW, rows=1)}
        assert bench.put_part(one, part) == {2: Put(Fate.MOVED), 5: Put(Fate.MOVED)}
    assert bench.redrives() == [(2, 1, "one"), (5, 1, "two")]
    assert bench.unbalanced(10) == []


def test_many_at_once_beside_batches_of_the_stream(bench: Bench) -> None:
    bench.commit(0, 200, bad=range(0, 200, 4))
    faults: list[BaseException] = []

    def act(plan: int) -> None:
        try:
            bench.put(plan=str(plan))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=act, args=(plan,)) for plan in range(4)]
    for thread in threads:
        thread.start()
    for first in range(200, 260, 10):
        bench.commit(first, first + 10, bad=[first + 3])
    for thread in threads:
        joined(thread, within=Deadline.COMMAND, what="a redrive's end")
    assert faults == []
    bench.put(plan="last")
    assert bench.rows() == [(offset, 0) for offset in range(260)]
    assert len(bench.redrives()) == 50 + 6
    assert bench.quarantine() == []
    assert bench.unbalanced(260) == []


def test_an_entry_that_was_written_anew_since_it_was_read_is_left_alone(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5])
    with bench.opened() as redrive:
        [(_, part)] = redrive.parts(EVERYTHING, redrive.now())
        bench.writer.sink.open_positions(2, {P0: 0})
        bench.commit(0, 4, bad=[2], timeline=2)
        assert bench.put_part(redrive, part) == {2: Put(Fate.MOVED), 5: Put(Fate.AHEAD)}
    assert bench.quarantine() == [2, 5]
    assert bench.put() == {2: Put(Fate.ROW, rows=1), 5: Put(Fate.AHEAD)}
    bench.commit(4, 10, bad=[], timeline=2)
    assert bench.rows() == [(offset, 0) for offset in range(10)]
    assert bench.unbalanced(10) == []


def test_no_timeline_is_opened_while_a_record_is_put_through(bench: Bench) -> None:
    """The redrive waits for a lock of its table, in the midst of its transaction."""
    bench.commit(0, 10, bad=[2])
    put: list[dict[int, Put]] = []
    redriving = threading.Thread(target=lambda: put.append(bench.put()))
    opening = threading.Thread(target=lambda: bench.writer.sink.open_positions(2, {P0: 0}))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
    with connect(bench.database, "in the way") as other:
        other.execute(f"LOCK TABLE {bench.name}.rows IN SHARE MODE")
        redriving.start()
        for thread, who in ((redriving, f"{bench.stream}#redrive"), (opening, bench.writer.identity.application_name)):
            if thread is opening:
                thread.start()
            eventually(
                lambda who=who: bench.admin.execute(waiting, (who,)).fetchone() == (1,),
                within=Deadline.PROCESS,
                what=f"{who} to wait",
            )
        timelines = "SELECT max(timeline) FROM millrace.progress WHERE stream = %s"
        assert bench.admin.execute(timelines, (bench.stream,)).fetchone() == (1,)
    joined(redriving, within=Deadline.PROCESS, what="the redrive")
    joined(opening, within=Deadline.PROCESS, what="the new timeline")
    assert put == [{2: Put(Fate.ROW, rows=1)}]
    bench.commit(0, 10, bad=[], timeline=2)
    assert bench.rows() == [(offset, 0) for offset in range(10)]


def test_who_stops_in_the_midst_keeps_no_takeover_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.commit(0, 10, bad=[2])
    stopped, go_on, met = threading.Event(), threading.Event(), list[BaseException]()
    settle = QuarantineRedrive._settle

    def stop(*given: Any) -> None:
        settle(*given)
        stopped.set()
        assert go_on.wait(Deadline.COMMAND.seconds)

    def act() -> None:
        try:
            bench.put()
        except UnreachableError as error:
            met.append(error)

    monkeypatch.setattr(QuarantineRedrive, "_settle", stop)
    thread = threading.Thread(target=act)
    thread.start()
    assert stopped.wait(Deadline.PROCESS.seconds)
    Writer(bench.database, bench.name, 2).sink.take_over()
    go_on.set()
    joined(thread, within=Deadline.PROCESS, what="the redrive's end")
    assert [type(error) for error in met] == [SinkUnreachableError]
    monkeypatch.undo()
    assert bench.quarantine() == [2]
    assert bench.put() == {2: Put(Fate.ROW, rows=1)}
    assert bench.unbalanced(10) == []


class Dying(psycopg.Cursor[Any]):
    """A cursor of a process that is killed before its n-th statement."""

    left = 0

    def execute(self, *given: Any, **more: Any) -> Any:
        Dying.left -= 1
        if Dying.left == 0:
            self.connection.pgconn.finish()
        return super().execute(*given, **more)


def test_killed_before_any_statement_it_is_as_before_and_the_next_one_does_it(bench: Bench) -> None:
    steps = 0
    bench.commit(0, 10, bad=[2, 5, 7])
    while True:
        steps += 1
        with bench.opened() as redrive:
            [(_, part)] = redrive.parts(EVERYTHING, redrive.now())
            bench.make(redrive, {2: 1, 5: 0})
            redrive.connection.cursor_factory = Dying
            Dying.left = steps
            wrong = {one.source: BAD for one in part if one.offset == 7}
            try:
                redrive.put_through(part, wrong, rows=1, keep=True)
                break
            except psycopg.Error:
                redrive.connection.close()
        assert bench.quarantine('"offset", rule') == [(2, "not_json"), (5, "not_json"), (7, "not_json")]
        assert (bench.again(), bench.redrives()) == ([], [])
        assert bench.unbalanced(10) == []
    assert steps > 12
    assert bench.quarantine('"offset", rule') == [(7, "wrong_type")]
    assert bench.again() == [2]
    assert bench.unbalanced(10) == []


@pytest.mark.parametrize("deferred", ["", " DEFERRABLE INITIALLY DEFERRED"])
def test_a_row_that_the_table_refuses_stays_with_its_reason_and_keeps_no_other(bench: Bench, deferred: str) -> None:
    bench.commit(0, 10, bad=[2, 5, 7])
    bench.admin.execute(f"CREATE TABLE {bench.name}.offsets (number bigint PRIMARY KEY)")
    bench.admin.execute(f"INSERT INTO {bench.name}.offsets SELECT n FROM generate_series(0, 9) AS n WHERE n <> 5")
    bench.admin.execute(
        f"ALTER TABLE {bench.name}.rows ADD FOREIGN KEY (_offset) REFERENCES {bench.name}.offsets{deferred}"
    )
    assert bench.put() == {2: Put(Fate.ROW, rows=1), 5: Put(Fate.BAD, Rule.SINK_REFUSED), 7: Put(Fate.ROW, rows=1)}
    [(offset, rule, error)] = bench.quarantine('"offset", rule, error')
    assert (offset, rule) == (5, "sink_refused")
    assert "violates foreign key constraint" in error
    assert bench.unbalanced(10) == []
    bench.admin.execute(f"INSERT INTO {bench.name}.offsets VALUES (5)")
    assert bench.put() == {5: Put(Fate.ROW, rows=1)}
    assert bench.unbalanced(10) == []


def test_of_rows_that_cannot_be_there_both_one_is(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5])
    bench.admin.execute(f"CREATE UNIQUE INDEX ON {bench.name}.rows (amount) WHERE name = 'again'")
    assert bench.put() == {2: Put(Fate.ROW, rows=1), 5: Put(Fate.BAD, Rule.SINK_REFUSED)}
    assert (bench.quarantine(), bench.again()) == ([5], [2])
    assert bench.unbalanced(10) == []


def test_rows_that_the_table_refuses_together_are_named_and_nothing_is_written(bench: Bench) -> None:
    bench.commit(0, 10, bad=[2, 5])
    bench.admin.execute(
        f"CREATE FUNCTION {bench.name}.few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF (SELECT count(*) FROM given) > 1 THEN RAISE 'too many'; END IF; RETURN NULL; END $$; "
        f"CREATE TRIGGER few AFTER INSERT ON {bench.name}.rows REFERENCING NEW TABLE AS given "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {bench.name}.few()"
    )
    with pytest.raises(DeclarationError, match="refuses these rows together, but accepts each of them alone: too many"):
        bench.put()
    assert (bench.quarantine(), bench.again()) == ([2, 5], [])
    assert bench.put(selection=Selection(places=(Place("t", 0, 2, 3),))) == {2: Put(Fate.ROW, rows=1)}
    assert bench.unbalanced(10) == []


def test_a_row_that_is_there_of_the_same_record_is_replaced(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    bench.admin.execute(
        f"INSERT INTO {bench.name}.rows SELECT 'stray', 1, _topic_id, 0, 1, 3, 1 FROM {bench.name}.rows LIMIT 1"
    )
    assert bench.put() == {1: Put(Fate.ROW, rows=1)}
    assert bench.rows() == [(offset, 0) for offset in range(4)]
    assert bench.unbalanced(4) == []


def test_a_trigger_that_drops_rows_is_noticed(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    bench.admin.execute(
        f"CREATE FUNCTION {bench.name}.drop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        f"CREATE TRIGGER dropping BEFORE INSERT ON {bench.name}.rows FOR EACH ROW EXECUTE FUNCTION {bench.name}.drop()"
    )
    with pytest.raises(SinkFailedError, match="1 rows were staged, but 0 arrived"):
        bench.put()
    assert bench.quarantine() == [1]


def test_rows_that_a_key_cannot_tell_apart_are_refused(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    with bench.opened() as redrive:
        [(_, part)] = redrive.parts(EVERYTHING, redrive.now())
        bench.make(redrive, {1: 1})
        bench.make(redrive, {1: 1})
        with pytest.raises(DeclarationError, match="several rows of one record: offset 1 of partition 0"):
            redrive.put_through(part, {}, rows=2, keep=True)
        bench.make(redrive, {3: 1})
        stranger = redrive.stranger(part)
    assert stranger is not None
    assert (stranger.partition, stranger.offset) == (0, 3)


def test_rows_that_are_not_there_any_more_are_not_taken_for_dropped_records(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    with bench.opened() as redrive:
        [(_, part)] = redrive.parts(EVERYTHING, redrive.now())
        with pytest.raises(SinkFailedError, match="1 rows were copied, but 0 arrived"):
            redrive.put_through(part, {}, rows=1, keep=True)
    assert bench.quarantine() == [1]


def test_what_takes_the_table_too_long_lets_go_of_the_fence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.commit(0, 4, bad=[1])
    monkeypatch.setattr(postgres_redrive, "_LONGEST", timedelta(0))
    with pytest.raises(TooLongError):
        bench.put()
    assert bench.quarantine() == [1]


def test_pieces_of_an_entry_keep_what_they_know(bench: Bench) -> None:
    bench.commit(0, 10, bad=[1, 8], dropped=[2])
    bench.writer.sink.open_positions(2, {P0: 4})
    bench.commit(4, 6, bad=[], timeline=2)
    bench.admin.execute("UPDATE millrace.progress SET next_offset = 10 WHERE stream = %s", (bench.stream,))
    assert bench.put({1: 0}) == {1: Put(Fate.DROPPED), 8: Put(Fate.ROW, rows=1)}
    assert bench.ledger("first_offset, records, sources, dropped, absent::text") == [
        (0, 4, None, None, "{[1,3)}"),
        (4, 2, 2, 0, "{}"),
        (6, 4, None, None, "{}"),
    ]
    assert bench.unbalanced(10) == []


def test_what_has_no_entry_in_the_ledger_and_what_is_of_a_former_topic_passes_too(bench: Bench) -> None:
    bench.commit(0, 4, bad=[1])
    bench.admin.execute("DELETE FROM millrace.ledger WHERE stream = %s", (bench.stream,))
    bench.writer.sink.open_positions(2, {TopicPartition("t", "id-two", 0): 0})
    assert bench.put() == {1: Put(Fate.ROW, rows=1)}
    assert bench.rows() == [(offset, 0) for offset in range(4)]
    assert bench.ledger() == []


def test_an_entry_of_the_ledger_that_a_batch_cuts_meanwhile_is_not_missed(bench: Bench) -> None:
    """After a rewind the batch has removed the entry and not committed yet; the record lies before the cut."""
    bench.commit(0, 10, bad=[1])
    bench.writer.sink.open_positions(2, {P0: 5})
    met: list[BaseException] = []

    def act() -> None:
        try:
            bench.put({1: 0})
        except SinkRolledBackError as error:
            met.append(error)

    thread = threading.Thread(target=act)
    with connect(bench.database, "a batch") as batch, batch.cursor() as cursor:
        target = TargetTable(bench.name, "rows")
        cursor.execute(f"DELETE FROM {bench.name}.rows WHERE _offset >= 5")
        Ledger(bench.stream, target).book(cursor, [OffsetRange(P0, 5, 10)], timeline=2, epoch=1, records=[5])
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
        eventually(
            lambda: bench.admin.execute(waiting, (f"{bench.stream}#redrive",)).fetchone() == (1,),
            within=Deadline.PROCESS,
            what="the redrive to wait",
        )
    joined(thread, within=Deadline.PROCESS, what="the redrive's end")
    assert [type(error) for error in met] == [SinkRolledBackError]
    assert bench.quarantine() == [1]
    assert bench.put({1: 0}) == {1: Put(Fate.DROPPED)}
    assert bench.unbalanced(10) == []


def test_the_moment_of_a_plan_lies_before_what_batches_under_way_will_bring(bench: Bench) -> None:
    with connect(bench.database, bench.writer.identity.application_name) as batch:
        [(began,)] = batch.execute("SELECT now()").fetchall()
        with bench.opened() as redrive:
            assert redrive.now() == began
    with bench.opened() as redrive:
        assert redrive.now() > began


def test_a_role_whose_transactions_are_repeatable_reads_sees_what_it_has_waited_for(bench: Bench) -> None:
    with connect(bench.database, "test") as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def fill(bench: Bench, count: int, *, topic_id: str = "id-one", value_bytes: int = 1) -> None:
    bench.admin.execute(
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", value, headers, '
        "rule, error, epoch) SELECT %s, 1, 't', %s, n %% 3, n, convert_to(repeat('x', %s), 'UTF8'), '[]', "
        "CASE n %% 2 WHEN 0 THEN 'not_json' ELSE 'wrong_type' END, 'why', 1 FROM generate_series(0, %s - 1) AS n",
        (bench.stream, topic_id, value_bytes, count),
    )


def test_parts_are_bounded_and_of_one_topic_id(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 2_500)
    fill(bench, 10, topic_id="Id-two")
    with bench.opened() as redrive:
        parts = [part for _, part in redrive.parts(EVERYTHING, redrive.now())]
        assert [len(part) for part in parts] in ([1000, 1000, 500, 10], [10, 1000, 1000, 500])
        assert all(len({one.topic_id for one in part}) == 1 for part in parts)
        everything = [one.source for part in parts for one in part]
        assert len(set(everything)) == len(everything) == 2_510
        (end, first), *rest = redrive.parts(EVERYTHING, redrive.now())
        assert end == first[-1].source
        assert list(redrive.parts(EVERYTHING, redrive.now(), end)) == rest
        monkeypatch.setattr(postgres_redrive, "MOST_BYTES", 3_000)
        bench.admin.execute("DELETE FROM millrace.quarantine WHERE stream = %s", (bench.stream,))
        fill(bench, 7, value_bytes=1_200)
        assert [len(part) for _, part in redrive.parts(EVERYTHING, redrive.now())] == [2, 2, 2, 1]
        monkeypatch.setattr(postgres_redrive, "MOST_BYTES", 10)
        assert [len(part) for _, part in redrive.parts(EVERYTHING, redrive.now())] == [1] * 7


def test_only_what_is_selected_is_read(bench: Bench) -> None:
    fill(bench, 12)
    with bench.opened() as redrive:

        def found(upto: datetime | None = None, **selected: Any) -> list[int]:
            parts = redrive.parts(Selection(**selected), upto or redrive.now())
            return sorted(one.offset for _, part in parts for one in part)

        assert found() == list(range(12))
        assert found(rule="not_json") == [0, 2, 4, 6, 8, 10]
        assert found(places=(Place("t", 0, 3, 7), Place("t", 1, 1, 2), Place("other", 0, 0, 9))) == [1, 3, 6]
        assert found(rule="wrong_type", places=(Place("t", 0, 3, 7),)) == [3]
        assert found(places=(Place("t", 0, 0, 7), Place("t", 0, 3, 99), Place("t", 0, 6, 7))) == [0, 3, 6, 9]
        everywhere = Selection(places=tuple(Place("t", number, 0, 99) for number in range(3)))
        parts = list(redrive.parts(everywhere, redrive.now()))
        assert [[one.offset for one in part] for _, part in parts] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
        assert list(redrive.parts(everywhere, redrive.now(), parts[0][0])) == parts[1:]
        inside = list(redrive.parts(everywhere, redrive.now(), ("id-one", 1, 4)))
        assert [[one.offset for one in part] for _, part in inside] == [[7, 10], [2, 5, 8, 11]]
        now = redrive.now()
        assert found(since=now) == []
        assert found(upto=now - timedelta(hours=1)) == []
        bench.admin.execute(
            'UPDATE millrace.quarantine SET quarantined_at = %s WHERE stream = %s AND "offset" = 5',
            (now + timedelta(hours=1), bench.stream),
        )
        assert found(since=now, upto=now + timedelta(hours=2)) == [5]
        assert 5 not in found()
