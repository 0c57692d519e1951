"""How long unread records stay, and the alarm before they are deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.groups.commits import BackupMetadata, Committed, archived_to
from millrace.domain.retention.headroom import Headroom, Limits, Rule, Unread, headroom
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.runtime.backup.doom import Doom

HERE = TopicPartition("shop.purchases", "A" * 22, 3)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def unread(age_ms: int | None = 0, size: float = 0.0, rate: float = 0.0) -> Unread:
    return Unread(HERE, 7, None if age_ms is None else NOW_MS - age_ms, size, rate)


@pytest.mark.parametrize(
    ("found", "limits", "left", "rule"),
    [
        (unread(HOUR_MS), Limits(timedelta(hours=3)), timedelta(hours=2), Rule.TIME),
        (unread(5 * HOUR_MS), Limits(timedelta(hours=3)), timedelta(0), Rule.TIME),
        (unread(-HOUR_MS), Limits(timedelta(hours=3)), timedelta(hours=4), Rule.TIME),  # dated in the future
        (unread(0, 600, 10), Limits(None, 1000), timedelta(seconds=40), Rule.SIZE),
        (unread(0, 1000, 0), Limits(None, 1000), timedelta(0), Rule.SIZE),
        (unread(HOUR_MS, 600, 10), Limits(timedelta(hours=3), 1000), timedelta(seconds=40), Rule.SIZE),
        (unread(3 * HOUR_MS - 1000, 600, 10), Limits(timedelta(hours=3), 1000), timedelta(seconds=1), Rule.TIME),
    ],
)
def test_the_limit_that_is_met_first_counts(found: Unread, limits: Limits, left: timedelta, rule: Rule) -> None:
    assert headroom(found, limits, NOW_MS) == Headroom(found, left, rule)


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        (unread(HOUR_MS, 10**9, 10**6), Limits()),
        (unread(None), Limits(timedelta(hours=1))),  # nobody knows the record
        (Unread(HERE, 7, -1, 0, 0), Limits(timedelta(hours=1))),  # it has no timestamp
        (unread(0, 10, 0), Limits(None, 1000)),  # nothing comes
    ],
)
def test_where_nothing_is_known_to_be_deleted_nothing_is_said(found: Unread, limits: Limits) -> None:
    assert headroom(found, limits, NOW_MS) is None


def test_timestamps_and_rates_of_any_size_are_counted() -> None:
    far = Unread(HERE, 7, 2**63 - 1, 0.0, 1e-300)
    found = headroom(far, Limits(timedelta.max, 2**62), NOW_MS)
    assert found is not None
    assert found.left > timedelta(days=365)


def test_what_a_commit_says_counts_for_the_topic_it_is_about() -> None:
    other = TopicPartition(HERE.topic, "B" * 22, 3)
    commits = {(HERE.topic, 3): Committed(9, BackupMetadata("shop.backup", HERE.topic_id, 1, 9, 4, "x").encode())}
    assert archived_to([HERE], commits) == {HERE: 9}
    assert archived_to([other], commits) == {other: 0}
    assert archived_to([HERE], {(HERE.topic, 3): Committed(9)}) == {HERE: 0}
    assert archived_to([HERE], {}) == {HERE: 0}


class World:
    """What is measured, said and what time it is."""

    def __init__(self) -> None:
        self.found: Headroom | Exception | None = None
        self.said: list[tuple[str, str, str | None]] = []
        self.extents: list[Extent] = []
        self.now = 100.0
        self.measured = 0
        self.doom = Doom("shop.backup", self.measure, self.say, lambda: self.now)

    def say(self, kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        self.said.append((kind, subject, detail))
        self.extents.append(extent)

    def measure(self) -> Headroom | None:
        self.measured += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_an_alarm_says_what_may_be_deleted_and_closes_when_the_backup_keeps_up() -> None:
    world = World()
    world.found = Headroom(unread(), timedelta(minutes=14), Rule.TIME)
    world.doom.look(keeps_up=False)
    world.doom.look(keeps_up=False)
    assert world.measured == 1  # twice a minute at most
    ((kind, subject, text),) = world.said
    assert world.extents == [Extent(840)]
    assert (kind, subject) == (AlarmKind.BACKUP_DOOMED, "shop.backup")
    assert text is not None
    assert "shop.purchases/3 is not archived from offset 7 on, and may be deleted in 840 s" in text
    world.doom.look(keeps_up=True)
    world.doom.look(keeps_up=True)
    assert world.said[1:] == [(AlarmKind.BACKUP_DOOMED, "shop.backup", None)]


def test_enough_headroom_and_brokers_that_do_not_answer_open_no_alarm() -> None:
    world = World()
    world.found = Headroom(unread(), timedelta(minutes=15), Rule.TIME)
    world.doom.look(keeps_up=False)
    assert world.said == [(AlarmKind.BACKUP_DOOMED, "shop.backup", None)]  # what a former epoch had left open is over
    world.now += 31
    world.found = UnreachableError("away")
    world.doom.look(keeps_up=False)
    assert (world.measured, len(world.said)) == (2, 1)


def test_no_alarm_is_over_while_a_partition_cannot_be_measured() -> None:
    world = World()
    world.found = Headroom(unread(), timedelta(minutes=14), Rule.TIME)
    world.doom.look(keeps_up=False, complete=False)
    assert len(world.said) == 1  # what can be measured is in danger all the same
    world.found = None
    world.now += 31
    world.doom.look(keeps_up=False, complete=False)
    assert len(world.said) == 1
    world.now += 31
    world.doom.look(keeps_up=False)
    assert world.said[1:] == [(AlarmKind.BACKUP_DOOMED, "shop.backup", None)]
