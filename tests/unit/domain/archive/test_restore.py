"""What a restore decides by itself: marks, placement, whether what lies there is its own, and whether it is all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_pythons

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord, TimestampType, content_hash
from millrace.domain.archive.restore.records import (
    MARKS,
    Marker,
    Placement,
    Tally,
    content_of,
    differences,
    is_restored,
    murmur2,
    place,
    selection_id,
)
from millrace.domain.archive.selection import Selection
from millrace.domain.topics.sources import TopicRecord

HERE = Incarnation("shop.purchases", "C" * 22)
TEXTS = st.none() | st.binary(max_size=9)
HEADERS = st.lists(st.tuples(st.text(max_size=5) | st.sampled_from(MARKS), TEXTS), max_size=9).map(tuple)
RECORDS = st.builds(
    ArchivedRecord,
    st.integers(0, (1 << 63) - 2),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(TimestampType),
    TEXTS,
    TEXTS,
    HEADERS,
)


def written(marker: Marker, partition: int, record: ArchivedRecord, lane: int = 0) -> TopicRecord:
    """The record as a reader of the target gets it."""
    at = None if record.timestamp_ms == -1 else record.timestamp_ms
    return TopicRecord(lane, 0, record.key, record.value, marker.marked(partition, record), at)


@given(st.integers(0, 1 << 31), RECORDS)
def test_a_marked_record_is_known_again_and_has_the_content_it_had(partition: int, record: ArchivedRecord) -> None:
    marker = Marker(HERE, "abc")
    found = written(marker, partition, record)
    assert marker.place_of(found.headers) == (partition, record.offset)
    assert found.headers[: len(record.headers)] == record.headers
    assert content_of(found) == content_hash(record.timestamp_ms, record.key, record.value, record.headers)
    assert is_restored(found.headers)


@given(RECORDS)
def test_a_record_of_another_restore_is_not_taken_for_an_own_one(record: ArchivedRecord) -> None:
    found = written(Marker(HERE, "abc"), 0, record)
    for other in (
        Marker(HERE, "abd"),
        Marker(Incarnation(HERE.topic, "D" * 22), "abc"),
        Marker(Incarnation("other", HERE.topic_id), "abc"),
    ):
        assert other.place_of(found.headers) is None
    assert Marker(HERE, "abc").place_of(record.headers) is None


def test_marks_that_something_follows_or_that_say_no_number_are_none() -> None:
    marker, record = Marker(HERE, "abc"), ArchivedRecord(7, 1, TimestampType.CREATE_TIME, None, None)
    marks = marker.marked(0, record)
    assert marker.place_of((*marks, ("more", None))) is None
    for at, wrong in ((2, b"x"), (3, None), (3, b"-1"), (3, b""), (3, b"9" * 20), (3, b"9" * 5_000)):
        assert marker.place_of((*marks[:at], (MARKS[at], wrong), *marks[at + 1 :])) is None
    assert marker.place_of(marks[1:]) is None


@given(st.binary(max_size=40))
def test_murmur2_is_that_of_kafka(data: bytes) -> None:
    assert murmur2(data) == kafka_pythons(data) & 0xFFFFFFFF


def test_keys_decide_only_where_that_is_asked_for() -> None:
    assert [place(each, 5, b"4711", 3) for each in (Placement.SAME, Placement.KEEP)] == [5, 5]
    assert place(Placement.KEY, 5, b"4711", 3) == (kafka_pythons(b"4711") & 0x7FFFFFFF) % 3
    assert place(Placement.KEY, 5, None, 3) == 2
    assert place(Placement.KEY, 5, b"", 1) == 0


SELECTIONS = (
    Selection(),
    Selection(0),
    Selection(0, 1),
    Selection(0, 0, 1),
    Selection(from_ms=0),
    Selection(to_ms=0),
    Selection(key=b""),
    Selection(key=b"a"),
)


def test_what_is_written_otherwise_has_another_name() -> None:
    names = [selection_id(each, placement, 3) for each in SELECTIONS for placement in (Placement.SAME, Placement.KEY)]
    names.append(selection_id(Selection(), Placement.KEY, 4))
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {16}
    same = {selection_id(Selection(), each, count) for each in (Placement.SAME, Placement.KEEP) for count in (3, 4)}
    assert len(same) == 1  # the same records in the same places, in however large a topic


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 99), st.binary(max_size=3)), max_size=30, unique_by=lambda r: r[:2]
)


def tally(rows: list[tuple[int, int, bytes]]) -> Tally:
    found = Tally()
    for partition, offset, value in rows:
        found.add(partition, offset, content_hash(offset, None, value, ()))
    return found


@given(ROWS)
def test_the_same_records_do_not_differ(rows: list[tuple[int, int, bytes]]) -> None:
    rows.sort()
    assert list(differences(tally(rows), tally(rows))) == []
    assert tally(rows).records == len(rows)


@given(ROWS.filter(bool), st.data())
def test_one_record_less_more_changed_or_out_of_order_is_told(
    rows: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    rows.sort()
    at = data.draw(st.integers(0, len(rows) - 1))
    partition, offset, value = rows[at]
    less = [*rows[:at], *rows[at + 1 :]]
    for spoilt in (less, [*rows, rows[at]], [*less, (partition, offset, value + b"!")]):
        (told,) = {line.split(" ")[2] for line in differences(tally(rows), tally(sorted(spoilt)))}
        assert told == str(partition)
    turned = rows[::-1]
    falls = any(one[0] == other[0] for one, other in pairwise(rows))
    assert any("out of order" in line for line in differences(tally(rows), tally(turned))) == falls


def test_partitions_that_share_a_log_are_in_order_each_by_itself() -> None:
    found = Tally()
    for lane, partition, offset in ((0, 0, 5), (0, 1, 3), (1, 0, 4), (0, 1, 4), (0, 0, 6)):
        found.add(partition, offset, b"", lane)
    assert [each.misplaced for each in found.partitions.values()] == [0, 0]
    found.add(0, 6, b"", 0)
    assert found.partitions[0].misplaced == 1
    assert (found.last(0), found.last(1), found.last(2)) == (6, 4, -1)


@pytest.mark.parametrize("at", [-1, 0, 1])
def test_the_content_of_a_record_depends_on_its_timestamp(at: int) -> None:
    record = ArchivedRecord(0, at, TimestampType.CREATE_TIME, b"k", b"v")
    marker = Marker(HERE, "abc")
    others = {content_of(written(marker, 0, replace(record, timestamp_ms=other))) for other in {-1, 0, 1} - {at}}
    assert content_of(written(marker, 0, record)) not in others
