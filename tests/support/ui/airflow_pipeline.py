"""A small pipeline of a test's own that the stack's Airflow provisions, starts and supervises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
from confluent_kafka import Producer

from support.stack.embedded import CHECKOUT
from support.topics.reader import committed_records
from support.ui.airflow_ui import AirflowUser, put
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from millrace.embedded.stack import Stack

DECLARATION = """\
pipeline: {name}
owner: tests
topics:
  {name}.numbers:
    partitions: 2
    retention: {{time: unlimited}}
    value: {{format: json, schema: "{schema}"}}
streams:
  numbers:
    app: {name}_numbers
    reads: [{name}.numbers]
    writes: {{postgres: {{connection: millrace_sink, table: {name}.numbers, mode: append}}}}
    trigger: 500ms
    stuck_after: {stuck_after}
    resources: {{cores: 1, memory: 512MiB}}
"""

DAGS = """\
from millrace.airflow.pipeline import pipeline_dags

globals().update(pipeline_dags({name!r}))
"""

TRANSFORM = """\
def transform(inputs, tables):
    (numbers,) = inputs.values()
    return numbers.selectExpr("number", "2 * number AS twice", "_source")
"""


@dataclass(frozen=True)
class Driver:
    """A living driver of a stream: its process id and its epoch."""

    pid: int
    epoch: int


@dataclass
class AirflowPipeline:
    """A pipeline with one stream `numbers`, its topic and its table; its name is new."""

    stack: Stack
    admin: AirflowUser
    kind: str
    transform: str = TRANSFORM
    stuck_after: str = "2m"
    schema: str = "number INT NOT NULL"

    def __post_init__(self) -> None:
        self.name = f"{self.kind}_{uuid.uuid4().hex[:6]}"

    @property
    def stream(self) -> str:
        """The stream's full name."""
        return f"{self.name}.numbers"

    @property
    def dag(self) -> str:
        """The DAG that watches the stream."""
        return f"{self.name}.stream.numbers"

    @property
    def folder(self) -> Path:
        """Where the stream's apps write."""
        return self.stack.layout.state / "streams" / self.stream

    @cached_property
    def _producer(self) -> Producer:
        return Producer({**self.stack.settings().kafka().librdkafka, "partitioner": "murmur2_random"})

    def deploy(self) -> None:
        """Write the pipeline's files, wait until Airflow has read them, and let it make the topic."""
        root = self.stack.root
        self.program(self.transform)
        self._declare()
        put(root / "dags" / f"{self.name}.py", DAGS.format(name=self.name))
        self.admin.wait_for_dag(f"{self.name}.topics")
        assert self.admin.run(f"{self.name}.topics", {})["state"] == "success"

    def _declare(self) -> None:
        declaration = DECLARATION.format(name=self.name, stuck_after=self.stuck_after, schema=self.schema)
        put(self.stack.root / "include" / "pipelines" / f"{self.name}.yaml", declaration)

    def redeploy(self, *, schema: str) -> None:
        """Declare another schema of the topic, and start the stream anew: one that runs goes on with the former."""
        self.schema = schema
        self._declare()
        code, said, _ = self.command("stop", self.stream, "--reason", "the schema was mended")
        assert code == 0, said
        self.operate("start")

    def program(self, transform: str) -> None:
        """Write the program that the stream's next start loads."""
        put(self.stack.root / "spark_apps" / f"{self.name}_numbers" / "transform.py", textwrap.dedent(transform))

    def withdraw(self) -> None:
        """Stop the stream and take the files away, so that other tests see their own pipelines only."""
        if self.drivers():
            self.command("stop", self.stream, "--reason", "the test is over")
        root = self.stack.root
        (root / "dags" / f"{self.name}.py").unlink()
        (root / "include" / "pipelines" / f"{self.name}.yaml").unlink()

    def operate(self, action: str) -> None:
        """Fill in the form of the pipeline's operate DAG."""
        conf = {"stream": "numbers", "action": action, "reason": "a test of the supervision"}
        assert self.admin.run(f"{self.name}.operate", conf)["state"] == "success"

    def produce(self, numbers: Iterable[int], **more: object) -> None:
        """Produce one record a number, each with `more` fields."""
        for number in numbers:
            self._producer.produce(self.stream, json.dumps({"number": number, **more}), str(number))
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def send(self, *values: bytes) -> None:
        """Produce one record a value, whatever it is, without a key."""
        for value in values:
            self._producer.produce(self.stream, value)
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def drivers(self) -> list[Driver]:
        """The living drivers of the stream, by their command lines and this project's mark."""
        found = {}
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                if self._is_driver(words) and process.environ().get("MILLRACE_ROOT") == str(self.stack.root):
                    found[process.pid] = (process.ppid(), int(words[words.index("--epoch") + 1]))
            except psutil.Error:
                continue
        # a child the driver forks has its command line until it becomes something else
        return [Driver(pid, epoch) for pid, (parent, epoch) in found.items() if parent not in found]

    def _is_driver(self, words: list[str]) -> bool:
        ours = self.stream in words and any(word.endswith("spark_apps/stream.py") for word in words)
        return ours and "millrace.adapters.apps.runners.guard" not in words

    def app_processes(self) -> list[psutil.Process]:
        """Every process of the stream's apps, guards, JVMs and Python workers included, by their mark."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            if environment.get("MILLRACE_ROOT") == str(self.stack.root) and environment.get(
                "MILLRACE_APP", ""
            ).startswith(f"{self.stream}#"):
                found.append(process)
        return found

    def epochs(self) -> list[int]:
        """Every epoch that was ever submitted here."""
        return sorted(int(entry.name) for entry in self.folder.glob("*") if entry.name.isdigit())

    def books(self) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """The sources of the rows in the sink, and those of the records in the topic."""
        settings = self.stack.settings()
        with psycopg.connect(**settings.postgres("millrace_sink").keywords(), autocommit=True) as connection:
            query = f"SELECT _partition, _offset FROM {self.stream}"
            try:
                rows = Counter(connection.execute(query).fetchall())  # type: ignore[call-overload]
            except psycopg.errors.UndefinedTable:
                rows = Counter()
        records = committed_records(settings.kafka().bootstrap_servers, self.stream)
        return rows, Counter((record.partition, record.offset) for record in records)

    def wait_for_books(self) -> None:
        """Wait until every record is one row, then hold that none is two."""

        def balanced() -> bool:
            rows, records = self.books()
            assert not rows - records, f"rows without a record, or doubled: {sorted(rows - records)[:5]}"
            return rows == records

        eventually(balanced, within=Deadline.STREAM, what=f"every record of {self.stream} in the sink, once")

    def wait_until_watched(self, *, not_run: str = "") -> dict[str, object]:
        """Wait until the present app is watched by a run; that run's task `running`."""
        found = eventually(
            lambda: self.admin.watching(self.dag, not_run=not_run),
            within=Deadline.AIRFLOW,
            what=f"a watch of {self.stream}",
        )
        assert found
        return found

    @contextmanager
    def killed_app(self) -> Iterator[Driver]:
        """Kill the app; yield its driver while it is dead. Wait for another app that a new run watches.

        Assert that there is one such app, and that the former watch is one red run whose log says why.
        """
        self.wait_until_watched()
        [driver] = self.drivers()
        former = {run["dag_run_id"]: run["state"] for run in self.admin.runs(self.dag)}
        [watch] = [name for name, state in former.items() if state == "running"]
        for process in self.app_processes():
            with suppress(ProcessLookupError):  # a worker ends with its JVM
                os.kill(process.pid, signal.SIGKILL)
        yield driver
        eventually(lambda: self.drivers() not in ([], [driver]), within=Deadline.AIRFLOW, what="another app")
        self.wait_until_watched(not_run=watch)
        assert [each.epoch for each in self.drivers()] == [driver.epoch + 1]
        after = {run["dag_run_id"]: run["state"] for run in self.admin.runs(self.dag)}
        assert after[watch] == "failed"
        assert sorted(state for name, state in after.items() if name not in former) == ["running"]
        log = self.admin.log(self.dag, watch, "running")
        assert f"epoch {driver.epoch} died" in log
        assert "The end of the driver's log:" in log

    def command(self, *words: str) -> tuple[int, str, float]:
        """`millrace streams WORDS`; its exit code, what it printed, and the seconds it took."""
        began = time.monotonic()
        variables = {"MILLRACE_ROOT": str(self.stack.root), "PYTHONPATH": str(CHECKOUT / "include")}
        done = subprocess.run(
            [sys.executable, "-m", "millrace.cli.main", "streams", *words],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=Deadline.STREAM.seconds + Deadline.COMMAND.seconds,  # it gives up by itself after three minutes
        )
        return done.returncode, done.stdout + done.stderr, time.monotonic() - began
