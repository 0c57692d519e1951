"""Snapshots in a real control database: what is kept is what was seen, however little of it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, History, LogSeen, Member, Snapshot, TopicSeen
from support.checks.tiers import examples
from support.groups.worlds import history_of
from support.stack.control_databases import ControlDatabase, Databases
from support.waiting import Deadline, at_once

KAFKA = "millrace_kafka"
MORNING = datetime(2026, 11, 2, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATER = MORNING + timedelta(days=365)


@pytest.fixture(scope="module")
def database(control_databases: Databases) -> ControlDatabase:
    return control_databases.create_upgraded()


@pytest.fixture(scope="module")
def store(database: ControlDatabase) -> Iterator[ControlStore]:
    opened = ControlStore(database.working)
    yield opened
    opened.close()


@pytest.fixture
def empty(control_databases: Databases, database: ControlDatabase) -> None:
    for table in ("snapshot", "snapshot_topic", "snapshot_group", "snapshot_commit"):
        control_databases.execute(database.owner, f"truncate {table}")


def log(end: int, *, start: int = 0) -> LogSeen:
    return LogSeen(start, end, end, first_ms=end * 7, size_bytes=end * 100)


def group(name: str, *offsets: int | None, members: int = 1, topic: str = "orders") -> GroupSeen:
    inside = tuple(Member(f"m-{n}", "client", "10.0.0.1", None, ((topic, n),)) for n in range(members))
    commits = {
        (topic, n): Committed(offset, f"said {offset}") for n, offset in enumerate(offsets) if offset is not None
    }
    return GroupSeen(name, GroupType.CLASSIC, "Stable" if members else "Empty", "range", inside, commits)


def seen(minute: int, topics: dict[str, TopicSeen], *groups: GroupSeen, cluster: str = "c-1") -> Snapshot:
    at = MORNING + MINUTE * minute
    kept = timedelta(days=7)
    return Snapshot(at, cluster, topics, {one.name: one for one in groups}, 9, 0.25, kept, ("broker 3: dead",))


def orders(*ends: int, topic_id: str = "id-1") -> dict[str, TopicSeen]:
    return {"orders": TopicSeen(topic_id, tuple(map(log, ends)))}


def plain(history: History) -> tuple[object, ...]:
    """A history for comparison: series of groups and partitions of which nothing is known say nothing."""
    logs = {
        p: (list(one.starts), list(one.ends), list(one.stables))
        for p, one in history.logs.items()
        if any(end is not None for end in one.ends)
    }
    commits = {
        (name, p): list(series)
        for name, own in history.commits.items()
        for p, series in own.items()
        if any(offset is not None for offset in series)
    }
    members = {name: list(series) for name, series in history.members.items() if any(c is not None for c in series)}
    return list(history.times), logs, commits, members


@pytest.mark.usefixtures("empty")
def test_what_is_kept_is_what_was_seen(store: ControlStore) -> None:
    assert store.snapshots.latest(KAFKA) is None
    assert store.snapshots.newest(KAFKA) is None
    assert store.snapshots.history(KAFKA, MORNING, LATER).times == ()
    share = GroupSeen("jobs", GroupType.SHARE, "Stable")
    silent = GroupSeen("away", GroupType.CONSUMER, "Stable", "uniform", None, None, "the coordinator does not answer")
    topics = {"orders": TopicSeen("id", (log(5), None)), "empty": TopicSeen("id-2", (LogSeen(0, 0, 0),))}
    snapshot = seen(0, topics, group("billing", 3, None), share, silent, group("idle", members=0))
    assert store.snapshots.add(KAFKA, snapshot)
    assert store.snapshots.latest(KAFKA) == snapshot
    newest = store.snapshots.newest(KAFKA)
    assert newest is not None
    assert (newest.at, newest.requests, newest.faults) == (snapshot.at, 9, ["broker 3: dead"])
    assert store.snapshots.latest("other_kafka") is None


@pytest.mark.usefixtures("empty")
def test_an_older_or_the_same_snapshot_is_not_taken(store: ControlStore) -> None:
    assert store.snapshots.add(KAFKA, seen(5, orders(1)))
    assert not store.snapshots.add(KAFKA, seen(5, orders(2)))
    assert not store.snapshots.add(KAFKA, seen(4, orders(2)))
    assert store.snapshots.latest(KAFKA) == seen(5, orders(1))


@pytest.mark.usefixtures("empty")
def test_what_a_clock_wrote_that_ran_ahead_keeps_nothing_out(store: ControlStore) -> None:
    store.snapshots.add(KAFKA, seen(0, orders(1), group("g", 1)))
    store.snapshots.add(KAFKA, seen(1, orders(2), group("g", 2)))
    store.snapshots.add(KAFKA, seen(2 * 24 * 60, orders(9), group("g", 9)))
    assert store.snapshots.add(KAFKA, seen(2, orders(3), group("g", 2)))
    assert store.snapshots.latest(KAFKA) == seen(2, orders(3), group("g", 2))
    history = store.snapshots.history(KAFKA, MORNING, LATER)
    assert list(history.logs["orders", 0].ends) == [1, 2, 3]
    assert list(history.commits["g"]["orders", 0]) == [1, 2, 2]


@pytest.mark.usefixtures("empty")
def test_only_what_changed_is_written(
    store: ControlStore, database: ControlDatabase, control_databases: Databases
) -> None:
    quiet = {f"quiet-{n}": TopicSeen("id", (log(9),)) for n in range(20)}
    for minute in range(5):
        store.snapshots.add(KAFKA, seen(minute, {**quiet, **orders(10 + minute)}, group("g", 7)))
    rows = control_databases.query(
        database.working,
        "select (select count(*) from snapshot_topic), (select count(*) from snapshot_group), "
        "(select count(*) from snapshot_commit)",
    )
    assert rows == [(20 + 5, 1, 1)]


LIVES = st.lists(
    st.fixed_dictionaries(
        {
            "pause": st.sampled_from([1, 1, 1, 60, 600]),
            "cluster": st.sampled_from(["c-1"] * 9 + ["c-2"]),
            "topic_id": st.sampled_from(["id-1"] * 4 + ["id-2", ""]),
            "ends": st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=3),
            "offsets": st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=3),
            "members": st.integers(0, 2),
            "group": st.sampled_from(["there", "there", "gone", "silent", "memberless"]),
        }
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.usefixtures("empty")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=LIVES, since=st.integers(0, 3000))
def test_any_life_is_kept_as_it_was(
    store: ControlStore,
    control_databases: Databases,
    database: ControlDatabase,
    life: list[dict[str, object]],
    since: int,
) -> None:
    """Topics and groups come, go, are made again and cannot be asked; days turn; another cluster takes the name."""
    control_databases.execute(database.owner, "truncate snapshot, snapshot_topic, snapshot_group, snapshot_commit")
    minute, lived = 0, []
    for moment in life:
        minute += moment["pause"]  # type: ignore[operator]
        lived.append(_snapshot_of(minute, moment))
        assert store.snapshots.add(KAFKA, lived[-1])
        assert store.snapshots.latest(KAFKA) == lived[-1]
    of_cluster = [one for one in lived if one.cluster_id == lived[-1].cluster_id]
    others = [one.at for one in lived if one.cluster_id != lived[-1].cluster_id]
    expected = [
        one for one in of_cluster if (not others or one.at > max(others)) and one.at >= MORNING + MINUTE * since
    ]
    found = store.snapshots.history(KAFKA, MORNING + MINUTE * since, LATER)
    assert plain(found) == (plain(history_of(expected)) if expected else ([], {}, {}, {}))
    only = store.snapshots.history(KAFKA, MORNING + MINUTE * since, LATER, ["g"])
    assert plain(only)[2:] == plain(found)[2:]
    assert only.logs == {partition: found.logs[partition] for partition in only.logs}
    assert set(only.logs) >= {p for p in only.commits.get("g", {}) if p in found.logs}


def _snapshot_of(minute: int, moment: dict[str, object]) -> Snapshot:
    ends: list[int | None] = moment["ends"]  # type: ignore[assignment]
    topics = {}
    if moment["topic_id"]:
        topics["orders"] = TopicSeen(str(moment["topic_id"]), tuple(None if end is None else log(end) for end in ends))
    found = group("g", *moment["offsets"], members=moment["members"])  # type: ignore[misc, arg-type]
    if moment["group"] == "silent":
        found = replace(found, members=None, commits=None, fault="no answer")
    if moment["group"] == "memberless":
        found = replace(found, members=None)
    groups = () if moment["group"] == "gone" else (found,)
    return seen(minute, topics, *groups, cluster=str(moment["cluster"]))


@pytest.mark.usefixtures("empty")
def test_a_history_ends_where_it_is_asked_to(store: ControlStore) -> None:
    """A snapshot that comes in between two questions must not stand beside an older one."""
    for minute in range(5):
        store.snapshots.add(KAFKA, seen(minute, orders(minute), group("g", minute)))
    found = store.snapshots.history(KAFKA, MORNING + MINUTE, MORNING + MINUTE * 3)
    assert plain(found) == plain(history_of([seen(n, orders(n), group("g", n)) for n in range(1, 4)]))


@pytest.mark.usefixtures("empty")
def test_texts_that_the_database_refuses_stop_no_snapshot(store: ControlStore) -> None:
    """Clients choose their ids and their commits' metadata."""
    odd = "a\0b\ud800c"
    member = Member(odd, odd, "10.0.0.1", odd, ((odd, 0),))
    wild = GroupSeen(odd, GroupType.CLASSIC, odd, odd, (member,), {(odd, 0): Committed(1, odd)}, odd)
    assert store.snapshots.add(KAFKA, seen(0, {odd: TopicSeen("id", (log(1),))}, wild))
    kept = store.snapshots.latest(KAFKA)
    assert kept is not None
    [name] = kept.groups
    assert name == "a\ufffdb?c"
    assert kept.groups[name].members[0].client_id == name  # type: ignore[index]
    assert store.snapshots.add(KAFKA, seen(1, {odd: TopicSeen("id", (log(1),))}, wild))


@pytest.mark.usefixtures("empty")
def test_group_ids_too_long_for_an_index_are_cut_and_stay_different(store: ControlStore) -> None:
    """A broker takes 32,767 characters; what shows none must not keep the others from being seen."""
    first, second = group("n" * 32_000 + "1", 5), group("n" * 32_000 + "2", 7)
    assert store.snapshots.add(KAFKA, seen(0, orders(9), first, second, group("g", 1)))
    kept = store.snapshots.latest(KAFKA)
    assert kept is not None
    assert len(kept.groups) == 3
    offsets = [one.commits["orders", 0].offset for name, one in sorted(kept.groups.items()) if one.commits]
    assert sorted(offsets) == [1, 5, 7]
    only = store.snapshots.history(KAFKA, MORNING, LATER, [name for name in kept.groups if name != "g"])
    assert len(only.commits) == 2


@pytest.mark.usefixtures("empty")
def test_metadata_is_kept_as_long_as_brokers_take_it(store: ControlStore) -> None:
    long = GroupSeen("g", GroupType.CLASSIC, "Empty", "", (), {("orders", 2): Committed(1, "n" * 10_000)})
    store.snapshots.add(KAFKA, seen(0, orders(1, 2, 3), long))
    kept = store.snapshots.latest(KAFKA)
    assert kept is not None
    assert kept.groups["g"].commits == {("orders", 2): Committed(1, "n" * 4_096)}


@pytest.mark.usefixtures("empty")
def test_two_at_once_come_one_after_the_other(store: ControlStore) -> None:
    def adding(minute: int) -> Callable[[], bool]:
        return lambda: store.snapshots.add(KAFKA, seen(minute, orders(minute), group("g", minute)))

    added = at_once([adding(minute) for minute in range(1, 9)], within=Deadline.COMMAND, what="eight snapshots")
    history = store.snapshots.history(KAFKA, MORNING, LATER)
    assert len(history.times) == sum(added) >= 1
    assert store.snapshots.latest(KAFKA) == seen(8, orders(8), group("g", 8))
    expected = [(at - MORNING) // MINUTE for at in history.times]
    assert list(history.logs["orders", 0].ends) == expected
    assert list(history.commits["g"]["orders", 0]) == expected


@pytest.mark.usefixtures("empty")
def test_a_snapshot_that_fails_in_the_middle_leaves_nothing(
    store: ControlStore, control_databases: Databases, database: ControlDatabase
) -> None:
    store.snapshots.add(KAFKA, seen(0, orders(1), group("g", 1)))
    control_databases.execute(
        database.owner, "alter table snapshot_commit add constraint no_two check (offsets[1] <> 2)"
    )
    with pytest.raises(Exception, match="no_two"):
        store.snapshots.add(KAFKA, seen(1, orders(2), group("g", 2)))
    control_databases.execute(database.owner, "alter table snapshot_commit drop constraint no_two")
    assert store.snapshots.latest(KAFKA) == seen(0, orders(1), group("g", 1))
    assert store.snapshots.add(KAFKA, seen(1, orders(2), group("g", 2)))


def days(control_databases: Databases, database: ControlDatabase) -> list[str]:
    query = "select relname::text from pg_class where relname ~ '^snapshot_[0-9]{8}$' order by relname"
    return [str(name) for (name,) in control_databases.query(database.working, query)]


def test_days_are_made_and_dropped_by_a_role_that_may_make_no_table(
    control_databases: Databases,
) -> None:
    made = control_databases.create_upgraded()
    store = ControlStore(made.working)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        control_databases.execute(made.working, "create table public.own (id int)")
    for day in range(10):
        assert store.snapshots.add(KAFKA, seen(day * 24 * 60, orders(day), group("g", day)))
    assert days(control_databases, made) == [f"snapshot_202611{day:02}" for day in range(2, 12)]
    assert store.snapshots.tidy(MORNING + timedelta(days=9)) == 4 * 2
    assert days(control_databases, made)[0] == "snapshot_20261104"
    assert store.snapshots.tidy(MORNING + timedelta(days=9)) == 0
    history = store.snapshots.history(KAFKA, MORNING, LATER)
    assert list(history.logs["orders", 0].ends) == list(range(2, 10))
    assert list(history.commits["g"]["orders", 0]) == list(range(2, 10))
    store.close()


def test_a_day_that_somebody_reads_is_dropped_another_time(control_databases: Databases) -> None:
    made = control_databases.create_upgraded()
    store = ControlStore(made.working)
    store.snapshots.add(KAFKA, seen(0, orders(1)))
    with psycopg.connect(**made.working.keywords()) as reader:
        reader.execute("select count(*) from snapshot")
        assert store.snapshots.tidy(MORNING + timedelta(days=30)) == 0
        assert days(control_databases, made) == ["snapshot_20261102"]
    assert store.snapshots.tidy(MORNING + timedelta(days=30)) == 4
    assert store.snapshots.latest(KAFKA) is None
    store.close()


def test_nobody_else_may_make_or_drop_days(control_databases: Databases, database: ControlDatabase) -> None:
    other = control_databases.create()
    stranger = replace(other.working, database=database.working.database)
    for call in ("millrace_snapshot_day_make('2026-01-01')", "millrace_snapshot_days_drop('2030-01-01')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            control_databases.execute(stranger, f"select {call}")


def test_where_one_role_does_all_it_works_too(control_databases: Databases) -> None:
    made = control_databases.create()
    upgrade(made.owner, made.owner.user)
    store = ControlStore(made.owner)
    assert store.snapshots.add(KAFKA, seen(0, orders(1)))
    assert store.snapshots.tidy(MORNING + timedelta(days=30)) == 4
    store.close()
