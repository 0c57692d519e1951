"""A process of its own that looks five times a second at the group and at the record of work.

`python drills_sampler.py ROOT STREAM GROUP TOPIC OUT` writes a line of JSON a sample until OUT.stop exists. The group
is read first: what it says can never be ahead of a record that is read later.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from support.drills import Drill
    from support.streams_project import StreamProject

PERIOD = 0.2
BEHIND_FOR = 2.0


@dataclass(frozen=True)
class Sample:
    """Sums over the partitions; `ahead` is the most that one partition's commit is ahead of its record."""

    group_at: float
    group: int
    record_at: float
    record: int
    ahead: int


class Sampler:
    """Runs the sampling process, and judges what it saw."""

    def __init__(self, project: StreamProject) -> None:
        self._project = project
        self._out = project.root / "drill" / "samples"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.stock_checks = 0

    def __enter__(self) -> Sampler:
        project = self._project
        arguments = [str(project.root), project.stream, project.group, project.topic, str(self._out)]
        self._process = subprocess.Popen([sys.executable, __file__, *arguments])
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._out.with_suffix(".stop").touch()
        assert self._process
        self._process.wait(60)

    def long_enough(self, drill: Drill) -> None:
        """Go on for five minutes in the full form, and compare with what the stock tool says."""
        from support.drills import FULL

        for _ in range(3 if FULL else 1):
            self._compare_with_stock_tool()
        if FULL:
            drill.eventually(lambda: time.monotonic() - self._began > 300, what="five minutes of samples", within=400)

    def _compare_with_stock_tool(self) -> None:
        from support.streams_project import committed, stock_offsets

        before = committed(self._project)
        stock = stock_offsets(self._project)
        after = committed(self._project)
        for number, offset in stock.items():
            assert before[number] <= offset <= after[number], (before, stock, after)
        self.stock_checks += 1

    def samples(self) -> list[Sample]:
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [Sample(**json.loads(line)) for line in lines]

    def behind(self) -> int:
        """The most that the group was behind a record that was two seconds old."""
        worst = 0
        samples = self.samples()
        old = 0
        for sample in samples:
            while old + 1 < len(samples) and samples[old + 1].record_at <= sample.group_at - BEHIND_FOR:
                old += 1
            if samples[old].record_at <= sample.group_at - BEHIND_FOR:
                worst = max(worst, samples[old].record - sample.group)
        return worst

    def report(self) -> str:
        samples = self.samples()
        if not samples:
            return "no samples"
        gap = max((after.group_at - one.group_at for one, after in itertools.pairwise(samples)), default=0.0)
        seconds = samples[-1].record_at - samples[0].group_at
        return (
            f"\n{len(samples)} samples in {seconds:.0f} s (longest gap {gap:.1f} s, servers away), "
            f"{self.stock_checks} compared with the stock tool: group ahead of record by at most "
            f"{max(sample.ahead for sample in samples)} records, behind a record two seconds old by at most "
            f"{self.behind()} of a batch of {self._project.batch}"
        )

    def must_hold(self) -> None:
        samples = self.samples()
        assert len(samples) > 100
        assert max(sample.ahead for sample in samples) <= 0
        assert self.behind() <= self._project.batch
        assert self.stock_checks


def main(root: str, stream: str, group: str, topic: str, out: str) -> None:
    import psycopg
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from millrace.settings import open_settings

    settings = open_settings(Path(root))
    admin: AdminClient | None = None
    sink = settings.postgres("millrace_sink")
    connection: Any = None
    with Path(out).open("w") as file:
        while not Path(out).with_suffix(".stop").exists():
            began = time.monotonic()
            try:
                admin = admin or AdminClient({**settings.kafka().librdkafka, "log_level": 0})
                connection = connection or psycopg.connect(**sink.keywords(), autocommit=True)  # type: ignore[arg-type]
                sample = _sample(admin, connection, stream, group)
                file.write(json.dumps(sample) + "\n")
                file.flush()
            except (KafkaException, TimeoutError, psycopg.Error):
                admin = connection = None  # a server is being killed: the gap between samples shows it
            time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))


def _sample(admin: Any, connection: Any, stream: str, group: str) -> dict[str, Any]:
    from support.streams_project import group_commits

    group_at = time.time()
    committed = group_commits(admin, group)
    record_at = time.time()
    query = "SELECT partition, next_offset FROM millrace.progress WHERE stream = %s AND timeline = 1"
    record = dict(connection.execute(query, (stream,)).fetchall())
    return {
        "group_at": group_at,
        "group": sum(committed.values()),
        "record_at": record_at,
        "record": sum(record.values()),
        "ahead": max((offset - record.get(number, 0) for number, offset in committed.items()), default=0),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
