"""A few moments out of long snapshots: what the control database says is what the snapshots in memory say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSample, LogSeen, Snapshot, TopicSeen
from millrace.domain.topics.offsets import TopicPartition
from support.fakes.groups import FakeSnapshots
from support.stack.control_databases import Databases

KAFKA = "millrace_kafka"
MORNING = datetime(2026, 11, 2, 8, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
TOPICS = ("orders", "quiet", "again")


@pytest.fixture
def store(control_databases: Databases) -> Iterator[ControlStore]:
    made = control_databases.create_upgraded()
    opened = ControlStore(made.working)
    yield opened
    opened.close()


def seen(at: datetime, ends: dict[str, list[int | None]], *, topic_id: str = "id", cluster: str = "c") -> Snapshot:
    topics = {
        name: TopicSeen(topic_id, tuple(None if end is None else LogSeen(end // 3, end, end, None, end) for end in own))
        for name, own in ends.items()
    }
    commits = {name: own[0] for name, own in ends.items() if own and own[0] is not None}
    groups = {
        f"of-{name}": GroupSeen(f"of-{name}", GroupType.CLASSIC, "Empty", "range", (), {(name, 0): Committed(offset)})
        for name, offset in commits.items()
    }
    return Snapshot(at, cluster, topics, groups)


def lived(store: ControlStore, seed: int) -> FakeSnapshots:
    """Three days with holes: a topic that grows, a quiet one, and one that is made again with another partition."""
    chance = random.Random(seed)
    fake = FakeSnapshots()
    at, end, odd = MORNING, 0, 0
    for step in range(120):
        at += MINUTE * chance.choice([1, 1, 30, 55, 90])
        end += chance.choice([0, 5, 900])
        again = step > 60
        odd = 0 if step == 61 else odd + chance.choice([0, 2])
        ends: dict[str, list[int | None]] = {"orders": [end, end // 2], "quiet": [7]}
        ends["again"] = [odd, odd] if again else [odd]
        if chance.random() < 0.1:
            ends["orders"] = [end, None]
        snapshot = seen(at, ends, topic_id="new" if again else "id")
        assert store.snapshots.add(KAFKA, snapshot)
        fake.add(KAFKA, snapshot)
    return fake


@pytest.mark.parametrize("seed", range(4))
def test_samples_and_times_are_those_of_the_snapshots(store: ControlStore, seed: int) -> None:
    fake = lived(store, seed)
    newest = fake.kept[KAFKA][-1]
    for over, count in ((DAY * 7, 168), (DAY, 24), (MINUTE * 200, 7), (MINUTE, 1)):
        asked = (TOPICS, newest.at - over, newest.at, count)
        assert store.snapshots.samples(KAFKA, *asked) == fake.samples(KAFKA, *asked), (over, count)
    here = TopicPartition("orders", "new", 0)
    last = newest.log(("orders", 0))
    assert last is not None
    offsets = {here: list(range(0, last.end + 50, 37))}
    for since in (MORNING, newest.at - DAY):
        assert store.snapshots.appended(KAFKA, offsets, since) == fake.appended(KAFKA, offsets, since)
    for ago in (MINUTE, DAY, DAY * 2, DAY * 9):
        asked_groups = ("of-orders", "of-quiet", "nobody")
        found = store.snapshots.resting(KAFKA, asked_groups, newest.at - ago)
        assert found <= fake.resting(KAFKA, asked_groups, newest.at - ago)
        assert ("of-quiet" in found) == (ago < DAY * 3)


def test_one_that_moved_a_while_ago_rests_once_that_is_long_enough_ago(store: ControlStore) -> None:
    for hour in range(0, 24 * 5):
        end = 5 if hour < 24 else 9
        store.snapshots.add(KAFKA, seen(MORNING + timedelta(hours=hour), {"orders": [end]}))
    now = MORNING + timedelta(hours=24 * 5 - 1)
    assert store.snapshots.resting(KAFKA, ["of-orders"], now - DAY * 2) == {"of-orders"}
    assert store.snapshots.resting(KAFKA, ["of-orders"], now - DAY * 4.5) == set()


def test_another_cluster_under_the_name_begins_anew(store: ControlStore) -> None:
    for minute in range(5):
        cluster = "old" if minute < 3 else "new"
        store.snapshots.add(KAFKA, seen(MORNING + MINUTE * minute, {"orders": [10 * minute]}, cluster=cluster))
    found = store.snapshots.samples(KAFKA, ["orders"], MORNING - MINUTE, MORNING + MINUTE * 9, 10)
    assert [(sample.at - MORNING) // MINUTE for sample in found["orders", 0]] == [3, 4]
    assert found["orders", 0][-1] == LogSample(MORNING + MINUTE * 4, 13, 40, 40)
    assert store.snapshots.samples("other", ["orders"], MORNING, MORNING + DAY, 10) == {}
    assert store.snapshots.samples(KAFKA, [], MORNING, MORNING + DAY, 10) == {}
    assert store.snapshots.appended(KAFKA, {}, MORNING) == {}
    assert store.snapshots.resting(KAFKA, [], MORNING) == set()
