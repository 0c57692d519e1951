"""When a backup reads what waits, where it cuts objects, and what it does while the control database is away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.archive import cutting
from millrace.adapters.archive.columns import to_batch
from millrace.adapters.archive.cutting import Copied, copy_range
from millrace.adapters.archive.objects import WrittenObject, read_object
from millrace.domain.alarms.extent import Extent
from millrace.domain.archive.pace import (
    LEAST_OBJECT_BYTES,
    MOST_OBJECT_BYTES,
    READ_BYTES,
    ROUND_BYTES,
    ROUND_READS,
    UNWEIGHED_OFFSETS,
    Read,
    Waiting,
    due,
    rest,
)
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.declaration.pipeline import Backup
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import RefusedError, UnreachableError
from millrace.runtime.backup.asked import Asked
from millrace.runtime.backup.breaches import Breaches

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
EVERY, MAX_LAG = timedelta(minutes=1), timedelta(minutes=10)
BACKUPS = {"orders": Backup(EVERY, MAX_LAG)}


def waiting(
    offsets: int,
    *,
    partition: int = 0,
    age: timedelta = timedelta(0),
    each: float | None = 100.0,
    written: timedelta | None = EVERY,
) -> Waiting:
    place = TopicPartition("orders", "A" * 22, partition)
    written_at = None if written is None else NOW - written
    return Waiting(OffsetRange(place, 5, 5 + offsets), NOW - age, each, written_at)


def taken(*entries: Waiting) -> list[tuple[int, int, bool]]:
    reads, _ = due(entries, BACKUPS, NOW)
    return [(read.partition.partition, len(read.range), read.whole) for read in reads]


@pytest.mark.parametrize(
    ("entry", "is_due"),
    [
        (waiting(10, age=MAX_LAG / 2 - timedelta(seconds=1)), False),
        (waiting(10, age=MAX_LAG / 2), True),
        (waiting(10, age=MAX_LAG, written=EVERY - timedelta(seconds=1)), False),  # never more often than every
        (waiting(LEAST_OBJECT_BYTES // 100 + 1), True),
        (waiting(LEAST_OBJECT_BYTES // 100 - 1), False),
        (waiting(LEAST_OBJECT_BYTES // 100 + 1, written=timedelta(0)), False),
        (waiting(MOST_OBJECT_BYTES // 100 + 1, written=timedelta(0)), True),  # a full one is never too early
        (waiting(10, each=None), True),
        (waiting(10, each=None, written=timedelta(0)), False),
        (waiting(10, written=None), False),
    ],
)
def test_what_is_large_or_old_is_due(entry: Waiting, is_due: bool) -> None:
    assert bool(taken(entry)) is is_due


def test_a_range_is_bounded_and_more_is_due_at_once_then() -> None:
    large = waiting(READ_BYTES // 100 + 1)
    assert taken(large) == [(0, READ_BYTES // 100, False)]
    assert due([large], BACKUPS, NOW)[1] is True
    assert taken(waiting(UNWEIGHED_OFFSETS + 1, each=None)) == [(0, UNWEIGHED_OFFSETS, False)]
    assert due([waiting(10, age=MAX_LAG)], BACKUPS, NOW)[1] is False


def test_a_round_takes_the_oldest_first_and_is_bounded_whatever_number_of_partitions() -> None:
    many = [waiting(READ_BYTES // 100 + 1, partition=number, age=timedelta(seconds=number)) for number in range(40)]
    reads, more = due(many, BACKUPS, NOW)
    assert [read.partition.partition for read in reads] == [39, 38, 37, 36, 35]
    assert len(reads) == ROUND_BYTES // READ_BYTES + 1  # a range is a few bytes short of its bound
    assert more is True


@given(offsets=st.integers(1, 10**9), each=st.floats(0, 10**9), age=st.integers(0, 10**6))
def test_whatever_waits_a_range_begins_where_the_archive_ends_and_is_not_empty(
    offsets: int, each: float, age: int
) -> None:
    reads, _ = due([waiting(offsets, each=each, age=timedelta(seconds=age))], BACKUPS, NOW)
    for read in reads:
        assert (read.range.first, len(read.range) > 0) == (5, True)
        assert read.whole == (len(read.range) == offsets)


def test_a_backlog_takes_turns_with_what_is_behind_it() -> None:
    backlog = [waiting(10**9, partition=number, age=timedelta(days=9), written=timedelta(0)) for number in range(8)]
    behind = waiting(10**6, partition=9, age=MAX_LAG, written=EVERY)
    assert taken(*backlog, behind)[0] == (9, 10**6, True)
    rested = [replace(entry, written_at=NOW - timedelta(minutes=5)) for entry in backlog[:4]]
    assert {number for number, _, _ in taken(*rested, *backlog[4:])} >= {0, 1, 2, 3}


def test_a_round_has_a_bounded_number_of_partitions() -> None:
    many = [waiting(1, partition=number, age=MAX_LAG) for number in range(ROUND_READS + 1)]
    reads, more = due(many, BACKUPS, NOW)
    assert (len(reads), more) == (ROUND_READS, True)


def test_nothing_old_waits_for_longer_than_it_may_where_there_is_room() -> None:
    assert taken(waiting(1, age=timedelta(days=400)), waiting(1, partition=1, age=MAX_LAG)) == [
        (0, 1, True),
        (1, 1, True),
    ]


@pytest.mark.parametrize(("every", "seconds"), [(1, 1), (12, 2), (600, 10)])
def test_looks_come_often_enough_for_the_shortest_interval(every: int, seconds: float) -> None:
    assert rest([Backup(timedelta(seconds=every)), Backup(timedelta(hours=1))]) == timedelta(seconds=seconds)


# Cutting


def record(offset: int, size: int = 100) -> ArchivedRecord:
    return ArchivedRecord(offset, offset, TimestampType.CREATE_TIME, None, b"x" * size)


def cut(
    records: Sequence[ArchivedRecord],
    first: int,
    next_: int,
    *,
    at_once: int = 7,
    most_bytes: int = 1_000,
    whole: bool = True,
) -> tuple[Copied, list[WrittenObject]]:
    written: list[WrittenObject] = []
    read = Read(OffsetRange(TopicPartition("orders", "A" * 22, 0), first, next_), whole)
    batches: list[pa.RecordBatch] = [to_batch(records[low : low + at_once]) for low in range(0, len(records), at_once)]
    return copy_range(read, batches, written.append, most_bytes=most_bytes), written


@given(
    offsets=st.lists(st.integers(3, 300), unique=True).map(sorted),
    size=st.integers(0, 500),
    at_once=st.integers(1, 50),
    most_bytes=st.integers(1, 3_000),
)
def test_objects_tile_the_range_and_hold_its_records_wherever_batches_end(
    offsets: list[int], size: int, at_once: int, most_bytes: int
) -> None:
    records = [record(offset, size) for offset in offsets]
    copied, written = cut(records, 2, 302, at_once=at_once, most_bytes=most_bytes)
    assert copied.entries[0].first == 2
    assert copied.next == 302
    assert [one.entry for one in written] == list(copied.entries)
    assert [held for one in written for held in read_object(one.data).records()] == records
    again, _ = cut(records, 2, 302, at_once=max(1, at_once // 2), most_bytes=most_bytes)
    assert again == copied  # the same objects, so that a former try's are found


def test_an_object_is_cut_when_it_is_large_enough_and_takes_the_holes_behind_it() -> None:
    copied, _ = cut([record(offset) for offset in (*range(10), 40, 41)], 0, 60)
    weights = 100 + 64  # of a record: its value, and what each costs
    assert copied.weight == 12 * weights
    assert [(entry.first, entry.next, entry.count) for entry in copied.entries] == [(0, 7, 7), (7, 60, 5)]


def test_a_small_rest_with_more_behind_it_is_left_for_the_next_round() -> None:
    records = [record(offset) for offset in range(10)]
    copied, _ = cut(records, 0, 10, whole=False)
    assert ([(entry.first, entry.next) for entry in copied.entries], copied.next) == ([(0, 7)], 7)
    alone, _ = cut(records[:3], 0, 10, whole=False)
    assert alone.next == 10  # nothing was cut off: it would come again and again


def test_a_range_that_weighs_more_than_was_thought_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "READ_BYTES", 2_000)
    asked = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal asked
        for low in range(0, 1_000, 5):
            asked += 1
            yield to_batch([record(offset) for offset in range(low, low + 5)])

    read = Read(OffsetRange(TopicPartition("orders", "A" * 22, 0), 0, 1_000))
    copied = copy_range(read, batches(), lambda _: None, most_bytes=1_000)
    assert [(entry.first, entry.next) for entry in copied.entries] == [(0, 7), (7, 14)]
    assert (copied.next, asked) == (14, 3)


def test_a_range_without_records_is_one_object() -> None:
    copied, written = cut([], 4, 9)
    assert [(entry.first, entry.next, entry.count) for entry in copied.entries] == [(4, 9, 0)]
    assert len(written) == 1


def test_records_outside_the_range_or_out_of_order_are_refused() -> None:
    for records in ([record(11)], [record(1)], [record(5), record(4)], [record(5), record(5)]):
        with pytest.raises(RefusedError):
            cut(records, 2, 10, at_once=1)


def test_objects_that_do_not_tile_their_range_are_no_copy() -> None:
    copied, _ = cut([record(offset) for offset in range(20)], 0, 20)
    for entries in (copied.entries[1:], copied.entries[:-1], (copied.entries[0], *copied.entries)):
        with pytest.raises(ValueError, match="objects that are not"):
            Copied(copied.read, entries, 0)


# While the control database is away


class Database:
    """Alarms and questions; away while `error` is set."""

    def __init__(self) -> None:
        self.error: UnreachableError | None = None
        self.alarms: dict[tuple[str, str], str] = {}
        self.calls = 0

    def _answer(self) -> None:
        self.calls += 1
        if self.error:
            raise self.error

    def open(self, kind: str, subject: str, detail: str, extent: Extent) -> bool:
        self._answer()
        self.alarms[kind, subject] = detail
        return True

    def close(self, kind: str, subject: str) -> bool:
        self._answer()
        return self.alarms.pop((kind, subject), None) is not None

    def waiting(self) -> tuple[()]:
        self._answer()
        return ()


def test_alarms_are_kept_until_the_database_is_back_and_their_last_word_counts() -> None:
    database, now = Database(), [100.0]
    breaches = Breaches(database, lambda: now[0])
    database.error = UnreachableError("away")
    breaches.say("backup.lost", "a", "first")
    breaches.flush()
    breaches.say("backup.lost", "a", "last")
    breaches.flush()
    assert database.calls == 1  # not asked again within the minute
    database.error, now[0] = None, 161.0
    breaches.flush()
    assert database.alarms == {("backup.lost", "a"): "last"}
    breaches.say("backup.lost", "a", None)
    breaches.flush()
    assert database.alarms == {}


def test_a_database_that_is_away_is_asked_once_a_minute_for_what_people_ask() -> None:
    database, now = Database(), [100.0]
    asked = Asked(database.waiting, lambda: now[0])
    database.error = UnreachableError("away")
    assert [asked.now() for _ in range(3)] == [(), (), ()]
    assert database.calls == 1
    now[0], database.error = 161.0, None
    asked.now()
    asked.now()
    assert database.calls == 3
