"""An object of the archive gives back, bit for bit, the records put in; the same records are the same bytes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.archive import columns, objects
from millrace.adapters.archive.objects import WrittenObject, read_object, to_batch, write_object
from millrace.domain.archive.records import ArchivedRecord, Headers, TimestampType, digest_of
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import RefusedError
from support.checks.tiers import examples

PARTITION = TopicPartition("orders", "J8-Zq_x1T0a5mB2nC3dE4f", 7)
HEADERS: list[Headers] = [
    (),
    (("trace", None),),
    (("trace", b""),),
    (("b", b"1"), ("a", b"2"), ("b", b"1"), ("b", None)),
    tuple((f"header {number % 7}", b"%d" % number) for number in range(1000)),
    (("größe", b"\xff\x00"), ("名前", b"x"), ("\0", b""), ("🚰", None)),
    (("", b"of an empty name"), ("", None)),
]
TIMES = [-1, 0, 253_402_300_799_999, 9_300_000_000_000_000, 2**63 - 1, -(2**63)]


def record(offset: int, value: bytes | None = b"v", **fields: object) -> ArchivedRecord:
    fields = {"timestamp_ms": 10**12 + offset % 1000, "timestamp_type": TimestampType.CREATE_TIME, "key": b"k"} | fields
    return ArchivedRecord(offset=offset, value=value, **fields)  # type: ignore[arg-type]


def written(records: Iterable[ArchivedRecord], first: int = 0, next_: int = 100) -> WrittenObject:
    return write_object(OffsetRange(PARTITION, first, next_), [to_batch(records)])


CONTENTS = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        ArchivedRecord,
        offset=st.integers(0, 2**40),
        timestamp_ms=st.sampled_from(TIMES) | st.integers(-(2**63), 2**63 - 1),
        timestamp_type=st.sampled_from(TimestampType),
        key=CONTENTS,
        value=CONTENTS,
        headers=st.lists(st.tuples(st.text(max_size=5), CONTENTS), max_size=3).map(tuple),
    ),
    max_size=30,
    unique_by=lambda found: found.offset,
).map(lambda found: sorted(found, key=lambda each: each.offset))


def test_every_kind_of_record_comes_back_bit_for_bit() -> None:
    kinds = product((None, b"", b"key"), (None, b"", b"value\0"), HEADERS, TIMES, TimestampType)
    records = [
        ArchivedRecord(offset, at, kind, key, value, headers)
        for offset, (key, value, headers, at, kind) in enumerate(kinds)
    ]
    made = written(records, next_=len(records))
    assert list(read_object(made.data).records()) == records
    assert made.entry.digest == digest_of(records)
    assert (made.entry.min_timestamp_ms, made.entry.max_timestamp_ms) == (min(TIMES), max(TIMES))


@given(records=RECORDS, most=st.sampled_from([1, 100, 1000, 8 << 20]))
def test_any_records_come_back_and_the_entry_says_what_they_are(records: list[ArchivedRecord], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_GROUP_BYTES", most)
        patch.setattr(columns, "_AT_ONCE", 4)
        made = written(records, next_=2**40 + 1)
        found = read_object(made.data)
        assert list(found.records()) == records
        assert found.described() == made.entry
    assert found.range == OffsetRange(PARTITION, 0, 2**40 + 1)
    entry = made.entry
    assert (entry.partition, entry.first, entry.next, entry.count) == (7, 0, 2**40 + 1, len(records))
    assert entry.digest == digest_of(records)
    assert (entry.size_bytes, entry.sha256) == (len(made.data), hashlib.sha256(made.data).hexdigest())
    assert entry.min_timestamp_ms == min((each.timestamp_ms for each in records), default=None)
    assert entry.max_timestamp_ms == max((each.timestamp_ms for each in records), default=None)


@given(present=st.sets(st.integers(10, 40)), cut=st.integers(1, 31))
def test_holes_are_the_offsets_without_a_record(present: set[int], cut: int) -> None:
    records = [record(offset) for offset in sorted(present)]
    batches = [to_batch(records[at : at + cut]) for at in range(0, len(records), cut)]
    holes = write_object(OffsetRange(PARTITION, 10, 41), batches).entry.holes
    assert {offset for span in holes for offset in range(*span)} == set(range(10, 41)) - present
    assert all(before[1] < after[0] for before, after in pairwise(holes))


def test_ten_million_offsets_without_a_record_are_one_hole_and_a_few_bytes() -> None:
    for batches in ([], [to_batch([])], [to_batch([])] * 3):
        made = write_object(OffsetRange(PARTITION, 5, 10_000_005), batches)
        assert (made.entry.count, made.entry.holes) == (0, ((5, 10_000_005),))
        assert (made.entry.min_timestamp_ms, made.entry.max_timestamp_ms) == (None, None)
        assert made.entry.digest == digest_of([])
        assert len(made.data) < 1000
        assert list(read_object(made.data).records()) == []


def shuffled(records: list[ArchivedRecord], chance: random.Random) -> Iterator[pa.RecordBatch]:
    """The same records in batches of any length, cut out of longer ones, some with Arrow's other types for the same."""
    junk = to_batch(record(10**6 + number, b"junk" * number, headers=(("j", None),) * number) for number in range(5))
    pair = [("name", pa.large_string()), ("value", pa.large_binary())]
    other = [pa.int64(), pa.int64(), pa.int32(), pa.large_binary(), pa.binary_view(), pa.large_list(pa.struct(pair))]
    at = 0
    while at < len(records):
        part = to_batch(records[at : at + chance.choice([0, 1, 2, 50])])
        at += len(part)
        low, high = chance.randrange(5), chance.randrange(5)
        batch = pa.concat_batches([junk.slice(0, low), part, junk.slice(0, high)]).slice(low, len(part))
        if chance.random() < 0.3:
            columns = [pa.array(column.to_pylist(), kind) for column, kind in zip(batch.columns, other, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        yield batch


@pytest.mark.parametrize("most", [300, 5000, 8 << 20])
def test_the_same_records_are_the_same_bytes_however_they_come(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_GROUP_BYTES", most)
    chance = random.Random(most)
    contents = [None, b"", b"x", b"long" * 30]
    records = [
        record(2 * offset, chance.choice(contents), key=chance.choice(contents), headers=chance.choice(HEADERS[:4]))
        for offset in range(400)
    ]
    made = written(records, next_=1000)
    for _ in range(examples(10)):
        assert write_object(OffsetRange(PARTITION, 0, 1000), shuffled(records, chance)) == made


def test_bytes_that_lie_below_a_null_are_not_kept() -> None:
    records = [record(offset, key=key) for offset, key in enumerate([b"a", None, b""])]
    below = [pa.py_buffer(b"\x05"), pa.py_buffer(bytes([2, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0]))]
    odd = pa.Array.from_buffers(pa.binary(), 3, [*below, pa.py_buffer(b"..ahidden")])
    batch = to_batch(records)
    made = write_object(OffsetRange(PARTITION, 0, 100), [batch.set_column(3, batch.schema.field("key"), odd)])
    assert made == written(records)
    assert b"hidden" not in made.data


def test_large_values_come_back_and_no_reader_has_to_hold_all_of_them() -> None:
    chance = random.Random(1)
    records = [record(offset, chance.randbytes(900_000)) for offset in range(20)]
    records.append(record(20, bytes(12 << 20)))
    records += [
        record(offset, headers=(("h", chance.randbytes(3 << 20)), ("n" * 4096, None))) for offset in (21, 22, 23)
    ]
    made = written(records)
    assert list(read_object(made.data).records()) == records
    file = pq.ParquetFile(pa.BufferReader(made.data)).metadata
    groups = [file.row_group(index) for index in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [9, 9, 2, 1, 2, 1]
    assert all(group.total_byte_size < 9 << 20 for group in groups if group.num_rows > 1)


def test_the_columns_are_those_of_the_format_and_no_time_is_a_parquet_timestamp() -> None:
    file = pq.ParquetFile(pa.BufferReader(written([record(3, headers=(("a", None),))]).data))
    columns = [file.schema.column(index) for index in range(7)]
    assert [
        (column.path, column.physical_type, str(column.logical_type), column.max_definition_level) for column in columns
    ] == [
        ("offset", "INT64", "None", 0),
        ("timestamp_ms", "INT64", "None", 0),
        ("timestamp_type", "INT32", "None", 0),
        ("key", "BYTE_ARRAY", "None", 1),
        ("value", "BYTE_ARRAY", "None", 1),
        ("headers.list.element.name", "BYTE_ARRAY", "String", 1),
        ("headers.list.element.value", "BYTE_ARRAY", "None", 2),
    ]
    chunks = [file.metadata.row_group(0).column(index) for index in range(7)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    assert [chunk.is_stats_set for chunk in chunks] == [True, True, False, False, False, False, False]
    assert file.metadata.metadata == {
        b"millrace.format": b"1",
        b"millrace.topic": b"orders",
        b"millrace.topic_id": b"J8-Zq_x1T0a5mB2nC3dE4f",
        b"millrace.partition": b"7",
        b"millrace.first": b"0",
        b"millrace.next": b"100",
    }


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([[5, 6, 6]], "offset 6 comes after offset 6"),
        ([[5, 7, 6]], "offset 6 comes after offset 7"),
        ([[5, 6], [6]], "offset 6 comes after offset 6"),
        ([[5, 6], [], [5]], "offset 5 comes after offset 6"),
        ([[4, 5]], "offset 4 is outside [5, 9)"),
        ([[5], [8, 9]], "offset 9 is outside [5, 9)"),
        ([[-1]], "offset -1 is outside [5, 9)"),
        ([[2**63 - 1]], "offset 9223372036854775807 is outside [5, 9)"),
    ],
)
@pytest.mark.parametrize("most", [1, 8 << 20])
def test_offsets_that_do_not_rise_inside_the_range_are_refused(
    offsets: list[list[int]], said: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_GROUP_BYTES", most)
    batches = [to_batch(record(offset) for offset in part) for part in offsets]
    with pytest.raises(RefusedError) as refused:
        write_object(OffsetRange(PARTITION, 5, 9), batches)
    assert said in refused.value.what
    assert refused.value.where == "orders/7[5, 9)"


def test_a_type_of_timestamp_that_kafka_has_not_is_refused() -> None:
    with pytest.raises(RefusedError, match="offset 6 has a timestamp of type 2"):
        written([record(5), record(6, timestamp_type=2), record(7)])


Change = Callable[[pa.RecordBatch], pa.RecordBatch]


def put(name: str, column: pa.Array) -> Change:
    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(batch.schema.names.index(name), name, column)

    return change


def headers(value: object, *fields: tuple[str, pa.DataType]) -> Change:
    return put("headers", pa.array([value], pa.list_(pa.struct(fields))))


NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\x01\0\0\0"), pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: batch.drop_columns(["key"]), "the columns are offset, timestamp_ms, timestamp_type, value"),
        (lambda batch: batch.append_column("more", batch["key"]), "headers, more, not offset"),
        (lambda batch: batch.select([1, 0, 2, 3, 4, 5]), "the columns are timestamp_ms, offset"),
        (put("offset", pa.array([None], pa.int64())), "offset is null"),
        (put("offset", pa.array([1], pa.int32())), "offset is of type int32, not int64"),
        (put("timestamp_ms", pa.array([1], pa.timestamp("ms"))), r"timestamp_ms is of type timestamp\[ms\]"),
        (put("timestamp_ms", pa.array([None], pa.int64())), "timestamp_ms is null"),
        (put("timestamp_type", pa.array([1], pa.int64())), "timestamp_type is of type int64"),
        (put("timestamp_type", pa.nulls(1)), "timestamp_type is of type null"),
        (put("key", pa.array(["text"])), "key is of type string"),
        (put("value", pa.array([b"four"], pa.binary(4))), r"value is of type fixed_size_binary\[4\]"),
        (put("headers", pa.array([b"x"])), "headers is of type binary, not a list"),
        (put("headers", pa.array([[b"x"]])), "headers is a list of binary"),
        (headers([{"key": "a"}], ("key", pa.string()), ("value", pa.binary())), "headers is a list of struct<key"),
        (headers(None, ("name", pa.string()), ("value", pa.binary())), "headers is null"),
        (headers([None], ("name", pa.string()), ("value", pa.binary())), "headers is null in a record, or a header is"),
        (headers([{"value": b""}], ("name", pa.string()), ("value", pa.binary())), "headers.name is null"),
        (headers([{"name": "a"}], ("name", pa.string()), ("value", pa.string())), "headers.value is of type string"),
        (
            put("headers", pa.ListArray.from_arrays(
                [0, 1], pa.StructArray.from_arrays([NOT_UTF8, pa.nulls(1)], ["name", "value"])
            )),
            "the name of a header is not UTF-8",
        ),
    ],
)  # fmt: skip
def test_other_columns_are_refused_by_name(change: Change, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        write_object(OffsetRange(PARTITION, 0, 100), [change(to_batch([record(5, headers=(("a", None),))]))])


def test_columns_of_nulls_alone_may_have_arrows_type_for_that() -> None:
    batch = put("value", pa.nulls(1))(put("key", pa.nulls(1))(to_batch([record(5)])))
    found = write_object(OffsetRange(PARTITION, 0, 100), [batch])
    assert list(read_object(found.data).records()) == [record(5, None, key=None)]


@pytest.mark.parametrize(
    ("partition", "first", "next_"),
    [
        (PARTITION, 5, 5),
        (PARTITION, 0, 2**63),
        (TopicPartition("orders", "short", 7), 0, 1),
        (TopicPartition("or/ders", PARTITION.topic_id, 7), 0, 1),
        (TopicPartition("orders", PARTITION.topic_id, -1), 0, 1),
        (TopicPartition("orders", PARTITION.topic_id, 2**31), 0, 1),
    ],
)
def test_a_range_that_no_partition_has_is_refused(partition: TopicPartition, first: int, next_: int) -> None:
    with pytest.raises(RefusedError, match="cannot be written to an object"):
        write_object(OffsetRange(partition, first, next_), [])


def test_the_last_offset_there_can_be_is_kept() -> None:
    last = 2**63 - 2
    made = written([record(last - 2), record(last)], last - 3, last + 1)
    assert made.entry.holes == ((last - 3, last - 2), (last - 1, last))
    assert [each.offset for each in read_object(made.data).records()] == [last - 2, last]


def test_what_the_reading_raises_is_not_taken_for_a_bad_record() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield to_batch([record(1)])
        raise ValueError("of the reader")

    with pytest.raises(ValueError, match="of the reader"):
        write_object(OffsetRange(PARTITION, 0, 100), broken())
