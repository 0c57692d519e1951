"""How fast one stream is: first produced record to last row visible by SQL, beside what this machine could do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest
from rich.console import Console
from rich.table import Table

from bench.accounting import OTHERS, MemorySampler, Usage, usage
from bench.limits import Limit, LimitMeter, connect, dataset_of, ends_of
from bench.workload import CORES, RECORDS, RUNS, SINK, TRIGGER, Workload, package_path
from millrace.adapters.kafka.reader import TopicReader
from millrace.embedded.stack import Stack
from millrace.ports.runner import RunState
from support.checks.runs import RUN_VARIABLE
from support.stack.embedded import start
from support.waiting import Deadline, eventually

STEPS = ("plan", "copy", "check", "merge", "group")  # as the driver's log names them
WARM_UP_RECORDS = min(RECORDS, 200_000)


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run beside the limits measured just before and just after it."""

    records: int
    seconds: float
    produce_seconds: float
    used: Usage
    limit: Limit
    load: float
    batches: list[dict[str, float | str]]

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def ratio(self) -> float:
        """Of the limit of a machine that does nothing else."""
        return self.rate / self.limit.records_per_second

    @property
    def ratio_of_what_was_left(self) -> float:
        """Of the limit of the processors that other programs left to the stack meanwhile."""
        left = CORES - self.used.others / self.used.at
        return self.ratio * CORES / max(left, 0.1)


@pytest.fixture(params=["ordinary", "exact"])
def workload(request: pytest.FixtureRequest, kafka: Stack, postgres: Stack) -> Iterator[Workload]:
    """A stream of records of 30 fields of which four are declared; and one of records with these four only."""
    if SINK == "s3":
        start(kafka, "s3")
    made = Workload(kafka, f"bench_{request.param}", request.param)
    made.start()
    yield made
    made.stop()


def test_rate_beside_the_limit(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch, LimitMeter(workload, Path(scratch)) as meter:
        produce(workload, 0, WARM_UP_RECORDS)
        wait_for_rows(workload, WARM_UP_RECORDS)
        meter.measure()
        before = meter.measure()
        with MemorySampler(workload.root) as memory:
            for number in range(RUNS):
                run = measured_run(workload, number + 1)
                after = meter.measure()
                runs.append(Run(*run, _mean(before, after), os.getloadavg()[0], batches_since(workload, runs)))
                before = after
    assert written(workload) == (WARM_UP_RECORDS + RUNS * RECORDS,) * 2
    with capsys.disabled():
        show(workload.kind, runs, memory)


def written(workload: Workload) -> tuple[int, int]:
    """How many rows there are, and of how many sources."""
    if SINK == "kafka":
        records = TopicReader(workload.platform.settings.kafka()).committed(workload.target)
        sources = Counter(record.headers[1] for record in records)
        return sources.total(), len(sources)
    if SINK == "s3":
        reader = dataset_of(workload)
        snapshot = reader.snapshot()
        assert snapshot is not None
        table = pa.concat_tables(reader.rows(snapshot))
        return len(table), len(table.group_by(["_partition", "_offset"]).aggregate([]))
    with connect(workload) as connection:
        rows = connection.execute(f"SELECT count(*), count(DISTINCT (_partition, _offset)) FROM {workload.table}")
        found: tuple[int, int] | None = rows.fetchone()
        assert found is not None
        return found


def measured_run(workload: Workload, seed: int) -> tuple[int, float, float, Usage]:
    """Produce, wait for the last row, and what the processors did meanwhile."""
    expected = sum(ends_of(workload).values()) + RECORDS
    before = usage(workload.root)
    producer = start_producer(workload, seed, RECORDS)
    assert producer.stdout is not None
    began = float(producer.stdout.readline())
    ended = wait_for_rows(workload, expected)
    used = usage(workload.root).since(before)
    produced, producer_cpu = map(float, producer.stdout.readline().split())
    assert producer.wait(60) == 0
    used = replace(used, parts={**used.parts, "producer": producer_cpu})
    return RECORDS, ended - began, produced - began, used


def produce(workload: Workload, seed: int, records: int) -> None:
    producer = start_producer(workload, seed, records)
    assert producer.wait(300) == 0


def start_producer(workload: Workload, seed: int, records: int) -> subprocess.Popen[str]:
    servers = workload.platform.settings.kafka().bootstrap_servers
    command = [sys.executable, "-m", "bench.produce", servers, workload.topic, str(seed), str(records), workload.kind]
    environment = {"PYTHONPATH": package_path(), "PATH": os.defpath, RUN_VARIABLE: os.environ[RUN_VARIABLE]}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for_rows(workload: Workload, expected: int) -> float:
    """When SQL showed the work on record up to the last record: the same transaction shows its rows."""

    def done() -> bool:
        app = workload.platform.apps.runner().status(workload.stream, workload.epoch)
        assert app is not None
        assert app.state is RunState.RUNNING, workload.log()[-3000:]
        return sum(ends_of(workload).values()) >= expected

    eventually(done, within=Deadline.LONG, what=f"{expected} records on record", every=timedelta(milliseconds=100))
    return time.time()


def batches_since(workload: Workload, runs: list[Run]) -> list[dict[str, float | str]]:
    """The batches of the newest run: those reported after the former runs' and the warm-up's."""
    found = [batch for batch in workload.batches()]
    records = WARM_UP_RECORDS + sum(run.records for run in runs)
    while found and records > 0:
        records -= int(found.pop(0)["rows_in"])
    return found


def _mean(one: Limit, other: Limit) -> Limit:
    return Limit((one.scan_cpu + other.scan_cpu) / 2, (one.copy_cpu + other.copy_cpu) / 2)


def show(kind: str, runs: list[Run], memory: MemorySampler) -> None:
    """Three tables: rates, where the time and the processors went, and memory."""
    console = Console(width=130)
    console.print()
    console.print(rates(kind, runs))
    console.print(costs(runs))
    console.print(steps(runs))
    console.print(parts_of(memory, "memory of Kafka, PostgreSQL and one stream at its peak"))


def rates(kind: str, runs: list[Run]) -> Table:
    table = Table(
        title=f"{kind} records: first produced record to last row visible by SQL; trigger {TRIGGER}, {CORES} cores"
    )
    for name in (
        "run",
        "records",
        "s",
        "produced in s",
        "records/s",
        "limit/s",
        "ratio",
        "ratio of what was left",
        "load",
    ):
        table.add_column(name, justify="right")
    for number, run in enumerate(runs, 1):
        table.add_row(
            str(number),
            f"{run.records:,}",
            f"{run.seconds:.1f}",
            f"{run.produce_seconds:.1f}",
            f"{run.rate:,.0f}",
            f"{run.limit.records_per_second:,.0f}",
            f"{run.ratio:.0%}",
            f"{run.ratio_of_what_was_left:.0%}",
            f"{run.load:.1f}",
        )
    table.caption = (
        f"median: {median(run.ratio for run in runs):.0%} of the limit, "
        f"{median(run.ratio_of_what_was_left for run in runs):.0%} of what other programs left of it"
    )
    return table


def costs(runs: list[Run]) -> Table:
    """CPU microseconds per record, by part of the stack, beside the limit's two halves."""
    table = Table(title="CPU microseconds per record")
    table.add_column("part")
    for number in range(1, len(runs) + 1):
        table.add_column(f"run {number}", justify="right")
    for name in sorted({part for run in runs for part in run.used.parts}):
        table.add_row(name, *(_micro(run.used.parts.get(name, 0.0) / run.records) for run in runs))
    table.add_section()
    table.add_row("whole stack", *(_micro(sum(run.used.parts.values()) / run.records) for run in runs))
    table.add_row("idle", *(_micro((CORES * run.used.at - run.used.machine) / run.records) for run in runs))
    table.add_row(OTHERS, *(_micro(run.used.others / run.records) for run in runs))
    table.add_section()
    table.add_row("limit: scan + decode", *(_micro(run.limit.scan_cpu) for run in runs))
    named = {"kafka": "produce", "s3": "Parquet and put", "postgres": "COPY"}
    table.add_row(f"limit: {named[SINK]}", *(_micro(run.limit.copy_cpu) for run in runs))
    return table


def steps(runs: list[Run]) -> Table:
    """Seconds of each step of the batches, and between them."""
    table = Table(title="seconds of the batches")
    for name in ("run", "batches", *STEPS, "between batches", "before the first"):
        table.add_column(name, justify="right")
    for number, run in enumerate(runs, 1):
        in_batches = sum(float(batch["seconds"]) for batch in run.batches)
        ends = [datetime.fromisoformat(str(batch["timestamp"])).timestamp() for batch in run.batches]
        span = ends[-1] - ends[0] + float(run.batches[0]["seconds"]) if ends else 0.0
        times = [sum(float(batch[f"{step}_seconds"]) for batch in run.batches) for step in STEPS]
        cells = [*times, span - in_batches, run.seconds - span]
        table.add_row(str(number), str(len(run.batches)), *(f"{cell:.2f}" for cell in cells))
    return table


def parts_of(memory: MemorySampler, title: str) -> Table:
    table = Table(title=f"{title}: {memory.peak_bytes / 1e9:.2f} GB, {memory.samples} samples of PSS")
    table.add_column("part")
    table.add_column("MB", justify="right")
    for name, used in sorted(memory.peak.items(), key=lambda entry: -entry[1]):
        table.add_row(name, f"{used / 1e6:,.0f}")
    return table


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"
