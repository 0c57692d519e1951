"""The benchmark's pipeline: the example's transform over generated purchases."""

from __future__ import annotations

import os
import re
from pathlib import Path

import millrace
from millrace import declarations
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.streams.supervision import Phase
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.ports.platform import Platform
from millrace.usecases.streams import supervise as streams
from millrace.wiring import open_platform
from support.example.purchases import PURCHASE
from support.waiting import Deadline, eventually

RECORDS = int(os.environ.get("MILLRACE_BENCH_RECORDS", "2000000"))
RUNS = int(os.environ.get("MILLRACE_BENCH_RUNS", "3"))
RECORDS_PER_BATCH = int(os.environ.get("MILLRACE_BENCH_BATCH", "250000"))
TRIGGER = os.environ.get("MILLRACE_BENCH_TRIGGER", "2s")
SINK = os.environ.get("MILLRACE_BENCH_SINK", "postgres")
PARTITIONS = 4
CORES = 2

DECLARATION = """
pipeline: {pipeline}
owner: benchmark
kafka: millrace_kafka
topics:
  {topic}:
    partitions: {partitions}
    replication: 1
    key: {{field: customer_id, partitioner: murmur2}}
    value:
      format: json
      schema: >-
        {schema}
  {target}:
    partitions: {partitions}
    replication: 1
    key: {{field: customer_id, partitioner: murmur2}}
    value:
      format: json
      schema: >-
        {schema},
        unit_amount DECIMAL(14,4), weekday INT, month DATE
streams:
  purchases:
    app: {pipeline}_purchases
    reads: [{topic}]
    writes: {writes}
    trigger: {trigger}
    start: earliest
    resources: {{cores: {cores}, memory: 1GiB, max_records_per_batch: {batch}}}
"""


class Workload:
    """One declared stream with a topic of its own, in the stack's project.

    Args:
        stack: where it runs.
        pipeline: its name.
        kind: of the records, as `bench.produce` takes it.
    """

    def __init__(self, stack: Stack, pipeline: str, kind: str = "exact") -> None:
        self.stack = stack
        self.kind = kind
        self.root = stack.root
        self.topic = f"{pipeline}.purchases"
        self.target = f"{pipeline}.made"  # the topic that is written to, where one is
        self.table = f"{pipeline}.purchases"
        self.stream = f"{pipeline}.purchases"
        self.epoch = 0
        self._declare(pipeline)
        self.pipeline: Pipeline = declarations.load_pipeline(self.root, pipeline, None)
        self.platform: Platform = open_platform(stack.settings())
        topics = [NewTopic(name, PARTITIONS, 1, {}) for name in (self.topic, self.target)]
        created = self.platform.kafka.topics().create(topics)
        assert not any(created.values()), created

    def _declare(self, pipeline: str) -> None:
        self.prefix = f"bench/{pipeline}"  # of the dataset that is written, where one is
        writes = {
            "postgres": f"{{postgres: {{connection: millrace_sink, table: {self.table}, mode: append}}}}",
            "kafka": f"{{kafka: {{topic: {self.target}}}}}",
            "s3": f"{{s3: {{prefix: {self.prefix}}}}}",
        }
        text = DECLARATION.format(
            pipeline=pipeline,
            schema=PURCHASE.ddl,
            topic=self.topic,
            target=self.target,
            writes=writes[SINK],
            partitions=PARTITIONS,
            cores=CORES,
            trigger=TRIGGER,
            batch=RECORDS_PER_BATCH,
        )
        (self.root / "include" / "pipelines" / f"{pipeline}.yaml").write_text(text)
        apps = self.root / "spark_apps"
        transform = (apps / "shop_purchases" / "transform.py").read_text()
        (apps / f"{pipeline}_purchases").mkdir()
        (apps / f"{pipeline}_purchases" / "transform.py").write_text(transform.replace("shop.purchases", self.topic))

    def start(self) -> None:
        """Submit the stream to the runner, as supervision would, and wait until it reads."""

        def runs() -> bool:
            apps = self.platform.apps.runner().find(self.stream)
            assert apps, f"the stream ended:\n{self.log()[-3000:]}"
            return apps[0].phase == Phase.RUNNING

        self.epoch = streams.start(self.platform, self.stream, "benchmark", "to be measured").epoch
        eventually(runs, within=Deadline.STREAM, what="the stream to run")

    def stop(self) -> None:
        """Stop the stream and wait until its processes are gone."""
        streams.stop(self.platform, self.stream, "benchmark", "measured")
        eventually(
            lambda: not self.platform.apps.runner().find(self.stream),
            within=Deadline.STREAM,
            what="the stream to stop",
        )

    def log(self) -> str:
        """What the newest epoch's driver has written."""
        folders = self.stack.layout.state / "streams" / self.stream
        newest = max((entry for entry in folders.iterdir() if entry.name.isdigit()), key=lambda e: int(e.name))
        return (newest / "driver.log").read_text()

    def batches(self) -> list[dict[str, float | str]]:
        """Each batch the driver reported: its numbers by name, and `timestamp`."""
        found = []
        for line in self.log().splitlines():
            if " event=batch " in line:
                pairs = dict(re.findall(r"(\w+)=(\S+)", line))
                found.append({k: v if k in ("timestamp", "level", "event") else float(v) for k, v in pairs.items()})
        return found


def package_path() -> str:
    """What a child process needs on its path: the package, and the tests' own modules."""
    checkout = Path(__file__).resolve().parents[2]
    return os.pathsep.join([str(Path(millrace.__file__).resolve().parents[1]), str(checkout / "tests")])
