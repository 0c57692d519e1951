"""How fast records are decoded: blocks of many kinds, each beside exact ones; no server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from bench.formats.decode_blocks import kinds
from bench.workload import package_path
from support.checks.runs import RUN_VARIABLE

TURNS = 5
AGAINST = os.environ.get("MILLRACE_BENCH_AGAINST")
"""Another checkout of Millrace; it takes turns with this one."""

Turn = Mapping[str, tuple[float, float]]


def test_ordinary_records_beside_exact_ones(capsys: pytest.CaptureFixture[str]) -> None:
    packages = {"here": Path(package_path().split(os.pathsep)[0])}
    if AGAINST:
        packages["there"] = Path(AGAINST).resolve() / "include"
    turns: dict[str, list[Turn]] = {name: [] for name in packages}
    for seed in range(TURNS):
        for name, package in packages.items():
            turns[name].append(turn(package, seed))
    with capsys.disabled():
        Console(width=130).print(table(turns))


def turn(package: Path, seed: int) -> Turn:
    """Return CPU microseconds a record, and bytes a record, by kind; all in a process of its own."""
    tests = package_path().split(os.pathsep)[1]
    environment = {
        "PYTHONPATH": f"{package}{os.pathsep}{tests}",
        "PATH": os.defpath,
        RUN_VARIABLE: os.environ[RUN_VARIABLE],
    }
    command = [sys.executable, "-m", "bench.formats.decode_blocks", str(seed)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found = {}
    for line in done.stdout.splitlines():
        name, cpu, size = line.split("\t")
        found[name] = float(cpu), float(size)
    return found


def table(turns: Mapping[str, list[Turn]]) -> Table:
    shown = Table(title=f"CPU microseconds a record, medians of {TURNS} turns; blocks of 20,000 records or 8 MiB")
    for heading in ("kind", "bytes", "here", "beside", "times", *(("there", "here / there") if AGAINST else ())):
        shown.add_column(heading, justify="left" if heading in ("kind", "beside") else "right")
    here = medians(turns["here"])
    there = medians(turns["there"]) if AGAINST else {}
    for name, kind in kinds().items():
        cells = [name, f"{turns['here'][0][name][1]:,.0f}", f"{here[name]:.2f}", kind.beside]
        cells.append(f"{here[name] / here[kind.beside]:.2f}")
        if there:
            cells += [f"{there[name]:.2f}", f"{here[name] / there[name]:.2f}"]
        shown.add_row(*cells)
    peak = "peak MiB"
    shown.caption = f"memory of the process at its peak: {here[peak]:.0f} MiB" + (
        f", there {there[peak]:.0f} MiB" if there else ""
    )
    return shown


def medians(turns: list[Turn]) -> dict[str, float]:
    return {name: median(turn[name][0] for turn in turns) for name in turns[0]}
