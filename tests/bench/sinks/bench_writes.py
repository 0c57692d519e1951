"""What sinks cost, in turns: the same batches written and committed by each, and plain ways of inserting for scale.

Called as `./millrace test tests/bench/sinks/bench_writes.py -s`.
MILLRACE_BENCH_ROWS says how many rows (1,000,000) each gets,
in batches of 200,000, written by one task at a time over the way that tasks go. A rate is of rows a second.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from psycopg import sql
from rich.console import Console
from rich.table import Table

from bench.sinks.straight import as_csv, copied_straight, copy_in
from millrace.adapters.postgres.connection import connect
from millrace.domain.sinks.batch import Written
from millrace.domain.topics.offsets import OffsetRange
from support.sinks.worlds import COLUMNS, P0, P1, TOPIC_ID, AppendWorld, UpsertWorld, World, Writer, at_second

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from millrace.settings import PostgresSettings

ROWS = int(os.environ.get("MILLRACE_BENCH_ROWS", "1000000"))
BATCH, ROUNDS, BLOCK, BY_ONE = 200_000, 3, 20_000, 5_000
FEW, MANY = 20_000, 10_000_000


def block(first: int, count: int, customers: int, metadata: tuple[str, ...]) -> pa.RecordBatch:
    """Rows of partition 0, their customers scattered."""
    offsets = pa.array(range(first, first + count), pa.int64())
    scattered = [offset * 7_919 % customers for offset in range(first, first + count)]
    columns: dict[str, Any] = {
        "_topic_id": pa.array([TOPIC_ID] * count),
        "_partition": pa.array([0] * count, pa.int32()),
        "_offset": offsets,
        "_ordinal": pa.array([0] * count, pa.int32()),
        "_timestamp": pa.array([at_second(0)] * count, pa.timestamp("us", tz="UTC")),
        "_deleted": pa.array([False] * count),
        "customer": pc.binary_join_element_wise("c", pa.array(scattered).cast(pa.string()), ""),
        "amount": offsets.cast(pa.decimal128(19, 0)).cast(COLUMNS.field("amount").type),
    }
    unwanted = {"_timestamp", "_deleted"} - {*metadata}
    return pa.RecordBatch.from_pydict({name: column for name, column in columns.items() if name not in unwanted})


def batches(writer: Writer, customers: int) -> float:
    """Seconds of all batches, each begun, written and committed."""
    blocks = [
        [block(at, BLOCK, customers, writer.sink.metadata) for at in range(first, first + BATCH, BLOCK)]
        for first in range(0, ROWS, BATCH)
    ]
    began = time.perf_counter()
    for number, of_batch in enumerate(blocks):
        ranges = [OffsetRange(P0, number * BATCH, (number + 1) * BATCH), OffsetRange(P1, 0, 0)]
        writer.sink.begin_batch()
        done = writer.sink.rows_writer(1, ranges)(iter(of_batch), number + 1)
        receipts = (done.receipt,) if done.receipt else ()
        writer.finish(1, ranges, Written((number + 1,), done.rows, receipts=receipts))
    return time.perf_counter() - began


@contextmanager
def world(settings: PostgresSettings, kind: Callable[..., World]) -> Iterator[World]:
    name = f"b{uuid.uuid4().hex[:10]}"
    with connect(settings, "bench") as admin:
        admin.autocommit = True
        yield kind(settings, name, admin)
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def rate_of(settings: PostgresSettings, kind: Callable[..., World], customers: int) -> float:
    with world(settings, kind) as made:
        writer = Writer(made, 1).ready()
        seconds = batches(writer, customers)
        writer.sink.close()
    return ROWS / seconds


def rate_of_straight(settings: PostgresSettings, customers: int) -> float:
    """The same blocks copied straight into the table, as staging was held against."""
    with world(settings, AppendWorld) as made:
        sink: Any = Writer(made, 1).ready().sink
        of_batch = [
            [block(at, BLOCK, customers, ()) for at in range(first, first + BATCH, BLOCK)]
            for first in range(0, ROWS, BATCH)
        ]
        names = [*of_batch[0][0].schema.names, "_timeline"]
        began = time.perf_counter()
        for number, blocks in enumerate(of_batch):
            entry = OffsetRange(P0, number * BATCH, (number + 1) * BATCH)
            copied_straight(settings, sink.identity, sink.target, entry, names, as_csv(blocks, 1))
        seconds = time.perf_counter() - began
        sink.close()
    return ROWS / seconds


def rate_of_ready(settings: PostgresSettings, customers: int, form: str, *, straight: bool) -> float:
    """The same rows with what COPY is sent made beforehand, so that the server's part alone is measured."""
    with world(settings, AppendWorld) as filled, connect(settings, "bench ready") as connection:
        writer = Writer(filled, 1).ready()
        batches(writer, customers)
        own = "_timeline" if straight else "_attempt"
        names = ("_topic_id", "_partition", "_offset", "_ordinal", "customer", "amount")
        made = "1" if straight else "_offset / {size} + 1"
        rows = sql.SQL(
            "COPY (SELECT {names}, (" + made + ")::{type} FROM {table} WHERE _offset >= {first} AND _offset < {next} "
            "ORDER BY _offset) TO STDOUT (FORMAT {form})"
        )
        ready = []
        for first in range(0, ROWS, BATCH):
            asked = rows.format(
                names=sql.SQL(", ").join(map(sql.Identifier, names)),
                size=sql.Literal(BATCH),
                type=sql.SQL("int" if straight else "bigint"),
                table=sql.Identifier(filled.name, "rows"),  # type: ignore[attr-defined]
                first=sql.Literal(first),
                next=sql.Literal(first + BATCH),
                form=sql.SQL(form),
            )
            with connection.cursor() as cursor, cursor.copy(asked) as copy:
                ready.append(b"".join(copy))
        writer.sink.close()
    with world(settings, AppendWorld) as made_anew, connect(settings, "bench tasks") as connection:
        connection.autocommit = True
        sink: Any = Writer(made_anew, 1).ready().sink
        began = time.perf_counter()
        for number, chunk in enumerate(ready):
            entry = OffsetRange(P0, number * BATCH, (number + 1) * BATCH)
            if straight:
                copied_straight(settings, sink.identity, sink.target, entry, [*names, own], [chunk], form=form)
                continue
            sink.begin_batch()
            with connection.cursor() as cursor:
                copy_in(cursor, sink.staging.rows, [*names, own], [chunk], form)
            sink.commit_batch(1, [entry], Written((number + 1,), BATCH))
        seconds = time.perf_counter() - began
        sink.close()
    return ROWS / seconds


def rate_of_topics(stack: Stack, customers: int) -> float:
    """To a topic of three partitions, acknowledged, and the group's commit."""
    from support.sinks.kafka_world import KafkaWorld

    made = KafkaWorld(stack, f"b{uuid.uuid4().hex[:10]}", settings={"retention.ms": "-1"}, own_clients=True)
    writer = Writer(made, 1).ready()
    seconds = batches(writer, customers)
    writer.sink.close()
    return ROWS / seconds


def rate_of_dataset(stack: Stack, customers: int) -> float:
    """To objects of one event date, with the manifests."""
    from support.sinks.dataset_world import DatasetWorld

    writer = Writer(DatasetWorld(stack, f"b{uuid.uuid4().hex[:10]}"), 1).ready()
    seconds = batches(writer, customers)
    writer.sink.close()
    return ROWS / seconds


def rate_of_put(stack: Stack, customers: int) -> float:
    """The same rows as Parquet, one object a batch, with no look at them: its limit."""
    from millrace.adapters.s3.store import S3Store

    store, prefix = S3Store(stack.settings().s3()), f"bench/{uuid.uuid4().hex}"
    of_batch = [
        [block(at, BLOCK, customers, ("_timestamp",)) for at in range(first, first + BATCH, BLOCK)]
        for first in range(0, ROWS, BATCH)
    ]
    began = time.perf_counter()
    for number, blocks in enumerate(of_batch):
        made = io.BytesIO()
        pq.write_table(pa.Table.from_batches(blocks), made, compression="zstd")
        store.create(f"{prefix}/{number}.parquet", made.getvalue())
    return ROWS / (time.perf_counter() - began)


def rate_of_produce(stack: Stack, customers: int) -> float:
    """The same records, made beforehand, by the same client without headers, without a look at them: its limit."""
    from confluent_kafka import Producer

    from support.sinks.kafka_world import KafkaWorld

    made = KafkaWorld(stack, f"b{uuid.uuid4().hex[:10]}", settings={"retention.ms": "-1"})
    keys = [b"c%d" % (at * 7_919 % customers) for at in range(ROWS)]
    values = [b'{"customer":"%b","amount":%d}' % (key, at) for at, key in enumerate(keys)]
    more = {"linger.ms": 20, "compression.type": "lz4", "batch.size": 1_000_000, "enable.idempotence": True}
    producer = Producer({**made.kafka.librdkafka, "partitioner": "murmur2_random", **more})
    topic = made.topics[0].name
    began = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0
    return ROWS / (time.perf_counter() - began)


def rate_of_inserts(settings: PostgresSettings, rows: int, together: int) -> float:
    """INSERT into a table as a stream appends to, so many rows a statement and a transaction."""
    with world(settings, AppendWorld) as made, connect(settings, "bench inserts") as connection:
        Writer(made, 1).ready().sink.close()
        connection.autocommit = True
        names = "_topic_id, _partition, _offset, _ordinal, _timeline, customer, amount"
        insert = f"INSERT INTO {made.name}.rows ({names}) VALUES "  # type: ignore[attr-defined]
        began = time.perf_counter()
        for first in range(0, rows, together):
            values = (f"('{TOPIC_ID}', 0, {at}, 0, 1, 'c', {at})" for at in range(first, first + together))
            connection.execute((insert + ", ".join(values)).encode())
        return rows / (time.perf_counter() - began)


@pytest.mark.timeout(3600)
def test_sinks_in_turns(postgres: Stack, kafka: Stack, s3: Stack) -> None:
    settings = postgres.settings().postgres("millrace_sink")
    kinds: dict[str, Callable[[], float]] = {
        "append, staged and merged": partial(rate_of, settings, AppendWorld, FEW),
        "append, straight into the table": partial(rate_of_straight, settings, FEW),
        **{
            f"{'straight' if straight else 'staged'}, {form} made before": partial(
                rate_of_ready, settings, FEW, form, straight=straight
            )
            for form in ("text", "binary")
            for straight in (False, True)
        },
        f"upsert, {FEW:,} keys": partial(rate_of, settings, UpsertWorld, FEW),
        f"upsert, a key a row of {MANY:,}": partial(rate_of, settings, UpsertWorld, MANY),
        f"kafka, {FEW:,} keys": partial(rate_of_topics, kafka, FEW),
        "plain produce of ready records": partial(rate_of_produce, kafka, FEW),
        "s3": partial(rate_of_dataset, s3, FEW),
        "plain put of the same rows as Parquet": partial(rate_of_put, s3, FEW),
        "one row an INSERT": partial(rate_of_inserts, settings, BY_ONE, 1),
        "1,000 rows an INSERT": partial(rate_of_inserts, settings, min(ROWS, 200_000), 1_000),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            rates[name].append(run())
    table = Table(title=f"{ROWS:,} rows, batches of {BATCH:,}, {ROUNDS} rounds in turns")
    for heading in ("sink", "rows/s, each round", "median", "of append"):
        table.add_column(heading, justify="left" if heading == "sink" else "right")
    first = median(next(iter(rates.values())))
    for name, found in rates.items():
        each = "  ".join(f"{rate:,.0f}" for rate in found)
        table.add_row(name, each, f"{median(found):,.0f}", f"{median(found) / first:.2f}")
    Console(width=120).print(table)
