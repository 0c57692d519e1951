"""Lists of groups out of snapshots, what each one is, and the check of declared readers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.domain.alarms.extent import Extent
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, Committed
from millrace.domain.groups.snapshots import (
    SNAPSHOTS_KEPT,
    GroupSeen,
    GroupType,
    LogSeen,
    Member,
    Snapshot,
    TopicSeen,
)
from millrace.domain.groups.status import Status
from millrace.domain.streams.supervision import DesiredState
from millrace.errors import UnreachableError, UsageError
from millrace.usecases.declaration.lookup import declared_groups
from millrace.usecases.groups import check as group_checks
from millrace.usecases.groups import listing as groups
from millrace.usecases.groups.listing import furthest_first, list_groups, show_group
from millrace.usecases.groups.snapshots import take_due, tidy
from support.declarations import example_project
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.groups.worlds import BEGAN

KAFKA = "millrace_kafka"
STREAM, BACKUP = "millrace.shop.purchases", "millrace.shop.backup"
TOPIC = "shop.purchases"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def platform(tmp_path: Path) -> GroupsPlatform:
    return groups_platform(example_project(tmp_path), BEGAN)


def group(name: str, offset: int, *, members: bool = True, metadata: str = "", client: str = "own") -> GroupSeen:
    inside = (Member("m", client, "10.0.0.1", partitions=((TOPIC, 0),)),) if members else ()
    state = "Stable" if members else "Empty"
    return GroupSeen(name, GroupType.CLASSIC, state, "range", inside, {(TOPIC, 0): Committed(offset, metadata)})


def snapshot(minute: int, end: int, *groups: GroupSeen, faults: tuple[str, ...] = ()) -> Snapshot:
    topics = {TOPIC: TopicSeen("id", (LogSeen(0, end, end),))}
    return Snapshot(BEGAN + MINUTE * minute, "cluster", topics, {one.name: one for one in groups}, faults=faults)


def lived(platform: GroupsPlatform, minutes: int, *, stuck: bool) -> None:
    """The stream reads ten records a minute, and stands still from the tenth minute on where it is stuck."""
    for minute in range(minutes):
        at = 10 * (min(minute, 10) if stuck else minute)
        platform.snapshots.add(KAFKA, snapshot(minute, 10 * minute + 5, group(STREAM, at)))


def test_our_apps_are_named_as_what_they_are(platform: GroupsPlatform) -> None:
    of_stream = CommitMetadata("old.stream", "id", 1, 2, 3).encode()
    of_backup = BackupMetadata("old.backup", "id", 1, 2, 3, "hash").encode()
    seen = [
        group(STREAM, 5),
        group(BACKUP, 5),
        group("millrace.old.stream", 3, metadata=of_stream),
        group("millrace.old.backup", 2, metadata=of_backup),
        group("millrace-fetch.shop.purchases", 0),
        group("spark-kafka-source-1-2", 0),
        group("billing", 0),
    ]
    platform.snapshots.add(KAFKA, snapshot(0, 5, *seen))
    found = {row.name: (row.what, row.declared) for row in list_groups(platform, KAFKA).groups}
    assert found == {
        STREAM: ("stream shop.purchases", True),
        BACKUP: ("backup shop.backup", True),
        "millrace.old.stream": ("stream old.stream, not declared", False),
        "millrace.old.backup": ("backup old.backup, not declared", False),
        "millrace-fetch.shop.purchases": ("Spark's own reads of shop.purchases", False),
        "spark-kafka-source-1-2": ("a Spark query that keeps its offsets in its checkpoint", False),
        "billing": ("", False),
    }


def test_the_age_is_that_of_the_newest_snapshot(platform: GroupsPlatform) -> None:
    lived(platform, 5, stuck=False)
    found = list_groups(platform, KAFKA, now=BEGAN + MINUTE * 6)
    assert found.age == MINUTE * 2
    assert found.since == BEGAN


def test_without_a_snapshot_the_next_step_is_named(platform: GroupsPlatform) -> None:
    with pytest.raises(UnreachableError, match="no snapshot") as caught:
        list_groups(platform, KAFKA)
    assert "--now" in caught.value.next_step
    platform.clusters[KAFKA] = FakeCluster(snapshot(0, 5, group("billing", 2)))
    platform.snapshots.silent = True
    [row] = list_groups(platform, KAFKA, directly=True).groups
    assert (row.name, row.reading.lag, row.reading.time_lag) == ("billing", 3, None)


def test_a_group_that_is_not_there_is_a_usage_error(platform: GroupsPlatform) -> None:
    lived(platform, 1, stuck=False)
    with pytest.raises(UsageError, match="group `nobody` does not exist"):
        show_group(platform, KAFKA, "nobody")


def test_what_the_short_history_cannot_decide_a_longer_one_does(platform: GroupsPlatform) -> None:
    """A marker is left since a commit of five hours ago: that it is none shows in no shorter time."""
    for minute in range(3):
        platform.snapshots.add(KAFKA, snapshot(minute, 10 * minute + 1, group("billing", 10 * minute)))
    for minute in range(3, 300):
        platform.snapshots.add(KAFKA, snapshot(minute, 21, group("billing", 20)))
    [row] = list_groups(platform, KAFKA).groups
    assert (row.reading.status, row.reading.undecided, row.reading.lag) == (Status.IDLE, False, 1)


def test_partitions_come_the_furthest_behind_first(platform: GroupsPlatform) -> None:
    platform.snapshots.add(KAFKA, snapshot(0, 50, group("a", 45), group("b", 10), group("c", 50)))
    found = furthest_first(list_groups(platform, KAFKA).groups)
    assert [row.name for row, _ in found] == ["b", "a", "c"]


def test_snapshots_are_taken_once_a_minute_and_failures_said(platform: GroupsPlatform) -> None:
    cluster = platform.clusters[KAFKA] = FakeCluster(snapshot(0, 5, faults=("broker 3: no answer",)))
    [taken] = take_due(platform, BEGAN)
    assert taken.stored
    assert taken.text.endswith("broker 3: no answer")
    assert take_due(platform, BEGAN + timedelta(seconds=45)) == []
    cluster.snapshot = snapshot(1, 5)
    assert [one.stored for one in take_due(platform, BEGAN + timedelta(seconds=55))] == [True]
    cluster.error = UnreachableError("nobody answers")
    [failed] = take_due(platform, BEGAN + MINUTE * 3)
    assert (failed.failed, failed.stored) == (True, False)
    assert cluster.taken == 3


def test_a_clock_that_was_set_back_stops_no_snapshots(platform: GroupsPlatform) -> None:
    platform.clusters[KAFKA] = FakeCluster(snapshot(60, 5))
    assert len(take_due(platform, BEGAN + MINUTE * 60)) == 1
    assert len(take_due(platform, BEGAN)) == 1


def test_tidying_keeps_what_is_said_to_be_kept(platform: GroupsPlatform) -> None:
    tidy(platform, BEGAN)
    assert platform.snapshots.tidied == [BEGAN]
    assert timedelta(days=7) == SNAPSHOTS_KEPT


def check(platform: GroupsPlatform, minute: int) -> group_checks.Checked:
    platform.clock.now = BEGAN + MINUTE * minute
    return group_checks.check(platform, now=platform.clock.now)


def test_a_declared_reader_that_is_stuck_is_wrong_as_long_as_it_is(platform: GroupsPlatform) -> None:
    lived(platform, 30, stuck=True)
    found = check(platform, 30)
    assert [line.partition(":")[0] for line in found.wrong] == ["stream shop.purchases is stuck"]
    assert [(alarm.kind, alarm.extent) for alarm in platform.alarms.list()] == [("group.stuck", Extent(195))]
    assert check(platform, 31).wrong  # it still is
    platform.snapshots.add(KAFKA, snapshot(32, 325, group(STREAM, 320)))
    assert check(platform, 33).wrong == []
    assert platform.alarms.open_kinds == []


def test_a_foreign_reader_that_is_stuck_is_information(platform: GroupsPlatform) -> None:
    for minute in range(30):
        at = 10 * min(minute, 10)
        platform.snapshots.add(KAFKA, snapshot(minute, 10 * minute + 5, group("billing", at, client="rdkafka")))
    found = check(platform, 30)
    assert found.wrong == []
    assert found.told[0].startswith("billing: stuck, lag 195")
    assert platform.alarms.open_kinds == []


def test_a_new_risk_of_a_declared_group_is_wrong_once(platform: GroupsPlatform) -> None:
    lived(platform, 12, stuck=False)
    platform.snapshots.add(KAFKA, snapshot(12, 125, group(STREAM, 120, client="rdkafka")))
    first = check(platform, 13)
    assert [line.partition(": client")[0] for line in first.wrong] == ["stream shop.purchases: default-client-id"]
    second = check(platform, 14)
    assert (second.wrong, len(second.known)) == ([], 1)
    platform.snapshots.add(KAFKA, snapshot(15, 155, group(STREAM, 150)))
    assert check(platform, 16).wrong == []
    assert platform.alarms.open_kinds == []


def test_what_is_not_known_closes_no_alarm(platform: GroupsPlatform) -> None:
    lived(platform, 30, stuck=True)
    check(platform, 30)
    silent = replace(group(STREAM, 0), commits=None, members=None, fault="the coordinator does not answer")
    platform.snapshots.add(KAFKA, snapshot(30, 300, silent))
    check(platform, 31)
    assert platform.alarms.open_kinds == ["group.stuck"]
    platform.snapshots.add(KAFKA, snapshot(31, 300, faults=("broker 2: no answer",)))
    check(platform, 32)
    assert platform.alarms.open_kinds == ["group.stuck"]
    platform.snapshots.add(KAFKA, snapshot(32, 300))
    check(platform, 33)
    assert platform.alarms.open_kinds == []


def wanted(platform: GroupsPlatform, since: int) -> None:
    """The stream is wanted to run since this minute."""
    platform.clock.now = BEGAN + MINUTE * since
    platform.streams.set_desired("shop.purchases", actor="cli:ann", reason="to run", state=DesiredState.RUNNING)


def test_a_declared_reader_that_nobody_can_see_is_told(platform: GroupsPlatform) -> None:
    """A coordinator that is away, or a right that is missing, must not look like a stream that is well."""
    wanted(platform, 0)
    lived(platform, 30, stuck=False)
    assert check(platform, 30).unseen == []
    platform.snapshots.add(KAFKA, snapshot(31, 310, faults=("broker 2: no answer in time",)))
    assert check(platform, 32).unseen == [f"group {STREAM} is missing from the snapshot: broker 2: no answer in time"]
    refused = replace(group(STREAM, 0), commits=None, fault="GROUP_AUTHORIZATION_FAILED")
    platform.snapshots.add(KAFKA, snapshot(33, 330, refused))
    [line] = check(platform, 34).unseen
    assert line == "stream shop.purchases cannot be judged: GROUP_AUTHORIZATION_FAILED"


def test_one_that_was_started_a_moment_ago_is_given_time(platform: GroupsPlatform) -> None:
    platform.snapshots.add(KAFKA, snapshot(30, 310))
    wanted(platform, 25)
    assert check(platform, 31).unseen == []
    assert check(platform, 36).unseen == [f"group {STREAM} is missing from the snapshot: no broker lists it"]


def test_snapshots_that_never_come_are_told_once_something_should_run(platform: GroupsPlatform) -> None:
    wanted(platform, 0)
    assert len(check(platform, 5).known) == 1
    assert "no snapshot yet" in check(platform, 11).unseen[0]


def test_a_snapshot_of_the_future_is_told(platform: GroupsPlatform) -> None:
    platform.snapshots.add(KAFKA, snapshot(24 * 60, 310, group(STREAM, 300)))
    assert check(platform, 0).unseen == [
        f"{KAFKA}: the newest snapshot is 24.0 h ahead of this clock; check DAG millrace.snapshots"
    ]


def test_an_undecided_group_closes_no_alarm(platform: GroupsPlatform) -> None:
    platform.alarms.open("group.stuck", f"{KAFKA}/billing", "no commit")
    for minute in range(30):
        platform.snapshots.add(KAFKA, snapshot(minute, 500, group("billing", 100)))
    check(platform, 30)
    assert platform.alarms.open_kinds == ["group.stuck"]


def test_of_very_many_groups_the_declared_alone_are_judged(
    platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_checks, "MOST_JUDGED", 5)
    others = [group(f"g{number}", 5) for number in range(10)]
    platform.snapshots.add(KAFKA, snapshot(0, 10, group(STREAM, 10), *others))
    told = check(platform, 1).told
    assert [line.partition(" ")[0] for line in told] == [STREAM, "10"]


def test_a_stopped_stream_is_no_breach(platform: GroupsPlatform) -> None:
    for minute in range(200):
        platform.snapshots.add(KAFKA, snapshot(minute, 500, group(STREAM, 100, members=False)))
    found = check(platform, 200)
    assert found.wrong == []
    assert "stopped" in found.told[0]


def test_old_or_missing_snapshots_are_wrong_and_judge_nobody(platform: GroupsPlatform) -> None:
    found = check(platform, 0)
    assert (found.wrong, found.unseen) == ([], [])
    assert "no snapshot yet" in found.known[0]
    lived(platform, 30, stuck=True)
    found = check(platform, 45)
    assert found.unseen == [f"{KAFKA}: no snapshot for 16 min; check DAG millrace.snapshots"]
    assert (found.wrong, found.told) == ([], [])
    assert platform.alarms.open_kinds == []


def test_groups_of_broken_declarations_are_foreign_until_mended(platform: GroupsPlatform) -> None:
    assert set(declared_groups(platform.settings.root, KAFKA)) >= {STREAM, BACKUP}
    (platform.settings.root / "include/pipelines/shop.yaml").write_text("pipeline: [broken\n")
    assert STREAM not in declared_groups(platform.settings.root, KAFKA)
    lived(platform, 30, stuck=True)
    assert check(platform, 30).wrong == []


def test_a_reader_that_is_no_member_shows_by_its_commits_also_after_hours_without_records(
    platform: GroupsPlatform,
) -> None:
    last = 5 * 60
    for minute in range(last):
        at = 10 * min(minute, 30)
        platform.snapshots.add(KAFKA, snapshot(minute, at, group("flink", at, members=False)))
    platform.snapshots.add(KAFKA, snapshot(last, 305, group("flink", 300, members=False)))
    now = BEGAN + MINUTE * last
    assert list_groups(platform, KAFKA, now=now).groups[0].reading.status is Status.MANUAL  # type: ignore[arg-type]


def test_every_reader_that_is_no_member_is_looked_at_behind_many_stopped_groups(platform: GroupsPlatform) -> None:
    last, many = 5 * 60, [f"dead-{number:02}" for number in range(30)]
    for minute in range(last + 1):
        dead = [group(name, 3, members=False) for name in many]
        at = 10 * min(minute, 30)
        end = at if minute < last else 305
        platform.snapshots.add(KAFKA, snapshot(minute, end, *dead, group("flink", at, members=False)))
    rows = list_groups(platform, KAFKA, now=BEGAN + MINUTE * last).groups  # type: ignore[arg-type]
    assert {row.name for row in rows if row.reading.status is Status.MANUAL} == {"flink"}
    assert {row.name for row in rows if row.reading.status is Status.STOPPED} == set(many)


def test_groups_that_cannot_be_such_readers_take_no_place(
    platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_OFFSETS", 12 * 60)  # one partition for twelve hours
    last = 5 * 60
    for minute in range(last + 1):
        at = 10 * min(minute, 30)
        spark = group("spark-kafka-source-1-2", minute, members=False)
        end = at if minute < last else 305
        platform.snapshots.add(KAFKA, snapshot(minute, end, spark, group("flink", at, members=False)))
    rows = list_groups(platform, KAFKA, now=BEGAN + MINUTE * last).groups  # type: ignore[arg-type]
    assert {row.name: row.reading.status for row in rows}["flink"] is Status.MANUAL


def test_a_reader_that_spark_named_is_stopped_whatever_commits_for_it(platform: GroupsPlatform) -> None:
    for minute in range(30):
        seen = group("spark-kafka-source-1-2", 10 * minute, members=False)
        platform.snapshots.add(KAFKA, snapshot(minute, 10 * minute + 5, seen))
    [row] = list_groups(platform, KAFKA, now=BEGAN + MINUTE * 29).groups  # type: ignore[arg-type]
    assert row.reading.status is Status.STOPPED


@pytest.mark.parametrize("name", [STREAM, BACKUP])
def test_a_declared_group_that_is_committed_from_outside_is_stopped_as_before(
    platform: GroupsPlatform, name: str
) -> None:
    for minute in range(30):
        at = 10 * minute
        platform.snapshots.add(KAFKA, snapshot(minute, at + 5, group(name, at, members=False)))
    rows = {row.name: row for row in list_groups(platform, KAFKA, now=BEGAN + MINUTE * 29).groups}  # type: ignore[arg-type]
    assert rows[name].reading.status is Status.STOPPED


def test_lines_for_logs_are_one_line_each_whatever_a_group_is_called(platform: GroupsPlatform) -> None:
    hostile = "billing\nmillrace.shop.backup: ok\x1b[2J"
    cluster = FakeCluster(snapshot(0, 5, group(hostile, 3), faults=(f"group {hostile}: no answer",)))
    platform.clusters[KAFKA] = cluster
    [taken] = take_due(platform, BEGAN)
    assert taken.text.splitlines()[1:] == [r"  not known: group billing\nmillrace.shop.backup: ok\x1b[2J: no answer"]
    told = check(platform, 0).told
    assert all(line.isprintable() for line in told)
    assert told[0].startswith(r"billing\nmillrace.shop.backup: ok\x1b[2J: ")
