"""What the `s3` sink promises beyond every sink: its chain, its objects, and who reads them; on the real servers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from millrace.adapters.chain.documents import decode, encode
from millrace.adapters.chain.writer import ChainWriter
from millrace.adapters.s3.store import S3Store
from millrace.adapters.sinks.s3 import chain, pages, reading
from millrace.adapters.sinks.s3 import sink as sink_module
from millrace.adapters.sinks.s3 import writer as writer_module
from millrace.adapters.sinks.s3.objects import read_rows
from millrace.adapters.sinks.s3.output import objects_of
from millrace.adapters.sinks.s3.sink import S3Sink
from millrace.domain.sinks.batch import BatchCounts, TaskResults, Written
from millrace.domain.sinks.dataset import names
from millrace.domain.sinks.dataset.coverage import Covered
from millrace.domain.sinks.dataset.history import History
from millrace.domain.sinks.dataset.manifest import DataObject, Kind, Manifest
from millrace.domain.sinks.dataset.names import NO_DATE
from millrace.domain.sinks.dataset.snapshot import DatasetSnapshot
from millrace.domain.topics.offsets import Meeting, OffsetRange
from millrace.embedded.stack import Stack
from millrace.errors import (
    CorruptArchiveError,
    DeclarationError,
    FencedError,
    RefusedError,
    SinkFailedError,
    SinkUnreachableError,
    UnreachableError,
)
from support.sinks.dataset_world import DatasetWorld, plain_store
from support.sinks.worlds import (
    ANYWHERE,
    COLUMNS,
    P0,
    P1,
    TOPIC_ID,
    Commit,
    Row,
    Writer,
    at_second,
    row,
    row_block,
    rows,
    together,
)
from support.waiting import Deadline

Make = Callable[..., DatasetWorld]
NOBODY = 1  # a port that nobody listens at


class Bucket:
    """The bucket as a driver is given it, with what a test does at its calls; tasks have the plain one.

    Attributes:
        instead: by a method's name, what is called in its place, with the real one before the arguments.
        calls: each with its method and its first argument.
    """

    def __init__(self, plain: S3Store) -> None:
        self.plain = plain
        self.instead: dict[str, Callable[..., Any]] = {}
        self.calls: list[tuple[str, object]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.plain, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments[0] if arguments else None))
            instead = self.instead.get(name)
            return instead(real, *arguments, **named) if instead else real(*arguments, **named)

        return call


@pytest.fixture
def make(s3: Stack, postgres: Stack) -> Make:
    """Makes worlds, each with a dataset of its own."""

    def one(event_date: str | None = None) -> DatasetWorld:
        bucket = Bucket(plain_store(s3.settings().s3()))
        return DatasetWorld(s3, f"t{uuid.uuid4().hex[:10]}", event_date=event_date, store=bucket)

    return one


@pytest.fixture
def world(make: Make) -> DatasetWorld:
    return make()


def bucket_of(world: DatasetWorld) -> Bucket:
    assert isinstance(world.store, Bucket)
    return world.store


def committed(first: int, end: int, *, timeline: int = 1, given: list[Row] | None = None, **more: int) -> Commit:
    return Commit(timeline, [OffsetRange(P0, first, end)], rows(first, end, **more) if given is None else given)


def must_hold(world: DatasetWorld, *history: Commit) -> None:
    assert world.contents() == world.expected(history)


def named(world: DatasetWorld) -> set[str]:
    """The keys of the objects that count."""
    return {file.key for file in world.snapshot().files}


def overwrite(world: DatasetWorld, key: str, data: bytes) -> None:
    """What the store's own rule keeps everybody from who goes through `create`."""
    assert not world.plain.delete([key])
    world.plain.create(key, data)


def manifest_of(world: DatasetWorld, sequence: int) -> Manifest:
    key = world.dataset.manifest_key(sequence)
    data = world.plain.get(key)
    assert data is not None
    return decode(data, Manifest, key)


def head_of(world: DatasetWorld) -> int:
    return world.snapshot().history.head.sequence


def lose_next(world: DatasetWorld, *, written: bool) -> list[str]:
    """The next manifest's answer is lost, or the manifest itself; gives where its key will stand."""
    lost: list[str] = []

    def create(real: Callable[[str, bytes], Any], key: str, data: bytes) -> Any:
        if not key.startswith(world.dataset.manifests) or lost:
            return real(key, data)
        lost.append(key)
        if written:
            real(key, data)
        raise UnreachableError("no answer", where=key)

    bucket_of(world).instead["create"] = create
    return lost


lost_answers = pytest.mark.parametrize("written", [True, False], ids=["answer lost", "request lost"])

# Who writes


def test_an_older_epoch_that_is_past_its_objects_gets_no_manifest(world: DatasetWorld) -> None:
    old = Writer(world, 1).ready()
    old.batch(rows(0, 2), 0, 2)
    former = world.objects()
    done = old.write(rows(2, 4, amount=100))
    left = world.objects() - former
    new = Writer(world, 2).ready()
    new.batch(rows(2, 4, amount=200), 2, 4)
    with pytest.raises(FencedError):
        old.commit(done, 2, 4)
    new.batch(rows(4, 6), 4, 6)
    must_hold(world, committed(0, 2), committed(2, 4, amount=200), committed(4, 6))
    assert len(left) == 1
    assert left <= world.objects() - named(world)


@pytest.mark.parametrize("writes", [True, False])
def test_nor_one_that_is_past_all_its_looks(world: DatasetWorld, writes: bool) -> None:
    """It stops before the very PUT of its manifest, and the next one takes over meanwhile."""
    old = Writer(world, 1).ready()
    done = old.write(rows(0, 4, amount=100))
    later: list[Writer] = []

    def create(real: Callable[[str, bytes], Any], key: str, data: bytes) -> Any:
        if not later and key.startswith(world.dataset.manifests):
            later.append(Writer(world, 2))
            later[0].ready()
            if writes:
                later[0].batch(rows(0, 3, amount=200), 0, 3)
        return real(key, data)

    bucket_of(world).instead["create"] = create
    for _ in range(2):
        with pytest.raises(FencedError):
            old.commit(done, 0, 4)
    history = [committed(0, 3, amount=200)] if writes else []
    must_hold(world, *history)
    assert later[0].done == (3 if writes else 0)


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_epochs_that_take_over_at_once_the_newer_one_goes_on(world: DatasetWorld, first: int) -> None:
    """Both have read the same chain, which is none, and want the same place in it."""
    older_is_there, met, done = threading.Event(), threading.Barrier(2), threading.Event()

    def create(real: Callable[[str, bytes], Any], key: str, data: bytes) -> Any:
        if key != world.dataset.manifest_key(0):
            return real(key, data)
        epoch = decode(data, Manifest, key).epoch
        older_is_there.set()
        met.wait(Deadline.THREAD.seconds)
        if epoch != first:
            assert done.wait(Deadline.THREAD.seconds)
        try:
            return real(key, data)
        finally:
            done.set()

    bucket_of(world).instead["create"] = create
    older, newer = Writer(world, 1), Writer(world, 2)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(older.sink.take_over)
        assert older_is_there.wait(Deadline.THREAD.seconds)
        newer.sink.take_over()
        error = early.exception(Deadline.THREAD.seconds)
    assert isinstance(error, FencedError) if first == 2 else error is None
    with pytest.raises(FencedError):
        older.sink.open_positions(1, {P0: 0, P1: 0})
    newer.open(1, {P0: 0, P1: 0})
    newer.sink.prepare(COLUMNS)
    newer.batch(rows(0, 3), 0, 3)
    must_hold(world, committed(0, 3))
    epochs = [manifest_of(world, at).epoch for at in range(world.manifests())]
    assert epochs == ([1] if first == 1 else []) + [2] * 4


def test_another_streams_dataset_is_left_alone(world: DatasetWorld, make: Make) -> None:
    Writer(world, 1).ready().batch(rows(0, 3), 0, 3)
    other = make()
    other.declared, other.dataset = world.declared, world.dataset
    before = world.snapshot()
    with pytest.raises(RefusedError, match=world.stream):
        Writer(other, 5).sink.take_over()
    assert world.snapshot() == before


def test_a_twin_that_writes_to_an_older_timeline_is_told_so(world: DatasetWorld) -> None:
    """Two processes of one submission: the fence lets both write, and one has begun a newer timeline."""
    one, twin = Writer(world, 1).ready(), Writer(world, 1).ready()
    one.batch(rows(0, 3), 0, 3)
    twin.open(2, {P0: 1, P1: 0})
    with pytest.raises(SinkFailedError):
        one.batch(rows(3, 5), 3, 5)
    with pytest.raises(SinkFailedError):
        one.sink.open_positions(1, {replace(P0, partition=7): 0})
    must_hold(world, committed(0, 3))


def test_the_newest_epoch_is_told_whatever_else_lies_there(world: DatasetWorld, small_pages: None) -> None:
    assert world.reader.newest_epoch(world.stream) == 0
    for epoch in (1, 3, 4):
        writer = Writer(world, epoch).ready()
        for at in range(writer.done, writer.done + 4):
            writer.batch([], at, at + 1)
            assert world.reader.newest_epoch(world.stream) == epoch
    world.plain.create(f"{world.dataset.manifests}stray.tmp", b"x")
    assert world.reader.newest_epoch(world.stream) == 4


# Answers that are lost


@lost_answers
def test_a_batch_whose_answer_was_lost_is_on_record_once(world: DatasetWorld, written: bool) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 2), 0, 2)
    done = writer.write(rows(2, 5))
    lost = lose_next(world, written=written)
    with pytest.raises(SinkUnreachableError):
        writer.commit(done, 2, 5)
    must_hold(world, committed(0, 2), *([committed(2, 5)] if written else []))
    assert writer.commit(done, 2, 5) == (BatchCounts() if written else BatchCounts(3))
    assert len(lost) == 1
    must_hold(world, committed(0, 2), committed(2, 5))
    writer.batch(rows(5, 6), 5, 6)
    assert writer.done == 6


def test_a_store_that_was_not_proved_is_not_written_to(world: DatasetWorld) -> None:
    def refuse(real: object) -> None:
        raise RefusedError("the store overwrites objects")

    bucket_of(world).instead["prove_create_only"] = refuse
    with pytest.raises(RefusedError):
        Writer(world, 1).sink.take_over()
    assert [*world.plain.list(f"{world.dataset}/")] == []


@lost_answers
@pytest.mark.parametrize("step", ["take_over", "open_positions", "prepare"])
def test_a_step_of_the_beginning_whose_answer_was_lost_is_done_once(
    world: DatasetWorld, step: str, written: bool
) -> None:
    sink = Writer(world, 1).sink
    steps: Mapping[str, Callable[[], Any]] = {
        "take_over": sink.take_over,
        "open_positions": lambda: sink.open_positions(1, {P0: 0, P1: 0}),
        "prepare": lambda: sink.prepare(COLUMNS),
    }
    for name, act in steps.items():
        if name == step:
            lost = lose_next(world, written=written)
            with pytest.raises(SinkUnreachableError):
                act()
            assert len(lost) == 1
        act()
    assert [manifest_of(world, at).kind for at in range(world.manifests())] == [
        Kind.TAKEOVER, Kind.TIMELINE, Kind.COLUMNS
    ]  # fmt: skip
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 3), 0, 3)
    must_hold(world, committed(0, 3))


@lost_answers
def test_bad_records_are_kept_before_their_batch_and_are_there_once_after_it(
    world: DatasetWorld, written: bool
) -> None:
    writer = Writer(world, 1).ready()
    aside = writer.write_bad([(0, 1)])
    done = writer.write([row(0), row(2)])
    ranges = [OffsetRange(P0, 0, 3)]
    whole = Written((*done.attempts, *aside.attempts), done.rows, aside.rows, {}, None, done.receipts)
    lose_next(world, written=written)
    with pytest.raises(SinkUnreachableError):
        writer.finish(1, ranges, whole)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}
    writer.finish(1, ranges, whole)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}
    assert quarantine_rows(world) == 1
    must_hold(world, committed(0, 3, given=[row(0), row(2)]))


def rewound(world: DatasetWorld) -> Writer:
    """Offset 1 was bad, and is to be read again from a timeline that finds it good."""
    first = Writer(world, 1).ready()
    first.finish(1, [OffsetRange(P0, 0, 3)], both(first, [row(0), row(2)], [1]))
    first.sink.close()
    writer = Writer(world, 2)
    writer.sink.take_over()
    writer.open(2, {P0: 0, P1: 0})
    writer.sink.prepare(COLUMNS)
    return writer


def test_what_is_known_of_a_bad_record_stays_until_what_takes_its_place_counts(world: DatasetWorld) -> None:
    """The batch's manifest is never written; somebody moves the group past its range, and nobody reads it again."""
    writer = rewound(world)
    lose_next(world, written=False)
    with pytest.raises(SinkUnreachableError):
        writer.batch(rows(0, 3, amount=200), 0, 3, timeline=2)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}
    later = Writer(world, 3)
    later.sink.take_over()
    later.open(3, {P0: 3, P1: 0})
    later.sink.prepare(COLUMNS)
    later.batch(rows(3, 4), 3, 4, timeline=3)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}
    must_hold(world, committed(0, 3, given=[row(0), row(2)]), committed(3, 4, timeline=3))


def test_it_goes_with_an_answer_that_was_lost_and_found(world: DatasetWorld) -> None:
    writer = rewound(world)
    done = writer.write(rows(0, 3, amount=200), timeline=2)
    lose_next(world, written=True)
    with pytest.raises(SinkUnreachableError):
        writer.commit(done, 0, 3, timeline=2)
    assert quarantine_rows(world) == 1
    assert writer.commit(done, 0, 3, timeline=2) == BatchCounts()
    assert quarantine_rows(world) == 0


@pytest.mark.parametrize("summed_up", [False, True])
def test_and_with_the_next_start_where_the_one_before_died_in_between(
    world: DatasetWorld, summed_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another timeline begun meanwhile, and from a summary as well."""
    writer = rewound(world)
    done = writer.write(rows(0, 3, amount=200), timeline=2)
    lose_next(world, written=True)
    with pytest.raises(SinkUnreachableError):
        writer.commit(done, 0, 3, timeline=2)
    if summed_up:
        for module in (names, chain, pages, writer_module):
            monkeypatch.setattr(module, "MANIFESTS_A_PAGE", world.manifests() + 1)
    later = Writer(world, 3)
    later.sink.take_over()
    assert len(keys(world, "summary")) == summed_up
    later.sink.close()
    last = Writer(world, 4)
    last.sink.take_over()
    last.open(3, {P0: 2, P1: 0})
    assert quarantine_rows(world) == 1
    last.sink.prepare(COLUMNS)
    assert quarantine_rows(world) == 0


def test_what_an_epoch_kept_whose_batch_never_counted_goes_with_the_batch_that_does(world: DatasetWorld) -> None:
    """On one timeline: the app was mended in between, and a life died right after its manifest."""
    first = Writer(world, 1).ready()
    whole = both(first, [row(0), row(2)], [1])
    lose_next(world, written=False)
    with pytest.raises(SinkUnreachableError):
        first.finish(1, [OffsetRange(P0, 0, 3)], whole)
    assert quarantine_rows(world) == 1
    second = Writer(world, 2).ready()
    done = second.write(rows(0, 3))
    lose_next(world, written=True)
    with pytest.raises(SinkUnreachableError):
        second.commit(done, 0, 3)
    assert quarantine_rows(world) == 1
    Writer(world, 3).ready()
    assert quarantine_rows(world) == 0
    must_hold(world, committed(0, 3))


def test_what_was_kept_stays_though_its_staging_was_emptied(world: DatasetWorld) -> None:
    """After it was kept, and before the manifest was written, as by another process of the same instance."""
    writer = rewound(world)
    whole = on(writer, 2, [row(0)], [1, 2])
    twin = Writer(world, 2)

    def create(real: Callable[[str, bytes], Any], key: str, data: bytes) -> Any:
        if key.startswith(world.dataset.manifests):
            twin.sink.bad_records_writer()
        return real(key, data)

    bucket_of(world).instead["create"] = create
    assert writer.finish(2, [OffsetRange(P0, 0, 3)], whole).quarantined == 2
    assert quarantine_rows(world) == 2


def test_of_bad_records_that_are_read_again_those_of_now_are_there(world: DatasetWorld) -> None:
    writer = rewound(world)
    writer.finish(2, [OffsetRange(P0, 0, 3)], on(writer, 2, [row(0), row(1)], [2]))
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 2)}
    writer.open(3, {P0: 1, P1: 0})
    writer.finish(3, [OffsetRange(P0, 1, 3)], on(writer, 3, [], [1, 2]))
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2)}
    timelines = world.query("SELECT DISTINCT timeline FROM millrace.quarantine WHERE stream = %s", world.stream)
    assert timelines == [(3,)]


def quarantine_rows(world: DatasetWorld) -> int:
    return int(world.query("SELECT count(*) FROM millrace.quarantine WHERE stream = %s", world.stream)[0][0])


def test_a_batch_without_bad_records_needs_no_control_database(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    world.hang_up(writer.sink)
    aside = writer.sink._aside
    aside.close()
    aside.settings = replace(aside.settings, port=NOBODY)
    writer.batch(rows(0, 3), 0, 3)
    must_hold(world, committed(0, 3))
    with pytest.raises(SinkUnreachableError):
        writer.write_bad([(0, 3)])
    with pytest.raises(SinkUnreachableError):
        writer.finish(1, [OffsetRange(P0, 3, 4)], Written((1,), 0, 1))
    assert writer.done == 3


# What is on record already, and what is refused


def test_of_a_batch_that_is_partly_on_record_the_rest_is_written_anew(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    first = [row(offset, amount=100) for offset in range(4)]
    writer.finish(1, [OffsetRange(P0, 0, 5)], both(writer, first, [4]))
    again = [row(offset, amount=200) for offset in (2, 3, 5, 7)]
    counts = writer.finish(1, [OffsetRange(P0, 2, 8)], both(writer, again, [4, 6]))
    assert counts.rows_out == 2
    assert {offset for _, _, offset in world.quarantined()} == {4, 6}
    assert quarantine_rows(world) == 2
    must_hold(world, committed(0, 5, given=first), committed(5, 8, given=again[2:]))
    lying = [sorted(read_rows(key, world.plain.get(key) or b"")["_offset"].to_pylist()) for key in named(world)]
    assert sorted(lying) == [[0, 1, 2, 3], [5, 7]]
    assert all(not file.covered for file in world.snapshot().files)
    writer.batch(rows(8, 9), 8, 9)
    assert writer.done == 9


def both(writer: Writer, given: Sequence[Row], bad: Sequence[int]) -> Written:
    return on(writer, 1, given, bad)


def on(writer: Writer, timeline: int, given: Sequence[Row], bad: Sequence[int]) -> Written:
    """Rows and bad records of one batch, written on a timeline."""
    aside = writer.write_bad([(0, offset) for offset in bad])
    done = writer.write(given, timeline=timeline)
    return Written((*done.attempts, *aside.attempts), done.rows, aside.rows, {}, None, done.receipts)


def test_an_object_of_which_all_is_on_record_is_left_away(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5, amount=100), 0, 5)
    done = writer.write(rows(3, 5, amount=200), rows(5, 6), [row(4, ordinal=1), row(7)])
    assert writer.commit(done, 3, 8).rows_out == 2
    must_hold(world, committed(0, 5, amount=100), committed(5, 8, given=[row(5), row(7)]))


def test_a_batch_that_begins_behind_the_record_moves_nothing(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5), 0, 5)
    with pytest.raises(SinkFailedError):
        writer.batch(rows(9, 10), 9, 10)
    assert writer.done == 5
    must_hold(world, committed(0, 5))


DATED = pa.schema([("customer", pa.string()), ("day", pa.date32())])
DAY = date(2026, 5, 4)
LAST_DAY = 2_932_896  # 9999-12-31


def block(
    columns: pa.Schema, given: Sequence[tuple[int, Mapping[str, Any]]], ordinals: Sequence[int] = ()
) -> pa.RecordBatch:
    """Rows of any columns, each with its offset."""
    own = row_block([row(offset) for offset, _ in given], ("_timestamp",)).drop_columns(COLUMNS.names)
    if ordinals:
        own = own.set_column(3, own.schema.field(3), pa.array(ordinals, pa.int32()))
    rest = pa.RecordBatch.from_pylist([dict(values) for _, values in given], schema=columns)
    for name in columns.names:
        own = own.append_column(columns.field(name), rest[name])
    return own


def day_after(block: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """The block with a date beyond the last in one row."""
    index = block.schema.get_field_index("day")
    days = block.column(index).cast(pa.int32()).to_pylist()
    days[at] = LAST_DAY + 1
    return block.set_column(index, block.schema.field(index), pa.array(days, pa.int32()).cast(pa.date32()))


def tasks(writer: Writer, *blocks: pa.RecordBatch, timeline: int = 1) -> TaskResults:
    given = writer.sink.rows_writer(timeline, ANYWHERE)
    return together([writer._task("write_rows", given, one) for one in blocks])


def test_rows_of_a_source_that_is_refused_are_left_out_of_objects_that_have_them(make: Make) -> None:
    """The rows of one record came to three tasks, and one of them has a date that there is not."""
    world = make("day")
    writer = Writer(world, 1).ready(DATED)
    fine = {"customer": "c", "day": DAY}
    done = tasks(
        writer,
        block(DATED, [(0, fine), (1, fine), (2, fine)]),
        day_after(block(DATED, [(1, fine), (3, fine)], [1, 0]), 0),
        block(DATED, [(1, fine)], [2]),
    )
    assert set(done.refused) == {(TOPIC_ID, 0, 1)}
    assert done.rows == 5
    counts = writer.commit(done, 0, 4, refused=done.refused)
    assert counts == BatchCounts(3, 1)
    assert sorted((one["_offset"], one["_ordinal"]) for one in world.rows()) == [(0, 0), (2, 0), (3, 0)]
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}


def test_an_object_that_has_no_row_of_a_source_that_is_refused_is_named_as_it_is(make: Make) -> None:
    """Each object's offsets span that of the one record with a date that there is not."""
    world = make("day")
    writer = Writer(world, 1).ready(DATED)
    days = [(at, {"customer": "c", "day": DAY + timedelta(days=at % 3)}) for at in range(30)]
    done = tasks(writer, day_after(block(DATED, days), 15))
    former = world.objects()
    created = list[str]()
    bucket_of(world).instead["create"] = lambda real, key, data: created.append(key) or real(key, data)
    assert writer.commit(done, 0, 30, refused=done.refused) == BatchCounts(29, 1)
    assert [key for key in created if key.startswith(world.dataset.data)] == []
    assert named(world) == former


def test_two_tasks_that_give_the_same_rows_are_refused(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    with pytest.raises(DeclarationError, match="two tasks"):
        writer.commit(writer.write(rows(0, 3), rows(0, 3)), 0, 3)
    writer.batch(rows(0, 3), 0, 3)
    with pytest.raises(DeclarationError, match="two tasks"):  # what is left of them is the same
        writer.commit(writer.write(rows(2, 5), rows(1, 5)), 1, 5)
    assert writer.done == 3
    must_hold(world, committed(0, 3))


def test_nothing_moves_where_the_word_of_a_task_is_lost(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    done = writer.write(rows(0, 2), rows(2, 3))
    with pytest.raises(SinkFailedError):
        writer.commit(replace(done, receipts=done.receipts[1:]), 0, 3)
    assert writer.done == 0
    must_hold(world)


# Objects


@pytest.mark.parametrize("data", [None, b"short"], ids=["deleted", "of other size"])
def test_nothing_moves_where_an_object_is_not_as_it_was_written(world: DatasetWorld, data: bytes | None) -> None:
    writer = Writer(world, 1).ready()
    done = writer.write(rows(0, 3))
    (key,) = world.objects()
    assert not world.plain.delete([key])
    if data is not None:
        world.plain.create(key, data)
    with pytest.raises(SinkFailedError) as caught:
        writer.commit(done, 0, 3)
    assert key in str(caught.value)
    assert writer.done == 0
    must_hold(world)
    assert not world.plain.delete([key])
    writer.batch(rows(0, 3), 0, 3)
    must_hold(world, committed(0, 3))


@pytest.mark.parametrize("gone", [True, False])
def test_nor_where_one_of_which_a_part_is_wanted_is_not(world: DatasetWorld, gone: bool) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 3), 0, 3)
    former = world.objects()
    done = writer.write(rows(1, 5))
    (key,) = world.objects() - former
    assert not world.plain.delete([key])
    if not gone:
        there = world.objects()
        writer.write(rows(1, 5, amount=7))
        (other,) = world.objects() - there
        world.plain.create(key, world.plain.get(other) or b"")
    with pytest.raises(SinkFailedError):
        writer.commit(done, 1, 5)
    assert writer.done == 3
    must_hold(world, committed(0, 3))


def test_a_batch_that_is_tried_again_writes_no_new_object(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.write(rows(0, 3), rows(3, 6))
    former = world.objects()
    done = writer.write([row(2), row(0), row(1)], rows(3, 6))
    assert world.objects() == former
    assert len(former) == 2
    writer.commit(done, 0, 6)
    assert named(world) == former


def test_an_object_that_readers_find_changed_is_told_by_name(world: DatasetWorld) -> None:
    Writer(world, 1).ready().batch(rows(0, 3), 0, 3)
    (key,) = world.objects()
    data = bytearray(world.plain.get(key) or b"")
    data[-10] ^= 1
    overwrite(world, key, bytes(data))
    with pytest.raises(CorruptArchiveError) as caught:
        world.rows()
    assert key in str(caught.value)
    assert not world.plain.delete([key])
    with pytest.raises(CorruptArchiveError, match="missing"):
        world.rows()


def test_a_task_that_may_hold_little_writes_several_objects_of_a_date(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    small = replace(writer.sink.rows_writer(1, ANYWHERE), held_bytes=1)
    blocks = [row_block(rows(at, at + 5), writer.sink.metadata) for at in (0, 5, 10, 15)]
    done = together([(1, small(iter(blocks), 1))])
    writer.commit(done, 0, 20)
    assert len(named(world)) == 4
    must_hold(world, committed(0, 20))


# The chain


def test_behind_a_head_that_was_deleted_nothing_is_written(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 2), 0, 2)
    writer.batch(rows(2, 4), 2, 4)
    key = world.dataset.manifest_key(head_of(world))
    assert not world.plain.delete([key])
    before = world.manifests()
    for _ in range(2):
        with pytest.raises(CorruptArchiveError) as caught:
            writer.batch(rows(4, 6), 4, 6)
        assert key in str(caught.value)
    assert world.manifests() == before
    must_hold(world, committed(0, 2))


def gone(world: DatasetWorld, sequence: int) -> int:
    assert not world.plain.delete([world.dataset.manifest_key(sequence)])
    return sequence


def changed(world: DatasetWorld, sequence: int) -> int:
    """Another manifest that may stand there; the next one tells."""
    one = manifest_of(world, sequence)
    overwrite(world, world.dataset.manifest_key(sequence), encode(replace(one, at=one.at + timedelta(seconds=1))))
    return sequence + 1


def garbled(world: DatasetWorld, sequence: int) -> int:
    overwrite(world, world.dataset.manifest_key(sequence), b'{"garbage": 1}\n')
    return sequence


def behind(world: DatasetWorld, sequence: int) -> int:
    end = head_of(world) + 1
    world.plain.create(world.dataset.manifest_key(end), b'{"garbage": 1}\n')
    return end


@pytest.mark.parametrize(
    ("fault", "sequence"), [(gone, 0), (gone, 4), (changed, 0), (changed, 4), (garbled, 4), (behind, 0)]
)
def test_a_chain_that_is_not_what_it_was_is_refused_by_name(
    world: DatasetWorld, fault: Callable[[DatasetWorld, int], int], sequence: int
) -> None:
    writer = Writer(world, 1).ready()
    for at in range(0, 6, 2):
        writer.batch(rows(at, at + 2), at, at + 2)
    key = world.dataset.manifest_key(fault(world, sequence))
    before = world.manifests()
    asked: list[Callable[[], Any]] = [world.reader.snapshot, lambda: Writer(world, 2).sink.take_over()]
    if fault is behind:
        asked.append(lambda: writer.batch(rows(6, 8), 6, 8))
    for ask in asked:
        with pytest.raises(CorruptArchiveError) as caught:
            ask()
        assert key in str(caught.value)
    assert world.manifests() == before


# Pages and summaries

BATCHES = 13
HEAD = 2 + BATCHES
LAST = HEAD - 1
"""The last manifest of the third page, which is the last page; the last summary is of this manifest."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (names, chain, pages, writer_module):
        monkeypatch.setattr(module, "MANIFESTS_A_PAGE", 5)


@pytest.fixture
def long(world: DatasetWorld, small_pages: None) -> DatasetWorld:
    """A chain of some pages."""
    writer = Writer(world, 1).ready()
    for at in range(BATCHES):
        writer.batch([row(at)], at, at + 1)
    assert head_of(world) == HEAD
    return world


def keys(world: DatasetWorld, folder: str) -> list[str]:
    return [info.key for info in world.plain.list(f"{world.dataset}/{folder}/")]


def gets(world: DatasetWorld) -> set[int]:
    """The manifests that were asked for since."""
    asked = {str(key) for name, key in bucket_of(world).calls if name == "get"}
    sequences = {world.dataset.sequence_of(key) for key in asked if key.startswith(world.dataset.manifests)}
    return {one for one in sequences if one is not None}


def go_on(world: DatasetWorld) -> None:
    """A new epoch writes one more batch, and all is there."""
    Writer(world, 2).ready().batch([row(BATCHES)], BATCHES, BATCHES + 1)
    must_hold(world, committed(0, BATCHES + 1))


def test_readers_see_the_same_with_pages_and_without(long: DatasetWorld) -> None:
    pages = keys(long, "page")
    assert pages == [long.dataset.page_key(number) for number in range(3)]
    whole = long.snapshot()
    must_hold(long, committed(0, BATCHES))
    for left in ([pages[0], pages[2]], pages[:1], []):
        assert not long.plain.delete(set(pages) - set(left))
        assert long.snapshot() == whole


def test_a_takeover_begins_with_the_last_summary(long: DatasetWorld) -> None:
    assert keys(long, "summary") == [long.dataset.summary_key(at) for at in (4, 9, LAST)]
    bucket_of(long).calls.clear()
    Writer(long, 2).sink.take_over()
    assert gets(long) == {0, LAST, HEAD, HEAD + 1}
    go_on(long)


def test_pages_that_are_missing_are_written_by_the_next_takeover(long: DatasetWorld) -> None:
    pages = {key: long.plain.get(key) for key in keys(long, "page")}
    assert not long.plain.delete([*pages][1:3])
    Writer(long, 2).sink.take_over()
    assert {key: long.plain.get(key) for key in keys(long, "page")} == pages


def test_a_page_that_would_be_too_large_is_not_written_and_its_manifests_are_read(
    world: DatasetWorld, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 6_000)
    writer = Writer(world, 1).ready()
    for at in range(BATCHES):
        parts = [[row(at, ordinal=one)] for one in range(20 if 4 < at < 9 else 1)]
        writer.commit(writer.write(*parts), at, at + 1)
    assert 0 < len(keys(world, "page")) < len(keys(world, "summary")) == 3
    held = [one.offset for _, one in world.contents()]
    assert held == [at for at in range(BATCHES) for _ in range(20 if 4 < at < 9 else 1)]


def shuffled(page: Sequence[bytes]) -> Sequence[bytes]:
    return [page[1], page[0], *page[2:]]


def spoilt(page: Sequence[bytes]) -> Sequence[bytes]:
    return [*page[:3], b"garbage\n", page[4]]


@pytest.mark.parametrize("make_of", [lambda page: [b"garbage\n"] * 5, lambda page: page[:4], shuffled, spoilt])
def test_a_page_that_is_none_is_left_aside_for_its_manifests(
    long: DatasetWorld, make_of: Callable[[Sequence[bytes]], Sequence[bytes]]
) -> None:
    key, whole = long.dataset.page_key(1), long.snapshot()
    overwrite(long, key, b"".join(make_of((long.plain.get(key) or b"").splitlines(keepends=True))))
    assert long.snapshot() == whole


def test_no_page_ends_with_a_manifest_that_the_next_one_does_not_follow(world: DatasetWorld, small_pages: None) -> None:
    """Its page came late: its manifest's answer was lost, and it was changed at that moment."""
    writer = Writer(world, 1).ready()
    writer.batch([row(0)], 0, 1)
    done = writer.write([row(1)])
    lose_next(world, written=True)
    key = world.dataset.manifest_key(4)
    with pytest.raises(SinkUnreachableError):
        writer.commit(done, 1, 2)
    writer.commit(done, 1, 2)
    for at in range(2, 6):
        writer.batch([row(at)], at, at + 1)
    assert keys(world, "page") == []
    true = world.plain.get(key) or b""
    changed(world, 4)
    writer.batch([row(6)], 6, 7)
    assert keys(world, "page") == []
    overwrite(world, key, true)
    must_hold(world, committed(0, 7))


def test_no_page_is_made_of_manifests_that_do_not_follow(world: DatasetWorld, small_pages: None) -> None:
    """A page is for ever; the chain itself may be mended by who has changed it."""
    writer = Writer(world, 1).ready()
    writer.batch([row(0)], 0, 1)
    key = world.dataset.manifest_key(2)
    true = world.plain.get(key) or b""
    changed(world, 2)
    for at in range(1, 5):
        writer.batch([row(at)], at, at + 1)
    assert keys(world, "page") == []
    overwrite(world, key, true)
    must_hold(world, committed(0, 5))


def test_manifests_that_a_listing_leaves_out_are_asked_for_by_name(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    for at in range(130):
        writer.batch([], at, at + 1)

    def listed(real: Callable[..., Any], prefix: str, **more: Any) -> Any:
        hidden = range(4, 120) if prefix == world.dataset.manifests else range(0)
        return (info for info in real(prefix, **more) if world.dataset.sequence_of(info.key) not in hidden)

    bucket_of(world).instead["list"] = listed
    new = Writer(world, 2)
    new.sink.take_over()
    assert new.done == 130


@pytest.mark.parametrize("left", [("summary", "page"), ("summary",), ("page",)])
def test_a_dataset_whose_first_manifests_are_gone_is_no_new_one(long: DatasetWorld, left: Sequence[str]) -> None:
    """A rule of the bucket takes the oldest first."""
    gone_too = [key for folder in {"summary", "page"} - {*left} for key in keys(long, folder)]
    for lost in ([long.dataset.manifest_key(0)], keys(long, "manifest"), gone_too):
        assert not long.plain.delete(lost)
        for ask in (long.reader.snapshot, lambda: Writer(long, 2).sink.take_over()):
            with pytest.raises(CorruptArchiveError):
                ask()


def test_a_summary_that_is_none_is_left_aside(long: DatasetWorld) -> None:
    overwrite(long, long.dataset.summary_key(LAST), b"garbage")
    bucket_of(long).calls.clear()
    Writer(long, 2).sink.take_over()
    assert gets(long) == {0, *range(LAST - 5, HEAD + 2)}
    go_on(long)


@pytest.mark.parametrize("fault", [gone, changed])
def test_a_summary_of_a_chain_that_is_no_more_is_refused(
    long: DatasetWorld, fault: Callable[[DatasetWorld, int], int]
) -> None:
    """Pages and a summary are there, and the chain was cut off behind them."""
    fault(long, LAST)
    assert not long.plain.delete([long.dataset.manifest_key(HEAD)])
    before = long.manifests()
    with pytest.raises(CorruptArchiveError) as caught:
        Writer(long, 2).sink.take_over()
    assert long.dataset.summary_key(LAST) in str(caught.value)
    assert long.manifests() == before


def test_readers_refuse_a_chain_that_ends_before_its_last_summary(long: DatasetWorld) -> None:
    assert not long.plain.delete([long.dataset.manifest_key(at) for at in range(LAST - 2, HEAD + 1)])
    must_hold(long, committed(0, BATCHES - 1))  # what a page has is there
    assert not long.plain.delete(keys(long, "page")[2:])
    with pytest.raises(CorruptArchiveError, match=f"ends at manifest {LAST - 3}, but a summary names manifest {LAST}"):
        long.snapshot()


def test_a_summary_of_another_stream_is_refused(long: DatasetWorld, make: Make) -> None:
    other = make()
    other.declared, other.dataset = long.declared, long.dataset
    with pytest.raises(RefusedError, match=long.stream):
        Writer(other, 5).sink.take_over()


# Columns and dates


def test_rows_from_before_a_column_came_read_as_nulls_in_it(world: DatasetWorld) -> None:
    more = COLUMNS.append(pa.field("note", pa.string()))
    Writer(world, 1).ready().batch(rows(0, 2), 0, 2)
    writer = Writer(world, 2).ready(more)
    new = {"customer": "c", "amount": None, "note": "new"}
    writer.commit(tasks(writer, block(more, [(2, new)])), 2, 3)
    snapshot = world.snapshot()
    table = pa.concat_tables(world.reader.rows(snapshot), promote_options="default").sort_by("_offset")
    assert table["_offset"].to_pylist() == [0, 1, 2]
    assert table["note"].to_pylist() == [None, None, "new"]
    assert snapshot.history.columns == {"customer": "string", "amount": "decimal128(12, 2)", "note": "string"}
    manifests = world.manifests()
    Writer(world, 3).ready(more)
    assert world.manifests() == manifests + 1  # the takeover: nothing new is said of columns


REFUSED: Sequence[tuple[str, str | None, pa.Schema, str]] = (
    ("another type", None, pa.schema([("customer", pa.int64()), ("day", pa.date32())]), "column `customer` would be"),
    ("another case", None, pa.schema([("Customer", pa.string())]), "column `Customer` would be"),
    ("a date of a column now", "day", DATED, "folders are named"),
    ("a column that is no date", "customer", DATED, "that is string, not a date"),
    ("no such column", "missing", DATED, "returns no such column"),
    ("a column of another case", "Day", DATED, "returns no such column"),
    ("the folders' own name", None, DATED.append(pa.field("event_date", pa.date32())), "column event_date"),
    ("no column at all", None, pa.schema([]), "no column"),
)


@pytest.mark.parametrize(
    ("event_date", "columns", "why"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_columns_that_cannot_stand_beside_those_that_are_there_are_refused(
    world: DatasetWorld, event_date: str | None, columns: pa.Schema, why: str
) -> None:
    Writer(world, 1).ready(DATED)
    manifests = world.manifests()
    world.declared = replace(world.declared, event_date=event_date)
    with pytest.raises(DeclarationError) as caught:
        Writer(world, 2).ready(columns)
    assert why in str(caught.value)
    assert world.manifests() == manifests + 1  # the takeover


def test_no_column_at_all_is_refused_of_a_new_dataset_too(world: DatasetWorld) -> None:
    with pytest.raises(DeclarationError, match="no column"):
        Writer(world, 1).ready(pa.schema([]))


def dates(snapshot: DatasetSnapshot) -> list[str]:
    return [file.written.date for file in snapshot.files]


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")], ids=str)
def test_rows_lie_by_the_date_of_their_column(make: Make, type_: pa.DataType) -> None:
    world = make("day")
    columns = pa.schema([("day", type_)])
    writer = Writer(world, 1).ready(columns)
    moments = [datetime(2026, 5, 4, 23, 59, 59), datetime(2026, 5, 5), None, datetime(1969, 12, 31, 12)]
    given = [(at, {"day": moment and fitting(moment, type_)}) for at, moment in enumerate(moments)]
    writer.commit(tasks(writer, block(columns, given)), 0, 4)
    assert dates(world.snapshot()) == ["1969-12-31", "2026-05-04", "2026-05-05", NO_DATE]
    folders = sorted(key.removeprefix(world.dataset.data).partition("/")[0] for key in world.objects())
    assert folders == [f"event_date={day}" for day in sorted(["1969-12-31", "2026-05-04", "2026-05-05", NO_DATE])]
    assert {one["_offset"]: one["event_date"] for one in world.rows()} == {
        at: moment and moment.date() for at, moment in enumerate(moments)
    }
    some = world.reader.snapshot(date(2026, 5, 5), None), world.reader.snapshot(None, date(2026, 5, 4))
    assert [dates(one) for one in some if one] == [["2026-05-05"], ["1969-12-31", "2026-05-04"]]


def fitting(moment: datetime, type_: pa.DataType) -> date:
    if pa.types.is_date(type_):
        return moment.date()
    return moment.replace(tzinfo=UTC) if type_.tz else moment


def test_rows_lie_by_their_records_date_where_no_column_is_named(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    day = 24 * 60 * 60
    given = [replace(row(at), second=second) for at, second in enumerate((0, day - 1, day, -1))]
    writer.batch(given, 0, 4)
    assert dates(world.snapshot()) == ["2026-05-03", "2026-05-04", "2026-05-05"]
    assert {one["_offset"]: one["event_date"] for one in world.rows()} == {
        at: at_second(one.second).date() for at, one in enumerate(given)
    }
    must_hold(world, committed(0, 4, given=given))


# Rewinds


def test_what_newer_timelines_have_done_again_is_covered_and_nothing_else(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    history = [committed(0, 5), committed(5, 10)]
    for commit in history:
        writer.batch(commit.rows, commit.ranges[0].first, commit.ranges[0].next)
    for timeline, first, next_ in ((2, 4, 7), (3, 5, 6)):
        writer.open(timeline, {P0: first, P1: 0})
        must_hold(world, *history)
        history.append(committed(first, next_, timeline=timeline, amount=100 * timeline))
        writer.batch(history[-1].rows, first, next_, timeline=timeline)
        must_hold(world, *history)
    assert covered(world) == {
        (1, 0): [(4, 5)],
        (1, 5): [(5, 7)],
        (2, 4): [(5, 6)],
        (3, 5): [],
    }
    writer.open(4, {P0: 0, P1: 0})
    history.append(committed(0, 5, timeline=4, amount=400))
    writer.batch(history[-1].rows, 0, 5, timeline=4)
    must_hold(world, *history)
    assert covered(world) == {(1, 5): [(5, 7)], (2, 4): [(4, 6)], (3, 5): [], (4, 0): []}
    assert len(world.objects()) == 5


def covered(world: DatasetWorld) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """What of each object is, by its timeline and its first offset."""
    return {
        (file.timeline, file.written.held[0].first): [(one.first, one.next) for one in file.covered]
        for file in world.snapshot().files
    }


def test_what_is_covered_names_its_partition(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    ranges = [OffsetRange(partition, 0, 4) for partition in (P0, P1)]
    given = [*rows(0, 4), *rows(0, 4, partition=1)]
    done = writer.write(given)
    writer.finish(1, ranges, Written(done.attempts, done.rows, receipts=done.receipts))
    writer.open(2, {P0: 2, P1: 4})
    writer.batch([], 2, 4, timeline=2)
    (file,) = world.snapshot().files
    assert file.covered == (Covered(TOPIC_ID, 0, 2, 4),)
    assert [(one.partition, one.offset) for _, one in world.contents()] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)
    ]  # fmt: skip


# Readers beside a writer


def test_a_reader_beside_a_writer_sees_whole_batches_from_the_first(world: DatasetWorld) -> None:
    writer = Writer(world, 1).ready()
    size, count, seen = 3, 12, threading.Event()

    def write() -> None:
        for at in range(0, size * count, size):
            writer.batch(rows(at, at + size), at, at + size)
            if at == 3 * size:
                assert seen.wait(Deadline.THREAD.seconds)

    ends = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            ends.append(prefix_of(world, size))
            if ends[-1]:
                seen.set()
        writing.result()
    assert ends == sorted(ends)
    assert any(0 < end < size * count for end in ends)
    assert prefix_of(world, size) == size * count


def prefix_of(world: DatasetWorld, size: int) -> int:
    """The end of the offsets that are there, which are all from 0 on."""
    found = world.contents()
    end = found[-1][1].offset + 1 if found else 0
    assert found == world.expected([committed(0, end)])
    assert end % size == 0
    return end


# Guards: what each is there for is seen when it is gone


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = History.fault

    def fault(self: History, manifest: Manifest) -> str:
        head = self.head
        epoch = manifest.epoch - (manifest.kind is Kind.TAKEOVER)
        self.head = replace(head, epoch=epoch, instance=manifest.instance)
        try:
            return real(self, manifest)
        finally:
            self.head = head

    monkeypatch.setattr(History, "fault", fault)
    monkeypatch.setattr(ChainWriter, "check", lambda self: None)
    monkeypatch.setattr(ChainWriter, "_must_be_ours", lambda self, manifest: None)


def _writes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real = S3Store.create

    def create(self: S3Store, key: str, data: bytes) -> Any:
        self.delete([key])
        return real(self, key, data)

    monkeypatch.setattr(S3Store, "create", create)


def _no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Sink, "_must_be_there", lambda self, objects: None)


def _nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = S3Sink._that_count

    def that_count(self: S3Sink, todo: Any, written: Written) -> Any:
        counted = sum(one.rows for receipt in written.receipts for one in objects_of(receipt))
        return real(self, todo, replace(written, rows=counted))

    monkeypatch.setattr(S3Sink, "_that_count", that_count)


def _nothing_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.Coverage, "rest", lambda self, timeline, one: ())


def _gaps_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sink_module.classify

    def classify(batch: OffsetRange, stored: int) -> Meeting:
        return Meeting.APPLY if real(batch, stored) is Meeting.GAP else real(batch, stored)

    monkeypatch.setattr(sink_module, "classify", classify)


def _nothing_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    def rest(self: S3Sink, one: DataObject, covered: Any, refused: Any) -> DataObject:
        return one

    monkeypatch.setattr(S3Sink, "_rest", rest)


def _head_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainWriter, "_stop_at_changed_head", lambda self: None)


def _any_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chain, writer_module):
        monkeypatch.setattr(module, "must_be_of", lambda dataset, found, stream: None)


def _sums_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two manifests of one number are as good as each other."""
    real = History.fault
    monkeypatch.setattr(
        History, "fault", lambda self, manifest: real(self, replace_previous(manifest, self.head.sha256))
    )


def replace_previous(manifest: Manifest, sha256: str) -> Manifest:
    return replace(manifest, previous=sha256) if manifest.sequence and sha256 else manifest


SEEN = (AssertionError, pytest.fail.Exception)
Scenario = Callable[[Make], None]


def plain(scenario: Callable[..., None], *arguments: Any) -> Scenario:
    """A test of one world."""
    return lambda make: scenario(make(), *arguments)


GUARDS: Sequence[tuple[str, Callable[[pytest.MonkeyPatch], None], Scenario, Any]] = (
    ("no fence", _no_fence, plain(test_an_older_epoch_that_is_past_its_objects_gets_no_manifest), SEEN),
    ("no fence at the put", _no_fence, plain(test_nor_one_that_is_past_all_its_looks, False), SEEN),
    ("no fence at once", _no_fence, plain(test_of_two_epochs_that_take_over_at_once_the_newer_one_goes_on, 2), SEEN),
    ("written over", _writes_over, plain(test_an_older_epoch_that_is_past_its_objects_gets_no_manifest), SEEN),
    ("written over at the put", _writes_over, plain(test_nor_one_that_is_past_all_its_looks, True), SEEN),
    ("no look", _no_look, plain(test_nothing_moves_where_an_object_is_not_as_it_was_written, None), SEEN),
    ("nothing counted", _nothing_counted, plain(test_nothing_moves_where_the_word_of_a_task_is_lost), SEEN),
    (
        "nothing covered",
        _nothing_covered,
        plain(test_what_newer_timelines_have_done_again_is_covered_and_nothing_else),
        SEEN,
    ),
    ("gaps applied", _gaps_applied, plain(test_a_batch_that_begins_behind_the_record_moves_nothing), SEEN),
    (
        "nothing stripped",
        _nothing_stripped,
        test_rows_of_a_source_that_is_refused_are_left_out_of_objects_that_have_them,
        SEEN,
    ),
    (
        "nothing stripped below",
        _nothing_stripped,
        plain(test_of_a_batch_that_is_partly_on_record_the_rest_is_written_anew),
        SinkFailedError,
    ),
    ("no look at the head", _head_not_looked_at, plain(test_behind_a_head_that_was_deleted_nothing_is_written), SEEN),
    (
        "any stream",
        _any_stream,
        lambda make: test_another_streams_dataset_is_left_alone(make(), make),
        CorruptArchiveError,
    ),
    (
        "sums not asked",
        _sums_not_asked,
        plain(test_a_chain_that_is_not_what_it_was_is_refused_by_name, changed, 4),
        SEEN,
    ),
)


SECOND_OF_THEIR_GUARD = {"no fence at the put", "no fence at once", "written over at the put", "nothing stripped below"}


@pytest.mark.parametrize(
    ("put", "scenario", "seen"),
    [
        pytest.param(*guard, id=what, marks=pytest.mark.full if what in SECOND_OF_THEIR_GUARD else ())
        for what, *guard in GUARDS
    ],
)
def test_a_guard_that_is_gone_is_noticed(
    make: Make,
    put: Callable[[pytest.MonkeyPatch], None],
    scenario: Scenario,
    seen: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant that does not even let an ordinary batch through shows nothing."""
    put(monkeypatch)
    ordinary = Writer(make(), 1).ready()
    assert ordinary.batch(rows(0, 3), 0, 3).rows_out == 3
    with pytest.raises(seen):
        scenario(make)
