"""A driver that a drill holds at a point does not stay there when nobody comes back for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.adapters.apps.processes import process
from support.drills.crashes import Order
from support.drills.points import CLAIM, FORGOTTEN
from support.waiting import Deadline

TESTS = Path(__file__).resolve().parents[2]
DRIVER = """
import sys
from support.drills import points as drills_points
drills_points.HELD_SECONDS = float(sys.argv[1])
drills_points.reach(drills_points.CLAIM)
print("went on")
"""


def drive(root: Path, order: dict[str, object], *, held_seconds: float = 300.0) -> tuple[int, str]:
    """A driver that comes to the point: how it exits and what it says."""
    (root / "drill").mkdir()
    (root / "drill" / "orders.json").write_text(json.dumps([order]))
    package = f"{TESTS.parent / 'include'}:{TESTS}"
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(held_seconds), "--epoch", "1"],
        env={**os.environ, "PYTHONPATH": package, "MILLRACE_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=Deadline.COMMAND.seconds,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert json.loads(next((root / "drill").glob("reached-*")).read_text())["point"] == CLAIM
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("changed", [{"pid": 2**22 + 1}, {"started_ticks": 1}], ids=["gone", "another of its id"])
def test_a_driver_ends_when_its_drill_is_gone(tmp_path: Path, changed: dict[str, int]) -> None:
    order = Order(CLAIM).document()
    me = process(os.getpid())
    assert me
    order["drill"] = {"pid": me.pid, "started_ticks": me.started_ticks} | changed
    assert drive(tmp_path, order) == (FORGOTTEN, f"held {CLAIM}, and forgotten there\n")


def test_a_driver_ends_when_its_drill_takes_too_long(tmp_path: Path) -> None:
    order = Order(CLAIM).document()
    assert drive(tmp_path, order, held_seconds=0.2) == (FORGOTTEN, f"held {CLAIM}, and forgotten there\n")
