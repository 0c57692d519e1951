"""The cost of looks at all apps of a machine: one scan of /proc for all streams beside one scan for each."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from millrace.adapters.apps.processes import apps_of
from millrace.adapters.apps.runners.process import TICK_SECONDS, ProcessRunner
from millrace.settings import Settings
from support.streams.stand_ins import StandIns

APPS = 250
LOOK_SECONDS = 15.0  # how often a stream's DAG looks at it
ROUNDS = int(os.environ.get("MILLRACE_BENCH_RUNS", "7"))


def test_one_scan_for_all_streams_beside_a_scan_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_ins = StandIns(tmp_path)
    try:
        for number in range(APPS):
            stand_ins.start(f"shop.s{number}")
        scan = median(_cpu_of_a_scan(tmp_path) for _ in range(ROUNDS))
        look = median(_cpu_of_looks(tmp_path) for _ in range(ROUNDS))
    finally:
        stand_ins.end()
    table = Table(title=f"{APPS} apps of one process each")
    for heading in ("CPU of one core", "seconds", "share while all streams are watched"):
        table.add_column(heading)
    shared = look / LOOK_SECONDS + scan / TICK_SECONDS
    table.add_row("one scan of /proc", f"{scan:.4f}", "")
    table.add_row("a scan for each look, as before", f"{scan * APPS:.3f}", f"{scan * APPS / LOOK_SECONDS:.0%}")
    table.add_row(f"one scan in {TICK_SECONDS:.0f} s, {APPS} looks at it", f"{look:.3f}", f"{shared:.0%}")
    with capsys.disabled():
        console = Console(width=110)
        console.print()
        console.print(table)


def _cpu_of_a_scan(root: Path) -> float:
    before = time.process_time()
    found = apps_of(root)
    assert len(found) == APPS
    return time.process_time() - before


def _cpu_of_looks(root: Path) -> float:
    """Return the CPU seconds of a look at every stream, after the scan that they share."""
    runner = ProcessRunner(Settings(root=root, lookup=lambda name: None))
    runner.find_all()
    before = time.process_time()
    for number in range(APPS):
        runner.find(f"shop.s{number}")
    return time.process_time() - before
