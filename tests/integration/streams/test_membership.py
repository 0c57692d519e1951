"""The driver's static membership on the real broker: who is fenced, who is lost, and who is left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember, MembershipLostError
from millrace.domain.groups.commits import CommitMetadata, Committed, stream_commits
from millrace.domain.topics.offsets import TopicPartition
from millrace.settings import KafkaSettings
from support.stack.embedded import start
from support.streams.project import commits_reader, group_commits, tool_environment
from support.waiting import Deadline, eventually, exit_code_of, in_background, line_of, output_of, result_of

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

HEARTBEAT_SECONDS = 2.5


@dataclass
class Place:
    """A topic and the name of a stream that reads it."""

    stack: Stack
    settings: KafkaSettings
    admin: AdminClient
    stream: str
    topic: str

    @property
    def group(self) -> str:
        return f"millrace.{self.stream}"

    @property
    def later(self) -> str:
        """A topic that is made in the course of a scenario."""
        return f"{self.topic}.later"

    def partitions(self, *topics: str) -> list[TopicPartition]:
        return KafkaLog(self.settings, client_id="test").partitions(topics or [self.topic])

    def make(self, topic: str, partitions: int = 2) -> list[TopicPartition]:
        result_of(self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic], what="the new topic")
        return eventually(lambda: self.partitions(topic), within=Deadline.METADATA, what=f"the topic {topic}")

    def delete(self, topic: str) -> None:
        result_of(self.admin.delete_topics([topic])[topic], what="the topic's end")
        eventually(lambda: not self.partitions(topic), within=Deadline.METADATA, what=f"the end of {topic}")

    @contextmanager
    def member(self, epoch: int) -> Iterator[GroupMember]:
        member = GroupMember(self.settings, stream=self.stream, group=self.group, epoch=epoch)
        with joined(member, self.partitions()):
            yield member

    @contextmanager
    def lasting_member(self, *topics: str, epoch: int = 1) -> Iterator[GroupMember]:
        """One that outlives its topics."""
        member = GroupMember(self.settings, stream=self.stream, group=self.group, epoch=epoch, topics_may_go=True)
        with joined(member, self.partitions(*topics), topics):
            yield member

    def assigned(self) -> list[list[str]]:
        """The topics of the partitions that each member of the group is assigned."""
        return [sorted({p.topic for p in one.assignment.topic_partitions}) for one in self.description().members]

    def commits_at(
        self, offset: int, *topics: str, epoch: int = 1, timeline: int = 1
    ) -> dict[TopicPartition, Committed]:
        return stream_commits(self.stream, epoch, timeline, dict.fromkeys(self.partitions(*topics), offset))

    def committed(self, partitions: Collection[TopicPartition]) -> list[int]:
        found = KafkaLog(self.settings, client_id="test").committed(self.group, partitions)
        return [found[p.topic, p.partition].offset for p in partitions]

    def description(self) -> Any:
        asked = self.admin.describe_consumer_groups([self.group])[self.group]
        return result_of(asked, within=Deadline.SESSION, what="the group's description")

    def commits(self) -> dict[int, int]:
        with closing(commits_reader(self.settings, self.group)) as reader:
            return group_commits(reader, self.topic, len(self.partitions()))


@contextmanager
def joined(
    member: GroupMember, partitions: list[TopicPartition], topics: Collection[str] | None = None
) -> Iterator[None]:
    try:
        member.join(partitions, topics)
        yield
    finally:
        member.close()


def new_place(kafka: Stack) -> Place:
    settings = kafka.settings().kafka()
    name = f"g{uuid.uuid4().hex[:8]}"
    admin = AdminClient(dict(settings.librdkafka))
    place = Place(kafka, settings, admin, f"{name}.s", f"{name}.records")
    place.make(place.topic)
    return place


def a_newer_member_fences_the_older_one(place: Place) -> None:
    partitions = place.partitions()
    with place.member(1) as older:
        older.commit(place.commits_at(5))
        with place.member(2) as newer:
            eventually(lambda: older.lost, within=Deadline.SESSION, what="the older member to be fenced")
            with pytest.raises(MembershipLostError):
                older.commit(place.commits_at(6))
            assert place.commits() == {0: 5, 1: 5}
            newer.commit(place.commits_at(7, epoch=2, timeline=3))
            assert newer.lost is None
    found = KafkaLog(place.settings, client_id="test").committed(place.group, partitions)
    for partition in partitions:
        entry = found[partition.topic, partition.partition]
        wrote = CommitMetadata(place.stream, partition.topic_id, 3, 2, 7)
        assert (entry.offset, CommitMetadata.decode(entry.metadata)) == (7, wrote)


@contextmanager
def member_elsewhere(place: Place, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which has joined."""
    script = str(Path(__file__).with_name("membership_child.py"))
    child = subprocess.Popen(
        [sys.executable, script, place.settings.bootstrap_servers, place.stream, place.topic, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert line_of(child.stdout, within=Deadline.SESSION, what="the child to join") == "joined\n"
        yield child
    finally:
        child.kill()
        exit_code_of(child, within=Deadline.KILLED, what="the child's death")


def a_member_stopped_for_longer_than_its_session_has_lost_it_and_disturbs_no_newer_one(place: Place) -> None:
    with member_elsewhere(place) as child:
        child.send_signal(signal.SIGSTOP)
        eventually(lambda: not place.description().members, within=Deadline.SESSION, what="the session to expire")
        with place.member(2) as newer:
            child.send_signal(signal.SIGCONT)
            lost = line_of(child.stdout, within=Deadline.SESSION, what="the child to know that it has lost its place")
            assert lost.startswith("lost: ")
            assert line_of(child.stdout, within=Deadline.SESSION, what="the answer to its commit") == "refused\n"
            woken = time.monotonic()

            def outlived() -> bool:
                newer.commit(place.commits_at(7))
                return time.monotonic() > woken + 2 * HEARTBEAT_SECONDS

            eventually(outlived, within=Deadline.SESSION, what="two heartbeats of the newer member")
            output_of(child, within=Deadline.SESSION, what="the child's end", given="\n")
            newer.commit(place.commits_at(8))
    assert place.commits() == {0: 8, 1: 8}


def a_member_stopped_in_a_rebalance_undoes_no_reset_that_was_made_meanwhile(place: Place) -> None:
    place.make(place.later)
    with member_elsewhere(place, "stops") as child:
        with closing(Consumer({**place.settings.librdkafka, "group.id": place.group})) as stranger:
            stranger.subscribe([place.later])
            in_rebalance = in_background(
                partial(line_of, child.stdout, within=Deadline.SESSION, what="the child to be in the rebalance")
            )
            eventually(
                lambda: (stranger.poll(0.1), in_rebalance.done())[1], within=Deadline.SESSION, what="the rebalance"
            )
            assert result_of(in_rebalance, what="the child's word") == "rebalances\n"
        eventually(lambda: not place.description().members, within=Deadline.SESSION, what="the session to expire")
        reset = [ClientTopicPartition(place.topic, partition, 3) for partition in range(2)]
        with closing(commits_reader(place.settings, place.group)) as client:
            client.commit(offsets=reset, asynchronous=False)
        child.send_signal(signal.SIGCONT)
        assert line_of(child.stdout, within=Deadline.SESSION, what="the answer to its commit") == "refused\n"
        assert place.commits() == {0: 3, 1: 3}


def new_partitions_are_taken_without_losing_the_membership(place: Place) -> None:
    with place.member(1) as member:
        grown = place.admin.create_partitions([NewPartitions(place.topic, 4)])[place.topic]
        result_of(grown, what="the new partitions")
        eventually(
            lambda: [len(one.assignment.topic_partitions) for one in place.description().members] == [4],
            within=Deadline.SESSION,
            what="the new partitions to be assigned",
        )
        member.commit(place.commits_at(0))
        assert place.commits() == {0: 0, 1: 0, 2: 0, 3: 0}
        assert member.lost is None


def a_stranger_in_the_group_ends_the_membership(place: Place) -> None:
    with place.member(1) as member:
        be_disturbed(place, member)


def a_stranger_ends_also_a_membership_that_outlives_topics(place: Place) -> None:
    with place.lasting_member(place.topic, place.later) as member:
        be_disturbed(place, member)


def be_disturbed(place: Place, member: GroupMember) -> None:
    stranger = Consumer({**place.settings.librdkafka, "group.id": place.group, "auto.offset.reset": "latest"})
    with closing(stranger):
        stranger.subscribe([place.topic])
        eventually(
            lambda: (stranger.poll(0.1), member.lost)[1],
            within=Deadline.SESSION,
            what="the member to notice that it is not alone",
        )
        with pytest.raises(MembershipLostError):
            member.commit(place.commits_at(9))


def commits_outlast_the_rebalances_of_a_stranger_with_another_topic(place: Place) -> None:
    place.make(place.later)
    committed = 0
    with place.member(1) as member:

        def commit_until(settled: Callable[[], bool], what: str) -> None:
            def commit() -> bool:
                nonlocal committed
                committed += 1
                member.commit(place.commits_at(committed))
                return settled()

            eventually(commit, within=Deadline.SESSION, what=what, every=timedelta(milliseconds=1))

        for _ in range(2):
            with closing(Consumer({**place.settings.librdkafka, "group.id": place.group})) as stranger:
                stranger.subscribe([place.later])
                commit_until(partial(_is_assigned, stranger), "the stranger to join")
            commit_until(lambda: place.assigned() == [[place.topic]], "the stranger to be gone")
        assert place.commits() == {0: committed, 1: committed}
        assert member.lost is None


def _is_assigned(consumer: Consumer) -> bool:
    consumer.poll(0)
    return bool(consumer.assignment())


def a_topic_that_is_made_after_the_join_is_committed_for_and_held(place: Place) -> None:
    both = place.topic, place.later
    with place.lasting_member(*both) as member:
        made = place.make(place.later)
        member.commit(place.commits_at(4, *both))
        eventually(lambda: place.assigned() == [sorted(both)], within=Deadline.SESSION, what="the new topic to be held")
        member.commit(place.commits_at(5, *both))
        assert place.committed(made) == [5, 5]
        assert member.lost is None


def a_member_without_any_topic_joins_when_one_is_made(place: Place) -> None:
    with place.lasting_member(place.later) as member:
        assert place.description().members == []
        made = place.make(place.later)
        member.commit(place.commits_at(4, place.later))
        assert place.assigned() == [[place.later]]
        assert place.committed(made) == [4, 4]
        assert member.lost is None


def a_deleted_topic_ends_no_membership_that_outlives_topics_nor_does_the_last(place: Place) -> None:
    place.make(place.later)
    with place.lasting_member(place.topic, place.later) as member:
        place.delete(place.later)
        eventually(lambda: place.assigned() == [[place.topic]], within=Deadline.SESSION, what="the rest to be held")
        member.commit(place.commits_at(6))
        place.delete(place.topic)
        eventually(lambda: not place.assigned(), within=Deadline.SESSION, what="nothing to be held any more")
        made = place.make(place.later)
        member.commit(place.commits_at(7, place.later))
        assert place.committed(made) == [7, 7]
        assert place.assigned() == [[place.later]]
        assert member.lost is None


def a_deleted_topic_ends_the_membership_of_who_needs_it(place: Place) -> None:
    partitions = [*place.partitions(), *place.make(place.later)]
    member = GroupMember(place.settings, stream=place.stream, group=place.group, epoch=1)
    with joined(member, partitions):
        place.delete(place.later)
        eventually(lambda: member.lost, within=Deadline.SESSION, what="the member to miss its partitions")


def more_is_committed_than_the_broker_keeps_in_one_batch(place: Place) -> None:
    partitions = place.make(place.later, partitions=300)
    said = "n" * 4_000  # the broker takes 4,096 bytes a partition, and 1 MiB a batch of its own log
    with place.member(1) as member:
        member.commit(dict.fromkeys(partitions, Committed(3, said)))
    assert place.committed(partitions) == [3] * len(partitions)


def the_stock_tool_may_not_reset_the_group_while_the_member_lives(place: Place) -> None:
    with place.member(1) as member:
        member.commit(place.commits_at(3))
        done = subprocess.run(
            [
                str(place.stack.layout.tools / "kafka-consumer-groups"),
                "--bootstrap-server",
                place.settings.bootstrap_servers,
                *("--group", place.group, "--topic", place.topic, "--reset-offsets", "--to-earliest", "--execute"),
            ],
            env=tool_environment(place.stack),
            capture_output=True,
            text=True,
            timeout=Deadline.COMMAND.seconds,
            check=False,
        )
        assert "the current state is Stable" in done.stdout + done.stderr
        assert place.commits() == {0: 3, 1: 3}
        assert place.description().members[0].group_instance_id == place.stream


SCENARIOS: tuple[Callable[[Place], None], ...] = (
    a_newer_member_fences_the_older_one,
    a_member_stopped_for_longer_than_its_session_has_lost_it_and_disturbs_no_newer_one,
    a_member_stopped_in_a_rebalance_undoes_no_reset_that_was_made_meanwhile,
    new_partitions_are_taken_without_losing_the_membership,
    a_stranger_in_the_group_ends_the_membership,
    a_stranger_ends_also_a_membership_that_outlives_topics,
    commits_outlast_the_rebalances_of_a_stranger_with_another_topic,
    a_topic_that_is_made_after_the_join_is_committed_for_and_held,
    a_member_without_any_topic_joins_when_one_is_made,
    a_deleted_topic_ends_no_membership_that_outlives_topics_nor_does_the_last,
    a_deleted_topic_ends_the_membership_of_who_needs_it,
    more_is_committed_than_the_broker_keeps_in_one_batch,
    the_stock_tool_may_not_reset_the_group_while_the_member_lives,
)


@pytest.fixture(scope="module")
def under_way(idle_stack: Stack) -> Iterator[dict[str, Future[None]]]:
    """All scenarios at once, each with a topic and a group of its own: most of their time sessions run out."""
    kafka = start(idle_stack, "kafka")
    started = {scenario.__name__: in_background(partial(scenario, new_place(kafka))) for scenario in SCENARIOS}
    yield started
    wait(started.values(), Deadline.STACK.seconds)  # also those that nobody asked for: they have clients of the broker


@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_membership(under_way: dict[str, Future[None]], scenario: str) -> None:
    result_of(under_way[scenario], within=Deadline.STACK, what=scenario.replace("_", " "))
