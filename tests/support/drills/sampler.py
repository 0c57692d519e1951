"""A process of its own that looks five times a second at the group and at the record of work.

`python sampler.py ROOT STREAM GROUP TOPIC PARTITIONS OUT` writes a line of JSON a sample until OUT.stop exists,
or OUT is gone with the run. The record is read before and after the group: what the group says is never ahead of a
record that is read later, and never more than the batch in flight behind one that was read before.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.waiting import Deadline, exit_code_of

if TYPE_CHECKING:
    from support.drills.crashes import Drill
    from support.streams.project import StreamProject

PERIOD = 0.2
LIFE_SECONDS = 3600
ENOUGH = 100
MOVING = 5
"""So many different records of work the samples have at least: a stream that stands still shows nothing."""


@dataclass(frozen=True)
class Sample:
    """Sums over the partitions; `ahead` is the most that one partition's commit is ahead of the record read after it.

    Attributes:
        at: when the group was read, in seconds since 1970.
        record_before: the record of work, read before the group.
    """

    at: float
    record_before: int
    group: int
    ahead: int

    @property
    def behind(self) -> int:
        """How many records that were on record before the group was read the group did not know of."""
        return self.record_before - self.group


class Sampler:
    """Runs the sampling process, and judges what it saw."""

    def __init__(self, project: StreamProject) -> None:
        self._project = project
        self._out = project.root / "drill" / "samples"
        self._process: subprocess.Popen[bytes] | None = None
        self.stock_checks = 0

    def __enter__(self) -> Sampler:
        project = self._project
        topic = (project.topic, str(project.partitions))
        arguments = [str(project.root), project.stream, project.group, *topic, str(self._out)]
        self._process = subprocess.Popen([sys.executable, __file__, *arguments])
        return self

    def __exit__(self, *_: object) -> None:
        self._out.with_suffix(".stop").touch()
        assert self._process
        code = exit_code_of(self._process, within=Deadline.COMMAND, what="the sampling process")
        assert code == 0, f"the sampling process ended before the drill, by {code}"

    def long_enough(self, drill: Drill) -> None:
        """Go on for a hundred samples, and compare with what the stock tool says."""
        self._compare_with_stock_tool()
        drill.eventually(lambda: len(self.samples()) > ENOUGH, what="enough samples")

    def _compare_with_stock_tool(self) -> None:
        from support.streams.project import committed, stock_offsets

        before = committed(self._project)
        stock = stock_offsets(self._project)
        after = committed(self._project)
        for number, offset in stock.items():
            assert before[number] <= offset <= after[number], (before, stock, after)
        self.stock_checks += 1

    def samples(self) -> list[Sample]:
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [Sample(**json.loads(line)) for line in lines]

    def report(self) -> str:
        samples = self.samples()
        if not samples:
            return "no samples"
        gap = max((after.at - one.at for one, after in itertools.pairwise(samples)), default=0.0)
        seconds = samples[-1].at - samples[0].at
        return (
            f"\n{len(samples)} samples in {seconds:.0f} s (longest gap {gap:.1f} s, servers away), "
            f"{self.stock_checks} compared with the stock tool: group ahead of record by at most "
            f"{max(sample.ahead for sample in samples)} records, behind it by at most "
            f"{max(sample.behind for sample in samples)} of a batch of {self._project.batch}"
        )

    def must_hold(self) -> None:
        samples = self.samples()
        assert len(samples) > ENOUGH
        assert len({sample.record_before for sample in samples}) >= MOVING
        assert max(sample.ahead for sample in samples) <= 0
        assert max(sample.behind for sample in samples) <= self._project.batch
        assert self.stock_checks


def main(root: str, stream: str, group: str, topic: str, partitions: str, out: str) -> NoReturn:
    import psycopg
    from confluent_kafka import Consumer, KafkaException

    from millrace.settings import open_settings
    from support.streams.project import commits_reader, group_commits

    settings = open_settings(Path(root))
    reader: Consumer | None = None
    sink = settings.postgres("millrace_sink")
    connection: Any = None
    until = time.monotonic() + LIFE_SECONDS
    stop = Path(out).with_suffix(".stop")
    with Path(out).open("w") as file:
        while not stop.exists() and Path(out).exists() and time.monotonic() < until:
            began = time.monotonic()
            try:
                reader = reader or commits_reader(settings.kafka(), group)
                connection = connection or psycopg.connect(**sink.keywords(), autocommit=True)  # type: ignore[arg-type]
                asked = partial(group_commits, reader, topic, int(partitions))
                sample = _sample(connection, stream, asked)
                file.write(json.dumps(sample) + "\n")
                file.flush()
            except (KafkaException, psycopg.Error):
                reader = connection = None  # a server is being killed: the gap between samples shows it
            time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))
    sys.exit(0 if stop.exists() else 1)


def _sample(connection: Any, stream: str, group_commits: Callable[[], dict[int, int]]) -> dict[str, Any]:
    query = "SELECT partition, next_offset FROM millrace.progress WHERE stream = %s AND timeline = 1"
    before = dict(connection.execute(query, (stream,)).fetchall())
    at = time.time()
    committed = group_commits()
    after = dict(connection.execute(query, (stream,)).fetchall())
    return {
        "at": at,
        "record_before": sum(before.values()),
        "group": sum(committed.values()),
        "ahead": max((offset - after.get(number, 0) for number, offset in committed.items()), default=0),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
