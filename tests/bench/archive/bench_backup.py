"""How fast a backup catches up with a topic that is full, beside what this machine could do.

limit = bytes / (seconds of a warm Spark scan that only counts + seconds of two threads that put the very same objects
under other keys): as if nothing were done between reading and writing, and neither while the other is done.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from bench.accounting import OTHERS, MemorySampler, Usage, usage
from bench.limits import spark_environment
from bench.streams.bench_speed import parts_of
from bench.workload import CORES, PARTITIONS, package_path
from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.domain.archive.manifest import Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import LEAST_OBJECT_BYTES, UNWEIGHED_OFFSETS
from millrace.domain.streams.control import BATCH_STEPS
from millrace.embedded.stack import Stack
from millrace.ports.objects import ObjectStore
from millrace.settings import S3Settings
from support.archive.tees import Topics
from support.checks.runs import RUN_VARIABLE
from support.stack.faulty_proxy import faulty_proxy
from support.streams.apps import Driven
from support.waiting import Deadline

BYTES = int(os.environ.get("MILLRACE_BENCH_BACKUP_BYTES", "1000000000"))
WRITERS = 2
# In a backup's words: what the steps of its rounds do.
STEPS = dict(zip(BATCH_STEPS, ("look", "copy", "look again", "manifests", "commit"), strict=True))
IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Round:
    """A round as the driver's log tells of it; moments in seconds since 1970, sizes in bytes of objects."""

    ended: float
    records: int
    objects: int
    size: int
    seconds: Mapping[str, float]

    @property
    def began(self) -> float:
        return self.ended - sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """What one backup did, and the limits measured right after it."""

    value_bytes: int
    record_bytes: int
    rounds: list[Round]
    objects: list[ObjectEntry]
    manifests: int
    requests: Mapping[str, int]
    used: Usage
    own_cpu: float
    memory: MemorySampler
    scans: Mapping[str, Mapping[str, float]]
    put_seconds: float

    @property
    def records(self) -> int:
        return sum(entry.count for entry in self.objects)

    @property
    def seconds(self) -> float:
        """From the first round's begin to the last manifest."""
        last = self.rounds[-1]
        return last.ended - last.seconds["group"] - self.rounds[0].began

    @property
    def limit(self) -> float:
        return self.record_bytes / (self.scans["count"]["seconds"] + self.put_seconds)


class Subject:
    """A topic that is full, and the driver of its backup."""

    def __init__(self, stack: Stack, value_bytes: int) -> None:
        self.stack = stack
        self.value_bytes = value_bytes
        self.records = BYTES // value_bytes
        self.topics = Topics(stack)
        self.topic = self.topics.make(partitions=PARTITIONS)
        self.here = Incarnation(self.topic, self.topics.topic_id(self.topic))
        self.driver = Driven(stack.root, f"{self.topics.pipeline}.backup")
        self.declaration = stack.root / "include" / "pipelines" / f"{self.topics.pipeline}.yaml"
        backup = f"  {self.topic}:\n    manage: none\n    backup: {{every: 10s, max_lag: 1m}}\n"
        self.declaration.write_text(f"pipeline: {self.topics.pipeline}\nowner: benchmark\ntopics:\n{backup}")

    def fill(self) -> None:
        servers = self.topics.kafka.bootstrap_servers
        command = [sys.executable, "-m", "bench.produce", servers, self.topic, "0"]
        command += [str(self.records), str(self.value_bytes)]
        environment = {"PYTHONPATH": package_path(), "PATH": os.defpath, RUN_VARIABLE: os.environ[RUN_VARIABLE]}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=Deadline.LONG.seconds)

    def rounds(self) -> list[Round]:
        found = []
        for line in self.driver.log().splitlines():
            if " event=archived " in line:
                pairs = dict(re.findall(r"(\w+)=(\S+)", line))
                seconds = {step: float(pairs[f"{step}_seconds"]) for step in STEPS}
                ended = datetime.fromisoformat(pairs["timestamp"]).timestamp()
                numbers = (int(pairs[name]) for name in ("records", "objects", "bytes"))
                found.append(Round(ended, *numbers, seconds))
        return found

    def archive(self) -> Usage:
        """Run the backup until everything is archived; what the processors did once it was at work."""
        with self.driver.running():
            self.driver.until(lambda: " event=running " in self.driver.log(), "the backup to run")
            before = usage(self.stack.root)
            self.driver.until(lambda: self._archived() >= self.records, f"{self.records:,} records to be archived")
            return usage(self.stack.root).since(before)

    def _archived(self) -> int:
        return sum(each.records for each in self.rounds())

    def scans(self, scratch: Path) -> Mapping[str, Mapping[str, float]]:
        """Seconds, and CPU seconds, of scans that do nothing with what they read."""
        command = [
            sys.executable,
            "-m",
            "bench.archive.raw_scan",
            str(self.stack.root),
            self.topics.pipeline,
            self.topic,
        ]
        with (scratch / "scan.log").open("w+") as errors:
            done = subprocess.run(
                [*command, str(scratch)],
                env=spark_environment(self.stack),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=Deadline.LONG.seconds,
            )
            errors.seek(0)
            assert done.returncode == 0, errors.read()[-3000:]
        found: Mapping[str, Mapping[str, float]] = json.loads(done.stdout)
        return found


@pytest.fixture
def subject(kafka: Stack, s3: Stack, postgres: Stack, request: pytest.FixtureRequest) -> Iterator[Subject]:
    made = Subject(kafka, request.param)
    yield made
    made.declaration.unlink()
    made.topics.delete(made.topic)


@pytest.mark.parametrize("subject", [250, 1000], indirect=True, ids="{}B".format)
def test_rate_beside_the_limit(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subject.fill()
    settings = subject.stack.settings().s3()
    with faulty_proxy(settings) as proxy, MemorySampler(subject.stack.root) as memory:
        monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_S3", connection(proxy.settings))
        own = time.process_time()
        used = subject.archive()
        own = time.process_time() - own
        monkeypatch.delenv("AIRFLOW_CONN_MILLRACE_S3")
    store = subject.topics.platform.objects.store()
    manifests = [decode(link.data or b"", Manifest, link.key) for link in links(store, subject.here)]
    objects = [entry for manifest in manifests for entry in manifest.objects]
    assert sum(entry.count for entry in objects) == subject.records
    assert not any(entry.holes for entry in objects)
    measured = Measured(
        value_bytes=subject.value_bytes,
        record_bytes=subject.records * (subject.value_bytes + len("00000")),
        rounds=subject.rounds(),
        objects=objects,
        manifests=len(manifests),
        requests=dict(proxy.requests),
        used=used,
        own_cpu=own,
        memory=memory,
        scans=subject.scans(tmp_path),
        put_seconds=put_again(store, subject.here, objects),
    )
    with capsys.disabled():
        show(measured)


def connection(s3: S3Settings) -> str:
    """An Airflow Connection that leads to this store."""
    extra = {"endpoint_url": s3.endpoint_url, "service_config": {"s3": {"bucket_name": s3.bucket}}}
    extra |= {"region_name": s3.region} if s3.region else {}
    return json.dumps({"conn_type": "aws", "login": s3.access_key, "password": s3.secret_key, "extra": extra})


def put_again(store: ObjectStore, here: Incarnation, objects: list[ObjectEntry]) -> float:
    """Seconds that it takes to put the same objects under other keys."""
    bodies = {f"bench/{here.topic}/{entry}": store.get(here.object_key(entry.name)) or b"" for entry in objects}
    assert sum(map(len, bodies.values())) == sum(entry.size_bytes for entry in objects)
    with ThreadPoolExecutor(WRITERS) as pool:
        began = time.monotonic()
        list(pool.map(store.create, bodies, bodies.values()))
        return time.monotonic() - began


def show(measured: Measured) -> None:
    """Tables: the rate, what it came to in the store, the rounds, the processors, memory."""
    title = f"a backup that catches up, values of {measured.value_bytes} bytes"
    own = sum(used for name, used in measured.memory.peak.items() if name.startswith("stream: "))
    memory = parts_of(measured.memory, "memory of Kafka, PostgreSQL, the store and the backup at its peak")
    memory.min_width = 90
    memory.caption = f"driver, JVM and workers (`stream: ...`) together {own / 1e6:,.0f} MB"
    console = Console(width=130)
    for table in (rates(measured, title), kept(measured), rounds(measured), costs(measured), memory):
        console.print("", table)


def rates(measured: Measured, title: str) -> Table:
    table = Table(title=f"{title}; {PARTITIONS} partitions, {CORES} cores")
    for name in ("", "s", "records/s", "MB/s of records", "of the limit"):
        table.add_column(name, justify="right" if name else "left")
    scans = {name: measured.scans[name]["seconds"] for name in measured.scans}
    rows = {"first round's begin to last manifest": (measured.records, measured.seconds)}
    if later := measured.rounds[1:]:
        rows["rounds after the first"] = (sum(r.records for r in later), later[-1].ended - later[0].began)
    rows |= {
        "Spark scan, counted": (measured.records, scans["count"]),
        "the same into Python workers": (measured.records, scans["workers"]),
        f"puts of the same objects, {WRITERS} threads": (measured.records, measured.put_seconds),
        "limit: scan, then puts": (measured.records, scans["count"] + measured.put_seconds),
    }
    for name, (records, seconds) in rows.items():
        rate = measured.record_bytes * records / measured.records / seconds
        cells = [f"{seconds:.1f}", f"{records / seconds:,.0f}", f"{rate / 1e6:.1f}"]
        table.add_row(name, *cells, f"{rate / measured.limit:.0%}")
    young = f"{scans['young count']:.1f} s counted, then {scans['young workers']:.1f} s into workers"
    table.caption = (
        f"{measured.records:,} records, {measured.record_bytes / 1e6:,.0f} MB of keys and values; "
        f"of a young JVM the first {UNWEIGHED_OFFSETS:,} of each partition take {young}"
    )
    return table


def kept(measured: Measured) -> Table:
    """Objects, and the requests that came through the counting proxy."""
    sizes = sorted(entry.size_bytes for entry in measured.objects)
    gigabytes = measured.record_bytes / 1e9
    needed = len(sizes) + measured.manifests
    table = Table(title=f"{len(sizes)} objects, {measured.manifests} manifests")
    for name in ("", "number"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row(
        "least, median, largest object", " ".join(_mib(size) for size in (sizes[0], median(sizes), sizes[-1]))
    )
    small = sum(size < LEAST_OBJECT_BYTES for size in sizes)
    table.add_row(f"objects below {_mib(LEAST_OBJECT_BYTES)}", str(small))
    table.add_row("record bytes / object bytes", f"{measured.record_bytes / sum(sizes):.2f}")
    table.add_section()
    for operation, times in sorted(measured.requests.items()):
        table.add_row(operation, str(times))
    table.add_section()
    table.add_row("of them for objects and manifests, per GB of records", f"{needed / gigabytes:.0f}")
    table.add_row("of them once for each start", str(sum(measured.requests.values()) - needed))
    return table


def rounds(measured: Measured) -> Table:
    table = Table(title="seconds of the rounds")
    for name in ("round", "records", "objects", "MiB each", *STEPS.values(), "all", "pause before"):
        table.add_column(name, justify="right")
    ended = measured.rounds[0].began
    for number, each in enumerate(measured.rounds, 1):
        cells = [f"{each.seconds[step]:.2f}" for step in STEPS]
        size = _mib(each.size / each.objects)
        times = (f"{sum(each.seconds.values()):.2f}", f"{each.began - ended:.2f}")
        table.add_row(str(number), f"{each.records:,}", str(each.objects), size, *cells, *times)
        ended = each.ended
    return table


def costs(measured: Measured) -> Table:
    """CPU seconds and microseconds per record, from when the driver runs to when all is archived."""
    used = measured.used
    scans = {
        "Spark scan, counted": measured.scans["count"]["cpu_seconds"],
        "the same into Python workers": measured.scans["workers"]["cpu_seconds"],
    }
    table = Table(title=f"processors of {used.at:.1f} s, by part")
    for name in ("part", "s", "microseconds a record"):
        table.add_column(name, justify="left" if name == "part" else "right")
    parts = dict(sorted(used.parts.items(), key=lambda entry: -entry[1]))
    rest = {IDLE: CORES * used.at - used.machine, f"{OTHERS}, this one included": used.others}
    for section in (parts, rest, {"this program: counting proxy, samples of memory, polls": measured.own_cpu}, scans):
        for name, seconds in section.items():
            table.add_row(name, f"{seconds:.1f}", f"{seconds / measured.records * 1e6:.2f}")
        table.add_section()
    return table


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
