"""Millrace's append stream beside Kafka Connect's JDBC sink: one topic, the same columns, one engine after the other.

Called as `./millrace test tests/bench/sinks/bench_connect.py -s`.
MILLRACE_BENCH_ROWS (1,000,000) says how many records,
MILLRACE_BENCH_ROUNDS (4) how many rounds, MILLRACE_BENCH_MODES (all) which ways of Connect, by comma.

A round makes a topic of four partitions, fills it with purchases and then lets each engine read it from its first
record, alone, in a JVM of its own that is started for it and ended after it; each round begins with another engine,
and a table is dropped once it is counted.
What each does is parse the JSON, and write four columns (TEXT, DATE, INT, NUMERIC) into a table of its own beside the
coordinates of the record, which are its primary key: topic, partition, offset, and Millrace's also the row's ordinal.
The example's transform, with its three computed columns, is not used: Connect could not do it.

Two rates, both in rows a second. Neither counts the start of a JVM:

- "from ready": all rows, from the moment the engine is ready to the last row visible by SQL. Ready is Millrace once its
  Spark session is up and its query started (its driver's log says when), and Connect once its REST interface shows all
  tasks running, whose connections to the database are up then. Their consumers may still be joining their group, and
  the classes of either engine are cold.
- "later rows": those that come after the first MILLRACE_BENCH_BATCH (250,000), which are the first batch of Millrace's.
  This leaves out what an engine does while it is cold. Where there are no more rows than that, there is no such rate.

Both moments are looked for every 20 ms: the highest offset of each partition, by the primary key. They stand for all
rows as either engine writes the offsets of a partition in order; that nothing is missing or there twice is counted at
the end, with the number of sources.

What Connect is given: JsonConverter with one schema for all records (`schema.content`, KIP-1054), as Debezium's sink
takes no schemaless ones: so it reads the very records that Millrace reads, without a schema in each. A date comes as
text and is made one by PostgreSQL (`stringtype=unspecified`), which costs Connect less than a transform. A task a
partition, batches and polls of 5,000, `reWriteBatchedInserts=true`, no change of tables by the sink, 1 GiB of heap, as
the stream has. Its ways are

- upsert: `primary.key.mode=kafka`, `insert.mode=upsert`. A record that is read again after a crash is written over
  the same row, which is what comes nearest to Millrace's exactly-once;
- insert: the same key, plain INSERTs. After a crash the first record that is read again fails the task;
- unnest: upsert with `dialect.postgres.unnest.insert.enabled=true`, which the sink has for PostgreSQL. With
  `primary.key.mode=kafka` it fails in 3.5.0 (a NullPointerException), and it takes no text for a date. So two of
  Kafka's transforms put the coordinates and a real date into each value, whose cost is in the rate.

What is not alike: Millrace also checks each record against the declared schema, keeps a record of its work in the
transaction of the rows, and quarantines; Connect commits its offsets to Kafka every minute, apart from the rows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
import pytest
from rich.console import Console
from rich.table import Table

from bench.limits import connect
from bench.sinks.connect import CONNECTOR, Worker, fetch_sink, versions
from bench.streams.bench_speed import produce
from bench.workload import CORES, PARTITIONS, RECORDS_PER_BATCH, SINK, TRIGGER, Workload
from millrace.embedded.stack import Stack
from millrace.ports.runner import RunState
from support.waiting import Deadline, eventually

ROWS = int(os.environ.get("MILLRACE_BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("MILLRACE_BENCH_ROUNDS", "4"))
LOOK = timedelta(milliseconds=20)
AT_ONCE = 5_000

COORDINATES = ("__connect_topic", "__connect_partition", "__connect_offset")  # as the sink names them itself

MODES = {
    "upsert": {"insert.mode": "upsert"},
    "insert": {"insert.mode": "insert"},
    "unnest": {
        "insert.mode": "upsert",
        "dialect.postgres.unnest.insert.enabled": "true",
        "primary.key.mode": "record_value",
        "primary.key.fields": ",".join(COORDINATES),
        "transforms": "place,day",
        "transforms.place.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.place.topic.field": COORDINATES[0],
        "transforms.place.partition.field": COORDINATES[1],
        "transforms.place.offset.field": COORDINATES[2],
        "transforms.day.type": "org.apache.kafka.connect.transforms.TimestampConverter$Value",
        "transforms.day.field": "purchased_on",
        "transforms.day.target.type": "Date",
        "transforms.day.format": "yyyy-MM-dd",
    },
}
CHOSEN = os.environ.get("MILLRACE_BENCH_MODES", ",".join(MODES)).split(",")

TRANSFORM = '''"""The purchases as they come."""


def transform(inputs, tables):
    return inputs["{topic}"].select("customer_id", "purchased_on", "quantity", "amount", "_source")
'''

TABLE = """
CREATE TABLE {table} (
    __connect_topic text COLLATE "C", __connect_partition int, __connect_offset bigint,
    customer_id text, purchased_on date, quantity int, amount numeric(12, 2),
    PRIMARY KEY (__connect_topic, __connect_partition, __connect_offset)
)
"""

SCHEMA = {
    "type": "struct",
    "optional": False,
    "fields": [
        {"field": "customer_id", "type": "string", "optional": False},
        {"field": "purchased_on", "type": "string", "optional": False},
        {"field": "quantity", "type": "int32", "optional": False},
        {
            "field": "amount",
            "type": "bytes",
            "optional": False,
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
    ],
}

CONSUMER = {"max.poll.records": str(AT_ONCE), "max.partition.fetch.bytes": "4194304", "fetch.min.bytes": "100000"}


@dataclass(frozen=True, slots=True)
class Kept:
    """Where an engine keeps a row's source: its table, and the columns of topic, partition and offset."""

    table: str
    topic: str
    partition: str
    offset: str

    def visible(self, connection: psycopg.Connection[tuple[object, ...]]) -> int:
        """How many rows are there, by the highest offset of each partition; 0 before there is a table."""
        try:
            topics = connection.execute(f"SELECT {self.topic} FROM {self.table} LIMIT 1").fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
        if topics is None:
            return 0
        highest = (
            f"SELECT sum((SELECT coalesce(max({self.offset}) + 1, 0) FROM {self.table} "
            f"WHERE {self.topic} = %s AND {self.partition} = p)) FROM generate_series(0, {PARTITIONS - 1}) p"
        )
        found = connection.execute(highest, topics).fetchone()
        return int(str(found[0])) if found else 0

    def counted(self, connection: psycopg.Connection[tuple[object, ...]]) -> tuple[object, ...]:
        """How many rows there are and of how many sources; then sums of what they hold."""
        sources = f"count(DISTINCT ({self.topic}, {self.partition}, {self.offset}))"
        sums = "sum(quantity), sum(amount), sum(purchased_on - DATE '1970-01-01'), sum(customer_id::bigint)"
        found = connection.execute(f"SELECT count(*), {sources}, {sums} FROM {self.table}").fetchone()
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """When an engine was ready, and when its first and its last rows were seen; how many the first ones were.

    `sums` are of what the rows hold.
    """

    ready: float
    first: float
    first_rows: int
    last: float
    sums: tuple[object, ...]

    @property
    def from_ready(self) -> float:
        return ROWS / (self.last - self.ready)

    @property
    def from_first(self) -> float | None:
        """None where the first rows seen were all."""
        return (ROWS - self.first_rows) / (self.last - self.first) if self.last > self.first else None


@pytest.mark.timeout(3600)
def test_engines_in_turns(kafka: Stack, postgres: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SINK == "postgres", "MILLRACE_BENCH_SINK must be left alone: PostgreSQL is what both write to"
    fetch_sink(tmp_path)
    engines: dict[str, Callable[[Workload, Path], Seen]] = {"Millrace, append": seen_of_millrace}
    engines |= {f"Connect, {mode}": partial(seen_of_connect, mode) for mode in CHOSEN}
    found: dict[str, list[Seen]] = {name: [] for name in engines}
    for number in range(ROUNDS):
        workload = filled(kafka, number)
        names = list(engines)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            scratch = tmp_path / "scratch"
            scratch.mkdir()
            found[name].append(engines[name](workload, scratch))
            shutil.rmtree(scratch)
            with capsys.disabled():
                print(f"round {number + 1}: {name}: {found[name][-1].from_ready:,.0f} rows/s", flush=True)
        assert len({rounds[-1].sums for rounds in found.values()}) == 1, "the engines wrote different rows"
    with capsys.disabled():
        Console(width=130).print(table_of(found))


def filled(stack: Stack, number: int) -> Workload:
    """A stream that copies, not started, and its topic with all records in it."""
    pipeline = f"beside{number}"
    workload = Workload(stack, pipeline)
    app = workload.root / "spark_apps" / f"{pipeline}_purchases" / "transform.py"
    app.write_text(TRANSFORM.format(topic=workload.topic))
    produce(workload, number, ROWS)
    return workload


def seen_of_millrace(workload: Workload, scratch: Path) -> Seen:
    """Run the stream over the whole topic; its driver's log says when the query was started."""
    kept = Kept(workload.table, "_topic_id", "_partition", "_offset")
    workload.start()
    try:
        told = next(line for line in workload.log().splitlines() if " event=running " in line)
        started = re.search(r"timestamp=(\S+)", told)
        assert started, told

        def check() -> None:
            app = workload.platform.apps.runner().status(workload.stream, workload.epoch)
            assert app is not None, workload.log()[-3000:]
            assert app.state is RunState.RUNNING, workload.log()[-3000:]

        return watched(workload, kept, datetime.fromisoformat(started[1]).timestamp(), check)
    finally:
        workload.stop()


def seen_of_connect(mode: str, workload: Workload, scratch: Path) -> Seen:
    """Run a worker with one connector over the whole topic."""
    name = f"{workload.pipeline.name}_{mode}"
    kept = Kept(f"{workload.table}_{mode}", *COORDINATES)
    schema = kept.table.partition(".")[0]
    with connect(workload) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        connection.execute(TABLE.format(table=kept.table))
    servers = workload.platform.settings.kafka().bootstrap_servers
    with Worker(scratch, servers, CONSUMER) as worker:
        worker.add(name, settings(workload, kept.table) | MODES[mode])
        eventually(
            lambda: worker.running_tasks(name) == PARTITIONS,
            within=Deadline.STREAM,
            what="all tasks to run",
            every=LOOK,
        )
        return watched(workload, kept, time.time(), lambda: worker.running_tasks(name))


def settings(workload: Workload, table: str) -> dict[str, str]:
    """The connector's, but for its mode."""
    sink = workload.platform.settings.postgres("millrace_sink")
    url = f"jdbc:postgresql://{sink.host}:{sink.port}/{sink.database}"
    return {
        "connector.class": CONNECTOR,
        "tasks.max": str(PARTITIONS),
        "topics": workload.topic,
        "connection.url": f"{url}?reWriteBatchedInserts=true&stringtype=unspecified",
        "connection.username": sink.user,
        "connection.password": sink.password,
        "collection.name.format": table,
        "primary.key.mode": "kafka",
        "schema.evolution": "none",
        "batch.size": str(AT_ONCE),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter.schema.content": json.dumps(SCHEMA),
    }


def watched(workload: Workload, kept: Kept, ready: float, check: Callable[[], object]) -> Seen:
    """Look for the first and the last row; `check`, asked now and then, fails where the engine has."""
    with connect(workload) as connection:
        connection.autocommit = True
        rows, checked = 0, time.monotonic()

        def reach(wanted: int) -> bool:
            nonlocal rows, checked
            rows = kept.visible(connection)
            if time.monotonic() > checked + 1:
                check()
                checked = time.monotonic()
            return rows >= wanted

        eventually(
            partial(reach, min(ROWS, RECORDS_PER_BATCH)), within=Deadline.LONG, what="the first rows", every=LOOK
        )
        first, first_rows = time.time(), rows
        eventually(partial(reach, ROWS), within=Deadline.LONG, what=f"{ROWS:,} rows", every=LOOK)
        last = first if rows == first_rows else time.time()
        rows_there, sources, *sums = kept.counted(connection)
        connection.execute(f"DROP TABLE {kept.table}")
    assert (rows_there, sources) == (ROWS, ROWS)
    return Seen(ready, first, first_rows, last, tuple(sums))


def table_of(found: dict[str, list[Seen]]) -> Table:
    table = Table(title=f"{ROWS:,} records of {PARTITIONS} partitions, {ROUNDS} rounds in turns, {CORES} cores, rows/s")
    for heading in (
        "engine",
        "from ready, each round",
        "median",
        "of Millrace",
        "later rows, each round",
        "median",
    ):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    most = median(seen.from_ready for seen in next(iter(found.values())))
    for name, rounds in found.items():
        ready = [seen.from_ready for seen in rounds]
        first = [rate for seen in rounds if (rate := seen.from_first) is not None]
        table.add_row(
            name,
            "  ".join(f"{rate:,.0f}" for rate in ready),
            f"{median(ready):,.0f}",
            f"{median(ready) / most:.2f}",
            "  ".join(f"{rate:,.0f}" for rate in first) or "-",
            f"{median(first):,.0f}" if first else "-",
        )
    table.caption = f"{versions()}; Millrace's batches of {RECORDS_PER_BATCH:,}, a trigger of {TRIGGER}"
    return table
