"""The limit of a stream on this machine, measured in the same run.

limit = cores / (CPU seconds per record of scan + decode to nowhere, plus those of one plain COPY of the same rows).
Scan and decode count Spark's JVM and Python, not the broker; the COPY counts the client and all of
the server. Of a stream that writes a dataset it is a plain Parquet file of the same rows, put by one client, server
included. Of a stream that writes to Kafka the second half is a plain produce of the same records by one client, its
broker not counted.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import pyarrow.parquet as pq
from confluent_kafka import Producer

from bench.accounting import usage
from bench.workload import CORES, PARTITIONS, SINK, Workload, package_path
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.settings import read_environment_file

LIMIT_RECORDS = 500_000


@dataclass(frozen=True, slots=True)
class Limit:
    """CPU seconds per record of both halves, and the rate that cores without anything else to do would reach."""

    scan_cpu: float
    copy_cpu: float

    @property
    def records_per_second(self) -> float:
        return CORES / (self.scan_cpu + self.copy_cpu)


class LimitMeter:
    """Measures the limit again and again; its Spark session stays warm and idle in between.

    The first measurement must not count: it warms the session.
    """

    def __init__(self, workload: Workload, scratch: Path) -> None:
        self._workload = workload
        self._records = 0
        command = [sys.executable, "-m", "bench.scan", str(workload.root), workload.stream, str(scratch)]
        environment = spark_environment(workload.stack)
        self._errors = (scratch / "scan.log").open("w")
        self._scan = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        assert self._answer() == "ready\n"

    def __enter__(self) -> LimitMeter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._scan.stdin is not None
        self._scan.stdin.close()
        self._scan.wait(60)
        self._errors.close()

    def measure(self) -> Limit:
        """Scan and COPY what the topic and the table hold, at most half a million records of each."""
        first, end = self._ranges()
        records = sum(end.values()) - sum(first.values())
        assert self._scan.stdin is not None
        self._scan.stdin.write(json.dumps({"first": first, "next": end}) + "\n")
        self._scan.stdin.flush()
        scanned = json.loads(self._answer())
        ways = {"postgres": self._copy, "kafka": self._produce, "s3": self._put}
        rows, cpu = ways[SINK]()
        return Limit(scanned["cpu_seconds"] / records, cpu / rows)

    def _answer(self) -> str:
        assert self._scan.stdout is not None
        line = self._scan.stdout.readline()
        assert line, f"the scan ended: {Path(self._errors.name).read_text()[-3000:]}"
        return line

    def _ranges(self) -> tuple[dict[str, int], dict[str, int]]:
        ends = ends_of(self._workload)
        share = LIMIT_RECORDS // len(ends)
        return {str(p): max(0, end - share) for p, end in ends.items()}, {str(p): end for p, end in ends.items()}

    def _produce(self) -> tuple[int, float]:
        """Produce what the stream has written once more, into a topic of its own; records and CPU seconds."""
        kafka, target = self._workload.platform.settings.kafka(), f"{self._workload.topic}.plain"
        held = islice(TopicReader(kafka).committed(self._workload.target), LIMIT_RECORDS)
        records = [(record.value, record.key) for record in held]
        self._workload.platform.kafka.topics().create([NewTopic(target, PARTITIONS, 1, {})])
        more = {"enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4", "batch.size": 1_000_000}
        producer = Producer({**kafka.librdkafka, "partitioner": "murmur2_random", **more})
        client = time.process_time()
        for value, key in records:
            while True:
                try:
                    producer.produce(target, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        return len(records), time.process_time() - client

    def _put(self) -> tuple[int, float]:
        """Write rows of the stream's dataset as Parquet once more, and put them elsewhere; rows and CPU seconds."""
        reader = dataset_of(self._workload)
        snapshot = reader.snapshot()
        assert snapshot is not None
        store, rows, cpu = self._workload.platform.objects.store(), 0, 0.0
        for number, table in enumerate(reader.rows(snapshot)):
            server, client = usage(self._workload.root).parts["object store"], time.process_time()
            made = io.BytesIO()
            pq.write_table(table, made, compression="zstd")
            store.create(f"bench/plain/{uuid.uuid4().hex}/{number}.parquet", made.getvalue())
            cpu += time.process_time() - client + usage(self._workload.root).parts["object store"] - server
            rows += len(table)
            if rows >= LIMIT_RECORDS:
                break
        return rows, cpu

    def _copy(self) -> tuple[int, float]:
        """COPY rows of the stream's table into a plain one with the same primary key; rows and CPU seconds."""
        target = self._workload.table
        with connect(self._workload) as connection:
            connection.execute("DROP TABLE IF EXISTS millrace.bench_plain")
            connection.execute(f"CREATE TABLE millrace.bench_plain (LIKE {target} INCLUDING INDEXES)")
            with connection.cursor().copy(f"COPY (SELECT * FROM {target} LIMIT {LIMIT_RECORDS}) TO STDOUT") as copy:
                text = b"".join(copy)
            connection.commit()
            server = usage(self._workload.root).parts["PostgreSQL"]
            client = time.process_time()
            with connection.cursor() as cursor:
                with cursor.copy("COPY millrace.bench_plain FROM STDIN") as copy:
                    for place in range(0, len(text), 1 << 20):
                        copy.write(text[place : place + (1 << 20)])
                rows = cursor.rowcount
            connection.commit()
            client = time.process_time() - client
            server = usage(self._workload.root).parts["PostgreSQL"] - server
            connection.execute("DROP TABLE millrace.bench_plain")
        return rows, client + server


def ends_of(workload: Workload) -> dict[int, int]:
    """How far each partition's committed rows reach, by the sink's record of work."""
    if SINK == "s3":
        snapshot = dataset_of(workload).snapshot()
        done = snapshot.history.record().next_offsets if snapshot else {}
        return {partition.partition: offset for partition, offset in done.items()}
    if SINK == "kafka":
        log, group = workload.platform.kafka.logs(), f"millrace.{workload.stream}"
        found = log.committed(group, log.partitions([workload.topic]))
        return {number: made.offset for (_, number), made in found.items()}
    with connect(workload) as connection:
        rows = connection.execute(
            "SELECT partition, next_offset FROM millrace.progress WHERE stream = %s", (workload.stream,)
        ).fetchall()
    return {int(partition): int(offset) for partition, offset in rows}


def dataset_of(workload: Workload) -> DatasetReader:
    """The dataset that the stream writes, to be read."""
    return DatasetReader(workload.platform.objects.store(), Dataset(workload.prefix))


def connect(workload: Workload) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection to the sink as any client has it."""
    settings = workload.platform.settings.postgres("millrace_sink")
    return psycopg.connect(**settings.keywords())  # type: ignore[arg-type]


def spark_environment(stack: Stack) -> dict[str, str]:
    """What a program of the benchmark's own needs to start Spark in the stack's project."""
    from_file = read_environment_file(stack.layout.environment_file)
    java = from_file.get("MILLRACE_JAVA_HOME") or os.environ.get("JAVA_HOME")
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"PYTHONPATH": package_path()} | ({"JAVA_HOME": java} if java else {})
