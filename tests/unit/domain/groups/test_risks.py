"""What may go wrong with a group, each by its name, and nothing where it may not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.risks import Risk, family, risks
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen, history_of
from millrace.domain.groups.status import judge
from support.groups.worlds import BEGAN

OWN = ("orders", 0), ("orders", 1)


def member(client: str, *, partitions: tuple[tuple[str, int], ...] | None = OWN, host: str = "10.0.0.1") -> Member:
    return Member(f"{client}-1", client, host, partitions=partitions)


def group(*members: Member, commits: dict[tuple[str, int], Committed] | None = None) -> GroupSeen:
    known = {partition: Committed(100) for partition in OWN} if commits is None else commits
    return GroupSeen("billing", GroupType.CLASSIC, "Stable", members=members, commits=known)


def found(seen: GroupSeen, *logs: LogSeen, kept: timedelta | None = None) -> dict[Risk, str]:
    topics = {"orders": TopicSeen("id", logs or (LogSeen(0, 100, 100),) * 2)}
    snapshot = Snapshot(BEGAN, "cluster", topics, {seen.name: seen}, offsets_kept=kept)
    history = history_of(snapshot)
    return {one.risk: one.detail for one in risks(judge(seen, snapshot, history), snapshot, history)}


def test_a_group_in_order_has_none() -> None:
    assert found(group(member("billing-7"))) == {}


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        ("rdkafka", "librdkafka"),
        ("consumer-1", "Java"),
        ("consumer-billing-12", "Java"),
        ("console-consumer", "Java"),
        ("kafka-python-3.0.12", "kafka-python"),
        ("sarama", "Sarama"),
        ("kafkajs", "KafkaJS"),
        ("consumer-shipping-12", None),
        ("consumer-service", None),
        ("rdkafka-billing", None),
        ("billing", None),
    ],
)
def test_default_client_ids_are_known_by_their_library(client_id: str, name: str | None) -> None:
    assert family(client_id, "billing") == name


def test_default_client_ids_are_named_with_their_hosts() -> None:
    told = found(group(member("rdkafka", host="10.0.0.9")))
    assert told == {Risk.DEFAULT_CLIENT_ID: "client id rdkafka from 10.0.0.9: set `client.id` to name its owner"}
    assert "an empty one" in found(group(member("")))[Risk.DEFAULT_CLIENT_ID]


def test_clients_of_two_families_under_one_name() -> None:
    told = found(group(member("rdkafka", partitions=OWN[:1]), member("consumer-billing-1", partitions=OWN[1:])))
    assert told[Risk.MIXED_CLIENTS] == "clients of Java, librdkafka share this group id"
    one_family = found(group(member("rdkafka", partitions=OWN[:1]), member("billing", partitions=OWN[1:])))
    assert Risk.MIXED_CLIENTS not in one_family


def test_members_without_a_partition() -> None:
    told = found(group(member("a"), member("b", partitions=(), host="10.0.0.2")))
    assert told == {Risk.IDLE_MEMBER: "1 of 2 members have no partition: b on 10.0.0.2"}
    assert found(group(member("a", partitions=()))) == {
        Risk.READS_NOTHING: "none of its 1 members has a partition",
    }
    assert found(group(member("a"), member("b", partitions=None))) == {}  # what is not known is no risk


def test_commits_outside_the_log() -> None:
    seen = group(member("a"))
    told = found(seen, LogSeen(130, 200, 200), LogSeen(0, 90, 90))
    assert told[Risk.UNREAD_DELETED] == "unread offsets are gone from the log: orders/0 30"
    assert told[Risk.BEYOND_END].startswith("committed beyond the end of the log: orders/1 at 100, which ends at 90")


def test_a_partition_that_nobody_has_any_more() -> None:
    left = LogSeen(0, 150, 150)
    told = found(group(member("a", partitions=OWN[:1])), left, left)
    assert told[Risk.UNASSIGNED] == "read before, but assigned to no member now: orders/1"
    assert Risk.UNASSIGNED not in found(group(member("a", partitions=OWN[:1])), left, LogSeen(0, 100, 100))


def test_a_group_without_members_says_when_its_offsets_go() -> None:
    told = found(group(), kept=timedelta(days=7))
    assert told[Risk.STALE] == (
        "without members since 2026-11-02 08:00 UTC at least; its offsets are deleted by "
        "2026-11-09 08:00 UTC if no member joins"
    )
    assert "deleted by" not in found(group())[Risk.STALE]


def test_a_group_that_somebody_was_in_a_moment_ago_is_not_stale() -> None:
    seen = group()
    snapshot = Snapshot(BEGAN, "cluster", {"orders": TopicSeen("id", (LogSeen(0, 100, 100),) * 2)}, {seen.name: seen})
    history = replace(
        history_of(snapshot),
        times=(BEGAN - timedelta(minutes=1), BEGAN),
        logs={},
        commits={},
        members={"billing": (1, 0)},
    )
    assert risks(judge(seen, snapshot, history), snapshot, history) == ()


def test_a_name_with_neither_members_nor_commits_reads_nothing() -> None:
    assert found(group(commits={})) == {Risk.READS_NOTHING: "it has neither members nor commits"}
