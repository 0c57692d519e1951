"""What of a sink is Kafka's own, on a real broker: records, refusals, the group as record of work, what lies aside.

What every sink promises: `test_promises`. What is decided of the group's commits: `test_kafka_record`.
"""

from __future__ import annotations

import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.aside import Aside
from millrace.adapters.sinks.kafka import output as kafka_output
from millrace.adapters.sinks.kafka.output import RowsProducer
from millrace.adapters.sinks.postgres.staging import Staging
from millrace.adapters.sinks.value_types import arrow_type
from millrace.domain.declaration.pipeline import Column, ColumnType, Key, Topic, ValueFormat, ValueSchema
from millrace.domain.sinks.batch import TaskResult, Written
from millrace.domain.sinks.origin import EPOCH, HEADERS, ORDINAL, SOURCE, STREAM, TIMELINE, Origin
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.changes import NewTopic
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import cache_folder
from millrace.embedded.stack import Stack
from millrace.errors import (
    DeclarationError,
    FencedError,
    SinkFailedError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.reader import Deduplicator
from millrace.runtime.formats.json.decoder import Decoder
from millrace.settings import KafkaSettings
from support.sinks.kafka_world import PARTITIONS, VALUE, KafkaWorld
from support.sinks.worlds import (
    ANYWHERE,
    COLUMNS,
    P0,
    P1,
    TOPIC,
    TOPIC_ID,
    Row,
    Writer,
    at_second,
    row,
    row_block,
    rows,
)
from support.stack.brokers import NODES, three_brokers
from support.waiting import Deadline, eventually, in_time, result_of

METADATA = ("_timestamp", "_deleted")
MakeWorld = Callable[..., KafkaWorld]
BYTES = ValueSchema(ValueFormat.BYTES, ())
PAIR = pa.schema([("key", pa.binary()), ("value", pa.binary())])
NAMED = pa.schema([*COLUMNS, ("topic", pa.string())])
QUIET_SECONDS = 3.0


@pytest.fixture
def make(kafka: Stack, postgres: Stack, name: str) -> MakeWorld:
    """Makes the test's worlds; `topics` are given the name of each."""
    made = list[KafkaWorld]()

    def world(topics: Callable[[str], Sequence[Topic]] = lambda own: (), **more: Any) -> KafkaWorld:
        own = f"{name}w{len(made)}"
        made.append(KafkaWorld(kafka, own, topics(own), **more))
        return made[-1]

    return world


@pytest.fixture
def world(make: MakeWorld) -> KafkaWorld:
    return make()


def a_topic(more: str = "out", *, key: str | None = "customer", value: ValueSchema = VALUE) -> Callable[[str], Topic]:
    return lambda own: Topic(f"{own}.{more}", own, key=None if key is None else Key(key), value=value)


def one(**more: Any) -> Callable[[str], Sequence[Topic]]:
    return lambda own: (a_topic(**more)(own),)


def two(own: str) -> Sequence[Topic]:
    return a_topic("a")(own), a_topic("b")(own)


def block(columns: pa.Schema, listed: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of partition 0, offset by offset, but for what they say themselves."""
    given = [
        {
            "_topic_id": TOPIC_ID,
            "_partition": 0,
            "_offset": offset,
            "_ordinal": 0,
            "_timestamp": at_second(offset),
            "_deleted": False,
            **said,
        }
        for offset, said in enumerate(listed)
    ]
    first = [one for one in row_block([], METADATA).schema if one.name.startswith("_")]
    return pa.RecordBatch.from_pylist(given, schema=pa.schema([*first, *columns]))


def customers(*listed: Mapping[str, Any], columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    """Rows that say a customer, `c`, and an amount, 1, but for what they say themselves."""
    return block(columns, [{"customer": "c", "amount": Decimal(1), **said} for said in listed])


def put(sink: Any, *blocks: pa.RecordBatch, timeline: int = 1, ranges: Sequence[OffsetRange] = ANYWHERE) -> TaskResult:
    """What one task reports."""
    brought: RowsProducer = pickle.loads(cloudpickle.dumps(sink.rows_writer(timeline, ranges)))
    return brought(iter(blocks), 1)


def places(records: Sequence[TopicRecord]) -> list[tuple[int, int, int]]:
    """Partition, offset and ordinal of where each record came from."""
    return [(*origin.source[1:], origin.ordinal) for origin in map(origin_of, records)]


def origin_of(record: TopicRecord) -> Origin:
    found = Origin.of(record.headers)
    assert found is not None
    return found


def begin(world: KafkaWorld, epoch: int) -> tuple[Any, WorkRecord]:
    """A sink of a life that has just taken over, and what it reads."""
    sink = world.sink(epoch)
    sink.take_over()
    return sink, sink.read_record()


# Records

EVERY = (
    Column("id", ColumnType.STRING, required=True),
    Column("text", ColumnType.STRING),
    Column("flag", ColumnType.BOOLEAN),
    Column("tiny", ColumnType.TINYINT),
    Column("small", ColumnType.SMALLINT),
    Column("whole", ColumnType.INT),
    Column("big", ColumnType.BIGINT),
    Column("real", ColumnType.FLOAT),
    Column("exact", ColumnType.DOUBLE),
    Column("money", ColumnType.DECIMAL, precision=38, scale=10),
    Column("units", ColumnType.DECIMAL, precision=38, scale=0),
    Column("day", ColumnType.DATE),
    Column("moment", ColumnType.TIMESTAMP),
)
EVERY_TYPE = pa.schema([(column.name, arrow_type(column)) for column in EVERY])
LEAST: Mapping[str, Any] = {
    "id": "least",
    "text": "",
    "flag": False,
    "tiny": -(2**7),
    "small": -(2**15),
    "whole": -(2**31),
    "big": -(2**63),
    "real": -3.4028234663852886e38,
    "exact": -1.7976931348623157e308,
    "money": Decimal("-9999999999999999999999999999.9999999999"),
    "units": Decimal("-" + "9" * 38),
    "day": date(1, 1, 1),
    "moment": datetime(1, 1, 1, tzinfo=UTC),
}
MOST: Mapping[str, Any] = {
    "id": 'ß "quoted" \\ \n\t \u2028 日本 😀',
    "text": "\x01\x7f\ud7ff\uffff\U0010ffff",
    "flag": True,
    "tiny": 2**7 - 1,
    "small": 2**15 - 1,
    "whole": 2**31 - 1,
    "big": 2**63 - 1,
    "real": 1.401298464324817e-45,
    "exact": 5e-324,
    "money": Decimal("0.0000000001"),
    "units": Decimal("9" * 38),
    "day": date(9999, 12, 31),
    "moment": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
}
USUAL: Mapping[str, Any] = {
    "id": "usual",
    "real": 0.1,
    "exact": 0.1,
    "money": Decimal("0E-10"),
    "units": Decimal(0),
    "day": date(1969, 12, 31),
    "moment": datetime(2026, 11, 26, 12, 0, 0, 1, tzinfo=UTC),
}


def test_every_type_is_read_back_exactly_by_our_own_decoder(make: MakeWorld) -> None:
    schema = ValueSchema(ValueFormat.JSON, EVERY)
    world = make(one(key="id", value=schema))
    writer = Writer(world, 1).ready(EVERY_TYPE)
    given = block(EVERY_TYPE, [LEAST, MOST, USUAL, {"id": "nothing else"}])
    assert put(writer.sink, given) == TaskResult(4)
    records = sorted(world.records(), key=lambda record: origin_of(record).source)
    assert [record.key for record in records] == [text.encode() for text in given.column("id").to_pylist()]
    read = Decoder(schema, key_required=True).decode(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_ms for record in records],
    )
    assert read.errors == [None] * 4
    assert read.truncated == [False] * 4
    for column, came in zip(EVERY, read.columns, strict=True):
        assert came.equals(given.column(column.name)), column.name


def test_a_record_has_five_headers_and_its_sources_own_time(world: KafkaWorld) -> None:
    writer = Writer(world, 3).ready()
    moment = at_second(0) + timedelta(milliseconds=7, microseconds=999)
    rest = {"_partition": 1, "_offset": 5, "_ordinal": 2}
    assert put(writer.sink, customers({"_timestamp": moment, **rest}), timeline=4).rows == 1
    (record,) = world.records()
    said = [(STREAM, world.stream), (SOURCE, f"{TOPIC_ID}/1/5"), (ORDINAL, "2"), (TIMELINE, "4"), (EPOCH, "3")]
    assert list(record.headers) == [(header, text.encode()) for header, text in said]
    assert tuple(header for header, _ in record.headers) == HEADERS
    assert origin_of(record) == Origin(world.stream, (TOPIC_ID, 1, 5), 2, 4, 3)
    assert record.timestamp_ms == int(at_second(0).timestamp() * 1000) + 7
    assert record.key == b"c"
    assert record.value == b'{"customer":"c","amount":1.00}'


@pytest.mark.parametrize(
    ("column", "given", "key"),
    [
        (Column("id", ColumnType.BIGINT), -12, b"-12"),
        (Column("id", ColumnType.DECIMAL, precision=5, scale=2), Decimal("1.5"), b"1.50"),
        (Column("id", ColumnType.DATE), date(2026, 2, 3), b"2026-02-03"),
        (Column("id", ColumnType.STRING), "ü", "ü".encode()),
        (Column("id", ColumnType.STRING), "", b""),
    ],
)
def test_a_key_is_its_columns_text(make: MakeWorld, column: Column, given: Any, key: bytes) -> None:
    world = make(one(key="id", value=ValueSchema(ValueFormat.JSON, (column,))))
    columns = pa.schema([("id", arrow_type(column))])
    writer = Writer(world, 1).ready(columns)
    for _ in range(2):
        assert put(writer.sink, block(columns, [{"id": given}])).rows == 1
    first, second = world.records()
    assert (first.key, second.key) == (key, key)
    assert first.partition == second.partition


def test_a_topic_of_bytes_is_given_the_bytes_themselves(make: MakeWorld) -> None:
    world = make(one(key=None, value=BYTES))
    writer = Writer(world, 1).ready(PAIR)
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"\x00\xff", b"\xfe\x00"),
        (b"", b""),
        (b"k", None),
        (None, b"v"),
        (None, None),
    ]
    assert put(writer.sink, block(PAIR, [{"key": key, "value": value} for key, value in pairs])).rows == len(pairs)
    records = sorted(world.records(), key=lambda record: origin_of(record).source)
    assert [(record.key, record.value) for record in records] == pairs


@pytest.mark.parametrize("columns", [COLUMNS, PAIR], ids=["json", "bytes"])
def test_a_row_that_says_so_is_a_tombstone_of_its_key(make: MakeWorld, columns: pa.Schema) -> None:
    """Whatever else it says, a NOT NULL column without a value included."""
    world = make(one() if columns is COLUMNS else one(key=None, value=BYTES))
    writer = Writer(world, 1).ready(columns)
    said: dict[str, Any] = {"customer": "c"} if columns is COLUMNS else {"key": b"c", "value": b"v"}
    assert put(writer.sink, block(columns, [{**said, "_deleted": True}])).rows == 1
    (record,) = world.records()
    assert (record.key, record.value) == (b"c", None)
    assert origin_of(record).source == (TOPIC_ID, 0, 0)


def test_a_tombstone_asks_only_for_the_key(make: MakeWorld) -> None:
    value = ValueSchema(ValueFormat.JSON, (*VALUE.columns, Column("needed", ColumnType.DOUBLE, required=True)))
    columns = pa.schema([*COLUMNS, ("needed", pa.float64())])
    world = make(one(value=value))
    writer = Writer(world, 1).ready(columns)
    given = block(
        columns, [{"customer": "c", "_deleted": True}, {"customer": "c", "needed": float("nan"), "_deleted": True}]
    )
    assert put(writer.sink, given) == TaskResult(2)
    assert [record.value for record in world.records()] == [None, None]


# Where a row goes


def test_rows_go_where_they_say_in_the_order_of_their_source(make: MakeWorld) -> None:
    world = make(two, by_column=True)
    writer = Writer(world, 1).ready(NAMED)
    chance = random.Random(20261126)
    names = [topic.name for topic in world.topics]
    listed = [
        {"_partition": number, "_offset": offset, "_ordinal": ordinal, "topic": chance.choice(names)}
        | {"customer": f"c{chance.randrange(7)}"}
        for offset in range(60)
        for number in (0, 1)
        for ordinal in range(chance.randrange(3))
    ]
    blocks = [customers(*listed[first : first + 25], columns=NAMED) for first in range(0, len(listed), 25)]
    assert put(writer.sink, *blocks).rows == len(listed)
    held = Counter[tuple[str, int, int, int]]()
    for topic in names:
        records = world.records(topic)
        held.update((topic, *place) for place in places(records))
        for number in range(PARTITIONS):
            for source in (0, 1):
                came = [place for place in places([r for r in records if r.partition == number]) if place[0] == source]
                assert came == sorted(came)
        partitions = {(record.key, record.partition) for record in records}
        assert len(partitions) == len({record.key for record in records})
        assert all(b'"topic"' not in (record.value or b"") for record in records)
    assert held == Counter((said["topic"], said["_partition"], said["_offset"], said["_ordinal"]) for said in listed)


def test_without_keys_a_partition_follows_its_source_and_the_same_in_every_try(make: MakeWorld) -> None:
    world = make(one(key=None))
    writer = Writer(world, 1).ready()
    sources = range(7)
    ranges = [OffsetRange(TopicPartition(TOPIC, TOPIC_ID, number), 0, 20) for number in sources]
    for _ in range(2):
        given = customers(*({"_partition": number, "_offset": offset} for offset in range(20) for number in sources))
        assert put(writer.sink, given, ranges=ranges).rows == 140
    records = world.records()
    assert len(records) == 280
    for record in records:
        assert record.key is None
        assert record.partition == origin_of(record).source[1] % PARTITIONS
    for number in sources:
        came = [place[1] for place in places(records) if place[0] == number]
        assert came == [*range(20), *range(20)]


# Twice, and again


def twice(world: KafkaWorld) -> None:
    """A batch that was written and not committed comes again: it is there twice, and once for who reads with us."""
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 4), 0, 4)
    writer.write(rows(4, 9))
    writer.batch(rows(4, 9), 4, 9)
    writer.batch(rows(9, 12), 9, 12)
    expected = Counter((1, replace(written)) for written in rows(0, 12))
    assert Counter(world.written()) - expected == Counter((1, written) for written in rows(4, 9))
    assert world.contents() == expected


def again(world: KafkaWorld) -> None:
    """What a rewind writes again is new to who reads with us."""
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 6), 0, 6)
    writer.open(2, {P0: 2, P1: 0})
    writer.batch(rows(2, 6, amount=100), 2, 6, timeline=2)
    expected = Counter((1, written) for written in rows(0, 6)) + Counter((2, w) for w in rows(2, 6, amount=100))
    assert world.contents() == expected


def test_a_batch_that_comes_twice_is_the_only_one_that_is_there_twice(world: KafkaWorld) -> None:
    twice(world)


def test_a_rewind_passes_the_reader(world: KafkaWorld) -> None:
    again(world)


def test_of_a_try_that_wrote_in_part_the_reader_takes_each_row_once(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.write(rows(0, 3), [row(offset, partition=1) for offset in range(5)])
    other = [row(offset, partition=1) for offset in range(5)]
    writer.write(rows(0, 5), other)
    assert world.contents() == Counter((1, written) for written in (*rows(0, 5), *other))


# Refused rows

OUT = one()


@dataclass(frozen=True)
class Refused:
    """A row that is refused: what it says, why, and what of."""

    said: Mapping[str, Any]
    why: str
    topics: Callable[[str], Sequence[Topic]] = OUT
    columns: pa.Schema = COLUMNS
    good: Mapping[str, Any] | None = None
    settings: Mapping[str, str] | None = None
    by_column: bool = False


FLOATS = ValueSchema(ValueFormat.JSON, (Column("customer", ColumnType.STRING), Column("real", ColumnType.FLOAT)))
WITH_REAL = pa.schema([("customer", pa.string()), ("real", pa.float32())])
TIMES = ValueSchema(
    ValueFormat.JSON,
    (Column("customer", ColumnType.STRING), Column("day", ColumnType.DATE), Column("moment", ColumnType.TIMESTAMP)),
)
SMALL = {"max.message.bytes": "2000"}
REFUSED: dict[str, Refused] = {
    "a required column is null": Refused(
        {"needed": None},
        r"declares `needed` as NOT NULL, and the row has none",
        one(value=ValueSchema(ValueFormat.JSON, (*VALUE.columns, Column("needed", ColumnType.INT, required=True)))),
        pa.schema([*COLUMNS, ("needed", pa.int32())]),
        {"customer": "c", "needed": 1},
    ),
    "the key is null": Refused({"customer": None}, r"wants a key, and the row has none"),
    "the key is null, in a compacted topic of bytes": Refused(
        {"key": None},
        r"wants a key, and the row has none",
        one(key=None, value=BYTES),
        PAIR,
        {"key": b"k", "value": b"v"},
        {"cleanup.policy": "compact"},
    ),
    "a tombstone without a key": Refused(
        {"key": None, "_deleted": True},
        r"wants a key, and the row has none",
        one(key=None, value=BYTES),
        PAIR,
        {"key": b"k", "value": b"v"},
    ),
    "a topic that is not declared for it": Refused(
        {"topic": "elsewhere"},
        r"names the topic elsewhere, which is not declared for it",
        two,
        NAMED,
        {"customer": "c", "topic": "a"},
        by_column=True,
    ),
    "no topic": Refused(
        {"topic": None}, r"the row names no topic", two, NAMED, {"customer": "c", "topic": "a"}, by_column=True
    ),
    "whether it deletes is null": Refused({"_deleted": None}, r"the column `_deleted` is null"),
    "not a number": Refused(
        {"real": float("nan")}, r"knows no number nan for `real`", one(value=FLOATS), WITH_REAL, {"customer": "c"}
    ),
    "infinite": Refused(
        {"real": float("-inf")}, r"knows no number -inf for `real`", one(value=FLOATS), WITH_REAL, {"customer": "c"}
    ),
    "too large": Refused(
        {"customer": "c" * 1000}, r"the record is larger than the 1\d\d\d bytes that the topic", settings=SMALL
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_row_that_no_topic_takes_is_named_and_its_record_is_not_written(make: MakeWorld, what: str) -> None:
    case = REFUSED[what]
    world = make(case.topics, by_column=case.by_column, settings=case.settings or {})
    names = {topic.name.rpartition(".")[2]: topic.name for topic in world.topics}
    writer = Writer(world, 1).ready(case.columns)

    def of(said: Mapping[str, Any], offset: int, ordinal: int, topic: str = "a") -> dict[str, Any]:
        base = dict(case.good or {"customer": "c"})
        if case.by_column:
            base["topic"] = names[topic]
        return {**base, "_offset": offset, "_ordinal": ordinal, **said}

    listed = [
        of({}, 0, 0),
        of({}, 1, 0),
        of(case.said, 1, 1),
        of({}, 1, 2, "b" if case.by_column else "a"),
        of({}, 2, 0),
    ]
    done = put(writer.sink, block(case.columns, listed))
    assert done.rows == 2
    assert list(done.refused) == [(TOPIC_ID, 0, 1)]
    assert re.search(case.why, done.refused[TOPIC_ID, 0, 1])
    held = [place for topic in world.topics for place in places(world.records(topic.name))]
    assert sorted(held) == [(0, 0, 0), (0, 2, 0)]


@pytest.mark.parametrize(
    ("column", "type_", "value"),
    [("day", pa.int32(), 2_932_897), ("moment", pa.int64(), 253_402_300_800_000_000)],
)
def test_a_time_after_the_year_9999_is_refused_as_a_row_and_ends_no_stream(
    make: MakeWorld, column: str, type_: pa.DataType, value: int
) -> None:
    """Spark makes such values (`make_date(10000, 1, 1)`), and neither JSON nor our own decoder has them."""
    world = make(one(value=TIMES))
    columns = pa.schema([(each.name, arrow_type(each)) for each in TIMES.columns])
    writer = Writer(world, 1).ready(columns)
    given = block(columns, [{"customer": "c"}] * 3)
    far = pa.array([None, value, None], type=type_).cast(columns.field(column).type)
    given = given.set_column(given.schema.get_field_index(column), column, far)
    done = put(writer.sink, given)
    assert (done.rows, list(done.refused)) == (2, [(TOPIC_ID, 0, 1)])


@pytest.mark.parametrize("count", [1, 400])
def test_the_largest_rows_that_are_not_refused_are_taken_also_many_at_once(make: MakeWorld, count: int) -> None:
    """Bytes that no compression makes smaller; each batch of them keeps the topic's limit, too."""
    world = make(one(key=None, value=BYTES), settings=SMALL)
    writer = Writer(world, 1).ready(PAIR)
    most = writer.sink.rows_writer(1, ANYWHERE).targets[world.topics[0].name].most_bytes
    assert 1000 < most < 2000
    chance = random.Random(7)
    for size, rows_out in ((most, count), (most + 1, 0)):
        given = [{"key": b"k%d" % (n % 5), "value": chance.randbytes(size - 2)} for n in range(count)]
        done = put(writer.sink, block(PAIR, given))
        assert (done.rows, len(done.refused)) == (rows_out, count - rows_out)
    assert len(world.records()) == count


def test_small_rows_of_a_topic_with_a_small_limit_are_taken_many_at_once(make: MakeWorld) -> None:
    world = make(settings=SMALL)
    writer = Writer(world, 1).ready()
    assert (
        put(writer.sink, *(row_block(rows(first, first + 250), METADATA) for first in range(0, 1000, 250))).rows == 1000
    )
    assert len(world.records()) == 1000


@pytest.mark.parametrize(
    ("settings", "moment"),
    [
        ({"message.timestamp.after.max.ms": "60000"}, datetime.now(UTC) + timedelta(days=2)),
        ({}, datetime.now(UTC) + timedelta(days=400)),  # by the broker's own default
        ({"message.timestamp.before.max.ms": "60000"}, at_second(0)),
        ({"message.timestamp.type": "LogAppendTime"}, datetime.now(UTC) + timedelta(days=400)),
    ],
    ids=["too far ahead", "too far ahead by default", "too far behind", "the broker's own time"],
)
def test_a_time_that_the_topic_does_not_take_is_replaced_and_the_row_taken(
    make: MakeWorld, settings: Mapping[str, str], moment: datetime
) -> None:
    world = make(settings=settings)
    writer = Writer(world, 1).ready()
    assert put(writer.sink, customers({"_timestamp": moment})) == TaskResult(1)
    (record,) = world.records()
    assert record.timestamp_ms is not None
    assert abs(datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) - datetime.now(UTC)) < timedelta(hours=1)


def test_a_time_within_the_topics_bounds_is_kept(make: MakeWorld) -> None:
    world = make(settings={"message.timestamp.after.max.ms": str(1000 * 3600 * 24 * 3)})
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    assert put(Writer(world, 1).ready().sink, customers({"_timestamp": moment})).rows == 1
    assert [record.timestamp_ms for record in world.records()] == [int(moment.timestamp() * 1000)]


FOREIGN: dict[str, Mapping[str, Any]] = {
    "before its range": {"_offset": 2},
    "behind its range": {"_offset": 6},
    "of another partition": {"_partition": 1, "_offset": 3},
    "of another topic": {"_topic_id": "id-two", "_offset": 3},
    "without an offset": {"_offset": None},
    "without a topic": {"_topic_id": None, "_offset": 3},
}


# Order


def test_where_rows_come_in_no_order_each_record_says_so_and_our_reader_wants_a_window(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    brought = writer.sink.rows_writer(1, ANYWHERE, in_order=False)
    assert brought(iter([row_block([row(2), row(0), row(1)], METADATA)]), 1).rows == 3
    records = world.records()
    assert {origin_of(record).in_order for record in records} == {False}
    with pytest.raises(ValueError, match="window"):
        Deduplicator().is_new("t", 0, records[0].headers)
    seen = Deduplicator(window=10)
    assert all(seen.is_new(world.topics[0].name, one.partition, one.headers) for one in records)


@pytest.mark.parametrize(
    "blocks",
    [
        [[row(1, ordinal=1), row(1, ordinal=0)]],
        [[row(1)], [row(0)]],
        [[row(0), row(1, ordinal=2)], [row(1, ordinal=1)]],
        [[row(0, ordinal=-1)]],
    ],
    ids=["in a block", "in two blocks", "of one record in two blocks", "negative"],
)
def test_rows_that_a_reader_would_take_for_old_end_the_batch(world: KafkaWorld, blocks: list[list[Row]]) -> None:
    writer = Writer(world, 1).ready()
    with pytest.raises(DeclarationError, match="_ordinal"):
        put(writer.sink, *(row_block(given, METADATA) for given in blocks))


def test_rows_of_several_source_partitions_have_an_order_each(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    given = [row(5), row(1, partition=1), row(6), row(1, partition=1, ordinal=1)]
    blocks = row_block(given, METADATA), row_block([row(7), row(2, partition=1)], METADATA)
    assert put(writer.sink, *blocks).rows == 6


def test_where_a_refused_row_ends_the_stream_no_later_row_of_its_partition_is_written(world: KafkaWorld) -> None:
    """Mended, it comes again with its record; behind later rows a reader would take it for old."""
    sink = world.sink(1)
    sink._stops = True
    sink.take_over()
    sink.open_positions(1, {P0: 0, P1: 0})
    sink.prepare(COLUMNS)
    refused = customers({}, {"customer": None}, {})
    later = row_block(rows(3, 6), METADATA)
    result = put(sink, row_block([], METADATA), refused, later)
    assert (result.rows, set(result.refused)) == (0, {(TOPIC_ID, 0, 1)})
    assert world.records() == []


def test_text_that_is_not_utf8_is_refused_and_ends_no_stream(world: KafkaWorld) -> None:
    """Spark makes text of any bytes."""
    writer = Writer(world, 1).ready()
    given = row_block(rows(0, 3), METADATA)
    texts = pa.StringArray.from_buffers(3, *pa.array([b"a\n", b"\xff\xfe", b"c"], pa.binary()).buffers()[1:])
    names = given.schema.names
    columns = [texts if name == "customer" else given.column(name) for name in names]
    result = put(writer.sink, pa.RecordBatch.from_arrays(columns, names=names))
    assert result.rows == 2
    assert list(result.refused) == [(TOPIC_ID, 0, 1)]
    assert "UTF-8" in result.refused[TOPIC_ID, 0, 1]
    assert [record.key for record in sorted(world.records(), key=lambda one: one.key or b"")] == [b"a\n", b"c"]


def test_a_topic_that_is_not_utf8_refuses_its_record_and_ends_no_stream(make: MakeWorld) -> None:
    world = make(two, by_column=True)
    writer = Writer(world, 1).ready(NAMED)
    names = [topic.name for topic in world.topics]
    given = customers(*({"topic": name} for name in (names[0], "", names[1])), columns=NAMED)
    texts = pa.array([names[0].encode(), b"\xff\xfe", names[1].encode()], pa.binary()).cast(pa.string(), safe=False)
    given = given.set_column(given.schema.get_field_index("topic"), "topic", texts)
    refused = {(TOPIC_ID, 0, 1): "the row names no topic: `topic` is not UTF-8"}
    assert put(writer.sink, given) == TaskResult(2, refused)
    assert [places(world.records(name)) for name in names] == [[(0, 0, 0)], [(0, 2, 0)]]


def test_clients_serve_one_task_after_another_and_few_are_kept(make: MakeWorld) -> None:
    world = make(own_clients=True)
    writer = Writer(world, 1).ready()
    for first in range(3):
        put(writer.sink, row_block(rows(first, first + 1), METADATA))
    mine = [kept for kept in kafka_output._kept if kept.client_id.startswith(f"millrace.{world.stream}#")]
    assert len(mine) == 1
    [client] = mine[0].producers.values()
    assert len(client) == 0
    for _ in range(kafka_output._MOST_KEPT):
        other = Writer(make(own_clients=True), 1).ready()
        put(other.sink, row_block(rows(0, 1), METADATA))
    assert mine[0] not in kafka_output._kept
    assert mine[0].producers == {}


def test_a_connection_whose_keys_contradict_a_sink_is_named(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    brought = replace(
        writer.sink.rows_writer(1, ANYWHERE), settings=KafkaSettings({**world.kafka.librdkafka, "retries": "0"})
    )
    with pytest.raises(SinkFailedError, match="Connection"):
        brought(iter([row_block(rows(0, 1), METADATA)]), 1)


# Sources


def foreign(world: KafkaWorld) -> None:
    """A row whose source is not of the batch is not written, and no other of its block."""
    writer = Writer(world, 1).ready()
    for said in FOREIGN.values():
        with pytest.raises(DeclarationError, match="some of 3 rows have a `_source` that is not in their batch"):
            put(writer.sink, customers({"_offset": 3}, said, {"_offset": 5}), ranges=[OffsetRange(P0, 3, 6)])
    assert world.records() == []
    assert put(writer.sink, customers({"_offset": 3}, {"_offset": 5}), ranges=[OffsetRange(P0, 3, 6)]).rows == 2


def test_a_row_of_another_source_is_not_written_nor_its_block(world: KafkaWorld) -> None:
    foreign(world)


def test_rows_of_one_record_that_are_not_told_apart_are_not_written(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    with pytest.raises(DeclarationError, match="add an integer column `_ordinal`"):
        put(writer.sink, customers({}, {"_offset": 0}))
    assert world.records() == []
    assert put(writer.sink, customers({}, {"_offset": 0, "_ordinal": 1})).rows == 2


# Brokers that do not take it


@pytest.mark.full
def test_too_few_replicas_in_sync_end_the_try_and_not_the_stream(
    kafka: Stack, world: KafkaWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself would try for ever. One broker does not show it: a topic wants no more replicas than it has."""
    writer, topic = Writer(world, 1).ready(), world.topics[0].name
    new = NewTopic(topic, 1, len(NODES), {"min.insync.replicas": str(len(NODES))})
    with three_brokers(tmp_path, [jar.path_in(cache_folder()) for jar in read_lock("kafka")]) as brokers:

        def write() -> int:
            task = replace(writer.sink.rows_writer(1, ANYWHERE), settings=brokers.settings)
            return int(task(iter([customers({})]), 1).rows)

        def made() -> bool:
            admin = KafkaTopicAdmin(brokers.settings, timeout_seconds=5)
            return topic in admin.observe([topic]) or admin.create([new])[topic] is None

        eventually(made, within=Deadline.SERVER, what="a topic on three brokers", ignoring=(UnreachableError,))
        assert write() == 1
        monkeypatch.setattr(kafka_output, "_ACKNOWLEDGED_SECONDS", QUIET_SECONDS)
        brokers.kill(NODES[-1])
        with pytest.raises(SinkUnreachableError, match="the brokers did not acknowledge"):
            in_time(write, within=Deadline.SERVER, what="the end of a try")
        brokers.start(NODES[-1])
        assert eventually(write, within=Deadline.SERVER, what="all replicas", ignoring=(SinkUnreachableError,)) == 1
        for kept in [one for one in kafka_output._kept if one.settings == brokers.settings]:
            kafka_output._kept.remove(kept)  # it would look for these brokers for as long as other clients are taken
            kept.close()


def test_a_broker_that_is_away_ends_the_try(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(world, 1).ready()
    monkeypatch.setattr(kafka_output, "_ACKNOWLEDGED_SECONDS", QUIET_SECONDS)
    nowhere = replace(world.kafka, librdkafka={**world.kafka.librdkafka, "bootstrap.servers": "127.0.0.1:1"})
    away = replace(writer.sink.rows_writer(1, ANYWHERE), settings=nowhere)
    with pytest.raises(SinkUnreachableError):
        in_time(lambda: away(iter([customers({})]), 1), within=Deadline.SERVER, what="the end of a try")


@pytest.mark.full
def test_a_topic_that_is_gone_ends_the_try(world: KafkaWorld) -> None:
    """After the 30 s that a client waits for a topic that may have been made just now."""
    writer = Writer(world, 1).ready()
    topic = world.topics[0].name
    result_of(world.admin.delete_topics([topic])[topic], what="the topic's end")
    eventually(
        lambda: topic not in KafkaTopicAdmin(world.kafka).observe([topic]), within=Deadline.METADATA, what="its end"
    )
    with pytest.raises(SinkFailedError, match="the brokers refuse the records"):
        in_time(lambda: writer.write(rows(0, 2)), within=Deadline.SERVER, what="the end of a try")


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize(
    "settings", [{"max.message.bytes": "300"}, {"message.timestamp.before.max.ms": "60000"}], ids=["size", "time"]
)
def test_a_topic_that_takes_less_than_at_the_start_fails_the_try(
    world: KafkaWorld, settings: Mapping[str, str], count: int
) -> None:
    """The next start looks at it again, and then refuses the rows by their sources, or writes another time."""
    writer, topic = Writer(world, 1).ready(), world.topics[0].name
    assert KafkaTopicAdmin(world.kafka).set_config({topic: settings})[topic] is None
    chance = random.Random(7)
    given = customers(*({"customer": chance.randbytes(500).hex()} for _ in range(count)))

    def fails() -> bool:  # once the broker goes by the new settings
        try:
            put(writer.sink, given)
        except SinkFailedError:
            return True
        return False

    assert eventually(fails, within=Deadline.METADATA, what="a refusal")
    again = put(Writer(world, 2).ready().sink, given)
    assert again.rows + len(again.refused) == count


def test_where_no_row_comes_nobody_connects(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    nowhere = replace(world.kafka, librdkafka={**world.kafka.librdkafka, "bootstrap.servers": "127.0.0.1:1"})
    away = replace(writer.sink.rows_writer(1, ANYWHERE), settings=nowhere)
    assert away(iter([]), 1) == TaskResult()
    assert away(iter([customers()]), 1) == TaskResult()


# What an app has to give


def test_a_topic_that_is_not_there_is_named(world: KafkaWorld) -> None:
    world.topics = (*world.topics, a_topic("absent")(world.group))
    sink, _ = begin(world, 1)
    with pytest.raises(UnreachableError, match=f"topic {world.topics[1].name} does not exist"):
        sink.prepare(COLUMNS)


ILL_GIVEN = {
    "a column is missing": (
        one(),
        pa.schema([("customer", pa.string())]),
        r"no column `amount`, but topic \S+\.out declares it",
    ),
    "of another type": (
        one(),
        pa.schema([("customer", pa.string()), ("amount", pa.float64())]),
        r"returns `amount` as double, but topic \S+\.out declares DECIMAL\(12,2\)",
    ),
    "of another precision": (
        one(),
        pa.schema([("customer", pa.string()), ("amount", pa.decimal128(12, 3))]),
        r"returns `amount` as decimal128\(12, 3\)",
    ),
    "nobody declares it": (one(), pa.schema([*COLUMNS, ("more", pa.int32())]), r"declares the column `more`"),
    "a topic's name is asked of one topic": (one(), NAMED, r"declares the column `topic`"),
    "no topic's name": (two, COLUMNS, r"no text column `topic`"),
    "a topic's name that is no text": (two, pa.schema([*COLUMNS, ("topic", pa.int32())]), r"no text column `topic`"),
    "text where bytes are asked for": (
        one(key=None, value=BYTES),
        pa.schema([("key", pa.string()), ("value", pa.binary())]),
        r"returns `key` as string, but topic \S+ declares BINARY",
    ),
}


@pytest.mark.parametrize("what", ILL_GIVEN)
def test_an_app_whose_rows_do_not_fit_is_refused_by_the_columns_name(make: MakeWorld, what: str) -> None:
    topics, columns, said = ILL_GIVEN[what]
    world = make(topics, by_column=topics is two)
    sink, _ = begin(world, 1)
    with pytest.raises(DeclarationError, match=said):
        sink.prepare(columns)


# The fence


@pytest.mark.parametrize("anew", [False, True], ids=["its connection was ended", "it connects anew"])
def test_an_older_epoch_puts_nothing_aside_after_a_takeover(world: KafkaWorld, anew: bool) -> None:
    ranges = [OffsetRange(P0, 0, 3)]
    calls: tuple[Callable[[Writer, Written], Any], ...] = (
        lambda old, bad: old.sink.open_positions(2, {P0: 0, P1: 0}),
        lambda old, bad: old.sink.quarantine.keep(1, ranges, bad),
        lambda old, bad: old.sink.commit_batch(1, ranges, replace(bad, refused={(TOPIC_ID, 0, 1): "why"})),
        lambda old, bad: old.sink.check_fence(),
        lambda old, bad: old.sink.prepare(COLUMNS),
        lambda old, bad: Writer(world, old.epoch).sink.take_over(),
    )
    for number, late in enumerate(calls):
        old = Writer(world, 2 * number + 1).ready()
        old.sink.begin_batch()
        aside = old.write_bad([(0, 1)])
        world.sink(2 * number + 2).take_over()
        if anew:
            old.sink.close()
        with pytest.raises(FencedError):
            late(old, Written(aside.attempts, 0, aside.rows))
    assert world.quarantined() == {}
    assert begin(world, 99)[1].timeline == 1


def test_a_batch_needs_nothing_of_the_database_beside_the_sink(world: KafkaWorld) -> None:
    """It is away from the start of the first batch on, and still at the end of the life."""
    writer = Writer(world, 1).ready()
    writer.sink.close()
    writer.sink._aside.settings = replace(world.control, port=1)
    writer.sink.check_fence()
    writer.sink.begin_batch()
    writer.keep(1, [OffsetRange(P0, 0, 3)], Written((), 0))
    assert writer.batch(rows(0, 3), 0, 3).rows_out == 3
    writer.sink.discard()
    assert world.contents() == Counter((1, written) for written in rows(0, 3))
    assert begin(world, 2)[1].next_offsets == {P0: 3, P1: 0}


# Quarantine


def test_bad_records_are_kept_before_the_rows_and_replaced_when_their_range_comes_again(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    ranges = [OffsetRange(P0, 0, 4)]

    def kept(bad: Sequence[int]) -> set[int]:
        writer.sink.begin_batch()
        aside = writer.write_bad([(0, offset) for offset in bad]) if bad else Written((), 0)
        writer.keep(1, ranges, Written(aside.attempts, 0, aside.rows))
        return {offset for _, _, offset in world.quarantined()}

    assert kept([1, 2]) == {1, 2}
    assert kept([1, 2]) == {1, 2}  # the batch is tried again
    assert kept([2, 3]) == {2, 3}  # by a newer transform
    assert world.records() == []
    assert kept([]) == set()
    writer.batch(rows(0, 4), 0, 4)
    ranges = [OffsetRange(P0, 4, 8)]
    assert kept([5]) == {5}
    after = Writer(world, 2).ready()  # which learns that they are there
    after.sink.begin_batch()
    after.keep(1, [OffsetRange(P0, 4, 8)], Written((), 0))
    assert world.quarantined() == {}


def test_what_the_topic_refuses_joins_what_is_kept(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    ranges = [OffsetRange(P0, 0, 4)]
    writer.sink.begin_batch()
    aside = writer.write_bad([(0, 2)])
    writer.keep(1, ranges, Written(aside.attempts, 0, aside.rows))
    done = put(writer.sink, customers({}, {"customer": None}, {"_offset": 3}), ranges=ranges)
    again = writer.write_bad([(0, 1), (0, 2)])
    written = Written((1, *again.attempts), done.rows, again.rows, done.refused)
    counts = writer.finish(1, ranges, written)
    assert (counts.rows_out, counts.quarantined) == (2, 2)
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2)}


def test_a_batch_without_bad_records_asks_the_database_nothing(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(world, 1).ready()
    asked = list[str]()
    real = Aside._transaction

    def counted(self: Aside, doing: str) -> Any:
        asked.append(doing)
        return real(self, doing)

    def batch(first: int, bad: Sequence[int] = ()) -> list[str]:
        asked.clear()
        ranges = [OffsetRange(P0, first, first + 3)]
        writer.sink.begin_batch()
        aside = writer.write_bad([(0, offset) for offset in bad]) if bad else Written((), 0)
        writer.keep(1, ranges, Written(aside.attempts, 0, aside.rows))
        done = writer.write(rows(first, first + 3), ranges=ranges)
        writer.finish(1, ranges, Written(done.attempts, done.rows, aside.rows))
        return list(asked)

    monkeypatch.setattr(Aside, "_transaction", counted)
    assert batch(0) == []
    assert batch(3, [4]) != []
    assert batch(3) != []  # the same range again: what it left has to go
    assert batch(6) == []


def test_only_what_may_hold_bad_records_is_deleted(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(world, 1).ready()
    deleted = list[OffsetRange]()
    real = Staging.delete_quarantine

    def delete(self: Staging, cursor: Any, stream: str, entry: OffsetRange) -> None:
        deleted.append(entry)
        real(self, cursor, stream, entry)

    monkeypatch.setattr(Staging, "delete_quarantine", delete)

    def kept(bad: int, *ranges: OffsetRange) -> list[OffsetRange]:
        deleted.clear()
        writer.sink.begin_batch()
        aside = writer.write_bad([(0, bad)])
        writer.keep(1, ranges, Written(aside.attempts, 0, aside.rows))
        return list(deleted)

    assert kept(1, OffsetRange(P0, 0, 4), OffsetRange(P1, 0, 0)) == []
    assert kept(2, OffsetRange(P0, 0, 4), OffsetRange(P1, 0, 0)) == [OffsetRange(P0, 0, 4)]
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 2)}


def test_bad_records_whose_commit_was_not_answered_are_kept_again(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, ranges = Writer(world, 1).ready(), [OffsetRange(P0, 0, 4)]
    real = Aside._transaction

    @contextmanager
    def unanswered(self: Aside, doing: str) -> Iterator[Any]:
        with real(self, doing) as cursor:
            yield cursor
        raise SinkUnreachableError("gone")

    def keep() -> None:
        writer.keep(1, ranges, Written(aside.attempts, 0, aside.rows))

    writer.sink.begin_batch()
    aside = writer.write_bad([(0, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(Aside, "_transaction", unanswered)
        with pytest.raises(SinkUnreachableError):
            keep()
    keep()
    assert set(world.quarantined()) == {(TOPIC_ID, 0, 1)}


# The group, and what is written aside


def reset_to_the_beginning(world: KafkaWorld) -> None:
    """A reset to where the timeline began is one, whether that is on record or not how far the work came since."""
    writer = Writer(world, 1).ready()
    world.reset_group({0: 0})
    sink, record = begin(world, 2)
    assert record.moved == {P0}
    sink.open_positions(2, {P0: 0, P1: 0})
    world.commit_group(2, 2, {P0: 0, P1: 0})
    sink.prepare(COLUMNS)
    writer = Writer(world, 3).ready()
    writer.batch(rows(0, 5), 0, 5, timeline=2)
    world.reset_group({0: 0, 1: 0})
    assert begin(world, 4)[1].moved == {P0, P1}


def opened_and_crashed(world: KafkaWorld) -> None:
    """The reset that opened a timeline opens no other where the life crashed before it committed."""
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5), 0, 5)
    world.reset_group({0: 2, 1: 0})
    sink, record = begin(world, 2)
    assert record.moved == {P0, P1}
    sink.open_positions(2, {P0: 2, P1: 0})
    _, record = begin(world, 3)
    assert (record.timeline, record.next_offsets, record.moved) == (2, {P0: 2, P1: 0}, frozenset())


def test_a_reset_to_where_the_timeline_began_is_noticed(world: KafkaWorld) -> None:
    reset_to_the_beginning(world)


def test_a_crash_between_opening_and_commit_opens_no_other_timeline(world: KafkaWorld) -> None:
    opened_and_crashed(world)


def test_a_group_that_is_gone_is_gone_on_with_from_the_end_of_the_last_life(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5), 0, 5)
    writer.sink.discard()
    result_of(world.admin.delete_consumer_groups([world.group])[world.group], what="the group's end")
    _, record = begin(world, 2)
    assert (record.timeline, record.next_offsets, record.moved) == (1, {P0: 5, P1: 0}, frozenset())
    assert world.left_behind() == []


def test_a_partition_that_is_new_since_the_start_is_begun_with_its_first_batch(world: KafkaWorld) -> None:
    new = TopicPartition(TOPIC, TOPIC_ID, 2)
    asked = "SELECT begun FROM millrace.timelines WHERE stream = %s AND partition = 2"
    writer = Writer(world, 1).ready()
    writer.sink.open_positions(1, {new: 0})
    assert world.query(asked, world.stream) == [(False,)]
    writer.sink.begin_batch()
    assert world.query(asked, world.stream) == [(True,)]


@pytest.mark.parametrize("in_order", [False, True], ids=["crashed", "ended in order"])
def test_a_reset_after_the_database_was_lost_opens_a_timeline_that_was_never_there(
    world: KafkaWorld, in_order: bool
) -> None:
    """The next life went by the group alone; by then it knows the timeline, and who reads has seen it."""
    writer = Writer(world, 1).ready()
    writer.open(2, {P0: 0, P1: 0})
    writer.batch(rows(0, 5), 0, 5, timeline=2)
    with connect(world.control, "test") as connection:
        psycopg.Cursor(connection).execute("DELETE FROM millrace.timelines WHERE stream = %s", (world.stream,))
        connection.commit()
    writer = Writer(world, 2).ready()
    assert writer.done == 5
    writer.batch(rows(5, 7), 5, 7, timeline=2)
    if in_order:
        writer.sink.discard()
    world.reset_group({0: 0, 1: 0})
    _, record = begin(world, 3)
    known: WorkRecord = replace(record, first_offsets={})
    if in_order:
        assert known == WorkRecord(2, {P0: 7, P1: 0})
    else:
        assert known == WorkRecord(2, {P0: 5, P1: 0}, moved=frozenset({P0, P1}))


def test_after_a_life_that_ended_in_order_a_reset_to_its_end_moves_nothing(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    writer.batch(rows(0, 5), 0, 5)
    writer.sink.discard()
    world.reset_group({0: 5, 1: 0})
    assert begin(world, 2)[1] == WorkRecord(1, {P0: 5, P1: 0}, {P0: 0, P1: 0})
    Writer(world, 3).ready()  # goes on, and dies
    world.reset_group({0: 5})
    assert begin(world, 4)[1].moved == {P0}


@pytest.mark.parametrize("failing", ["reached", "discard"])
def test_a_database_that_says_no_at_the_end_makes_no_stop_a_failure(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def no(*asked: Any, **more: Any) -> None:
        raise SinkFailedError("no")

    writer = Writer(world, 1).ready()
    with monkeypatch.context() as patched:
        patched.setattr(Aside, failing, no)
        writer.sink.discard()
    assert (world.left_behind() == []) is (failing == "reached")
    begun = world.query("SELECT DISTINCT begun FROM millrace.timelines WHERE stream = %s", world.stream)
    assert begun == [(failing == "reached",)]
    begin(world, 2)
    with pytest.raises(FencedError):
        writer.sink.discard()


# Guards: what each is there for is seen when it is gone


def _sources_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsProducer, "_check_sources", lambda self, block: [])


def _no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Origin.headers
    monkeypatch.setattr(
        Origin, "headers", lambda self: [(name.replace(TIMELINE, "elsewhere"), v) for name, v in real(self)]
    )


def _one_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Origin.headers
    monkeypatch.setattr(Origin, "headers", lambda self: real(replace(self, timeline=1)))


def _beginning_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aside, "reached", lambda self, timeline, positions, *, begun: None)


def _begun_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Aside.open_positions

    def opened(self: Aside, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        real(self, timeline, positions)
        self.reached(timeline, positions, begun=True)

    monkeypatch.setattr(Aside, "open_positions", opened)


def _former_quarantine_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staging, "delete_quarantine", lambda *asked: None)


def _rows_of_a_refused_record_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RowsProducer._write

    def write(self: RowsProducer, block: pa.RecordBatch, output: Any, refused: dict[Any, str]) -> int:
        return sum(real(self, block.slice(number, 1), output, refused) for number in range(len(block)))

    monkeypatch.setattr(RowsProducer, "_write", write)


def refused_in_the_middle(world: KafkaWorld) -> None:
    writer = Writer(world, 1).ready()
    listed: list[dict[str, Any]] = [{"_offset": 1}, {"_offset": 1, "_ordinal": 1, "customer": None}]
    assert list(put(writer.sink, customers(*listed)).refused) == [(TOPIC_ID, 0, 1)]
    assert world.records() == []


GUARDS: tuple[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[[KafkaWorld], None]], ...] = (
    ("sources not looked at", _sources_not_looked_at, foreign),
    ("no timeline in the headers", _no_timeline, twice),
    ("always the first timeline in the headers", _one_timeline, again),
    ("beginning not written", _beginning_not_written, reset_to_the_beginning),
    ("begun from the beginning", _begun_at_once, opened_and_crashed),
    ("rows of a refused record written", _rows_of_a_refused_record_written, refused_in_the_middle),
    (
        "former quarantine kept",
        _former_quarantine_kept,
        test_bad_records_are_kept_before_the_rows_and_replaced_when_their_range_comes_again,
    ),
)


@pytest.mark.parametrize(("put_in", "scenario"), [pytest.param(*guard, id=what) for what, *guard in GUARDS])
def test_a_guard_that_is_gone_is_noticed(
    make: MakeWorld,
    put_in: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[KafkaWorld], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant that does not even let an ordinary batch through shows nothing."""
    scenario(make())
    put_in(monkeypatch)
    ordinary = Writer(make(), 1).ready()
    assert ordinary.batch(rows(0, 3), 0, 3).rows_out == 3
    with pytest.raises((AssertionError, pytest.fail.Exception, SinkFailedError)):
        scenario(make())
