"""A look at topics of which some give no answer: those that do are seen, the others are named and never guessed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.adapters.archive.looks import Looks
from millrace.adapters.kafka.log import AnsweredBounds, Described
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import TopicAccessError, UnreachableError
from support.fakes.topics import FakeTopicAdmin

TOPICS = ("shop.a", "shop.b")
REFUSED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not authorized"))


@dataclass
class Cluster:
    """Two topics of two partitions, the first of each led by broker 1, the other by broker 2. Each has ten offsets."""

    refused: set[str] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    leads: dict[str, int] = field(default_factory=dict)  # topics of which one broker leads all partitions
    leaderless: set[int] = field(default_factory=set)
    broken: set[TopicPartition] = field(default_factory=set)  # for these the leader answers with an error
    asked: list[int] = field(default_factory=list)  # brokers, one for each look that asked them
    seconds: float = 0.0

    def described(self, topics: Collection[str]) -> Described:
        leaders = {
            TopicPartition(topic, f"id-{topic}", n): None if n in self.leaderless else self.leads.get(topic, n + 1)
            for topic in topics
            if topic not in self.refused
            for n in (0, 1)
        }
        return Described(leaders, {topic: REFUSED for topic in topics if topic in self.refused})

    def answered_bounds(self, partitions: Collection[TopicPartition], within: timedelta) -> AnsweredBounds:
        leaders = {p: self.leads.get(p.topic, p.partition + 1) for p in partitions}
        self.asked += sorted(set(leaders.values()))
        failed = {p: "timed out" for p in partitions if leaders[p] in self.silent}
        failed |= {p: "storage error" for p in partitions if p in self.broken}
        unheard = {p for p in failed if p not in self.broken}
        return AnsweredBounds({p: LogBounds(0, 10) for p in partitions if p not in failed}, failed, unheard)

    def leaders(self, topics: Collection[str]) -> dict[TopicPartition, bool]:
        if self.refused & set(topics):
            raise UnreachableError("describing a topic failed")
        return {partition: leader is not None for partition, leader in self.described(topics).leaders.items()}

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        if self.silent:
            raise UnreachableError("asking for offsets failed")
        return {p: LogBounds(0, 10) for p in partitions}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def admin() -> FakeTopicAdmin:
    defaults = {"cleanup.policy": "delete"}
    return FakeTopicAdmin([ObservedTopic(name, f"id-{name}", 2, 1, {}, defaults) for name in TOPICS])


@pytest.fixture
def looks(cluster: Cluster, admin: FakeTopicAdmin) -> Looks:
    log: Any = cluster
    return Looks(log, admin, seconds=lambda: cluster.seconds)


def test_a_silent_broker_takes_away_its_own_partitions_only(cluster: Cluster, looks: Looks) -> None:
    cluster.silent = {2}
    seen = looks.look_around(TOPICS)
    assert {topic: sorted(log.bounds) for topic, log in seen.logs.items()} == {"shop.a": [0], "shop.b": [0]}
    assert [log.partitions for log in seen.logs.values()] == [2, 2]
    assert dict(seen.silent) == {"shop.a/1": "broker 2: timed out", "shop.b/1": "broker 2: timed out"}


def test_a_silent_broker_is_asked_once_in_half_a_minute(cluster: Cluster, looks: Looks) -> None:
    cluster.silent = {2}
    for _ in range(5):
        assert set(looks.look_around(TOPICS).silent) == {"shop.a/1", "shop.b/1"}
    assert cluster.asked.count(2) == 1
    cluster.seconds += 31
    cluster.silent = set()
    assert not looks.look_around(TOPICS).silent


def test_a_look_that_nobody_answers_spares_nobody(cluster: Cluster, looks: Looks) -> None:
    cluster.silent = {1, 2}
    assert len(looks.look_around(TOPICS).silent) == 4
    cluster.silent = set()
    assert not looks.look_around(TOPICS).silent


def test_a_silent_broker_is_spared_by_looks_at_single_topics_too(cluster: Cluster, looks: Looks) -> None:
    cluster.leads = {"shop.a": 1, "shop.b": 2}
    cluster.silent = {2}
    looks.look_around(["shop.a"])
    for _ in range(500):
        assert set(looks.look_around(["shop.b"]).silent) == {"shop.b/0", "shop.b/1"}
    assert cluster.asked.count(2) == 1
    cluster.silent = set()
    assert not looks.look_around(["shop.a"]).silent
    cluster.seconds += 31
    assert not looks.look_around(["shop.b"]).silent


@pytest.mark.parametrize("cause", ["it alone has answered", "another answered long ago"])
def test_a_silent_broker_that_may_be_well_is_not_spared(cluster: Cluster, looks: Looks, cause: str) -> None:
    cluster.leads = {"shop.a": 1, "shop.b": 2}
    looks.look_around(["shop.b" if cause == "it alone has answered" else "shop.a"])
    cluster.seconds += 1 if cause == "it alone has answered" else 31
    cluster.silent = {2}
    assert looks.look_around(["shop.b"]).silent
    cluster.silent = set()
    assert not looks.look_around(["shop.b"]).silent


def test_a_broker_that_answers_with_an_error_is_asked_again_at_once(cluster: Cluster, looks: Looks) -> None:
    cluster.broken = {TopicPartition("shop.a", "id-shop.a", 1)}
    assert dict(looks.look_around(["shop.a"]).silent) == {"shop.a/1": "broker 2: storage error"}
    cluster.broken = set()
    assert not looks.look_around(["shop.a"]).silent


def test_a_partition_without_leader_is_named(cluster: Cluster, looks: Looks) -> None:
    cluster.leaderless = {1}
    assert dict(looks.look_around(["shop.a"]).silent) == {"shop.a/1": "it has no leader"}


@pytest.mark.parametrize("by", ["log", "settings"])
def test_a_topic_that_may_not_be_described_is_named_and_not_taken_for_absent(
    cluster: Cluster, admin: FakeTopicAdmin, looks: Looks, by: str
) -> None:
    if by == "log":
        cluster.refused = {"shop.a"}
    else:
        admin.unreadable = {"shop.a": "not authorized"}
    seen = looks.look_around(TOPICS)
    assert list(seen.logs) == ["shop.b"]
    assert "not authorized" in seen.silent["shop.a"]


def test_a_topic_that_is_absent_is_one_that_answered(admin: FakeTopicAdmin, looks: Looks, cluster: Cluster) -> None:
    del admin.topics["shop.a"]
    cluster.described = lambda topics: Described(  # type: ignore[method-assign]
        {TopicPartition("shop.b", "id-shop.b", 0): 1}, {}
    )
    seen = looks.look_around(TOPICS)
    assert (seen.logs["shop.a"].topic_id, dict(seen.silent)) == (None, {})


@pytest.mark.parametrize("fault", ["silent", "hidden", "refused"])
def test_a_whole_look_is_all_or_nothing(cluster: Cluster, admin: FakeTopicAdmin, looks: Looks, fault: str) -> None:
    cluster.silent = {2} if fault == "silent" else set()
    cluster.refused = {"shop.a"} if fault == "hidden" else set()
    admin.unreadable = {"shop.a": "no"} if fault == "refused" else {}
    with pytest.raises((UnreachableError, TopicAccessError)):
        looks.look(TOPICS)


def test_a_topic_on_which_brokers_disagree_is_named_and_ends_no_look_at_others(
    cluster: Cluster, admin: FakeTopicAdmin, looks: Looks
) -> None:
    admin.recreate("shop.a")
    cluster.silent = {2}
    seen = looks.look_around(TOPICS)
    assert list(seen.logs) == ["shop.b"]
    assert set(seen.silent) == {"shop.a", "shop.b/1"}
    assert "two brokers disagree" in seen.silent["shop.a"]
    assert admin.calls == ["observe"] * 3
    cluster.silent = set()
    with pytest.raises(UnreachableError, match=r"shop\.a: topics were deleted or created 3 times"):
        looks.look(TOPICS)


def test_a_topic_made_anew_during_a_look_is_looked_at_again(
    cluster: Cluster, admin: FakeTopicAdmin, looks: Looks
) -> None:
    observe = admin.observe

    def late(names: Collection[str]) -> Any:
        found = observe(names)
        return found if len(admin.calls) > 1 else {"shop.b": found["shop.b"]}

    admin.observe = late  # type: ignore[method-assign]
    seen = looks.look_around(TOPICS)
    assert (sorted(seen.logs), dict(seen.silent)) == (sorted(TOPICS), {})
    assert seen.logs["shop.a"].topic_id == "id-shop.a"


def test_rights_that_go_while_topics_are_looked_at_name_each_topic(admin: FakeTopicAdmin, looks: Looks) -> None:
    admin.unreadable = {"shop.a": "not authorized"}
    observe = admin.observe

    def shrinking(names: Collection[str]) -> Any:
        try:
            return observe(names)
        finally:
            admin.unreadable["shop.b"] = "not authorized either"

    admin.observe = shrinking  # type: ignore[method-assign]
    seen = looks.look_around(TOPICS)
    assert (dict(seen.logs), set(seen.silent)) == ({}, set(TOPICS))
