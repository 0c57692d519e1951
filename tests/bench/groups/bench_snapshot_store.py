"""What it costs to keep snapshots and to read them back: a day's part of a large cluster in which everything moves.

Called as `./millrace test tests/bench/groups/bench_snapshot_store.py -s`.
MILLRACE_BENCH_SNAPSHOTS says how many (180: three
hours).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median

from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.domain.groups.commits import CommitMetadata, Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen
from millrace.domain.groups.status import judge
from millrace.embedded.stack import Stack
from support.stack import control_databases

TOPICS, PARTITIONS, GROUPS = 200, 10, 500
SNAPSHOTS = int(os.environ.get("MILLRACE_BENCH_SNAPSHOTS", "180"))
MORNING = datetime(2026, 11, 2, tzinfo=UTC)
KAFKA = "millrace_kafka"


def snapshot(minute: int) -> Snapshot:
    """Every partition grew, and every group committed, with metadata as our streams write it."""
    end = minute * 6_000
    log = LogSeen(0, end + 500, end + 500, 1, end * 100)
    topics = {f"topic-{number}": TopicSeen(f"id-{number}", (log,) * PARTITIONS) for number in range(TOPICS)}
    groups = {}
    for number in range(GROUPS):
        topic = f"topic-{number % TOPICS}"
        own = tuple((topic, partition) for partition in range(PARTITIONS))
        said = CommitMetadata(f"shop.stream{number}", "e3KAaw2_QxS_bog77d0f_g", 1, 7, end).encode()
        members = (Member(f"member-{number}", f"client-{number}", "10.0.0.1", None, own),)
        commits = {partition: Committed(end, said if number < 20 else "") for partition in own}
        name = f"group-{number}"
        groups[name] = GroupSeen(name, GroupType.CLASSIC, "Stable", "range", members, commits)
    return Snapshot(MORNING + timedelta(minutes=minute), "cluster", topics, groups)


def timed(call: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def test_cost_of_keeping_and_of_reading(postgres: Stack) -> None:
    databases = control_databases.on(postgres)
    made = databases.create()
    upgrade(made.owner, made.working.user)
    store = ControlStore(made.working)
    kept = [timed(lambda minute=minute: store.snapshots.add(KAFKA, snapshot(minute)))[0] for minute in range(SNAPSHOTS)]
    [(size,)] = databases.query(
        made.working,
        "select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent in "
        "('snapshot'::regclass, 'snapshot_topic'::regclass, 'snapshot_group'::regclass, 'snapshot_commit'::regclass)",
    )
    last = snapshot(SNAPSHOTS - 1)
    reading, latest = timed(lambda: store.snapshots.latest(KAFKA))
    assert latest == last
    since = last.at - timedelta(hours=3)
    history_seconds, history = timed(lambda: store.snapshots.history(KAFKA, since, last.at))
    judging, _ = timed(lambda: [judge(group, last, history) for group in last.groups.values()])  # type: ignore[arg-type]
    one, _ = timed(lambda: store.snapshots.history(KAFKA, MORNING, last.at, ["group-7"]))
    print(f"\n{TOPICS * PARTITIONS} partitions, {GROUPS} groups of {PARTITIONS} partitions, {SNAPSHOTS} snapshots")
    print(f"add            {median(kept[:10]):.2f} s at first, {median(kept[-10:]):.2f} s at the end")
    print(f"stored         {float(str(size)) / SNAPSHOTS / 1e6:.2f} MB a snapshot")
    print(f"latest         {reading:.2f} s")
    print(f"history        {history_seconds:.2f} s for three hours, {one:.2f} s for one group")
    print(f"judge          {judging:.2f} s for all groups")
    store.close()
