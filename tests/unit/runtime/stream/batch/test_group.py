"""The group of a stream and its log, used alone: ranges, positions, commits, and topics that change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.groups.commits import Committed, stream_commits
from millrace.domain.sinks.batch import BatchCounts
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import DataLossError, FencedError, RecreatedTopicError, UnreachableError
from millrace.runtime.formats.coordinator_log import OFFSETS_TOPIC
from millrace.runtime.stream.batch.group import StreamGroup
from millrace.runtime.stream.batch.offset_log import of_next_query
from support.fakes.logs import FakeLog
from support.streams.memory_sink import EPOCH, ID, NAME, P0, P1, TIMELINE, stream_constants

MADE_AGAIN = TopicPartition(NAME, "another id", 0)


class Member:
    """The membership: it keeps what is committed, until another driver takes it."""

    def __init__(self) -> None:
        self.commits: dict[TopicPartition, Committed] = {}
        self.lost = False

    def check(self) -> None:
        if self.lost:
            raise FencedError("another driver is the member")

    def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self.check()
        self.commits |= commits


class World:
    """A group at offset 5 of the one partition that it knows, and the ends of batch 0."""

    def __init__(self, folder: Path) -> None:
        self.member = Member()
        self.log = FakeLog(records={P0: []})
        self.opened: list[Mapping[TopicPartition, int]] = []
        member: Any = self.member
        log: Any = self.log
        self.offset_log = folder / "checkpoint" / "offsets"
        self.group = StreamGroup(stream_constants(), member, log, {P0: 5}, self.offset_log)

    def ends(self, text: str, batch_id: int = 0) -> None:
        """Write what Spark does before it hands a batch over."""
        self.offset_log.mkdir(parents=True, exist_ok=True)
        (self.offset_log / str(batch_id)).write_text(f'v1\n{{}}\n{{"{NAME}": {text}}}')


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_has_the_exact_range_from_the_position_to_the_end_in_the_offset_log(world: World) -> None:
    world.ends('{"0": 9, "1": 2}')
    assert world.group.ranges(0) == [OffsetRange(P0, 5, 9), OffsetRange(P1, 0, 2)]


def test_a_batch_that_ends_before_its_position_is_lost_data(world: World) -> None:
    world.ends('{"0": 4}')
    with pytest.raises(DataLossError, match=f"{NAME}.*ends at 4, before its first offset 5"):
        world.group.ranges(0)


def test_a_driver_that_lost_its_membership_learns_no_ranges_and_commits_nothing(world: World) -> None:
    world.ends('{"0": 9}')
    ranges = world.group.ranges(0)
    world.member.lost = True
    for refused in (world.group.check_member, lambda: world.group.ranges(0), lambda: world.group.commit(ranges)):
        with pytest.raises(FencedError):
            refused()
    assert world.member.commits == {}


def test_a_new_partition_is_on_record_before_its_position_is_known(world: World) -> None:
    ranges = [OffsetRange(P0, 5, 9), OffsetRange(P1, 0, 2)]

    def refuse(positions: Mapping[TopicPartition, int]) -> None:
        raise UnreachableError("the sink is away")

    with pytest.raises(UnreachableError):
        world.group.open_new_partitions(ranges, refuse)
    assert world.group.positions == {P0: 5}
    for _ in range(2):
        world.group.open_new_partitions(ranges, world.opened.append)
    assert world.opened == [{P1: 0}]
    assert world.group.positions == {P0: 5, P1: 0}


def test_the_group_is_committed_behind_a_batch_and_the_next_one_begins_there(world: World) -> None:
    world.ends('{"0": 9}')
    ranges = world.group.ranges(0)
    world.group.commit(ranges)
    assert world.member.commits == stream_commits("p.s", EPOCH, TIMELINE, {P0: 9})
    assert world.group.positions == {P0: 5}
    world.group.advance(ranges)
    assert world.group.positions == {P0: 9}
    world.ends('{"0": 10}', 1)
    assert world.group.ranges(1) == [OffsetRange(P0, 9, 10)]


def test_positions_that_another_thread_holds_never_change(world: World) -> None:
    held = world.group.positions
    world.group.advance([OffsetRange(P0, 5, 9), OffsetRange(P1, 0, 2)])
    assert held == {P0: 5}


def test_topics_are_checked_against_the_ids_that_were_read(world: World) -> None:
    ids = world.group.topic_ids
    assert ids == {NAME: ID}
    world.group.check_topics(ids)
    world.log.records = {MADE_AGAIN: []}
    with pytest.raises(RecreatedTopicError, match=f"{NAME} was deleted and created again"):
        world.group.check_topics(ids)
    world.log.records = {}
    with pytest.raises(UnreachableError, match=f"{NAME} no longer exists"):
        world.group.check_topics(ids)


@pytest.mark.parametrize(
    ("reads", "counts"),
    [((NAME,), BatchCounts()), ((OFFSETS_TOPIC,), BatchCounts(1, 0)), ((OFFSETS_TOPIC,), BatchCounts(0, 1))],
    ids=["another topic", "rows", "bad records"],
)
def test_a_batch_is_no_echo_whatever_its_records_are(reads: tuple[str, ...], counts: BatchCounts) -> None:
    """That one of own commits alone is an echo, tests/spark/activity/test_transform.py shows."""
    constants: Any = stream_constants()
    nobody: Any = None
    group = StreamGroup(replace(constants, stream=replace(constants.stream, reads=reads)), nobody, nobody, {}, Path())
    assert not group.is_own_echo(nobody, counts)


def test_the_next_query_names_partitions_that_were_made_meanwhile_and_puts_them_on_record_first(world: World) -> None:
    world.log.records = {P0: [], P1: [], TopicPartition("u", "id of u", 0): []}
    following = world.group.next_query(world.opened.append)
    assert following.positions == {P0: 5, P1: 0}
    assert world.group.positions == {P0: 5}
    assert world.opened == [{P1: 0}]
    assert following.offset_log == world.offset_log.parents[1] / "checkpoint-2" / "offsets"
    following.next_query(world.opened.append)
    assert len(world.opened) == 1


def test_the_next_query_leaves_out_a_topic_that_was_made_again(world: World) -> None:
    world.log.records = {MADE_AGAIN: []}
    assert world.group.next_query(world.opened.append).positions == {P0: 5}
    assert world.opened == []


def test_each_query_has_a_checkpoint_of_its_own() -> None:
    first = Path("scratch/checkpoint/offsets")
    second = of_next_query(first)
    assert second == Path("scratch/checkpoint-2/offsets")
    assert of_next_query(second) == Path("scratch/checkpoint-3/offsets")
