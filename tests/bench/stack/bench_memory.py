"""How much memory everything takes that `./millrace up` runs, with one stream at work."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from rich.console import Console

from bench.accounting import MemorySampler
from bench.streams.bench_speed import parts_of, produce, wait_for_rows
from bench.workload import Workload
from millrace.embedded.stack import Stack

RECORDS = int(os.environ.get("MILLRACE_BENCH_RECORDS", "500000"))
AIM_BYTES = 4.5e9


@pytest.fixture
def workload(stack: Stack) -> Iterator[Workload]:
    made = Workload(stack, "memory")
    made.start()
    yield made
    made.stop()


def test_memory_of_the_whole_stack_with_one_stream(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    with MemorySampler(workload.root) as memory:
        produce(workload, 0, RECORDS)
        wait_for_rows(workload, RECORDS)
    with capsys.disabled():
        console = Console(width=130)
        console.print()
        console.print(parts_of(memory, "memory of the whole stack with one stream at its peak"))
    assert memory.peak_bytes < AIM_BYTES
