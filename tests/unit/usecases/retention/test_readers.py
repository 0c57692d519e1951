"""How long what readers have not read stays: positions, rules, alarms, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Environment
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Partition, Snapshot, TopicSeen
from millrace.domain.retention import readers
from millrace.domain.retention.flow import flow
from millrace.domain.retention.headroom import Danger, Rule
from millrace.domain.retention.readers import FirstRecords, Position, Room
from millrace.domain.streams.supervision import DesiredState
from millrace.errors import UnreachableError
from millrace.usecases.groups import snapshots
from millrace.usecases.groups.snapshots import take_due
from millrace.usecases.retention.alarms import watch
from millrace.usecases.retention.check import check
from millrace.usecases.retention.readers import Memory, Reader, look, worst
from support.declarations import example_project
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.groups.worlds import BEGAN

KAFKA = "millrace_kafka"
STREAM, BACKUP = "millrace.shop.purchases", "millrace.shop.backup"
TOPIC = "shop.purchases"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOW_MS = int(BEGAN.timestamp() * 1000)
KEPT = {"retention.ms": str(10 * 3_600_000)}  # ten hours
ENVIRONMENT = Environment("test", ignored_readers=("console-*",))


@dataclass
class FakeRecords:
    """Records of partitions by number: offset and age in milliseconds. `fault`: why none of them can be read."""

    records: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)
    looks: int = 0
    fault: str = ""

    def first_records(self, asked: dict[Partition, tuple[int, int]], within: timedelta) -> FirstRecords:
        self.looks += 1
        self.asked += [(number, first) for (_, number), (first, _) in asked.items()]
        if self.fault:
            return FirstRecords({}, dict.fromkeys(asked, self.fault))
        found: dict[Partition, int | None] = {}
        for (topic, number), (first, end) in asked.items():
            ages = [age_ms for offset, age_ms in self.records.get(number, []) if first <= offset < end]
            found[topic, number] = NOW_MS - ages[0] if ages else None
        return FirstRecords(found, {})


@pytest.fixture
def platform(tmp_path: Path) -> GroupsPlatform:
    made = groups_platform(example_project(tmp_path), BEGAN)
    made.topic_readers[KAFKA] = FakeRecords()  # type: ignore[assignment]
    return made


def records_of(platform: GroupsPlatform) -> FakeRecords:
    found: Any = platform.topic_readers[KAFKA]
    assert isinstance(found, FakeRecords)
    return found


def log(start: int, end: int, *, first_age: timedelta | None = None, size: int | None = None) -> LogSeen:
    first = None if first_age is None else NOW_MS - first_age // timedelta(milliseconds=1)
    return LogSeen(start, end, end, first, size, NOW_MS if end > start else None)


def group(name: str, *offsets: int | None, members: bool = True, topic: str = TOPIC, metadata: str = "") -> GroupSeen:
    inside = (Member("m", "c", "10.0.0.1", partitions=((topic, 0),)),) if members else ()
    commits = {(topic, n): Committed(offset, metadata) for n, offset in enumerate(offsets) if offset is not None}
    return GroupSeen(name, GroupType.CLASSIC, "Stable" if members else "Empty", "range", inside, commits)


def seen(
    *groups: GroupSeen,
    logs: tuple[LogSeen | None, ...] = (log(0, 100, first_age=HOUR),),
    settings: dict[str, str] | None = None,
    minute: int = 0,
    faults: tuple[str, ...] = (),
) -> Snapshot:
    topics = {TOPIC: TopicSeen("id", logs, KEPT if settings is None else settings, 1)}
    return Snapshot(BEGAN + MINUTE * minute, "cluster", topics, {each.name: each for each in groups}, faults=faults)


def positions(snapshot: Snapshot, name: str, **more: bool) -> list[tuple[int, int, int]]:
    found = readers.positions(snapshot, name, **more)
    return [(each.partition.partition, each.offset, each.lost) for each in found]


def rooms(snapshot: Snapshot, name: str = "r", **known: Any) -> list[Room]:
    found = list(readers.positions(snapshot, name))
    return readers.rooms(snapshot, found, known.get("flows", {}), known.get("appended", {}), known.get("stamps", {}))


def test_a_reader_goes_on_at_its_commit_or_at_what_is_left() -> None:
    snapshot = seen(group("r", 40, 7, 300, None), logs=(log(0, 100), log(50, 90), log(0, 200), log(5, 9)))
    assert positions(snapshot, "r") == [(0, 40, 0), (1, 50, 43)]
    assert positions(snapshot, "r", declared=True) == [(0, 40, 0), (1, 50, 43), (3, 5, 0)]
    assert positions(snapshot, "nobody") == []


def test_a_commit_of_another_topic_of_that_name_is_nobodys_position() -> None:
    old, own = CommitMetadata("shop.purchases", "old", 1, 1, 40), CommitMetadata("shop.purchases", "id", 1, 1, 40)
    assert positions(seen(group("r", 40, metadata=old.encode())), "r") == []
    assert positions(seen(group("r", 40, metadata=own.encode())), "r") == [(0, 40, 0)]


def test_a_backup_stands_where_its_commits_call_the_topic_archived() -> None:
    said = BackupMetadata("shop.backup", "id", 1, 30, 2, "hash").encode()
    assert positions(seen(group(BACKUP, 60, metadata=said)), BACKUP, backup=True, declared=True) == [(0, 30, 0)]
    assert positions(seen(group(BACKUP, 60), logs=(log(20, 99),)), BACKUP, backup=True, declared=True) == [(0, 20, 0)]


def test_by_time_the_first_unread_records_own_date_counts() -> None:
    snapshot = seen(group("r", 0, 40), logs=(log(0, 100, first_age=HOUR), log(0, 100)))
    here = next(each.partition for each in readers.positions(snapshot, "r") if each.partition.partition == 1)
    first, unknown = rooms(snapshot)
    assert (first.left, first.rule, first.window, first.danger) == (HOUR * 9, Rule.TIME, HOUR * 10, Danger.NONE)
    assert (unknown.left, unknown.unread, unknown.why != "") == (None, 60, True)
    came = rooms(snapshot, appended={here: {40: BEGAN - HOUR * 8}})[1]
    assert (came.left, came.danger) == (HOUR * 2, Danger.WARNING)
    read = rooms(snapshot, appended={here: {40: BEGAN - HOUR}}, stamps={("id", 1, 40): NOW_MS - 36_000_000})[1]
    assert (read.left, read.danger) == (timedelta(0), Danger.ALARM)


def test_no_record_is_younger_than_the_youngest() -> None:
    old = replace(log(0, 100), last_ms=NOW_MS - 40_000_000)
    snapshot = seen(group("r", 40), logs=(old,))
    [here] = [each.partition for each in readers.positions(snapshot, "r")]
    [found] = rooms(snapshot, appended={here: {40: BEGAN - MINUTE}})
    assert (found.left, found.danger) == (timedelta(0), Danger.ALARM)


def test_by_size_what_comes_in_pushes_out_what_is_unread(platform: GroupsPlatform) -> None:
    """Ten bytes an offset; 600 of them a minute."""
    settings = {"retention.ms": "-1", "retention.bytes": "100000"}
    for minute in range(16):
        end = 1_000 + 600 * minute
        logs = (log(0, end, size=end * 10),)
        platform.snapshots.add(KAFKA, seen(group("r", 500), logs=logs, settings=settings, minute=minute))
    platform.clusters[KAFKA] = FakeCluster(platform.snapshots.latest(KAFKA))
    [reader] = look(platform, KAFKA, ENVIRONMENT).readers
    [room] = reader.rooms
    assert (room.rule, room.unread) == (Rule.SIZE, 9_500)
    assert room.left == timedelta(seconds=(100_000 - 95_000) / 100)
    assert (room.window, room.danger) == (timedelta(seconds=1_000), Danger.ALARM)
    del platform.snapshots.kept[KAFKA][:-1]
    [unknown] = look(platform, KAFKA, ENVIRONMENT).readers[0].rooms
    assert (unknown.left, unknown.why) == (None, "the rate of records is not known yet")


def test_what_is_kept_for_ever_is_in_no_danger_and_what_is_compacted_keeps_its_values() -> None:
    snapshot = seen(group("r", 40), settings={"retention.ms": "-1"})
    [kept] = rooms(snapshot)
    assert (kept.left, kept.danger, kept.why, kept.unread) == (None, Danger.NONE, "", 60)
    compacted = {"cleanup.policy": "compact", "delete.retention.ms": "3600000", "retention.ms": "1000"}
    [late] = rooms(seen(group("r", 0), logs=(log(0, 100, first_age=HOUR * 5),), settings=compacted))
    assert (late.rule, late.left, late.danger) == (Rule.TOMBSTONES, timedelta(0), Danger.WARNING)


def test_a_topic_whose_settings_nobody_says_is_not_guessed_at() -> None:
    snapshot = replace(seen(group("r", 40)), topics={TOPIC: TopicSeen("id", (log(0, 100),))})
    [found] = rooms(snapshot)
    assert (found.left, found.unread, found.why) == (None, 60, "the topic's settings are not known")


def test_who_has_read_everything_is_in_no_danger_however_short_the_retention() -> None:
    [found] = rooms(seen(group("r", 100), settings={"retention.ms": "1"}))
    assert (found.unread, found.left, found.danger) == (0, None, Danger.NONE)


def reading(platform: GroupsPlatform, snapshot: Snapshot, memory: Memory | None = None) -> list[Reader]:
    platform.clusters[KAFKA] = FakeCluster(snapshot)
    return list(look(platform, KAFKA, ENVIRONMENT, memory=memory).readers)


def test_a_record_near_deletion_is_read_once_and_its_date_decides(platform: GroupsPlatform) -> None:
    records = records_of(platform)
    records.records[0] = [(41, 2 * 3_600_000)]
    snapshot = seen(group("r", 41))
    memory = Memory()
    [reader] = reading(platform, snapshot, memory)
    assert (reader.left, reader.danger) == (HOUR * 8, Danger.NONE)
    assert [one.left for one in reading(platform, snapshot, memory)] == [HOUR * 8]
    assert records.asked == [(0, 41)]
    reading(platform, seen(group("r", 42)), memory)
    assert memory.stamps == {}
    assert records.asked == [(0, 41), (0, 42)]


def test_what_only_transactions_left_is_nothing_unread(platform: GroupsPlatform) -> None:
    memory = Memory()
    [reader] = reading(platform, seen(group("r", 99)), memory)
    assert (reader.unread, reader.left, reader.danger) == (0, None, Danger.NONE)
    reading(platform, seen(group("r", 99)), memory)
    assert records_of(platform).asked == [(0, 99)]
    records_of(platform).records[0] = [(100, 36_000_000)]
    [after] = reading(platform, seen(group("r", 99), logs=(log(0, 101, first_age=HOUR),)), memory)
    assert (after.unread, after.danger) == (2, Danger.ALARM)


def test_a_record_that_cannot_be_read_is_said_and_not_guessed(platform: GroupsPlatform) -> None:
    records_of(platform).fault = "it is gone"
    platform.clusters[KAFKA] = FakeCluster(seen(group("r", 41)))
    found = look(platform, KAFKA, ENVIRONMENT)
    assert found.not_known == [f"{TOPIC}/0 at 41: it is gone"]
    assert [room.why != "" for one in found.readers for room in one.rooms] == [True]


def test_everybody_who_commits_is_watched_but_who_rests_and_who_is_ignored(platform: GroupsPlatform) -> None:
    def at(minute: int, moved: int) -> Snapshot:
        gone, alive = group("gone", 5, members=False), group("alive", 5)
        by_hand = group("by-hand", moved, members=False)
        return seen(gone, alive, by_hand, group("console-1", 5), group(STREAM, 5, members=False), minute=minute)

    for day in range(9):
        platform.snapshots.add(KAFKA, at(day * 1_440, day))
    newest = platform.snapshots.latest(KAFKA)
    assert newest is not None
    assert {one.group for one in reading(platform, newest)} == {"alive", "by-hand", STREAM}
    platform.snapshots.kept[KAFKA] = platform.snapshots.kept[KAFKA][-3:]
    assert {one.group for one in reading(platform, newest)} == {"alive", "by-hand", "gone", STREAM}


def test_without_the_control_database_less_is_known_and_that_is_said(platform: GroupsPlatform) -> None:
    platform.snapshots.silent = True
    platform.clusters[KAFKA] = FakeCluster(seen(group("r", 0), group("gone", 5, members=False)))
    found = look(platform, KAFKA, ENVIRONMENT)
    assert [one.group for one in found.readers] == ["r", "gone"]
    assert [room.left for room in found.readers[0].rooms] == [HOUR * 9]
    assert len(found.not_known) == 1


def test_the_greatest_danger_comes_first(platform: GroupsPlatform) -> None:
    logs = (log(0, 100, first_age=HOUR * 9.5), log(0, 100, first_age=HOUR * 8))
    platform.clusters[KAFKA] = FakeCluster(
        seen(group("late", 0), group("later", None, 0), group("well", 100), logs=logs)
    )
    for number, hours in ((0, 9.5), (1, 8)):
        records_of(platform).records[number] = [(0, int(hours * 3_600_000))]
    found = look(platform, KAFKA, ENVIRONMENT)
    assert [(one.group, one.danger) for one in found.readers] == [
        ("late", Danger.ALARM),
        ("later", Danger.WARNING),
        ("well", Danger.NONE),
    ]
    assert [(one.group, room.danger) for one, room in worst(found)] == [
        ("late", Danger.ALARM),
        ("later", Danger.WARNING),
    ]


def open_alarms(platform: GroupsPlatform, kind: str = AlarmKind.READER_HEADROOM) -> list[str]:
    return [alarm.subject for alarm in platform.control.alarms.list() if alarm.kind == kind]


def late(*, offset: int = 0, minute: int = 0, faults: tuple[str, ...] = ()) -> Snapshot:
    logs = (log(0, 100, first_age=HOUR * 9.5),)
    return seen(group(STREAM, offset, members=False), logs=logs, minute=minute, faults=faults)


def test_an_alarm_is_open_from_the_snapshot_that_shows_it_until_it_is_read(platform: GroupsPlatform) -> None:
    records_of(platform).records[0] = [(0, int(9.5 * 3_600_000))]
    memory = Memory()
    [line] = watch(platform, KAFKA, late(), memory)
    assert line == (
        f"stream shop.purchases: 100 unread offsets of {TOPIC}/0 from offset 0 may be deleted, "
        "the first in 30 min (time)"
    )
    assert open_alarms(platform) == [f"{KAFKA}/{STREAM} {TOPIC}"]
    assert [alarm.extent for alarm in platform.control.alarms.list()] == [Extent(1800)]
    platform.clock.now += MINUTE
    assert watch(platform, KAFKA, late(minute=1), memory) == []
    hidden = replace(late(minute=2, faults=("broker 2: dead",)), groups={})
    watch(platform, KAFKA, hidden, memory)
    unknown = replace(late(minute=3), topics={TOPIC: TopicSeen("id", (None,), KEPT)})
    watch(platform, KAFKA, unknown, memory)
    assert open_alarms(platform) == [f"{KAFKA}/{STREAM} {TOPIC}"]
    watch(platform, KAFKA, late(offset=100, minute=4), memory)
    assert open_alarms(platform) == []


def test_each_snapshot_is_held_against_its_readers(platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    records_of(platform).records[0] = [(0, int(9.5 * 3_600_000))]
    platform.clusters[KAFKA] = FakeCluster(late())
    [taken] = take_due(platform, BEGAN)
    assert "headroom: stream shop.purchases: 100 unread" in taken.text
    assert open_alarms(platform) == [f"{KAFKA}/{STREAM} {TOPIC}"]

    def fails(*_: object) -> list[str]:
        raise ValueError("something is odd")

    monkeypatch.setattr(snapshots, "watch", fails)
    platform.clusters[KAFKA] = FakeCluster(late(minute=1))
    [broken] = take_due(platform, BEGAN + MINUTE)
    assert (broken.failed, broken.stored) == (False, True)
    assert "headroom not known: something is odd" in broken.text


def test_the_hourly_look_is_red_for_who_is_about_to_lose_and_for_new_breaches(platform: GroupsPlatform) -> None:
    pipeline = load_pipeline(platform.root, "shop")
    records_of(platform).records[0] = [(0, int(9.5 * 3_600_000))]
    ahead = replace(log(0, 100, first_age=HOUR * 9.5, size=1_000), last_ms=NOW_MS + 7_200_000)
    snapshot = replace(late(), topics={TOPIC: TopicSeen("id", (ahead,), KEPT, 1)})
    platform.clusters[KAFKA] = FakeCluster(snapshot)
    first = check(platform, pipeline, now=BEGAN)
    assert [line.split(":")[0] for line in first.wrong] == ["stream shop.purchases", f"{TOPIC}/0 is future-dated"]
    assert open_alarms(platform, AlarmKind.TOPIC_BOUND) == [f"{KAFKA}/{TOPIC} future-dated"]
    assert [line.split()[0] for line in first.told] == ["topic", TOPIC, "reader", STREAM]
    again = check(platform, pipeline, now=BEGAN)
    assert (len(again.wrong), len(again.known)) == (1, 1)
    platform.clock.now += MINUTE
    well = seen(group(STREAM, 100), logs=(log(0, 100, first_age=HOUR, size=1_000),), minute=1)
    platform.clusters[KAFKA] = FakeCluster(well)
    after = check(platform, pipeline, now=BEGAN + MINUTE * 2)
    assert after.wrong == []
    assert open_alarms(platform, AlarmKind.TOPIC_BOUND) == open_alarms(platform) == []


def test_a_declared_topic_that_is_not_there_is_told(platform: GroupsPlatform) -> None:
    platform.clusters[KAFKA] = FakeCluster(replace(seen(), topics={}))
    found = check(platform, load_pipeline(platform.root, "shop"), now=BEGAN)
    assert (found.wrong, found.known) == ([], [f"topic {TOPIC} is declared, but does not exist"])


def test_a_cluster_that_does_not_answer_is_an_error(platform: GroupsPlatform) -> None:
    platform.clusters[KAFKA] = FakeCluster(error=UnreachableError("nobody answers"))
    with pytest.raises(UnreachableError):
        check(platform, load_pipeline(platform.root, "shop"), now=BEGAN)
    assert Position("g", next(readers.positions(seen(group("g", 1)), "g")).partition, 1).lost == 0


def test_a_compacting_topic_that_deletes_too_alarms_before_the_loss() -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}
    age = DAY * 7 - MINUTE * 20
    [room] = rooms(seen(group("r", 0), logs=(log(0, 100, first_age=age),), settings=settings))
    assert (room.rule, room.danger) == (Rule.TIME, Danger.ALARM)


def test_purged_by_a_retention_of_nothing_is_in_danger() -> None:
    [room] = rooms(seen(group("r", 0), settings={"retention.ms": "0"}))
    assert (room.left, room.danger) == (timedelta(0), Danger.ALARM)


def test_a_slow_look_makes_no_record_of_the_future(platform: GroupsPlatform) -> None:
    """Groups are asked first; the greatest timestamp is asked for seconds after the snapshot was begun."""
    fresh = replace(log(0, 100, first_age=HOUR, size=1_000), last_ms=NOW_MS + 30_000)
    platform.clusters[KAFKA] = FakeCluster(replace(seen(logs=(fresh,)), seconds=6.0))
    assert check(platform, load_pipeline(platform.root, "shop"), now=BEGAN).wrong == []


def markers(count: int) -> tuple[Snapshot, Snapshot]:
    """A caught-up reader of an idle transactional topic stands before the last markers: then, and now."""
    old = replace(log(0, 100), last_ms=NOW_MS - int(9.5 * 3_600_000))
    reader = group("r", *([99] * count))
    then = replace(seen(reader, logs=(replace(old, end=99, stable=99),) * count), at=BEGAN - HOUR * 9.5)
    return then, seen(reader, logs=(old,) * count)


def test_partitions_with_a_marker_at_their_end_are_no_alarm_however_many(platform: GroupsPlatform) -> None:
    then, now = markers(500)
    platform.snapshots.add(KAFKA, then)
    platform.snapshots.add(KAFKA, replace(now, at=BEGAN - HOUR * 9))
    memory = Memory()
    for _ in range(3):
        watch(platform, KAFKA, now, memory)
        assert open_alarms(platform) == []
    assert len(set(records_of(platform).asked)) == len(records_of(platform).asked) == 500


def test_the_hourly_look_does_not_open_what_the_minutes_look_knows_better(platform: GroupsPlatform) -> None:
    then, now = markers(500)
    for snapshot in (then, replace(now, at=BEGAN - HOUR * 9), now):
        platform.snapshots.add(KAFKA, snapshot)
    platform.clusters[KAFKA] = FakeCluster(now)
    assert check(platform, load_pipeline(platform.root, "shop"), now=BEGAN).wrong == []
    assert open_alarms(platform) == []


def test_records_dated_back_are_seen_before_they_are_lost(platform: GroupsPlatform) -> None:
    """What comes is three hours old by its own timestamps; ten hours are kept."""
    for quarter in range(33):
        at = BEGAN - HOUR * (8 - quarter / 4)
        platform.snapshots.add(KAFKA, replace(seen(group("r", 110), logs=(log(0, 100 + 25 * quarter),)), at=at))
    behind = 3 * 3_600_000
    records_of(platform).records[0] = [(110, int(6.9 * 3_600_000) + behind)]
    now = replace(log(0, 900), first_ms=NOW_MS - 10 * 3_600_000, last_ms=NOW_MS - behind)
    [reader] = reading(platform, seen(group("r", 110), logs=(now,)))
    assert reader.danger is Danger.ALARM


def test_a_record_that_cannot_be_read_is_not_asked_for_each_minute(platform: GroupsPlatform) -> None:
    records_of(platform).fault = "it was not read in time"
    memory = Memory()
    for minute in range(12):
        reading(platform, seen(group("r", *([41] * 40)), logs=(log(0, 100),) * 40, minute=minute), memory)
    assert records_of(platform).looks == 2


def test_what_cannot_be_looked_up_is_said_with_the_snapshot(platform: GroupsPlatform) -> None:
    records_of(platform).fault = "it was not read in time"
    logs = (log(0, 100),) * 5
    lines = watch(platform, KAFKA, seen(group("r", *([41] * 5)), logs=logs), Memory())
    assert lines[:1] == [f"not known: {TOPIC}/0 at 41: it was not read in time"]
    assert lines[-1] == "not known: 2 more"


def test_by_size_what_came_last_counts_where_it_is_larger() -> None:
    """A million of 100 bytes, read; then a million of 10,000 bytes, unread: nearly the whole limit."""
    size = 1_000_000 * 100 + 1_000_000 * 10_000
    settings = {"retention.ms": "-1", "retention.bytes": "10200000000"}
    came = flow([(BEGAN - HOUR, 1_900_000), (BEGAN, 2_000_000)], 10_000)
    logs = (log(0, 2_000_000, size=size),)
    [room] = rooms(seen(group("r", 1_000_000), logs=logs, settings=settings), flows={(TOPIC, 0): came})
    assert room.left is not None
    assert room.left <= MINUTE * 12


def test_a_reader_of_ours_whose_commits_have_expired_is_not_out_of_danger(platform: GroupsPlatform) -> None:
    """Kafka drops the commits of who is away for seven days; the stream goes on at its record of work."""
    records_of(platform).records[0] = [(0, int(9.5 * 3_600_000))]
    watch(platform, KAFKA, late(), Memory())
    assert open_alarms(platform) == [f"{KAFKA}/{STREAM} {TOPIC}"]
    platform.clock.now += MINUTE
    watch(platform, KAFKA, replace(late(minute=1), groups={}), Memory())
    assert open_alarms(platform) == [f"{KAFKA}/{STREAM} {TOPIC}"]


def test_an_app_that_should_run_is_watched_before_its_first_commit(platform: GroupsPlatform) -> None:
    records_of(platform).records[0] = [(0, int(9.5 * 3_600_000))]
    nobody = replace(late(), groups={})
    assert reading(platform, nobody) == []
    platform.streams.set_desired("shop.purchases", actor="me", reason="a test", state=DesiredState.RUNNING)
    [reader] = reading(platform, nobody)
    assert (reader.group, reader.what, reader.unread, reader.danger) == (
        STREAM,
        "stream shop.purchases",
        100,
        Danger.ALARM,
    )
    assert reading(platform, replace(nobody, faults=("broker 2: dead",))) == []


def test_many_groups_cost_as_much_as_they_have_positions(platform: GroupsPlatform) -> None:
    """A look goes once through the positions, not once for each group."""
    logs = tuple(log(0, 100, first_age=HOUR) for _ in range(20))
    names = [f"g{number}" for number in range(300)]
    found = reading(platform, seen(*(group(name, *([100] * 20)) for name in names), logs=logs))
    assert sorted(one.group for one in found) == sorted(names)
    assert {len(one.rooms) for one in found} == {20}
