"""Answers that the embedded broker does not give: errors of one partition or group, older versions, moved folders."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DescribeGroupsResponse, DescribeLogDirsResponse, ListGroupsResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetFetchResponse
from kafka.protocol.metadata import MetadataResponse

from millrace.adapters.kafka.cluster import snapshot as kafka_snapshot
from millrace.adapters.kafka.cluster.answers import (
    Answers,
    Listed,
    assigned,
    groups_seen,
    layout_of,
    read_bounds,
    read_classic,
    read_commits,
    read_listing,
    read_sizes,
    topics_seen,
)
from millrace.adapters.kafka.cluster.messages import (
    Bound,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import DiskSeen, GroupType, LogSeen
from millrace.settings import KafkaSettings

NOT_LEADER, NOT_ALLOWED_TOPIC, NOT_ALLOWED_GROUP, NO_GROUP = 6, 29, 30, 69


def classic(*names: str) -> Answers:
    return Answers(listed={name: Listed(name, GroupType.CLASSIC, "Stable", "consumer") for name in names})


def offsets(errors: dict[int, int], offset: int) -> ListOffsetsResponse:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    partition = topic.ListOffsetsPartitionResponse
    found = [partition(partition_index=n, error_code=code, offset=offset, timestamp=-1) for n, code in errors.items()]
    return ListOffsetsResponse(topics=[topic(name="t", partitions=found)])


def test_only_the_partition_with_an_error_is_unknown() -> None:
    answers = Answers()
    for bound in Bound:
        read_bounds(offsets({0: 0, 1: NOT_LEADER if bound is Bound.END else 0}, 7), bound, answers, "broker 1")
    layout = layout_of(metadata([(0, 1), (1, 1), (2, -1)]))
    seen = topics_seen(layout, {1: answers}, {"t": {"retention.ms": "5"}})["t"]
    assert (seen.logs, seen.replication, seen.settings) == ((LogSeen(7, 7, 7), None, None), 2, {"retention.ms": "5"})
    assert answers.faults == ["broker 1: end of t/1: NOT_LEADER_FOR_PARTITION"]
    assert set(layout.faults) == {"topic secret: TOPIC_AUTHORIZATION_FAILED", "no leader: t/2"}


def metadata(leaders: list[tuple[int, int]]) -> MetadataResponse:
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    found = [
        partition(partition_index=n, leader_id=leader, replica_nodes=[1, 2], error_code=0) for n, leader in leaders
    ]
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="a", port=1)],
        topics=[
            topic(name="t", topic_id=UUID(int=2**128 - 1), error_code=0, partitions=found),
            topic(name="secret", error_code=NOT_ALLOWED_TOPIC, partitions=[]),
        ],
    )


def test_a_topic_id_is_as_the_stock_tools_print_it() -> None:
    assert layout_of(metadata([(0, 1)])).ids["t"] == "_" * 21 + "w"


def test_only_the_group_with_an_error_is_not_known() -> None:
    answers = classic("a", "b")
    group = DescribeGroupsResponse.DescribedGroup
    read_classic(
        DescribeGroupsResponse(
            groups=[
                group(group_id="a", error_code=0, group_state="Empty", protocol_type="consumer", members=[]),
                group(group_id="b", error_code=NO_GROUP),
            ]
        ),
        answers,
    )
    fetched = OffsetFetchResponse.OffsetFetchResponseGroup
    topics = fetched.OffsetFetchResponseTopics
    entry = topics.OffsetFetchResponsePartitions
    entries = [
        entry(partition_index=n, committed_offset=offset, metadata=text, error_code=0)
        for n, offset, text in ((0, 4, "x\0"), (1, -1, ""), (2, 0, None))
    ]
    read_commits(
        OffsetFetchResponse(
            groups=[
                fetched(group_id="a", error_code=0, topics=[topics(name="t", partitions=entries)]),
                fetched(group_id="b", error_code=NOT_ALLOWED_GROUP, topics=[]),
            ]
        ),
        answers,
    )
    seen = groups_seen([(answers, "")])
    assert (seen["a"].members, seen["a"].fault) == ((), "")
    assert seen["a"].commits == {("t", 0): Committed(4, "x"), ("t", 2): Committed(0)}
    assert (seen["b"].members, seen["b"].commits) == (None, None)
    assert seen["b"].fault == "members: GROUP_ID_NOT_FOUND; commits: GROUP_AUTHORIZATION_FAILED"


def test_what_a_broker_did_not_live_to_say_is_not_known() -> None:
    seen = groups_seen([(classic("a"), "no answer in time")])["a"]
    assert (seen.state, seen.members, seen.commits) == ("Stable", None, None)
    assert seen.fault == "members: no answer in time; commits: no answer in time"


@pytest.mark.parametrize(
    ("version", "kind", "said", "expected"),
    [
        (4, "consumer", "", GroupType.CLASSIC),
        (4, "", "", GroupType.CLASSIC),
        (4, "connect", "", GroupType.UNKNOWN),
        (5, "connect", "Classic", GroupType.CLASSIC),
        (5, "consumer", "Consumer", GroupType.CONSUMER),
        (5, "share", "Share", GroupType.SHARE),
        (5, "", "Newer", GroupType.UNKNOWN),
    ],
)
def test_the_type_of_a_group(version: int, kind: str, said: str, expected: GroupType) -> None:
    listed = ListGroupsResponse.ListedGroup(group_id="g", protocol_type=kind, group_state="Stable", group_type=said)
    answers = Answers()
    read_listing(ListGroupsResponse(version=version, error_code=0, groups=[listed]), answers, "broker 1")
    assert answers.listed["g"].type is expected
    seen = groups_seen([(answers, "")])["g"]
    asked = expected in (GroupType.CLASSIC, GroupType.CONSUMER)
    assert (seen.members, seen.commits, bool(seen.fault)) == (None, None, asked)


def test_replicas_that_are_still_moving_between_folders_do_not_count() -> None:
    folder = DescribeLogDirsResponse.DescribeLogDirsResult
    topic = folder.DescribeLogDirsTopic
    replica = topic.DescribeLogDirsPartition
    results = [
        folder(
            error_code=0,
            log_dir=name,
            topics=[
                topic(name="t", partitions=[replica(partition_index=0, partition_size=size, is_future_key=moving)])
            ],
        )
        for name, size, moving in (("/a", 10, False), ("/b", 3, True))
    ]
    results.append(folder(error_code=56, log_dir="/c", topics=[]))
    answers = Answers()
    results[0].total_bytes, results[0].usable_bytes = 1_000, 700
    read_sizes(DescribeLogDirsResponse(error_code=0, results=results), answers, 1)
    assert answers.sizes == {("t", 0): 10}
    assert answers.disks == [DiskSeen(1, "/a", 1_000, 700, {"t": 10}), DiskSeen(1, "/b", None, None, {"t": 3})]
    assert answers.faults == ["broker 1: log folder /c: KAFKA_STORAGE_ERROR"]


def test_an_assignment_of_any_version_is_read() -> None:
    text = struct.pack(">hi", 9, 1) + struct.pack(">h", 1) + b"t" + struct.pack(">iii", 2, 5, 3) + b"\xff" * 4
    assert assigned(text) == (("t", 3), ("t", 5))
    assert assigned(b"") == ()
    assert assigned(text[:12]) is None
    assert assigned(struct.pack(">hih", 0, 2**31 - 1, -30000) + b"t" * 40) is None


def test_groups_of_the_consumer_protocol_are_asked_as_kafka_defines_it() -> None:
    request = ConsumerGroupDescribeRequest(group_ids=["ab"], include_authorized_operations=False)
    assert bytes(request.encode(version=1)) == b"\x02\x03ab\x00\x00"
    answer = ConsumerGroupDescribeResponse.decode(
        b"\x00\x00\x00\x00\x02\x00\x00\x00\x03ab\x06Empty" + struct.pack(">ii", 4, 3) + b"\x08uniform\x01"
        b"\x80\x00\x00\x00\x00\x00",
        version=1,
    )
    group = answer.groups[0]
    assert (group.group_id, group.group_state, group.assignor_name, group.members) == ("ab", "Empty", "uniform", [])


class SlowCoordinator:
    """As a `Conversation` with two brokers, the first of which answers late; keeps the order of what came."""

    requests, hung, addresses = 0, False, ()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(work())

    async def topics(self, deadline: float) -> Any:
        brokers = [SimpleNamespace(node_id=node) for node in (1, 2)]
        return SimpleNamespace(brokers=brokers, topics=[], cluster_id="c")

    async def each(self, works: dict[int, Callable[[], Coroutine[Any, Any, None]]], deadline: float) -> dict[int, str]:
        await asyncio.gather(*(work() for work in works.values()))
        return {}


def test_no_end_is_asked_for_before_every_broker_has_told_its_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that keeps up would be seen beyond the end of a log whose leader was quicker than its coordinator."""
    order: list[str] = []

    async def groups(look: Any) -> None:
        for _ in range(5 if look.node == 1 else 0):
            await asyncio.sleep(0)
        order.append("commits")

    async def logs(look: Any, led: object) -> None:
        order.append("ends")

    monkeypatch.setattr(kafka_snapshot._BrokerLook, "groups", groups)
    monkeypatch.setattr(kafka_snapshot._BrokerLook, "logs", logs)
    reader = kafka_snapshot.ClusterReader(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}))
    reader._talk = SlowCoordinator()  # type: ignore[assignment]
    reader._configuration_due = float("inf")
    reader.take()
    assert order == ["commits", "commits", "ends", "ends"]
