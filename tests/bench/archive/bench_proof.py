"""What it takes to prove an archive of a million objects: minutes and memory, beside only reading its manifests.

A chain in files stands for the store, because no store on this machine takes a million objects in reasonable time; what
a real one adds is measured on a smaller archive in the embedded store.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from bench.archive.written_chain import HERE, OFFSETS, Shape, WrittenChain, chain
from millrace.adapters.archive.audits.inspection import inspect
from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import Link, links
from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.streams.position import LogBounds
from millrace.embedded.stack import Stack
from millrace.ports.objects import ObjectStore
from millrace.wiring import open_platform
from support.archive.chains import what_is_wrong
from support.waiting import Deadline

ENTRIES = int(os.environ.get("MILLRACE_BENCH_ENTRIES", "1000000"))
SHAPES = [Shape(ENTRIES, 1), Shape(ENTRIES // 4, 4), Shape(ENTRIES // 100, 100)]
EMBEDDED = 2_000


def test_a_million_objects_are_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title=f"the proof of {ENTRIES:,} objects, one core")
    for name in ("manifests", "objects each", "minutes", "peak MiB", "only read and decoded: minutes", "times"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        proof = measured(shape, "prove", tmp_path)
        plain = measured(shape, "decode", tmp_path)
        cells = [f"{shape.manifests:,}", f"{shape.partitions}", f"{proof[0] / 60:.2f}", f"{proof[1]:.0f}"]
        table.add_row(*cells, f"{plain[0] / 60:.2f}", f"{proof[0] / plain[0]:.1f}")
    with capsys.disabled():
        Console(width=130).print("", table)


def measured(shape: Shape, what: str, folder: Path) -> tuple[float, float]:
    """Seconds and the most MiB of a process of its own, which writes the chain before it is timed."""
    command = [
        sys.executable,
        "-m",
        "bench.archive.bench_proof",
        what,
        str(shape.manifests),
        str(shape.partitions),
        str(folder),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=Deadline.LONG.seconds,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


def prove(store: ObjectStore, incarnation: Incarnation, shape: Shape) -> None:
    end = LogBounds(0, shape.manifests * OFFSETS)
    log = ObservedLog(datetime.now(UTC), incarnation.topic_id, dict.fromkeys(range(shape.partitions), end))
    found = inspect(store, Tiling(incarnation), lambda: log)
    assert found.coverage.verdict is Verdict.PROVEN, what_is_wrong(found.coverage)[:5]
    assert (found.counts.objects, found.orphans.total, found.foreign.total) == (shape.entries, 0, 0)


def only_decode(store: ObjectStore, incarnation: Incarnation) -> None:
    for link in links(store, incarnation):
        assert isinstance(link, Link)
        assert link.data is not None
        sha256_of(link.data)
        decode(link.data, Manifest, link.key)


def test_what_a_real_store_adds(s3: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """Manifests with one object each, in the embedded store; the chain is written with its topic's name changed."""
    store = open_platform(s3.settings()).objects.store()
    topic = f"bench{uuid.uuid4().hex[:6]}"
    here = Incarnation(topic, HERE.topic_id)
    shape = Shape(EMBEDDED, 1)
    written = renamed(shape, here)
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: store.create(*each), written))
    wrote, began = time.monotonic() - began, time.monotonic()
    only_decode(store, here)
    with capsys.disabled():
        rate = EMBEDDED / (time.monotonic() - began)
        print(
            f"\nembedded store: {EMBEDDED / wrote:,.0f} manifests/s written by 16 threads, {rate:,.0f}/s read in order"
        )


def renamed(shape: Shape, here: Incarnation) -> list[tuple[str, bytes]]:
    plain = (data.replace(HERE.topic.encode(), here.topic.encode()) for data in chain(shape))
    return [(here.manifest_key(sequence), data) for sequence, data in enumerate(plain)]


if __name__ == "__main__":
    wanted = Shape(int(sys.argv[2]), int(sys.argv[3]))
    archive: ObjectStore = WrittenChain(wanted, Path(sys.argv[4]))  # type: ignore[assignment]
    start = time.monotonic()
    prove(archive, HERE, wanted) if sys.argv[1] == "prove" else only_decode(archive, HERE)
    print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
