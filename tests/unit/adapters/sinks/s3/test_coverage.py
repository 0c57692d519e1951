"""Which rows of a dataset count, against the rule told row by row; and the same in SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.sinks.s3.objects import without
from millrace.domain.sinks.dataset.coverage import Coverage, Covered
from millrace.domain.sinks.dataset.manifest import DataObject, Held
from millrace.domain.sinks.dataset.snapshot import DataFile
from millrace.domain.topics.offsets import TopicPartition

SHA = "a" * 64
MOST_OFFSETS = 12
PLACES = (("id-one", 0), ("id-one", 1), ("id_two", 0))
Done = Mapping[int, Mapping[TopicPartition, tuple[int, int]]]
SCHEMA = pa.schema([("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])

ranges = st.tuples(st.integers(0, MOST_OFFSETS), st.integers(0, MOST_OFFSETS)).map(lambda two: (min(two), max(two)))
partitions = st.sampled_from([TopicPartition("t", *place) for place in PLACES])
timelines = st.dictionaries(st.integers(1, 5), st.dictionaries(partitions, ranges, min_size=1), max_size=5)
rows = st.sets(st.tuples(st.sampled_from(PLACES), st.integers(0, MOST_OFFSETS - 1)), min_size=1)
Rows = set[tuple[tuple[str, int], int]]


def object_of(given_rows: Rows) -> DataObject:
    held = []
    for place in sorted({place for place, _ in given_rows}):
        offsets = [offset for at, offset in given_rows if at == place]
        held.append(Held(*place, min(offsets), max(offsets) + 1, len(offsets)))
    return DataObject("2026-05-04", SHA, 1, tuple(held))


def counts(done: Done, timeline: int, place: tuple[str, int], offset: int) -> bool:
    """The rule itself: a row counts until a newer timeline has done its offset."""
    return not any(
        newer > timeline and first <= offset < next_
        for newer, there in done.items()
        for partition, (first, next_) in there.items()
        if (partition.topic_id, partition.partition) == place
    )


def listed(table: pa.Table) -> Rows:
    return {((one["_topic_id"], one["_partition"]), one["_offset"]) for one in table.to_pylist()}


def table_of(given_rows: Rows) -> pa.Table:
    flat = [{"_topic_id": id_, "_partition": number, "_offset": offset} for (id_, number), offset in sorted(given_rows)]
    return pa.Table.from_pylist(flat, schema=SCHEMA)


def selected(given_rows: Rows, file: DataFile) -> Rows:
    """What a database selects by the condition."""
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE given (_topic_id TEXT, _partition INT, _offset INT)")
        flat = [(*place, offset) for place, offset in given_rows]
        database.executemany("INSERT INTO given VALUES (?, ?, ?)", flat)
        asked = "SELECT * FROM given" + (f" WHERE {file.where}" if file.where else "")
        return {((id_, number), offset) for id_, number, offset in database.execute(asked)}


@given(timelines, st.integers(1, 5), rows)
def test_a_row_counts_until_a_newer_timeline_has_done_its_offset(done: Done, timeline: int, given_rows: Rows) -> None:
    one = object_of(given_rows)
    rest = Coverage(done).rest(timeline, one)
    expected = {(place, offset) for place, offset in given_rows if counts(done, timeline, place, offset)}
    if rest is None:
        assert expected == set()
        return
    assert listed(without(table_of(given_rows), rest)) == expected
    assert selected(given_rows, DataFile("key", timeline, one, rest)) == expected


@given(timelines, st.integers(1, 5), rows)
def test_an_object_goes_where_each_offset_that_it_spans_is_done_again(
    done: Done, timeline: int, given_rows: Rows
) -> None:
    one = object_of(given_rows)
    spanned = [((held.topic_id, held.partition), at) for held in one.held for at in range(held.first, held.next)]
    gone = not any(counts(done, timeline, *each) for each in spanned)
    assert (Coverage(done).rest(timeline, one) is None) is gone


@given(timelines, st.integers(1, 5), rows)
def test_what_is_covered_lies_within_the_object_once(done: Done, timeline: int, given_rows: Rows) -> None:
    one = object_of(given_rows)
    within = {(held.topic_id, held.partition): held for held in one.held}
    seen: Rows = set()
    for covered in Coverage(done).rest(timeline, one) or ():
        held = within[covered.topic_id, covered.partition]
        assert held.first <= covered.first < covered.next <= held.next
        offsets: Rows = {((covered.topic_id, covered.partition), at) for at in range(covered.first, covered.next)}
        assert not offsets & seen
        seen |= offsets


def test_what_a_newer_timeline_has_only_begun_covers_nothing() -> None:
    one = object_of({(PLACES[0], offset) for offset in range(4)})
    begun = {1: {TopicPartition("t", *PLACES[0]): (0, 4)}, 2: {TopicPartition("t", *PLACES[0]): (1, 1)}}
    assert Coverage(begun).rest(1, one) == ()


def test_what_newer_timelines_have_done_side_by_side_is_covered_as_one() -> None:
    at = TopicPartition("t", *PLACES[0])
    one = object_of({(PLACES[0], offset) for offset in range(10)})
    done = {1: {at: (0, 10)}, 2: {at: (2, 4)}, 3: {at: (4, 6)}, 5: {at: (8, 12)}}
    assert Coverage(done).rest(1, one) == (Covered(*PLACES[0], 2, 6), Covered(*PLACES[0], 8, 10))
    assert Coverage(done).rest(2, one) == (Covered(*PLACES[0], 4, 6), Covered(*PLACES[0], 8, 10))
    assert Coverage(done).rest(5, one) == ()


def test_rows_of_which_all_count_need_no_condition() -> None:
    assert DataFile("key", 1, object_of({(PLACES[0], 0)})).where == ""
