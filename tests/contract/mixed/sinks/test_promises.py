"""What every sink of a stream promises its driver, on the real servers: see `millrace.ports.sinks.SinkStore`."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark import cloudpickle

from millrace.adapters.sinks.postgres.merge import Merge
from millrace.adapters.sinks.postgres.sink import PostgresSink
from millrace.domain.sinks.batch import TaskResults, Written
from millrace.domain.topics.offsets import Meeting, OffsetRange
from millrace.embedded.stack import Stack
from millrace.errors import DeclarationError, FencedError, RowsRefusedError, SinkFailedError
from millrace.settings import PostgresSettings
from support.crash_walks import crash_at_every_call
from support.drills.points import EPOCH_IGNORED, NO_COMPARE_AND_SET, NO_FENCE
from support.sinks.dataset_world import DatasetWorld
from support.sinks.kafka_world import KafkaWorld
from support.sinks.worlds import (
    ANYWHERE,
    BAD_AT,
    COLUMNS,
    P0,
    P1,
    RECORDS,
    TABLES,
    TOPIC_ID,
    Commit,
    Row,
    StagedWorld,
    World,
    Writer,
    life_commit,
    live,
    row,
    row_block,
    rows,
)
from support.stack.faults import Life, Moment, put_in, unexpected
from support.waiting import Deadline

INCLUDE = Path(__file__).resolve().parents[4] / "include"
MakeWorld = Callable[[], StagedWorld]
KAFKA, S3 = "kafka", "s3"
APPENDED = "postgres append"
STAGED = (*TABLES, S3)
WORLDS = (*STAGED, KAFKA)
ELSEWHERE: Mapping[str, Callable[[Stack, str], World]] = {KAFKA: KafkaWorld, S3: DatasetWorld}
LIFE = (
    "sink.take_over",
    "sink.read_record",
    "sink.open_positions",
    "sink.prepare",
    "sink.begin_batch",
    "task.write_rows",
    "task.write_bad_records",
    "sink.commit_batch",
    "sink.discard",
)


@pytest.fixture(params=WORLDS)
def make_world(
    request: pytest.FixtureRequest, database: PostgresSettings, admin: psycopg.Connection[Any]
) -> Iterator[Callable[[], World]]:
    """Makes worlds of one kind, each with a sink of its own."""
    made = list[str]()
    stack: Stack | None = request.getfixturevalue(request.param) if request.param in ELSEWHERE else None

    def make() -> World:
        own = f"t{uuid.uuid4().hex[:10]}"
        if stack is not None:
            return ELSEWHERE[request.param](stack, own)
        made.append(own)
        return TABLES[request.param](database, own, admin)

    yield make
    for own in made:
        admin.execute(f"DROP SCHEMA IF EXISTS {own} CASCADE")


@pytest.fixture
def world(make_world: Callable[[], World]) -> World:
    return make_world()


staged_only = pytest.mark.parametrize("make_world", STAGED, indirect=True)
"""What a sink does not promise whose rows are seen at once."""
tables_only = pytest.mark.parametrize("make_world", TABLES, indirect=True)
"""What a sink cannot show that takes every row."""


def committed(first: int, end: int, *, timeline: int = 1, given: list[Row] | None = None, **more: int) -> Commit:
    return Commit(timeline, [OffsetRange(P0, first, end)], rows(first, end, **more) if given is None else given)


def must_hold(world: World, *history: Commit) -> None:
    assert world.contents() == world.expected(history)


# Batches


def test_a_batch_counts_with_its_commit_and_moves_the_record(world: World) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    done = writer.write(rows(0, 2), rows(2, 3), [])
    assert (done.rows, done.refused, len(done.attempts)) == (3, {}, 3)
    assert writer.done == 0
    if not world.at_once:
        must_hold(world)
    assert writer.commit(done, 0, 3).rows_out == 3
    assert writer.done == 3
    must_hold(world, committed(0, 3))


@staged_only
def test_what_is_on_record_is_skipped_or_left_out_and_a_gap_refused(world: StagedWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5, amount=100), 0, 5)
    assert writer.batch(rows(2, 5, amount=200), 2, 5).rows_out == 0
    assert writer.batch(rows(3, 8, amount=300), 3, 8).rows_out == 3
    must_hold(world, committed(0, 5, amount=100), committed(5, 8, amount=300))
    with pytest.raises(SinkFailedError):
        writer.batch(rows(9, 10), 9, 10)
    assert writer.done == 8
    must_hold(world, committed(0, 5, amount=100), committed(5, 8, amount=300))


def test_a_range_without_rows_moves_the_record_too(world: World) -> None:
    writer = Writer(world, 1).ready()
    assert writer.batch([], 0, 7).rows_out == 0
    assert writer.done == 7


def test_positions_opened_twice_stay_and_are_never_moved(world: World) -> None:
    """The answer to the first commit may have been lost."""
    writer = Writer(world, 1).ready()
    writer.open(2, {P0: 0, P1: 5})
    writer.open(2, {P0: 0, P1: 5})
    writer.batch(rows(0, 3), 0, 3, timeline=2)
    for elsewhere in ({P0: 1 if world.at_once else 0}, {P1: 6}):
        with pytest.raises(SinkFailedError):
            writer.sink.open_positions(2, elsewhere)
    record = writer.sink.read_record()
    assert (record.timeline, dict(record.next_offsets)) == (2, {P0: 3, P1: 5})


@staged_only
def test_of_a_task_that_is_tried_again_only_the_try_that_reported_counts(world: StagedWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    writer.write(rows(3, 5, amount=100))  # what it has written last stands in no other's way
    assert writer.commit(writer.write(rows(0, 3, amount=200)), 0, 5).rows_out == 3
    must_hold(world, committed(0, 5, given=rows(0, 3, amount=200)))


@staged_only
def test_what_a_failed_try_of_a_batch_wrote_does_not_count(world: StagedWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    writer.write(rows(3, 5, amount=100))
    writer.attempts = iter(range(1, 100))  # a session that was begun anew counts from the beginning
    assert writer.batch(rows(0, 3, amount=200), 0, 5).rows_out == 3
    must_hold(world, committed(0, 5, given=rows(0, 3, amount=200)))


@staged_only
def test_nothing_moves_where_not_all_that_was_written_is_there(world: StagedWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    done = writer.write(rows(0, 3))
    world.lose(writer.sink)
    with pytest.raises(SinkFailedError):
        writer.commit(done, 0, 3)
    assert writer.done == 0
    must_hold(world)


def test_rows_of_other_sources_than_the_batchs_are_refused(world: World) -> None:
    writer = Writer(world, 1).ready()
    with pytest.raises(DeclarationError):
        writer.batch([*rows(0, 2), row(7)], 0, 3)
    assert writer.done == 0
    must_hold(world)


def test_a_new_timeline_replaces_what_it_reads_again_and_nothing_else(world: World) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 10, amount=100), 0, 10)
    writer.open(2, {P0: 4, P1: 0})
    again = [row(4, amount=200), row(6, amount=200)]  # offset 5 gives no row any more
    writer.batch(again, 4, 7, timeline=2)
    must_hold(world, committed(0, 10, amount=100), committed(4, 7, timeline=2, given=again))
    assert writer.sink.read_record().timeline == 2


@tables_only
def test_rows_that_are_refused_are_named_and_set_aside(world: StagedWorld) -> None:
    writer = Writer(world, 1).ready()
    world.refuse(3)
    world.refuse(17)
    writer.sink.begin_batch()
    done = writer.write(rows(0, 40, customers=40))
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(done, 0, 40)
    sources = caught.value.sources
    assert sorted(sources) == [(TOPIC_ID, 0, 3), (TOPIC_ID, 0, 17)]
    assert writer.done == 0
    must_hold(world)
    counts = writer.commit(done, 0, 40, refused=sources)
    assert (counts.rows_out, counts.quarantined) == (38, 2)
    left = [one for one in rows(0, 40, customers=40) if one.offset not in (3, 17)]
    must_hold(world, committed(0, 40, given=left))
    assert world.quarantined() == dict.fromkeys(sources, "null_value")


def test_bad_records_are_set_aside_with_their_batch_and_go_when_their_range_is_read_again(world: World) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    aside = writer.write_bad([(0, 1), (0, 2)])
    assert world.quarantined() == {}
    written, ranges = Written(aside.attempts, 0, aside.rows), [OffsetRange(P0, 0, 3)]
    writer.keep(1, ranges, written)
    assert writer.finish(1, ranges, written).quarantined == 2
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2)}
    again = Writer(world, 2)
    again.sink.take_over()
    again.open(2, {P0: 2, P1: 0})
    again.sink.prepare(COLUMNS)
    again.sink.begin_batch()
    again.keep(2, [OffsetRange(P0, 2, 3)], Written((), 0))
    again.commit(again.write(rows(2, 3), timeline=2), 2, 3, timeline=2)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}


def test_what_is_set_aside_and_lost_on_the_way_moves_nothing(world: World) -> None:
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    aside, ranges = writer.write_bad([(0, 2)]), [OffsetRange(P0, 0, 3)]

    def go_on() -> None:
        writer.keep(1, ranges, Written((), 0, aside.rows))
        done = writer.write(rows(0, 2))
        writer.finish(1, ranges, Written(done.attempts, done.rows, aside.rows))

    with pytest.raises(SinkFailedError):
        go_on()
    assert writer.done == 0
    must_hold(world)


# Writers


def test_a_writer_brings_along_all_that_its_task_needs(world: World, tmp_path: Path) -> None:
    """On a machine that has the package, and neither the project's files nor a variable of the driver's."""
    writer = Writer(world, 1).ready()
    writer.sink.begin_batch()
    block = row_block(rows(0, 3), writer.sink.metadata)
    sent = base64.b64encode(cloudpickle.dumps((writer.sink.rows_writer(1, ANYWHERE), block))).decode()
    script = (
        "import base64, json, pickle, sys\n"
        "write, block = pickle.loads(base64.b64decode(sys.stdin.read()))\n"
        "result = write(iter([block]), 5)\n"
        "print(json.dumps([result.rows, result.refused, result.receipt]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=sent,
        env={"PYTHONPATH": str(INCLUDE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, refused, receipt = json.loads(done.stdout)
    assert (count, refused) == (3, {})
    assert writer.commit(TaskResults((5,), 3, {}, (receipt,) if receipt else ()), 0, 3).rows_out == 3
    must_hold(world, committed(0, 3))


def test_what_a_writer_shows_of_itself_holds_no_secret(world: World) -> None:
    writer = Writer(world, 1).ready()
    shown = f"{writer.sink.rows_writer(1, ANYWHERE)!r} {writer.sink.bad_records_writer()!r}"
    assert world.secret not in shown


# Epochs


@staged_only
def test_an_older_epoch_writes_nothing_after_a_takeover(world: StagedWorld) -> None:
    """It wakes with a batch that is written and a new connection, when the next one has just taken over."""
    old = Writer(world, 1).ready()
    old.batch(rows(0, 2), 0, 2)
    old.sink.begin_batch()
    done = old.write(rows(2, 4))
    new = Writer(world, 2)
    new.sink.take_over()
    old.sink.close()
    for late in (
        lambda: old.commit(done, 2, 4),
        lambda: old.sink.open_positions(2, {P0: 0, P1: 0}),
        lambda: old.sink.check_fence(),
        lambda: Writer(world, 1).sink.take_over(),
    ):
        with pytest.raises(FencedError):
            late()
    record = new.sink.read_record()
    assert (record.timeline, record.next_offsets[P0]) == (1, 2)
    must_hold(world, committed(0, 2))


def test_another_instance_and_an_older_epoch_leave_the_running_one_alone(world: World) -> None:
    running = Writer(world, 2).ready()
    running.batch(rows(0, 2), 0, 2)
    for epoch, instance in ((2, "another"), (1, "")):
        with pytest.raises(FencedError):
            Writer(world, epoch, instance=instance).sink.take_over()
    running.batch(rows(2, 4), 2, 4)
    must_hold(world, committed(0, 2), committed(2, 4))


@staged_only
def test_two_processes_of_one_submission_do_a_range_once(world: StagedWorld) -> None:
    """The fence lets both write; one comes with a range that the other has done."""
    first, twin = Writer(world, 1).ready(), Writer(world, 1).ready()
    twin.batch(rows(0, 3, amount=100), 0, 3)
    twin.batch(rows(3, 6, amount=100), 3, 6)
    first.sink.prepare(COLUMNS)
    assert first.batch(rows(0, 3, amount=200), 0, 3).rows_out == 0
    assert first.done == 6
    must_hold(world, committed(0, 3, amount=100), committed(3, 6, amount=100))


# Crashes


def test_an_epoch_that_dies_after_any_call_is_gone_on_with(make_world: Callable[[], World]) -> None:
    strike(make_world, Moment.AFTER)


@pytest.mark.parametrize("make_world", [APPENDED], indirect=True)
def test_an_epoch_that_loses_any_answer_goes_on(make_world: Callable[[], World]) -> None:
    strike(make_world, Moment.ANSWER_LOST)


@pytest.mark.full
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.ANSWER_LOST])
def test_an_epoch_that_dies_at_any_call_is_gone_on_with(make_world: Callable[[], World], moment: Moment) -> None:
    strike(make_world, moment)


def strike(make_world: Callable[[], World], moment: Moment) -> None:
    """Strike a second epoch at each call, let a third go on, and compare with a life that nobody struck.

    The second epoch reads again from offset 2, so it also replaces rows of the first.
    """

    def once(life: Life) -> list[str]:
        world = make_world()
        live(world, Life(), 1)
        ended = life.lived(lambda: live(world, life, 2, timeline=2, begins=2))
        whole = Life()
        late = whole.lived(lambda: live(world, whole, 3, timeline=2, begins=2))
        history = [
            life_commit(timeline, [OffsetRange(P0, begins, RECORDS), OffsetRange(P1, begins, RECORDS)])
            for timeline, begins in ((1, 0), (2, 2))
        ]
        held, expected = world.contents(), world.expected(history)
        return [
            *unexpected(life, ended),
            *unexpected(whole, late),
            *([] if held == expected else [f"it holds {held} and should hold {expected}"]),
            *([] if set(world.quarantined()) == {(TOPIC_ID, *BAD_AT)} else [f"quarantine: {world.quarantined()}"]),
        ]

    tried = crash_at_every_call(moment, once, together=4)
    world = make_world()
    more = ("quarantine.keep", "group.commit") if world.at_once else ("sink.bad_records_writer",) if world.aside else ()
    tried.must_be_well(*LIFE, *more)


# Guards: what each is there for is seen when it is gone


def _any_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PostgresSink.commit_batch

    def commit(self: Any, timeline: int, ranges: Any, written: Written) -> Any:
        return real(self, timeline, ranges, replace(written, attempts=range(100)))

    monkeypatch.setattr(PostgresSink, "commit_batch", commit)
    monkeypatch.setattr(PostgresSink, "_balance", lambda *counted: None)


def _nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresSink, "_balance", lambda *counted: None)


def _gaps_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresSink, "_gap", lambda self, what: None)
    from millrace.adapters.sinks.postgres import sink as postgres_sink

    real = postgres_sink.classify
    monkeypatch.setattr(
        postgres_sink,
        "classify",
        lambda batch, stored: Meeting.APPLY if real(batch, stored) is Meeting.GAP else real(batch, stored),
    )


def _other_sources_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "count_outside", lambda *asked: 0)


def _former_rows_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what comes again is replaced."""

    def delete(self: Merge, cursor: Any, entry: OffsetRange) -> None:
        cursor.execute(
            sql.SQL("DELETE FROM {} WHERE (_partition, _offset) IN (SELECT _partition, _offset FROM {})").format(
                self.target.identifier, self.staging.rows
            )
        )

    monkeypatch.setattr(Merge, "delete_rows", delete)


def _former_quarantine_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "replace_range", lambda self, cursor, stream, entry: self.delete_rows(cursor, entry))


def _staging_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresSink, "begin_batch", lambda self: None)


def _positions_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(self: Any, timeline: int, positions: Any) -> None:
        with self._transaction("open") as cursor:
            for p, offset in positions.items():
                cursor.execute(
                    "INSERT INTO millrace.progress (stream, timeline, shard, topic, topic_id, partition, first_offset, "
                    "next_offset, epoch) VALUES (%s, %s, 0, %s, %s, %s, %s, %s, 1) ON CONFLICT (stream, timeline, "
                    "shard, topic_id, partition) DO UPDATE SET first_offset = 0, next_offset = excluded.next_offset",
                    (self.identity.stream, timeline, p.topic, p.topic_id, p.partition, offset, offset),
                )

    monkeypatch.setattr(PostgresSink, "open_positions", moved)


def _drill(mutant: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: put_in(monkeypatch, mutant)


# What is seen where a guard is gone: what a test asserts, or that nobody is refused; else by which other guard.
SEEN = (AssertionError, pytest.fail.Exception)
GUARDS = (
    ("no fence", _drill(NO_FENCE), test_an_older_epoch_writes_nothing_after_a_takeover, SEEN),
    (
        "epochs without order",
        _drill(EPOCH_IGNORED),
        test_another_instance_and_an_older_epoch_leave_the_running_one_alone,
        SEEN,
    ),
    ("no compare-and-set", _drill(NO_COMPARE_AND_SET), test_two_processes_of_one_submission_do_a_range_once, SEEN),
    ("gaps applied", _gaps_applied, test_what_is_on_record_is_skipped_or_left_out_and_a_gap_refused, SEEN),
    ("positions moved", _positions_moved, test_positions_opened_twice_stay_and_are_never_moved, SEEN),
    ("any attempt", _any_attempt, test_of_a_task_that_is_tried_again_only_the_try_that_reported_counts, SEEN),
    ("staging kept", _staging_kept, test_what_a_failed_try_of_a_batch_wrote_does_not_count, (SinkFailedError,)),
    ("nothing counted", _nothing_counted, test_nothing_moves_where_not_all_that_was_written_is_there, SEEN),
    ("nothing counted aside", _nothing_counted, test_what_is_set_aside_and_lost_on_the_way_moves_nothing, SEEN),
    ("other sources taken", _other_sources_taken, test_rows_of_other_sources_than_the_batchs_are_refused, SEEN),
    ("former rows kept", _former_rows_kept, test_a_new_timeline_replaces_what_it_reads_again_and_nothing_else, SEEN),
    (
        "former quarantine kept",
        _former_quarantine_kept,
        test_bad_records_are_set_aside_with_their_batch_and_go_when_their_range_is_read_again,
        SEEN,
    ),
)


APPENDED_ONLY = {"former rows kept"}


@pytest.mark.parametrize(
    ("make_world", "put", "scenario", "seen"),
    [
        pytest.param(kind, *guard, id=f"{kind}: {what}", marks=() if kind == APPENDED else pytest.mark.full)
        for what, *guard in GUARDS
        for kind in TABLES
        if what not in APPENDED_ONLY or kind == APPENDED
    ],
    indirect=["make_world"],
)
def test_a_guard_that_is_gone_is_noticed(
    make_world: MakeWorld,
    put: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[World], None],
    seen: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant that does not even let an ordinary batch through shows nothing."""
    put(monkeypatch)
    ordinary = Writer(make_world(), 1).ready()
    assert ordinary.batch(rows(0, 3), 0, 3).rows_out == 3
    with pytest.raises(seen):
        scenario(make_world())
