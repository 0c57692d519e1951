"""What is asked of a coordinator about its groups, and what the answers say.

A broker that lists a group is its coordinator, so nobody has to be asked who that is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.errors import for_code
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from millrace.adapters.kafka_conversation import Unanswered
from millrace.adapters.kafka_messages import ConsumerGroupDescribeRequest
from millrace.domain.groups import Committed
from millrace.domain.snapshots import GroupSeen, GroupType, Member, Partition

_DESCRIBED_TOGETHER = 500
_FETCHED_TOGETHER = 100
_BY_NAME = 8  # the last version of OffsetFetch but one that has topics by name, and the first with many groups
_CONSUMERS = "consumer"
_TYPES = {kind.value: kind for kind in GroupType}


@dataclass(frozen=True, slots=True)
class Listed:
    """A group as its coordinator lists it; `kind` is what its members say they are, empty for commits from outside."""

    name: str
    type: GroupType
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request about groups of one coordinator."""

    broker: int
    groups: tuple[str, ...]
    request: Any
    is_fetch: bool = False


@dataclass(frozen=True, slots=True)
class _Described:
    state: str
    protocol: str
    members: tuple[Member, ...]


def listed(answer: Any) -> list[Listed]:
    """The groups of an answer to ListGroups. Brokers before 3.8 do not tell types, those before 2.6 no states."""
    return [
        Listed(group.group_id, _type(group), group.group_state or "", group.protocol_type or "")
        for group in answer.groups
    ]


def _type(group: Any) -> GroupType:
    told = str(group.group_type or "").lower()
    if told:
        return _TYPES.get(told, GroupType.UNKNOWN)
    return GroupType.CLASSIC


def requests_for_groups(broker: int, groups: Sequence[Listed]) -> Iterator[GroupRequest]:
    """Everything to be asked of one coordinator. Of share and streams groups the list tells all there is to ask for."""
    classic = [group.name for group in groups if group.type is GroupType.CLASSIC]
    newer = [group.name for group in groups if group.type is GroupType.CONSUMER]
    for part in _parts(classic, _DESCRIBED_TOGETHER):
        yield GroupRequest(broker, part, DescribeGroupsRequest(groups=list(part), include_authorized_operations=False))
    for part in _parts(newer, _DESCRIBED_TOGETHER):
        request = ConsumerGroupDescribeRequest(group_ids=list(part), include_authorized_operations=False)
        yield GroupRequest(broker, part, request)
    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    for part in _parts(classic + newer, _FETCHED_TOGETHER):
        asked = [of_group(group_id=name, topics=None) for name in part]
        request = OffsetFetchRequest(groups=asked, require_stable=False, min_version=_BY_NAME, max_version=_BY_NAME)
        yield GroupRequest(broker, part, request, is_fetch=True)


def _parts(names: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    for first in range(0, len(names), size):
        yield tuple(names[first : first + size])


def groups_of_answers(
    groups: Sequence[Listed], asked: Sequence[GroupRequest], answers: Sequence[Any]
) -> dict[str, GroupSeen]:
    """The groups, with what is known of each; what is not has the reason as its fault.

    Args:
        groups: as they were listed.
        asked: the requests.
        answers: one a request, an `Unanswered` where there was none.
    """
    described: dict[str, _Described | str] = {}
    commits: dict[str, dict[Partition, Committed] | str] = {}
    for one, answer in zip(asked, answers, strict=True):
        into: dict[str, Any] = commits if one.is_fetch else described
        if isinstance(answer, Unanswered):
            into.update(dict.fromkeys(one.groups, str(answer)))
        else:
            for group in answer.groups:
                into[group.group_id] = _read(group, is_fetch=one.is_fetch)
    return {group.name: _seen(group, described, commits) for group in groups}


def _read(group: Any, *, is_fetch: bool) -> _Described | dict[Partition, Committed] | str:
    if group.error_code:
        return str(for_code(group.error_code).__name__)
    return _commits(group) if is_fetch else _description(group)


def _seen(
    group: Listed,
    described: Mapping[str, _Described | str],
    commits: Mapping[str, dict[Partition, Committed] | str],
) -> GroupSeen:
    if group.type not in (GroupType.CLASSIC, GroupType.CONSUMER):
        return GroupSeen(group.name, group.type, group.state, group.kind)
    told = described.get(group.name, "it was not described")
    known = commits.get(group.name, "its commits were not told")
    faults = [each for each in (told, known) if isinstance(each, str)]
    return GroupSeen(
        name=group.name,
        type=group.type,
        state=group.state if isinstance(told, str) else told.state,
        protocol="" if isinstance(told, str) else told.protocol,
        members=None if isinstance(told, str) else told.members,
        commits=None if isinstance(known, str) else known,
        fault="; ".join(dict.fromkeys(faults)),
    )


def _commits(group: Any) -> dict[Partition, Committed] | str:
    found: dict[Partition, Committed] = {}
    for topic in group.topics:
        for one in topic.partitions:
            if one.error_code:  # as UNSTABLE_OFFSET_COMMIT: what is there may be changing
                return f"{topic.name}/{one.partition_index}: {for_code(one.error_code).__name__}"
            if one.committed_offset >= 0:
                text = (one.metadata or "").rstrip("\0")  # librdkafka sends the zero that ends its string
                found[topic.name, one.partition_index] = Committed(one.committed_offset, text)
    return found


def _description(group: Any) -> _Described:
    if hasattr(group, "assignor_name"):
        members = [_newer_member(member) for member in group.members]
        return _Described(group.group_state, group.assignor_name, _sorted(members))
    of_consumers = group.protocol_type == _CONSUMERS
    members = [_classic_member(member, of_consumers) for member in group.members]
    protocol = group.protocol_data if of_consumers else group.protocol_type
    return _Described(group.group_state, protocol or "", _sorted(members))


def _sorted(members: Sequence[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.member_id))


def _classic_member(member: Any, of_consumers: bool) -> Member:
    partitions = _classic_assignment(bytes(member.member_assignment or b"")) if of_consumers else None
    host = str(member.client_host).removeprefix("/")
    return Member(member.member_id, member.client_id, host, member.group_instance_id, partitions)


def _classic_assignment(data: bytes) -> tuple[Partition, ...] | None:
    """What the group's leader has given a member; None where it wrote something else. Nothing during a rebalance."""
    if not data:
        return ()
    try:
        found = ConsumerProtocolAssignment.decode(data)
        return tuple(sorted((topic, number) for topic, numbers in _assigned(found) for number in numbers))
    except (struct.error, ValueError, IndexError, TypeError, KeyError, UnicodeDecodeError, EOFError, MemoryError):
        return None


def _assigned(found: Any) -> Iterator[tuple[str, Sequence[int]]]:
    for entry in found.assigned_partitions:
        yield entry.topic, entry.partitions


def _newer_member(member: Any) -> Member:
    own = [(entry.topic_name, number) for entry in member.assignment.topic_partitions for number in entry.partitions]
    host = str(member.client_host).removeprefix("/")
    return Member(member.member_id, member.client_id, host, member.instance_id, tuple(sorted(own)))
