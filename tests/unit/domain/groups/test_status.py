"""How groups are judged, over lives whose truth is known: at each snapshot the status and the time lag are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.rhythm import commits_of_nobody, track
from millrace.domain.groups.snapshots import GroupType, LogSeen, TopicSeen
from millrace.domain.groups.status import GroupReading, Status, judge
from support.groups.worlds import BEGAN, GROUP, TOPIC, Log, Reader, World, history_of

HOUR = 3600
SPACING = timedelta(seconds=60)
CALM = {Status.OK, Status.IDLE}


def steadily(per_second: int) -> Callable[[World, int], None]:
    def produce(world: World, second: int) -> None:
        for log in world.logs:
            log.append(per_second, second)

    return produce


def nothing(world: World, second: int) -> None:
    """An idle producer."""


def lived(world: World, seconds: int, within: timedelta = SPACING) -> dict[int, GroupReading]:
    """Every reading by its second; the time lag of each is held against the truth, within the distance of snapshots."""
    found = {}
    for second, reading in world.live(seconds):
        found[second] = reading
        if reading.time_lag is None:
            continue
        truth = world.behind()
        if reading.time_lag.at_least:
            assert reading.time_lag.behind <= truth + within, second
        else:
            assert abs(reading.time_lag.behind - truth) <= within, (second, reading.time_lag, truth)
    return found


def statuses(found: dict[int, GroupReading], first: int, last: int) -> set[Status]:
    return {reading.status for second, reading in found.items() if first <= second <= last}


def test_a_steady_reader_is_ok() -> None:
    found = lived(World(steadily(100)), 2 * HOUR)
    assert statuses(found, 120, 2 * HOUR) == {Status.OK}
    last = found[2 * HOUR - 60]
    assert last.interval == SPACING
    assert last.rate_in == pytest.approx(100, rel=0.01)
    assert last.rate_out == pytest.approx(100, rel=0.01)


def test_an_hourly_burst_alarms_nobody() -> None:
    def produce(world: World, second: int) -> None:
        if second % HOUR < 60:
            world.logs[0].append(5_000, second)

    found = lived(World(produce, Reader(per_second=500)), 4 * HOUR)
    assert statuses(found, 0, 4 * HOUR) <= CALM | {Status.UNKNOWN}  # before the first commit nothing is known
    assert "catching up" in found[HOUR + 420].why


def test_an_idle_producer_and_a_caught_up_group_are_idle_for_ever() -> None:
    world = World(nothing, logs=[Log([0] * 500)])
    found = lived(world, 4 * HOUR)
    assert statuses(found, 5 * 60, 4 * HOUR) <= CALM
    assert found[4 * HOUR - 60].status is Status.IDLE
    assert found[4 * HOUR - 60].time_lag == replace(found[4 * HOUR - 60].time_lag, behind=timedelta(0))
    world.reader.member = False
    found = lived(world, HOUR)
    assert statuses(found, 4 * HOUR, 5 * HOUR) == {Status.IDLE}


def test_a_spike_of_a_hundred_times_is_slow_while_it_lasts_and_then_worked_off() -> None:
    def produce(world: World, second: int) -> None:
        world.logs[0].append(10_000 if HOUR <= second < HOUR + 900 else 100, second)

    found = lived(World(produce, Reader(per_second=3_000)), 3 * HOUR)
    assert statuses(found, 300, HOUR - 60) == {Status.OK}
    assert found[HOUR + 840].status is Status.SLOW
    assert "7,000.0 records a second" in found[HOUR + 840].why
    assert Status.STUCK not in statuses(found, 0, 3 * HOUR)
    assert statuses(found, HOUR + 900 + 700, 3 * HOUR) == {Status.OK}
    assert found[3 * HOUR - 60].lag == 0


def test_a_reader_that_is_always_too_slow_is_slow_with_its_rate() -> None:
    found = lived(World(steadily(1_000), Reader(per_second=800)), HOUR)
    assert statuses(found, 15 * 60, HOUR) == {Status.SLOW}
    assert "200.0 records a second" in found[HOUR - 60].why


@pytest.mark.parametrize(("commit_every", "within"), [(5, 4 * 60), (300, 16 * 60)], ids=["seconds", "minutes"])
def test_a_reader_that_hangs_is_stuck_after_three_of_its_intervals(commit_every: int, within: int) -> None:
    died = 2 * HOUR + 30
    events = {died: lambda world: setattr(world.reader, "alive", False)}
    world = World(steadily(100), Reader(commit_every=commit_every), events=events)
    found = lived(world, 3 * HOUR)
    assert Status.STUCK not in statuses(found, 0, died + 2 * max(commit_every, 60))
    assert statuses(found, died + within, 3 * HOUR) == {Status.STUCK}
    assert f"{TOPIC}/0: no commit for" in found[3 * HOUR - 60].why


def test_one_partition_that_stands_still_while_others_move_is_stuck() -> None:
    world = World(steadily(10), logs=[Log(), Log(), Log()])
    lived(world, HOUR)
    stopped_at = world.logs[1].end

    def produce(world: World, second: int) -> None:
        steadily(10)(world, second)
        world.reader.position[1] = stopped_at - 1

    world.produce = produce
    found = lived(world, HOUR)
    assert statuses(found, HOUR + 6 * 60, 2 * HOUR) == {Status.STUCK}
    last = found[2 * HOUR - 60]
    assert last.why.startswith(f"{TOPIC}/1:")
    assert [one.status for one in last.partitions] == [Status.OK, Status.STUCK, Status.OK]


class Batching(Reader):
    """Commits its second partition only ten minutes after something came to it, as one that collects does."""

    def read(self, logs: list[Log], second: int) -> None:
        quiet = self.committed.get(1, 0)
        super().read(logs, second)
        if quiet < logs[1].end and second - logs[1].appended[quiet] < 600:
            self.committed[1] = quiet


def test_a_quiet_partition_whose_reader_collects_is_judged_by_its_own_rhythm() -> None:
    def produce(world: World, second: int) -> None:
        world.logs[0].append(10, second)
        if second % 900 == 0:
            world.logs[1].append(5, second)

    world = World(produce, Batching(), logs=[Log(), Log()])
    found = lived(world, 3 * HOUR)
    assert statuses(found, HOUR, 3 * HOUR) <= CALM  # its rhythm is known by then
    newest = world.snapshots[25][1]
    early = history_of([one for _, one in world.snapshots[:26]])  # at its second wait
    waits = judge(newest.groups[GROUP], newest, early, at_least=timedelta(minutes=10))
    assert waits.status in CALM


class NowAndThenSlow(Reader):
    """Of twenty minutes five are one batch, in which it commits nothing."""

    def read(self, logs: list[Log], second: int) -> None:
        if second % 1200 >= 300:
            super().read(logs, second)


def test_what_a_reader_has_shown_before_is_no_standstill() -> None:
    found = lived(World(steadily(10), NowAndThenSlow()), 3 * HOUR)
    assert Status.STUCK not in statuses(found, 0, 3 * HOUR)


def test_one_that_commits_up_to_the_end_leaves_no_markers() -> None:
    """A foreign reader may have read all but markers; an app of ours has not, whatever it has left."""
    hangs = {HOUR + 30: lambda world: setattr(world.reader, "alive", False)}

    def produce(world: World, second: int) -> None:
        if second <= HOUR + 40:
            world.logs[0].append(20, second)

    world = World(produce, events=hangs)
    lived(world, 2 * HOUR, timedelta(hours=2))  # what is left after a last commit counts for nothing of a foreign one
    newest = world.snapshots[-1][1]
    ours = judge(newest.groups[GROUP], newest, world.history(), commits_markers=True)
    assert ours.status is Status.STUCK
    assert not ours.undecided
    long_ago = history_of([snapshot for _, snapshot in world.snapshots[70:]])  # nothing moved in it
    assert judge(newest.groups[GROUP], newest, long_ago, commits_markers=True).status is Status.STUCK


def test_a_partition_that_its_members_gave_up_says_nothing_of_the_others() -> None:
    world = World(steadily(10), logs=[Log(), Log()])
    lived(world, HOUR)
    for number in range(60):
        for _ in world.live(60):
            pass
        second, newest = world.snapshots[-1]
        seen = newest.groups[GROUP]
        assert seen.commits is not None
        member = replace(seen.members[0], partitions=((TOPIC, 0),))  # type: ignore[index]
        old = {**seen.commits, (TOPIC, 1): Committed(100)}
        gave_up = replace(seen, members=(member,), commits=old)
        world.snapshots[-1] = (second, replace(newest, groups={GROUP: gave_up}))
        reading = judge(gave_up, world.snapshots[-1][1], world.history())
        assert reading.status is Status.OK, number
        assert reading.partitions[1].status is Status.UNKNOWN
        assert "assigned to no member" in reading.partitions[1].why
        assert reading.lag is not None
        assert reading.lag <= 10 * 60


def test_time_in_which_nobody_could_look_is_no_standstill() -> None:
    """The cluster was away for half an hour: nobody looked, nobody committed, and records come again."""
    away = range(HOUR + 1, HOUR + 1800)

    def produce(world: World, second: int) -> None:
        if second not in away:
            world.logs[0].append(10, second)

    world = World(produce, missing=away)
    reads = world.reader.read

    def paused(logs: list[Log], second: int) -> None:
        if (second not in away and second > HOUR + 1830) or second <= HOUR:
            reads(logs, second)

    world.reader.read = paused  # type: ignore[method-assign]
    found = {second: reading for second, reading in world.live(2 * HOUR)}
    assert Status.STUCK not in statuses(found, 0, 2 * HOUR)


def test_a_topic_that_was_made_again_is_not_rewound() -> None:
    world = World(steadily(100))
    before = [snapshot for _ in [0] for _, _ in world.live(HOUR) for snapshot in [world.snapshots[-1][1]]]
    made = World(steadily(100), second=HOUR)
    for _, _ in made.live(HOUR):
        own = made.snapshots[-1][1]
        log = own.topics[TOPIC].logs
        topics = {TOPIC: TopicSeen("id-2", log)}
        made.snapshots[-1] = (made.snapshots[-1][0], replace(own, topics=topics))
    after = [snapshot for _, snapshot in made.snapshots]
    newest = after[-1]
    reading = judge(newest.groups[GROUP], newest, history_of(before + after))
    assert reading.status is Status.OK


def test_a_dead_reader_is_stopped_once_its_session_is_over() -> None:
    events = {HOUR + 10: lambda world: setattr(world.reader, "member", False)}
    found = lived(World(steadily(100), events=events), 2 * HOUR)
    assert statuses(found, HOUR + 60, 2 * HOUR) == {Status.STOPPED}
    assert found[2 * HOUR - 60].lag == pytest.approx(100 * (HOUR - 60), rel=0.05)


def test_a_stopped_group_that_has_read_all_is_idle_until_something_comes() -> None:
    def produce(world: World, second: int) -> None:
        if second < HOUR or second >= 2 * HOUR:
            world.logs[0].append(10, second)

    events = {HOUR + 30: lambda world: setattr(world.reader, "member", False)}
    found = lived(World(produce, events=events), 3 * HOUR)
    assert statuses(found, HOUR + 60, 2 * HOUR - 60) == {Status.IDLE}
    assert statuses(found, 2 * HOUR, 3 * HOUR) == {Status.STOPPED}


def test_a_reader_that_was_rewound_is_so_until_it_is_back_where_it_was() -> None:
    back_at = {}

    def rewind(world: World) -> None:
        back_at["offset"] = world.reader.committed[0]
        world.reader.go_back(0, 0)

    world = World(steadily(100), Reader(per_second=300), events={HOUR: rewind})
    found = {}
    for second, reading in world.live(3 * HOUR):
        found[second] = reading
        if second >= HOUR:
            reached = world.reader.committed[0]
            expected = {Status.REWOUND} if reached < back_at["offset"] else CALM
            assert reading.status in expected, (second, reading)
    assert statuses(found, 0, HOUR - 60) <= CALM | {Status.UNKNOWN}
    assert f"{TOPIC}/0: moved back" in found[HOUR + 60].why


def test_a_stopped_group_that_was_rewound_says_so() -> None:
    def stop(world: World) -> None:
        world.reader.member = False
        world.reader.go_back(0, 10)

    found = lived(World(nothing, logs=[Log([0] * 500)], events={HOUR: stop}), 2 * HOUR)
    assert statuses(found, HOUR, 2 * HOUR) == {Status.REWOUND}
    assert "moved back by 490 offsets" in found[HOUR].why


@pytest.mark.parametrize("hours", [1, pytest.param(6, marks=pytest.mark.full)])
def test_markers_of_transactions_at_the_end_are_not_unread(hours: int) -> None:
    def produce(world: World, second: int) -> None:
        if second % (hours * HOUR) < 120:
            world.logs[0].append(20, second, marker=True)

    found = lived(World(produce), 3 * hours * HOUR, 3 * SPACING)  # markers are taken for records at first
    assert statuses(found, 0, 3 * hours * HOUR) <= CALM | {Status.UNKNOWN}
    last = found[3 * hours * HOUR - 60]
    assert last.lag == 1  # as the stock tool says
    assert last.status is Status.IDLE


def test_a_transactional_topic_whose_reader_hangs_is_stuck() -> None:
    def produce(world: World, second: int) -> None:
        world.logs[0].append(20, second, marker=True)

    events = {HOUR: lambda world: setattr(world.reader, "alive", False)}
    found = lived(World(produce, events=events), 2 * HOUR)
    assert statuses(found, HOUR + 5 * 60, 2 * HOUR) == {Status.STUCK}


def test_an_open_transaction_holds_a_reader_up_without_alarm() -> None:
    world = World(steadily(10))
    lived(world, HOUR)
    # the reader has all up to the last stable offset; what lies beyond belongs to an open transaction
    hung = []
    for minute in range(60):
        newest = world.snapshots[-1][1]
        log = newest.log((TOPIC, 0))
        assert log is not None
        later = replace(log, end=log.end + 1000 * (minute + 1), stable=log.end)
        commits = {(TOPIC, 0): Committed(log.end)}
        group = replace(newest.groups[GROUP], commits=commits)
        at = newest.at + SPACING * (minute + 1)
        hung.append(replace(newest, at=at, topics={TOPIC: TopicSeen("id", (later,))}, groups={GROUP: group}))
        reading = judge(group, hung[-1], history_of([one for _, one in world.snapshots] + hung))
        assert reading.status is Status.OK
        assert "open transaction" in reading.why
        assert reading.lag == 1000 * (minute + 1)
        assert reading.time_lag is not None
        assert reading.time_lag.behind == timedelta(0)


def test_a_compacted_topic_is_read_across_its_gaps() -> None:
    """Offsets go where nothing is left: the reader's position jumps to the end all the same."""

    def produce(world: World, second: int) -> None:
        if second % 10 == 0:
            world.logs[0].append(1_000, second)

    def compact(world: World) -> None:
        world.reader.go_back(0, 0)
        world.reader.per_second = 100_000

    found = lived(World(produce, events={HOUR: compact}), 2 * HOUR)
    assert statuses(found, HOUR + 60, 2 * HOUR) == {Status.OK}


def test_records_that_expired_unread_count_from_the_log_start() -> None:
    def expire(world: World) -> None:
        world.logs[0].start = world.logs[0].end - 50

    events = {HOUR: lambda world: setattr(world.reader, "member", False), 2 * HOUR: expire}
    world = World(steadily(10), events=events)
    found = lived(world, 2 * HOUR + 60)
    at = found[2 * HOUR]
    assert at.partitions[0].lag == at.partitions[0].end - at.partitions[0].committed  # as the stock tool counts
    assert at.time_lag is not None
    assert at.time_lag.behind <= timedelta(seconds=65)


def test_a_partition_that_was_added_is_judged_by_itself() -> None:
    events = {HOUR: lambda world: world.logs.append(Log())}
    world = World(steadily(10), events=events)
    found = lived(world, 2 * HOUR)
    assert statuses(found, 120, 2 * HOUR) == {Status.OK}
    assert len(found[2 * HOUR - 60].partitions) == 2


def test_a_partition_that_was_added_and_is_never_committed_is_stuck() -> None:
    world = World(steadily(10), events={HOUR: lambda world: world.logs.append(Log())})
    world.reader.read = lambda logs, second: Reader.read(world.reader, logs[:1], second)  # type: ignore[method-assign]
    found = {second: reading for second, reading in world.live(2 * HOUR)}
    assert statuses(found, HOUR + 6 * 60, 2 * HOUR) == {Status.STUCK}
    assert f"{TOPIC}/1: never committed" in found[2 * HOUR - 60].why


def test_an_hour_without_snapshots_neither_alarms_nor_hides() -> None:
    gap = range(2 * HOUR + 1, 3 * HOUR)
    found = {second: reading for second, reading in World(steadily(100), missing=gap).live(4 * HOUR)}
    assert statuses(found, 120, 4 * HOUR) == {Status.OK}
    assert found[4 * HOUR - 60].interval == SPACING
    events = {2 * HOUR + 600: lambda world: setattr(world.reader, "alive", False)}
    hung = {second: reading for second, reading in World(steadily(100), missing=gap, events=events).live(4 * HOUR)}
    assert statuses(hung, 3 * HOUR + 5 * 60, 4 * HOUR) == {Status.STUCK}


def test_a_reader_that_has_just_come_back_gets_its_time() -> None:
    def leave(world: World) -> None:
        world.reader.member = False

    def come(world: World) -> None:
        world.reader.member = True

    world = World(steadily(10), events={HOUR: leave, 2 * HOUR + 50: come})
    found = lived(world, 2 * HOUR + 120)
    assert found[2 * HOUR].status is Status.STOPPED
    assert found[2 * HOUR + 60].status is Status.OK


def test_what_is_not_known_is_called_so() -> None:
    world = World(steadily(10))
    lived(world, 600)
    newest = world.snapshots[-1][1]
    group, history = newest.groups[GROUP], world.history()
    no_commits = judge(replace(group, commits=None, fault="the coordinator does not answer"), newest, history)
    assert (no_commits.status, no_commits.why) == (Status.UNKNOWN, "the coordinator does not answer")
    assert no_commits.lag is None
    no_leader = replace(newest, topics={TOPIC: TopicSeen("id", (None,))})
    assert judge(group, no_leader, history_of([*(one for _, one in world.snapshots[:-1]), no_leader])).status is (
        Status.UNKNOWN
    )
    assert judge(replace(group, members=None), newest, history).status is Status.UNKNOWN
    share = judge(replace(group, type=GroupType.SHARE, members=None, commits=None), newest, history)
    assert (share.status, share.lag) == (Status.UNKNOWN, None)


def test_a_commit_beyond_the_end_is_behind_nobody_and_keeps_the_stock_number() -> None:
    world = World(steadily(10))
    lived(world, 600)
    newest = world.snapshots[-1][1]
    made_again = replace(newest, topics={TOPIC: TopicSeen("other", (LogSeen(0, 5, 5),))})
    reading = judge(newest.groups[GROUP], made_again, history_of([*(one for _, one in world.snapshots), made_again]))
    commits = newest.groups[GROUP].commits
    assert commits is not None
    assert reading.partitions[0].lag == 5 - commits[TOPIC, 0].offset
    assert reading.lag == 0
    assert reading.time_lag is not None
    assert reading.time_lag.behind == timedelta(0)


def test_one_snapshot_alone_tells_the_lag_and_no_rate() -> None:
    world = World(nothing, Reader(alive=False, committed={0: 100}), logs=[Log([0] * 500)])
    [(_, reading)] = world.live(1)
    assert (reading.lag, reading.time_lag) == (400, None)
    assert (reading.rate_in, reading.rate_out, reading.interval) == (None, None, None)
    assert reading.status is Status.UNKNOWN
    world.reader.member, world.second = False, 60
    [(_, reading)] = world.live(1)
    assert reading.status is Status.STOPPED


def assigning(commit_every: int = 5, **more: int) -> Reader:
    return Reader(member=False, assigns=True, commit_every=commit_every, **more)


@pytest.mark.parametrize("commit_every", [5, 600], ids=["seconds", "minutes"])
def test_a_reader_that_assigns_its_partitions_is_judged_by_its_commits(commit_every: int) -> None:
    found = lived(World(steadily(100), assigning(commit_every)), 3 * HOUR)
    seen_commits = 3 * commit_every + 120  # two of them show it
    assert statuses(found, seen_commits, 3 * HOUR) == {Status.MANUAL}
    assert "without a member" in found[3 * HOUR - 60].why


@pytest.mark.parametrize(("commit_every", "within"), [(5, 4 * 60), (300, 16 * 60)], ids=["seconds", "minutes"])
def test_such_a_reader_that_ends_is_stopped_after_three_of_its_intervals(commit_every: int, within: int) -> None:
    died = 2 * HOUR + 30
    events = {died: lambda world: setattr(world.reader, "alive", False)}
    found = lived(World(steadily(100), assigning(commit_every), events=events), 4 * HOUR)
    assert statuses(found, HOUR, died + 2 * max(commit_every, 60)) == {Status.MANUAL}
    assert statuses(found, died + within, 4 * HOUR) == {Status.STOPPED}
    assert f"{TOPIC}/0: the group has no members, and no commit for" in found[4 * HOUR - 60].why


def test_such_a_reader_has_nothing_to_commit_where_nothing_comes() -> None:
    def produce(world: World, second: int) -> None:
        if second < HOUR or second >= 3 * HOUR:
            steadily(100)(world, second)

    found = lived(World(produce, assigning()), 4 * HOUR)
    assert statuses(found, 300, 4 * HOUR) == {Status.MANUAL}


def test_such_a_reader_that_falls_behind_is_slow() -> None:
    found = lived(World(steadily(1_000), assigning(per_second=800)), HOUR)
    assert statuses(found, 15 * 60, HOUR) == {Status.SLOW}


def test_one_partition_that_such_a_reader_leaves_is_stopped() -> None:
    world = World(steadily(10), assigning(), logs=[Log(), Log()])
    lived(world, HOUR)
    stopped_at = world.logs[1].end

    def produce(world: World, second: int) -> None:
        steadily(10)(world, second)
        world.reader.position[1] = stopped_at - 1

    world.produce = produce
    found = lived(world, HOUR)
    assert [one.status for one in found[2 * HOUR - 60].partitions] == [Status.MANUAL, Status.STOPPED]


def test_the_last_commit_of_a_member_and_a_reset_make_no_such_reader() -> None:
    def leave(world: World) -> None:
        world.reader.committed[0] = world.logs[0].end
        world.reader.member = False

    def reset(world: World) -> None:
        world.reader.go_back(0, world.logs[0].end - 5)

    events = {HOUR + 30: leave, HOUR + 1830: reset}
    found = lived(World(steadily(100), events=events), 2 * HOUR)
    assert statuses(found, HOUR + 120, 2 * HOUR) == {Status.STOPPED}


def moved_by_hand(times: int) -> World:
    """A reader whose only member leaves; a person then moves its commit forward so many times."""

    def leave(world: World) -> None:
        world.reader.member = False

    def reset(world: World) -> None:
        world.reader.go_back(0, world.logs[0].end - 5)

    return World(steadily(100), events={HOUR + 30: leave} | {HOUR + 600 * (n + 1): reset for n in range(times)})


@pytest.mark.parametrize(("times", "stopped"), [(2, True), (4, True), (5, False)])
def test_a_few_resets_of_a_group_that_had_members_make_no_such_reader(times: int, stopped: bool) -> None:
    last = HOUR + 600 * times + 120
    assert (lived(moved_by_hand(times), last + 60)[last].status is Status.STOPPED) is stopped


def test_commits_of_our_own_apps_from_outside_show_no_reader() -> None:
    world = World(steadily(100), assigning(per_second=80))
    lived(world, HOUR)
    newest = world.snapshots[-1][1]
    reading = judge(newest.groups[GROUP], newest, history_of([one for _, one in world.snapshots]), by_commits=False)
    assert reading.status is Status.STOPPED


def test_a_commit_that_snapshots_missed_shows_no_such_reader() -> None:
    """Somebody may have come, committed and gone while snapshots are missing."""
    minutes = [0, 1, 2, 3, 30, 31, 60, 61]
    times = [BEGAN + timedelta(minutes=minute) for minute in minutes]
    commits = [5, 5, 6, 6, 7, 7, 8, 9]
    one = track(commits, [100] * len(times))
    assert commits_of_nobody(times, [one], [0] * len(times)) == 2
