"""Sinks under one contract: what a test does with any of them, whatever server it writes to.

A `World` opens sinks of one stream and looks at what they hold. A `Writer` is one epoch: it makes the calls that a
driver makes, in a driver's order, and its tasks get their writers as Spark's do, pickled.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark import cloudpickle

from millrace.adapters.sinks.postgres.sink import PostgresAppend
from millrace.adapters.sinks.postgres.upsert import PostgresUpsert
from millrace.domain.sinks.batch import BatchCounts, Identity, TaskResult, TaskResults, Written
from millrace.domain.topics.offsets import OffsetRange, Source, TopicPartition
from millrace.ports.sinks import SinkStore, TaskWriter
from millrace.runtime.stream.plain_read import RAW_SCHEMA
from millrace.settings import PostgresSettings
from support.stack.faults import Life, hang_up

TOPIC, TOPIC_ID = "t", "id-one"
P0, P1 = (TopicPartition(TOPIC, TOPIC_ID, number) for number in (0, 1))
COLUMNS = pa.schema([("customer", pa.string()), ("amount", pa.decimal128(12, 2))])
ANYWHERE = tuple(OffsetRange(partition, 0, 1000) for partition in (P0, P1))
_SOURCES = pa.schema(
    [("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_ordinal", pa.int32())]
)
_METADATA = pa.schema([("_timestamp", pa.timestamp("us", tz="UTC")), ("_deleted", pa.bool_())])
_BAD = pa.schema(
    [
        *_SOURCES,
        RAW_SCHEMA.field("topic"),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        *(RAW_SCHEMA.field(name) for name in ("timestamp_ms", "key", "value", "headers")),
        ("rule", pa.string()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, order=True)
class Row:
    """One row, by its source and what it says; `second` and `deleted` are for sinks that take them."""

    partition: int
    offset: int
    ordinal: int
    customer: str
    amount: Decimal | None
    second: int = 0  # when its record was written
    deleted: bool = False


def row(offset: int, *, partition: int = 0, ordinal: int = 0, amount: int = 0, customers: int = 3) -> Row:
    """A row of some customers' by turns; `amount` tells one writing of it from another."""
    return Row(partition, offset, ordinal, f"c{offset % customers}", Decimal(amount + offset), offset)


def rows(first: int, end: int, **more: int) -> list[Row]:
    """A row of each of these offsets."""
    return [row(offset, **more) for offset in range(first, end)]


@dataclass(frozen=True)
class Commit:
    """What one batch put on record."""

    timeline: int
    ranges: Sequence[OffsetRange]
    rows: Sequence[Row]
    bad: Collection[Source] = ()


class World(Protocol):
    """One stream's sink in its surroundings.

    Attributes:
        secret: what lets a writer in.
        at_once: whether rows are seen as soon as they are written, and the group is the record of work.
        aside: whether bad records lie in another server than the rows.
    """

    secret: str
    at_once: bool
    aside: bool

    def sink(self, epoch: int, instance: str = "") -> SinkStore:
        """That of one instance; nothing is connected to yet."""
        ...

    def contents(self) -> Any:
        """What the sink holds, to be compared with what is expected."""
        ...

    def expected(self, history: Iterable[Commit]) -> Any:
        """What it has to hold after these batches, found in another way."""
        ...

    def quarantined(self) -> dict[Source, str]:
        """The rule of each bad record in it."""
        ...

    def commit_group(self, epoch: int, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """What the driver does after each commit of the sink, and before it reads anything."""
        ...

    def left_behind(self) -> list[str]:
        """What of an epoch that has ended in order is there and was not committed."""
        ...

    def hang_up(self, sink: SinkStore) -> None:
        """End its connections as the death of its process does."""
        ...


@dataclass
class Writer:
    """One epoch of the stream.

    Attributes:
        attempts: the ids that task attempts get.
    """

    world: World
    epoch: int
    life: Life = field(default_factory=Life)
    instance: str = ""
    attempts: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        real = self.world.sink(self.epoch, self.instance)
        local = ("close", "rows_writer") if self.world.aside else ("close", "rows_writer", "bad_records_writer")
        self.sink = self.life.watch("sink", real, hang_up=lambda: self.world.hang_up(real), local=local)

    def ready(self, columns: pa.Schema = COLUMNS) -> Writer:
        """Take over and prepare; where nothing is on record, the first timeline begins."""
        self.sink.take_over()
        record = self.sink.read_record()
        if not record.next_offsets:
            self.open(1, {P0: 0, P1: 0})
        else:
            self.commit_group(record.timeline, record.next_offsets)
        self.sink.prepare(columns)
        return self

    def open(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Open a timeline, as a driver does at its start."""
        self.sink.open_positions(timeline, positions)
        self.commit_group(timeline, positions)

    def commit_group(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the group, where it is what the work on record is read from."""
        if self.world.at_once:
            self.life.call("group.commit", lambda: self.world.commit_group(self.epoch, timeline, positions))

    @property
    def done(self) -> int:
        """The next offset of partition 0 on the newest timeline."""
        return self.sink.read_record().next_offsets[P0]

    def write(self, *tasks: Sequence[Row], timeline: int = 1, ranges: Sequence[OffsetRange] = ANYWHERE) -> TaskResults:
        """Each of these by a task of its own."""
        writer = self.sink.rows_writer(timeline, ranges)
        return together([self._task("write_rows", writer, row_block(given, self.sink.metadata)) for given in tasks])

    def write_bad(self, sources: Iterable[tuple[int, int]]) -> TaskResults:
        """Bad records at these partitions and offsets."""
        return together([self._task("write_bad_records", self.sink.bad_records_writer(), bad_block(list(sources)))])

    def _task(self, name: str, writer: TaskWriter, block: pa.RecordBatch) -> tuple[int, TaskResult]:
        brought: TaskWriter = pickle.loads(cloudpickle.dumps(writer))
        attempt = next(self.attempts)
        return attempt, self.life.call(f"task.{name}", lambda: brought(iter([block]), attempt))

    def batch(self, given: Sequence[Row], first: int, end: int, *, timeline: int = 1, **more: Any) -> BatchCounts:
        """A whole batch of partition 0."""
        self.sink.begin_batch()
        done = self.write(given, timeline=timeline, ranges=[OffsetRange(P0, first, end)])
        return self.commit(done, first, end, timeline=timeline, **more)

    def commit(
        self, done: TaskResults, first: int, end: int, *, timeline: int = 1, refused: Mapping[Source, str] = {}
    ) -> BatchCounts:
        """The commit of a batch of partition 0, with what is refused set aside."""
        aside = self.write_bad((partition, offset) for _, partition, offset in refused) if refused else TaskResults()
        attempts = (*done.attempts, *aside.attempts)
        records = {(TOPIC, 0): end - first}
        written = Written(attempts, done.rows, aside.rows, refused, records, done.receipts)
        return self.finish(timeline, [OffsetRange(P0, first, end)], written)

    def keep(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> None:
        """Keep bad records, where that comes before the rows."""
        quarantine = self.sink.quarantine
        if quarantine is not None:
            self.life.call("quarantine.keep", lambda: quarantine.keep(timeline, ranges, written))

    def finish(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """The commit of what was written, and kept, and then the group's."""
        counts: BatchCounts = self.sink.commit_batch(timeline, ranges, written)
        self.commit_group(timeline, {entry.partition: entry.next for entry in ranges})
        return counts


def together(done: Sequence[tuple[int, TaskResult]]) -> TaskResults:
    """What tasks reported."""
    refused = {source: why for _, one in done for source, why in one.refused.items()}
    receipts = tuple(one.receipt for _, one in done if one.receipt)
    return TaskResults(tuple(attempt for attempt, _ in done), sum(one.rows for _, one in done), refused, receipts)


def row_block(given: Sequence[Row], metadata: Collection[str]) -> pa.RecordBatch:
    """Rows as a task is given them, for a sink that wants this beside their source."""
    listed = [
        {
            "_topic_id": TOPIC_ID,
            "_partition": one.partition,
            "_offset": one.offset,
            "_ordinal": one.ordinal,
            "_timestamp": at_second(one.second),
            "_deleted": one.deleted,
            "customer": one.customer,
            "amount": one.amount,
        }
        for one in given
    ]
    return pa.RecordBatch.from_pylist(
        listed, schema=pa.schema([*_SOURCES, *(_METADATA.field(name) for name in metadata), *COLUMNS])
    )


def at_second(second: int) -> datetime:
    """When the record of a row was written."""
    return datetime(2026, 5, 4, tzinfo=UTC) + timedelta(seconds=second)


def bad_block(places: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """Bad records as a task is given them: bytes that are no text, and no value at all."""
    listed = [
        {
            "_topic_id": TOPIC_ID,
            "_partition": partition,
            "_offset": offset,
            "_ordinal": 0,
            "topic": TOPIC,
            "timestamp": None,
            "timestamp_ms": 253_402_300_800_000,
            "key": b"\x00\xff",
            "value": None,
            "headers": [{"key": "h\0", "value": b"\xfe"}, {"key": "n", "value": None}],
            "rule": "null_value",
            "error": "why \0",
        }
        for partition, offset in places
    ]
    return pa.RecordBatch.from_pylist(listed, schema=_BAD)


# A whole life, for crashes

RECORDS, SIZE, BAD_AT = 9, 4, (1, 5)


def value_of(timeline: int) -> int:
    """What a timeline adds to the amounts, so that its rows are told from another's."""
    return 1000 * timeline


def live(world: World, life: Life, epoch: int, *, timeline: int = 1, begins: int = 0) -> None:
    """One epoch that does what is left of a topic of two partitions, one record of which is bad.

    Args:
        world: the sink.
        life: counts its calls.
        epoch: of the life.
        timeline: the one that is to be gone on with, or opened where the record of work is on a former one.
        begins: the offset that it begins at in each partition.
    """
    writer = Writer(world, epoch, life)
    sink = writer.sink
    sink.take_over()
    record = sink.read_record()
    if record.timeline < timeline:
        writer.open(timeline, {P0: begins, P1: begins})
        record = sink.read_record()
    else:
        writer.commit_group(timeline, record.next_offsets)
    sink.prepare(COLUMNS)
    while min(record.next_offsets.values()) < RECORDS:
        ranges = [OffsetRange(p, at, min(at + SIZE, RECORDS)) for p, at in sorted(record.next_offsets.items())]
        sink.begin_batch()
        commit = life_commit(timeline, ranges)
        tasks = [[one for one in commit.rows if one.partition == number] for number in (0, 1)]
        records = {(TOPIC, entry.partition.partition): len(entry) for entry in ranges}
        aside = writer.write_bad((p, o) for _, p, o in commit.bad) if commit.bad else TaskResults()
        writer.keep(timeline, ranges, Written(aside.attempts, 0, aside.rows, {}, records))
        done = writer.write(*tasks, timeline=timeline, ranges=ranges)
        attempts = (*done.attempts, *aside.attempts)
        written = Written(attempts, done.rows, aside.rows, {}, records, done.receipts)
        writer.finish(timeline, ranges, written)
        record = sink.read_record()
    sink.discard()
    sink.close()


def life_commit(timeline: int, ranges: Sequence[OffsetRange]) -> Commit:
    """What a life makes of these ranges."""
    places = [(entry.partition.partition, offset) for entry in ranges for offset in range(entry.first, entry.next)]
    good = [row(offset, partition=number, amount=value_of(timeline)) for number, offset in places]
    bad = {(TOPIC_ID, *place) for place in places if place == BAD_AT}
    return Commit(timeline, ranges, [one for one in good if (one.partition, one.offset) != BAD_AT], bad)


# Worlds


class StagedWorld(World, Protocol):
    """A sink whose rows count with the commit, and that keeps its record of work itself."""

    def refuse(self, amount: int) -> None:
        """From now on the sink takes no row of this amount."""
        ...

    def lose(self, sink: SinkStore) -> None:
        """Take away what tasks have written of the batch that is not committed."""
        ...


class PostgresWorld:
    """What two kinds of tables have of one."""

    at_once = False
    aside = False

    def __init__(self, settings: PostgresSettings, name: str, admin: psycopg.Connection[Any]) -> None:
        self.settings, self.name, self.admin, self.secret = settings, name, admin, settings.password
        self.stream = f"{name}.s"

    def identity(self, epoch: int, instance: str) -> Identity:
        return Identity(self.stream, epoch, instance or f"instance{epoch}")

    def commit_group(self, epoch: int, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """The group says nothing of the work."""

    def quarantined(self) -> dict[Source, str]:
        asked = 'SELECT topic_id, partition, "offset", rule FROM millrace.quarantine WHERE stream = %s'
        found = self.admin.execute(asked, (self.stream,)).fetchall()
        return {(topic_id, number, offset): rule for topic_id, number, offset, rule in found}

    def refuse(self, amount: int) -> None:
        check = "ALTER TABLE {}.rows ADD CHECK (amount <> {})"
        self.admin.execute(sql.SQL(check).format(sql.Identifier(self.name), sql.Literal(amount)))

    def lose(self, sink: Any) -> None:
        self.admin.execute(sql.SQL("TRUNCATE {}").format(sink.staging.rows))

    def left_behind(self) -> list[str]:
        asked = "SELECT tablename FROM pg_tables WHERE schemaname = 'millrace_staging' AND tablename LIKE %s"
        return [name for (name,) in self.admin.execute(asked, (f"{self.stream}#%",)).fetchall()]

    def hang_up(self, sink: Any) -> None:
        if sink._connection is not None:
            hang_up(sink._connection)


def appended(history: Iterable[Commit]) -> list[tuple[int, Row]]:
    """What of batches is there where every row is kept until its range is read again, each with its timeline."""
    held: dict[tuple[int, int, int], tuple[int, Row]] = {}
    for commit in history:
        for entry in commit.ranges:
            number = entry.partition.partition
            held = {at: one for at, one in held.items() if at[0] != number or at[1] not in entry_offsets(entry)}
        held |= {(one.partition, one.offset, one.ordinal): (commit.timeline, one) for one in commit.rows}
    return [held[at] for at in sorted(held)]


class AppendWorld(PostgresWorld):
    """A table of PostgreSQL that is appended to."""

    def sink(self, epoch: int, instance: str = "") -> PostgresAppend:
        return PostgresAppend(self.settings, self.identity(epoch, instance), f"{self.name}.rows")

    def contents(self) -> list[tuple[int, Row]]:
        asked = "SELECT _timeline, _partition, _offset, _ordinal, customer, amount FROM {}.rows ORDER BY 2, 3, 4"
        found = self.admin.execute(sql.SQL(asked).format(sql.Identifier(self.name))).fetchall()
        return [(timeline, Row(*values, second=values[1])) for timeline, *values in found]

    def expected(self, history: Iterable[Commit]) -> list[tuple[int, Row]]:
        return appended(history)


class UpsertWorld(PostgresWorld):
    """A table of PostgreSQL that has the last row of each customer."""

    def sink(self, epoch: int, instance: str = "") -> PostgresUpsert:
        return PostgresUpsert(self.settings, self.identity(epoch, instance), f"{self.name}.rows", ("customer",))

    def contents(self) -> list[tuple[int, Row]]:
        asked = (
            "SELECT _timeline, _partition, _offset, _ordinal, customer, amount, _timestamp, _deleted FROM {}.rows "
            "ORDER BY customer"
        )
        found = self.admin.execute(sql.SQL(asked).format(sql.Identifier(self.name))).fetchall()
        return [
            (timeline, Row(*values, second=int((at - at_second(0)).total_seconds()), deleted=deleted))
            for timeline, *values, at, deleted in found
        ]

    def expected(self, history: Iterable[Commit]) -> list[tuple[int, Row]]:
        """Plainly: row after row, the greatest of each customer; what is to be read again counts for nothing."""
        held: dict[str, tuple[int, Row]] = {}
        begins: dict[tuple[int, int], int] = {}
        for commit in history:
            for entry in commit.ranges:
                begins.setdefault((commit.timeline, entry.partition.partition), entry.first)
            for one in sorted(commit.rows, key=place):
                timeline, former = held.get(one.customer, (0, one))
                to_come = former.offset >= begins.get((commit.timeline, former.partition), sys.maxsize)
                if not timeline or (timeline < commit.timeline and to_come) or place(former) < place(one):
                    held[one.customer] = (commit.timeline, one)
        return [held[customer] for customer in sorted(held)]


def place(one: Row) -> tuple[int, ...]:
    """The order of rows where no partition's clock goes backwards: then later offsets are later records."""
    return one.second, one.partition, one.offset, one.ordinal


def entry_offsets(entry: OffsetRange) -> range:
    """The offsets of a range."""
    return range(entry.first, entry.next)


TABLES: Mapping[str, Callable[..., StagedWorld]] = {"postgres append": AppendWorld, "postgres upsert": UpsertWorld}
