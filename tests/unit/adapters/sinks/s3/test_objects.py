"""The objects of a dataset: which rows come into which one, and that the same rows are the same bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.adapters.sinks.row_sources import SOURCE_COLUMNS
from millrace.adapters.sinks.s3 import objects, output
from millrace.adapters.sinks.s3.objects import (
    TIMESTAMP,
    by_date,
    conform,
    entries_of,
    file_schema,
    read_rows,
    without_sources,
    write_object,
)
from millrace.adapters.sinks.s3.output import HELD_BYTES, ObjectsWriter, objects_of
from millrace.domain.sinks.batch import TaskResult
from millrace.domain.sinks.dataset.manifest import DataObject, Held
from millrace.domain.sinks.dataset.names import NO_DATE, Dataset
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError, DeclarationError, SinkFailedError, SinkUnreachableError
from millrace.errors import UnreachableError as Unreachable
from millrace.settings import S3Settings
from support.checks.tiers import examples
from support.fakes.objects import MemoryStore

P0 = TopicPartition("t", "id", 0)
RANGES = (OffsetRange(P0, 0, 1_000_000),)
DAY = date(2026, 5, 4)
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)

# The schema


def struct(*of: pa.DataType) -> pa.DataType:
    return pa.struct([(f"f{number}", type_) for number, type_ in enumerate(of)])


STORED = (
    pa.string(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.binary(),
    pa.decimal128(38, 18),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.list_(pa.decimal128(3, 1)),
    pa.map_(pa.string(), pa.list_(pa.timestamp("us"))),
    struct(pa.int8(), struct(pa.date32(), pa.list_(pa.binary()))),
)
NOT_STORED = (
    pa.null(),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.timestamp("ns"),
    pa.timestamp("ms", tz="UTC"),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.time64("us"),
    pa.uint8(),
    pa.float16(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.struct([]),
)


@pytest.mark.parametrize("type_", STORED, ids=str)
def test_a_column_that_parquet_has_a_type_for_comes_back_as_it_was(type_: pa.DataType) -> None:
    schema = file_schema(pa.schema([("c", type_)]), "here")
    rows = pa.Table.from_pylist([source(0)], schema=schema)
    data, _ = write_object("2026-05-04", rows)
    assert read_rows("key", data).schema.field("c").type == type_
    assert read_rows("key", data).cast(schema) == rows


def test_what_may_be_null_within_a_column_makes_no_other_type_of_it() -> None:
    """Spark derives that anew from each version of a transform."""
    inner = struct(pa.int32()).field(0).type
    strict = pa.list_(pa.field("item", pa.struct([pa.field("a", inner, nullable=False)]), nullable=False))
    loose = pa.list_(pa.field("element", pa.struct([pa.field("a", inner)])))
    assert entries_of(pa.schema([("c", strict)])) == entries_of(pa.schema([("c", loose)]))
    schema = file_schema(pa.schema([("c", strict)]), "here")
    assert schema == file_schema(pa.schema([("c", loose)]), "here")
    given = pa.schema([*(field for field in schema if field.name != "c"), pa.field("c", strict)])
    block = pa.RecordBatch.from_pylist([source(0) | {"c": [{"a": 1}]}], schema=given)
    assert conform(block, schema).column("c").to_pylist() == [[{"a": 1}]]


@pytest.mark.parametrize("type_", NOT_STORED, ids=str)
@pytest.mark.parametrize(
    "within",
    [
        lambda type_: type_,
        pa.list_,
        struct,
        lambda type_: pa.map_(pa.string(), type_),
        lambda type_: pa.list_(struct(pa.int8(), type_)),
    ],
    ids=["plain", "list", "struct", "map", "list of structs"],
)
def test_a_column_of_another_type_is_refused_also_within_another(type_: pa.DataType, within: Any) -> None:
    columns = pa.schema([("fine", pa.int32()), ("c", within(type_))])
    with pytest.raises(DeclarationError, match=r"column c is .*has no Parquet type"):
        file_schema(columns, "here")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["event_date"], "column event_date: the folders"),
        (["Event_Date"], "column Event_Date: the folders"),
        (["amount", "Amount"], "column Amount: column amount exists too"),
        (["amount", "other", "amount"], "column amount: column amount exists too"),
        (["STRASSE", "straße"], "column straße: column STRASSE exists too"),
    ],
)
def test_columns_that_some_reader_takes_for_one_are_refused(names: Sequence[str], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        file_schema(pa.schema([(name, pa.int32()) for name in names]), "here")


def test_rows_of_nothing_but_their_source_are_refused() -> None:
    with pytest.raises(DeclarationError, match="no column"):
        file_schema(pa.schema([]), "here")


# Dates


def source(offset: int, partition: int = 0, ordinal: int = 0) -> dict[str, Any]:
    place = {"_topic_id": "id", "_partition": partition, "_offset": offset, "_ordinal": ordinal}
    return place | {"_timeline": 1, "_timestamp": AT}


def block_of(days: Sequence[Any], type_: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(days))), pa.array(days, type_)], ["n", "day"])


def parts(block: pa.RecordBatch) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for day, rows in by_date(block, "day"):
        assert day not in found
        assert len(rows)
        found[day] = sorted(rows["n"].to_pylist())
    return found


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize("tz", [None, "UTC"])
@pytest.mark.parametrize(
    ("at", "day"),
    [
        (EPOCH, "1970-01-01"),
        (EPOCH - TICK, "1969-12-31"),
        (EPOCH + timedelta(days=1) - TICK, "1970-01-01"),
        (EPOCH + timedelta(days=1), "1970-01-02"),
        (EPOCH - timedelta(days=1), "1969-12-31"),
        (EPOCH - timedelta(days=1) - TICK, "1969-12-30"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01"),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "9999-12-31"),
        (datetime(2000, 2, 29, tzinfo=UTC), "2000-02-29"),
        (datetime(1900, 3, 1, tzinfo=UTC) - TICK, "1900-02-28"),
        (None, NO_DATE),
    ],
)
def test_a_moment_is_of_its_day_in_utc(at: datetime | None, day: str, tz: str | None) -> None:
    given_at = at.replace(tzinfo=None) if at is not None and tz is None else at
    type_ = pa.timestamp("us", tz=tz)
    assert parts(block_of([given_at], type_)) == {day: [0]}
    assert parts(block_of([given_at, datetime(2026, 5, 4, tzinfo=UTC).replace(tzinfo=None)], pa.timestamp("us"))) == {
        day: [0],
        "2026-05-04": [1],
    }


moments = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59, 59, 999_999))


def expected(days: Iterable[date | datetime | None]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, day in enumerate(days):
        named = NO_DATE if day is None else (day.date() if isinstance(day, datetime) else day).isoformat()
        found.setdefault(named, []).append(number)
    return found


@given(st.lists(st.none() | moments, min_size=1), st.sampled_from([None, "UTC"]))
def test_each_row_comes_into_the_part_of_its_moments_day(at: list[datetime | None], tz: str | None) -> None:
    block = block_of(at, pa.timestamp("us", tz=tz))
    assert parts(block) == expected(at)


@given(st.lists(st.none() | st.dates(), min_size=1))
def test_each_row_comes_into_the_part_of_its_date(days: list[date | None]) -> None:
    block = block_of(days, pa.date32())
    assert parts(block) == expected(days)


def test_many_dates_in_any_order_come_apart() -> None:
    days = [date(1960, 1, 1) + timedelta(days=number) for number in range(3000)] * 3
    random.Random(7).shuffle(days)
    assert parts(block_of(days, pa.date32())) == expected(days)


def test_a_part_of_a_block_is_parted_by_its_own_rows() -> None:
    block = block_of([DAY, DAY + timedelta(days=1), DAY, None], pa.date32()).slice(1, 2)
    assert parts(block) == {"2026-05-05": [1], "2026-05-04": [2]}


# Bytes

NESTED = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("cents", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("pair", struct(pa.int32(), pa.string())),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
SCHEMA = file_schema(NESTED, "here")
small = st.integers(0, 5)
contents = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=5),
        "number": st.none() | st.floats(allow_nan=False),
        "cents": st.none() | st.decimals(-100, 100, places=2),
        "raw": st.none() | st.binary(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "pair": st.none() | st.fixed_dictionaries({"f0": st.none() | small, "f1": st.none() | st.text(max_size=3)}),
        "labels": st.none() | st.lists(st.tuples(st.text(max_size=3), small), max_size=3),
    }
)
places = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=12)


@st.composite
def some_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [source(offset, number, ordinal) | draw(contents) for number, offset, ordinal in sorted(draw(places))]


def table_of(rows: Sequence[dict[str, Any]], cuts: Iterable[int] = ()) -> pa.Table:
    ends = [0, *sorted(set(cuts)), len(rows)]
    blocks = [pa.RecordBatch.from_pylist(rows[first:next_], schema=SCHEMA) for first, next_ in itertools.pairwise(ends)]
    return pa.Table.from_batches(blocks, SCHEMA)


@settings(max_examples=examples(60))
@given(some_rows(), st.randoms(use_true_random=False), st.sets(st.integers(0, 12)))
def test_the_same_rows_in_any_order_and_blocks_are_the_same_bytes(
    rows: list[dict[str, Any]], chance: random.Random, cuts: set[int]
) -> None:
    data, said = write_object("2026-05-04", table_of(rows))
    mixed = chance.sample(rows, len(rows))
    assert write_object("2026-05-04", table_of(mixed, (cut for cut in cuts if cut < len(rows)))) == (data, said)
    read = read_rows("key", data).cast(SCHEMA)
    assert read == table_of(rows)
    assert write_object("2026-05-04", read) == (data, said)  # as an overlap does that takes nothing away
    held: dict[int, list[int]] = {}
    for one in rows:
        held.setdefault(one["_partition"], []).append(one["_offset"])
    assert said.held == tuple(Held("id", at, min(of), max(of) + 1, len(of)) for at, of in sorted(held.items()))
    assert (said.size_bytes, said.rows) == (len(data), len(rows))


@pytest.mark.parametrize(
    ("count", "group"), [(250_000, 200_000), pytest.param(1_100_000, None, marks=pytest.mark.full)]
)
def test_so_are_many_rows_in_small_blocks(count: int, group: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page of them, and more than a group of rows."""
    if group:
        monkeypatch.setitem(objects._OPTIONS, "row_group_size", group)
    rows = pa.table({name: numbers(name, count) for name in SCHEMA.names[:6]}, schema=pa.schema(list(SCHEMA)[:6]))
    data, said = write_object("2026-05-04", rows)
    order = pa.array(random.Random(3).sample(range(len(rows)), len(rows)))
    mixed = pa.Table.from_batches(rows.take(order).to_batches(max_chunksize=7_777))
    assert write_object("2026-05-04", mixed) == (data, said)
    assert read_rows("key", data).num_rows == said.rows == count


def numbers(name: str, count: int) -> pa.Array:
    field = SCHEMA.field(name)
    if name == "_offset":
        return pa.array(range(count), pa.int64())
    return pa.repeat(pa.scalar(source(0)[name], field.type), count)


@pytest.mark.parametrize("cuts", [(), (1,), (2,)])
def test_two_rows_of_one_source_and_ordinal_are_refused(cuts: Sequence[int]) -> None:
    rows = [source(3), source(1, ordinal=1), source(3) | {"text": "other"}]
    with pytest.raises(DeclarationError, match=r"partition 0, offset 3 have the ordinal 0") as caught:
        write_object("2026-05-04", table_of(rows, cuts))
    assert "topic id id" in str(caught.value)
    one, two = source(3), source(3, ordinal=1)
    assert write_object("2026-05-04", table_of([two, one]))[1].rows == 2
    assert write_object("2026-05-04", table_of([source(3, 1), one, source(4)]))[1].rows == 3


def test_bytes_that_are_no_object_are_told_by_name() -> None:
    raw = random.Random(5).randbytes(10_000)
    data, _ = write_object("2026-05-04", table_of([source(0) | {"raw": raw}]))
    changed = bytearray(data)
    changed[data.index(raw[5_000:5_010])] ^= 1  # no compression finds anything in it
    for other in (b"", b"garbage", data[:-1], data[:100], bytes(changed)):
        with pytest.raises(CorruptArchiveError, match="a-key"):
            read_rows("a-key", other)


def test_rows_without_those_of_some_sources() -> None:
    rows = table_of([source(offset, number) for number in (0, 1) for offset in range(4)])
    left = without_sources(rows, {("id", 0, 1): "why", ("id", 1, 3): "why", ("other", 0, 0): "why"})
    assert [(one["_partition"], one["_offset"]) for one in left.to_pylist()] == [
        (0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip


def given_block(rows: Sequence[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    """As the app gives it: every column may be null, and some are of another type."""
    listed = [pa.field(field.name, types.get(field.name, field.type)) for field in SCHEMA]
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(listed))


def test_a_larger_type_is_taken_for_an_ordinal() -> None:
    block = given_block([source(0), source(0, ordinal=7)], _ordinal=pa.int64())
    assert conform(block, SCHEMA)["_ordinal"].to_pylist() == [0, 7]
    assert conform(block, SCHEMA).schema == SCHEMA


@pytest.mark.parametrize("name", SOURCE_COLUMNS)
def test_a_row_without_a_source_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=f"1 rows have a null in `{name}`"):
        conform(given_block([source(0), source(1) | {name: None}]), SCHEMA)


@pytest.mark.parametrize("ordinal", [1 << 31, -(1 << 31) - 1])
def test_an_ordinal_that_is_too_large_is_refused(ordinal: int) -> None:
    with pytest.raises(DeclarationError, match="`_ordinal` is no int32"):
        conform(given_block([source(0, ordinal=ordinal)], _ordinal=pa.int64()), SCHEMA)


# A task


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """What tasks write to."""
    made = MemoryStore()
    monkeypatch.setattr(output, "_store", lambda settings: made)
    return made


HERE = Dataset("here")
DATED = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us")), ("customer", pa.string())])
DATED_SCHEMA = file_schema(DATED, "here")


def writer(event_date: str = "day", held_bytes: int = HELD_BYTES, schema: pa.Schema = DATED_SCHEMA) -> ObjectsWriter:
    settings = S3Settings("key", "secret", "http://127.0.0.1:1", "eu-central-1", "bucket")
    return ObjectsWriter(settings, HERE, 1, RANGES, schema, event_date, held_bytes)


def dated(offset: int, day: date | None, *, ordinal: int = 0, customer: str = "c") -> dict[str, Any]:
    at = None if day is None else datetime(day.year, day.month, day.day)
    return source(offset, 0, ordinal) | {"day": day, "at": at, "customer": customer}


def dated_block(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    schema = pa.schema([pa.field(field.name, field.type) for field in DATED_SCHEMA if field.name != "_timeline"])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def written(result: TaskResult, store: MemoryStore) -> dict[str, list[tuple[int, int]]]:
    """The offset and ordinal of each row, by its object's date."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in objects_of(result.receipt) if result.receipt else ():
        data = store.objects[HERE.object_key(one.date, one.sha256)]
        rows = read_rows("key", data).to_pylist()
        assert len(rows) == one.rows
        assert {row["_timeline"] for row in rows} == {1}
        found.setdefault(one.date, []).extend((row["_offset"], row["_ordinal"]) for row in rows)
    return {day: sorted(rows) for day, rows in found.items()}


def beyond(block: pa.RecordBatch, row: int, column: str = "day") -> pa.RecordBatch:
    """A block of which one row has a date of the year 10000."""
    index = block.schema.get_field_index(column)
    type_ = block.schema.field(index).type
    whole = pa.int64() if pa.types.is_timestamp(type_) else pa.int32()
    values = block.column(index).cast(whole).to_pylist()
    values[row] = 2_932_897 * (86_400_000_000 if pa.types.is_timestamp(type_) else 1)
    return block.set_column(index, block.schema.field(index), pa.array(values, whole).cast(type_))


@pytest.mark.parametrize("column", ["day", "at"])
def test_rows_of_no_year_that_there_is_are_refused_with_all_of_their_source(store: MemoryStore, column: str) -> None:
    rows = [dated(0, DAY), dated(1, DAY), dated(1, DAY, ordinal=1), dated(2, None)]
    result = writer(column)(iter([beyond(dated_block(rows), 1, column), dated_block([dated(3, DAY)])]), 1)
    assert result.rows == 3
    assert result.refused == {("id", 0, 1): f"`{column}` lies outside the years 1 to 9999"}
    assert written(result, store) == {"2026-05-04": [(0, 0), (3, 0)], NO_DATE: [(2, 0)]}


FAR_US, FAR_DAY = 2_066_000_000_000_000_000, 2_932_897  # in the year 67438, which Arrow prints as 1902; 10000-01-01
UNREADABLE: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "moment": (pa.timestamp("us", tz="UTC"), pa.int64(), FAR_US),
    "moment without a zone": (pa.timestamp("us"), pa.int64(), -FAR_US),
    "date": (pa.date32(), pa.int32(), FAR_DAY),
    "text": (pa.string(), pa.binary(), b"\xff"),
    "list of texts": (pa.list_(pa.string()), pa.list_(pa.binary()), [b"fine", b"\xff"]),
    "struct of a moment": (struct(pa.timestamp("us")), struct(pa.int64()), {"f0": FAR_US}),
    "map to dates": (pa.map_(pa.int8(), pa.date32()), pa.map_(pa.int8(), pa.int32()), [(1, 0), (2, FAR_DAY)]),
    "map of texts": (pa.map_(pa.string(), pa.int8()), pa.map_(pa.binary(), pa.int8()), [(b"\xff", 1)]),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_row_that_would_make_its_object_unreadable_is_refused(store: MemoryStore, what: str) -> None:
    type_, given_as, value = UNREADABLE[what]
    column = pa.array([None, value, None], given_as).cast(type_, safe=False)
    rows = pa.RecordBatch.from_pylist([source(offset) for offset in range(3)]).append_column("odd", column)
    schema = file_schema(pa.schema([("odd", type_)]), "here")
    result = writer(TIMESTAMP, schema=schema)(iter([rows.drop_columns("_timeline")]), 1)
    assert list(result.refused) == [("id", 0, 1)]
    assert result.refused["id", 0, 1].startswith("`odd` ")
    assert written(result, store) == {"2026-05-04": [(0, 0), (2, 0)]}


def test_a_block_of_nothing_else_leaves_nothing(store: MemoryStore) -> None:
    result = writer()(iter([beyond(dated_block([dated(5, DAY)]), 0)]), 1)
    assert (result.rows, set(result.refused), result.receipt, store.objects) == (0, {("id", 0, 5)}, "", {})


def test_rows_of_a_source_that_is_refused_later_are_left_out_where_they_are_still_held(store: MemoryStore) -> None:
    blocks = [dated_block([dated(0, DAY), dated(1, DAY)]), beyond(dated_block([dated(1, DAY, ordinal=1)]), 0)]
    result = writer()(iter(blocks), 1)
    assert (result.rows, set(result.refused)) == (1, {("id", 0, 1)})
    assert written(result, store) == {"2026-05-04": [(0, 0)]}


def test_rows_of_many_dates_take_as_much_memory_as_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is counted by its size, and a row by itself takes many times that."""
    held = list[int]()

    def write(self: ObjectsWriter, blocks: list[pa.RecordBatch], refused: object) -> list[DataObject]:
        held.append(pa.total_allocated_bytes() - before)
        return []

    monkeypatch.setattr(ObjectsWriter, "_write", write)
    for dates in (1, 1000):
        days = [DAY + timedelta(days=at % dates) for at in range(1000)]
        given = dated_block([dated(at, day) for at, day in enumerate(days)])
        before = pa.total_allocated_bytes()
        writer()(iter([given] * 20), 1)
    few, many = held
    assert many < 1.5 * few


def test_a_task_without_rows_asks_no_store() -> None:
    assert writer()(iter([]), 1) == TaskResult()
    assert writer()(iter([dated_block([])]), 1) == TaskResult()


def test_a_task_tells_that_its_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MemoryStore):
        def create(self, key: str, data: bytes) -> Any:
            raise Unreachable("no answer", where="there", next_step="wait")

    class Refusing(MemoryStore):
        def create(self, key: str, data: bytes) -> Any:
            raise CorruptArchiveError("no", where="there", next_step="look")

    for store, error in ((Silent(), SinkUnreachableError), (Refusing(), SinkFailedError)):
        monkeypatch.setattr(output, "_store", lambda settings, store=store: store)
        with pytest.raises(error):
            writer()(iter([dated_block([dated(0, DAY)])]), 1)


@pytest.mark.parametrize("offsets", [[1_000_000], [0, 1_000_000]])
def test_rows_of_another_batch_are_refused_before_they_are_written(store: MemoryStore, offsets: list[int]) -> None:
    with pytest.raises(DeclarationError, match=r"offsets .* to 1000000"):
        writer()(iter([dated_block([dated(offset, DAY) for offset in offsets])]), 1)
    assert store.objects == {}


days_of_rows = st.lists(st.none() | st.dates(DAY, DAY + timedelta(days=3)), max_size=30)


@given(days_of_rows, st.integers(1, 7), st.integers(0, 400))
def test_each_row_is_written_once_under_its_date_however_little_is_held(
    days: list[date | None], in_a_block: int, held_bytes: int
) -> None:
    rows = [dated(offset, day, customer=f"c{offset}" * 5) for offset, day in enumerate(days)]
    blocks = [dated_block(rows[at : at + in_a_block]) for at in range(0, len(rows), in_a_block)]
    store = MemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_store", lambda settings: store)
        result = writer(held_bytes=held_bytes)(iter(blocks), 1)
    assert result.rows == len(rows)
    found = {(day, offset) for day, there in written(result, store).items() for offset, _ in there}
    assert found == {(NO_DATE if day is None else day.isoformat(), offset) for offset, day in enumerate(days)}


def test_a_task_that_may_hold_little_writes_objects_in_between(store: MemoryStore) -> None:
    blocks = [dated_block([dated(10 * at + n, DAY) for n in range(10)]) for at in range(6)]
    seen = []

    def one_after_another() -> Any:
        for block in blocks:
            seen.append(len(store.objects))
            yield block

    result = writer(held_bytes=2 * blocks[0].nbytes)(one_after_another(), 1)
    assert seen[-1] > 0
    assert len(store.objects) > 1
    assert written(result, store) == {"2026-05-04": [(offset, 0) for offset in range(60)]}


def test_a_date_comes_from_the_record_where_no_column_is_named(store: MemoryStore) -> None:
    rows = [dated(0, DAY), dated(1, None) | {TIMESTAMP: None}, dated(2, None) | {TIMESTAMP: AT - timedelta(days=1)}]
    result = writer(TIMESTAMP)(iter([dated_block(rows)]), 1)
    assert written(result, store) == {"2026-05-04": [(0, 0)], NO_DATE: [(1, 0)], "2026-05-03": [(2, 0)]}


def test_others_read_the_folders_as_a_table_of_dates(store: MemoryStore, tmp_path: Path) -> None:
    """The folders as Hive names them, without a word to the reader but that."""
    days = [DAY, DAY + timedelta(days=1), None, DAY]
    result = writer()(iter([dated_block([dated(offset, day) for offset, day in enumerate(days)])]), 1)
    for key, data in store.objects.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    folders = ds.partitioning(pa.schema([("event_date", pa.date32())]), flavor="hive")
    table = ds.dataset(tmp_path / HERE.data, format="parquet", partitioning=folders).to_table().sort_by("_offset")
    assert table["event_date"].to_pylist() == table["day"].to_pylist() == days
    assert table["_offset"].to_pylist() == [0, 1, 2, 3]
    assert result.rows == len(table)
    only = ds.dataset(tmp_path / HERE.data, format="parquet", partitioning=folders)
    assert only.to_table(filter=ds.field("event_date") == DAY)["_offset"].to_pylist() == [0, 3]


def test_what_a_task_says_is_read_as_it_was_said() -> None:
    data, said = write_object(NO_DATE, table_of([source(0) | {"cents": Decimal("1.50")}]))
    assert isinstance(said, DataObject)
    receipt = output.msgspec.json.encode([said]).decode()
    assert objects_of(receipt) == (said,)
    assert said.size_bytes == len(data)
