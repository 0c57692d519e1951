"""What the look at all readers after a snapshot costs, and sizing a whole cluster, in the control database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.domain.declaration.pipeline import Environment
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen
from millrace.embedded.stack import Stack
from millrace.usecases.retention.readers import Memory, look
from millrace.usecases.retention.sizing import size
from support.fakes.groups import FakeCluster, GroupsPlatform
from support.fakes.streams import Clock
from support.stack import control_databases

KAFKA = "millrace_kafka"
TOPICS, PARTITIONS, GROUPS, MINUTES = 200, 10, 500, 180
BEGAN = datetime(2026, 11, 2, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEPT = {"retention.ms": "86400000", "retention.bytes": str(1 << 30)}


def seen(minute: int) -> Snapshot:
    """Everything moves; each group reads two topics and is ten minutes behind."""
    at = BEGAN + MINUTE * minute
    now_ms = int(at.timestamp() * 1000)
    end, behind = 100_000 + 600 * minute, 100_000 + 600 * max(0, minute - 10)
    log = LogSeen(0, end, end, now_ms - 3_600_000, end * 100, now_ms)
    topics = {f"t-{n}": TopicSeen(f"id-{n}", (log,) * PARTITIONS, KEPT, 3) for n in range(TOPICS)}
    member = (Member("m", "c", "10.0.0.1"),)
    groups = {}
    for number in range(GROUPS):
        own = (f"t-{number % TOPICS}", f"t-{(number + 1) % TOPICS}")
        commits = {(name, n): Committed(behind) for name in own for n in range(PARTITIONS)}
        groups[f"g-{number}"] = GroupSeen(f"g-{number}", GroupType.CLASSIC, "Stable", "range", member, commits)
    return Snapshot(at, "c", topics, groups)


class Bench(GroupsPlatform):
    """A real control database beside a cluster in memory."""

    store: ControlStore

    @property
    def control(self) -> ControlStore:  # type: ignore[override]
        return self.store


def test_the_cost_of_a_look(postgres: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    databases = control_databases.on(postgres)
    made = databases.create()
    upgrade(made.owner, made.working.user)
    (tmp_path / "include/pipelines").mkdir(parents=True)
    platform = Bench(tmp_path, Clock(BEGAN))
    platform.store = ControlStore(made.working)
    began = time.monotonic()
    for minute in range(MINUTES):
        platform.store.snapshots.add(KAFKA, seen(minute))
    filled = (time.monotonic() - began) / MINUTES
    newest = seen(MINUTES)
    platform.clusters[KAFKA] = FakeCluster(newest)
    table = Table(
        title=f"{TOPICS * PARTITIONS:,} partitions, {GROUPS} groups with {2 * PARTITIONS} commits, {MINUTES} min"
    )
    for heading in ("what", "s", "beside"):
        table.add_column(heading, justify="right")
    table.add_row("keeping a snapshot", f"{filled:.2f}", "")
    memory = Memory()
    for name in ("the readers, first", "the readers, again"):
        began = time.monotonic()
        found = look(platform, KAFKA, Environment("bench"), snapshot=newest, memory=memory)
        table.add_row(
            name, f"{time.monotonic() - began:.2f}", f"{len(found.readers)} readers, {len(found.not_known)} faults"
        )
    began = time.monotonic()
    sized = size(platform, KAFKA, snapshot=newest)
    table.add_row("sizing", f"{time.monotonic() - began:.2f}", f"{len(sized.topics)} topics")
    with capsys.disabled():
        console = Console(width=110)
        console.print()
        console.print(table)
    platform.store.close()
