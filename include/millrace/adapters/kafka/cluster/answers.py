"""What brokers answered, as what a snapshot holds."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from millrace.adapters.kafka.cluster.conversation import code_name
from millrace.adapters.kafka.cluster.messages import CHECK_EVERY, OFFSETS_KEPT, Bound
from millrace.adapters.kafka.ids import uuid_text
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import DiskSeen, GroupSeen, GroupType, LogSeen, Member, Partition, TopicSeen

_NAMED = 3
_UNKNOWN_TOPIC = 3  # UNKNOWN_TOPIC_OR_PARTITION
_CLASSIC_KINDS = frozenset({"consumer", ""})


@dataclass(frozen=True, slots=True)
class Listed:
    """A group as its coordinator lists it. `kind` is what a classic group's members are: `consumer`, `connect` ..."""

    name: str
    type: GroupType
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class Described:
    """What a group's coordinator says of its members; `fault` where it does not."""

    state: str = ""
    protocol: str = ""
    members: tuple[Member, ...] | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Commits:
    """A group's commits; `fault` where they, or some of them, could not be read."""

    entries: Mapping[Partition, Committed] | None = None
    fault: str = ""


@dataclass(slots=True)
class Answers:
    """What one broker has answered so far in one look."""

    listed: dict[str, Listed] = field(default_factory=dict)
    described: dict[str, Described] = field(default_factory=dict)
    commits: dict[str, Commits] = field(default_factory=dict)
    bounds: dict[Bound, dict[Partition, tuple[int, int]]] = field(default_factory=dict)
    sizes: dict[Partition, int] = field(default_factory=dict)
    disks: list[DiskSeen] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """Topics by name with their ids, the leader of each partition (None where it has none), and how many replicas."""

    ids: Mapping[str, str]
    leaders: Mapping[str, tuple[int | None, ...]]
    replication: Mapping[str, int]
    faults: tuple[str, ...]

    def led_by(self, node: int) -> dict[str, list[int]]:
        """The partitions that one broker leads, by topic."""
        led = {name: [n for n, at in enumerate(leaders) if at == node] for name, leaders in self.leaders.items()}
        return {name: numbers for name, numbers in led.items() if numbers}


def layout_of(metadata: Any) -> Layout:
    """Topics and leaders. A topic that may not be described is left out, with a fault."""
    brokers = {broker.node_id for broker in metadata.brokers}
    ids: dict[str, str] = {}
    leaders: dict[str, tuple[int | None, ...]] = {}
    replication: dict[str, int] = {}
    faults = []
    for topic in metadata.topics:
        if topic.error_code:
            faults.append(f"topic {topic.name}: {code_name(topic.error_code)}")
            continue
        known = {p.partition_index: p.leader_id if p.leader_id in brokers else None for p in topic.partitions}
        found = tuple(known.get(number) for number in range(max(known, default=-1) + 1))
        ids[topic.name], leaders[topic.name] = uuid_text(topic.topic_id) if topic.topic_id else "", found
        replication[topic.name] = max((len(p.replica_nodes) for p in topic.partitions), default=0)
        if orphans := [(topic.name, number) for number, leader in enumerate(found) if leader is None]:
            faults.append(f"no leader: {_some(orphans)}")
    return Layout(ids, leaders, replication, tuple(faults))


def _some(partitions: Iterable[Partition]) -> str:
    every = sorted(partitions)
    named = ", ".join(f"{topic}/{number}" for topic, number in every[:_NAMED])
    return named + (f" and {len(every) - _NAMED} more" if len(every) > _NAMED else "")


def read_bounds(answer: Any, bound: Bound, answers: Answers, where: str) -> None:
    """Offset and timestamp of each partition that has no error."""
    found = answers.bounds.setdefault(bound, {})
    wrong: dict[int, list[Partition]] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            partition = (topic.name, entry.partition_index)
            if entry.error_code:
                wrong.setdefault(entry.error_code, []).append(partition)
            else:
                found[partition] = (entry.offset, entry.timestamp)
    for code, partitions in wrong.items():
        answers.faults.append(f"{where}: {bound.name.lower()} of {_some(partitions)}: {code_name(code)}")


def read_sizes(answer: Any, answers: Answers, node: int) -> None:
    """Bytes of each replica, without those that are still being moved to another folder, and the folders themselves."""
    where = f"broker {node}"
    if answer.error_code:
        answers.faults.append(f"{where}: log folders: {code_name(answer.error_code)}")
    for folder in answer.results:
        if folder.error_code:
            answers.faults.append(f"{where}: log folder {folder.log_dir}: {code_name(folder.error_code)}")
            continue
        taken: dict[str, int] = {}
        for topic in folder.topics:
            taken[topic.name] = sum(entry.partition_size for entry in topic.partitions)
            for entry in topic.partitions:
                if not entry.is_future_key:
                    answers.sizes[topic.name, entry.partition_index] = entry.partition_size
        volume = (getattr(folder, name, None) for name in ("total_bytes", "usable_bytes"))  # KIP-827
        total, usable = (None if value is None or value < 0 else int(value) for value in volume)
        answers.disks.append(DiskSeen(node, folder.log_dir, total, usable, taken))


def read_listing(answer: Any, answers: Answers, where: str) -> None:
    """Groups with their types. Before version 5 of the answer (Kafka 3.8) there were only classic ones."""
    if answer.error_code:
        answers.faults.append(f"{where}: groups: {code_name(answer.error_code)}")
    for entry in answer.groups:
        if answer.API_VERSION < 5:
            kind = GroupType.CLASSIC if entry.protocol_type in _CLASSIC_KINDS else GroupType.UNKNOWN
        else:
            said = str(entry.group_type).lower()
            kind = GroupType(said) if said in set(GroupType) else GroupType.UNKNOWN
        answers.listed[entry.group_id] = Listed(entry.group_id, kind, entry.group_state or "", entry.protocol_type)


def read_classic(answer: Any, answers: Answers) -> None:
    """Members of classic groups."""
    for group in answer.groups:
        if group.error_code:
            answers.described[group.group_id] = Described(fault=code_name(group.error_code))
            continue
        of_consumers = group.protocol_type == "consumer"
        known = of_consumers and group.group_state == "Stable"  # before, nothing is assigned yet
        members = [
            Member(
                member.member_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                member.group_instance_id,
                assigned(bytes(member.member_assignment)) if known else None,
            )
            for member in group.members
        ]
        protocol = group.protocol_data if of_consumers else group.protocol_type
        answers.described[group.group_id] = Described(group.group_state, protocol, _sorted(members))


def read_consumer(answer: Any, answers: Answers) -> None:
    """Members of groups of KIP-848."""
    for group in answer.groups:
        if group.error_code:
            answers.described[group.group_id] = Described(fault=code_name(group.error_code))
            continue
        members = [
            Member(
                member.member_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                member.instance_id,
                tuple(sorted((t.topic_name, n) for t in member.assignment.topic_partitions for n in t.partitions)),
            )
            for member in group.members
        ]
        answers.described[group.group_id] = Described(group.group_state, group.assignor_name, _sorted(members))


def _sorted(members: list[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.member_id))


def assigned(data: bytes) -> tuple[Partition, ...] | None:
    """The partitions in a classic member's assignment, sorted; None where it is not one. No bytes are no partitions.

    Source: ConsumerProtocolAssignment.json of Kafka; what versions 1 to 3 add is the same, and later ones only append.
    """
    if not data:
        return ()
    found: list[Partition] = []
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        at = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, at)
            topic = data[at + 2 : at + 2 + max(0, length)].decode()
            (numbers,) = struct.unpack_from(">i", data, at + 2 + max(0, length))
            if length <= 0 or numbers < 0:
                return None
            at += 6 + length
            found += [(topic, number) for number in struct.unpack_from(f">{numbers}i", data, at)]
            at += 4 * numbers
    except (struct.error, UnicodeDecodeError):
        return None
    sound = count >= 0 and all(number >= 0 for _, number in found)
    return tuple(sorted(found)) if sound else None


def read_commits(answer: Any, answers: Answers) -> None:
    """Commits of many groups; an offset of -1 is none.

    confluent-kafka sends the NUL at the end of a C string with the metadata, and takes it off again when it reads.
    """
    for group in answer.groups:
        if group.error_code:
            answers.commits[group.group_id] = Commits(fault=code_name(group.error_code))
            continue
        entries: dict[Partition, Committed] = {}
        faults = []
        for topic in group.topics:
            for entry in topic.partitions:
                if entry.error_code:
                    faults.append(f"{topic.name}/{entry.partition_index} {code_name(entry.error_code)}")
                elif entry.committed_offset >= 0:
                    key = (topic.name, entry.partition_index)
                    entries[key] = Committed(entry.committed_offset, (entry.metadata or "").rstrip("\0"))
        answers.commits[group.group_id] = Commits(entries, ", ".join(faults[:_NAMED]))


@dataclass(frozen=True, slots=True)
class BrokerSaid:
    """What a broker is set to: how long it keeps commits, how often it looks for what it may delete; `fault`: why not.

    None where it did not say so.
    """

    offsets_kept: timedelta | None = None
    check_every: timedelta | None = None
    fault: str = ""


def read_broker(answer: Any) -> BrokerSaid:
    """A broker's own settings."""
    said: dict[str, int] = {}
    for result in answer.results:
        if result.error_code:
            return BrokerSaid(fault=code_name(result.error_code))
        said |= {entry.name: int(entry.value) for entry in result.configs if str(entry.value).isdigit()}
    kept, every = said.get(OFFSETS_KEPT), said.get(CHECK_EVERY)
    return BrokerSaid(
        None if kept is None else timedelta(minutes=kept),
        None if every is None else timedelta(milliseconds=every),
        "" if kept is not None else "not said",
    )


def read_settings(answer: Any, settings: dict[str, dict[str, str]]) -> list[str]:
    """Settings of topics by name into `settings`; the faults. A topic that is gone meanwhile is none."""
    faults = []
    for result in answer.results:
        if not result.error_code:
            settings[result.resource_name] = {entry.name: entry.value or "" for entry in result.configs}
        elif result.error_code != _UNKNOWN_TOPIC:
            faults.append(f"settings of topic {result.resource_name}: {code_name(result.error_code)}")
    return faults


def topics_seen(
    layout: Layout, answers: Mapping[int, Answers], settings: Mapping[str, Mapping[str, str]]
) -> dict[str, TopicSeen]:
    """Every topic, each partition as its leader answered for it."""
    return {
        name: TopicSeen(
            layout.ids[name],
            tuple(
                _log((name, number), answers[leader]) if leader is not None else None
                for number, leader in enumerate(leaders)
            ),
            settings.get(name),
            layout.replication[name],
        )
        for name, leaders in layout.leaders.items()
    }


def _log(partition: Partition, answers: Answers) -> LogSeen | None:
    start, stable, end, first, last = (
        answers.bounds.get(bound, {}).get(partition)
        for bound in (Bound.START, Bound.STABLE, Bound.END, Bound.FIRST, Bound.LAST)
    )
    if start is None or stable is None or end is None:
        return None
    return LogSeen(start[0], end[0], stable[0], _stamp(first), answers.sizes.get(partition), _stamp(last))


def _stamp(found: tuple[int, int] | None) -> int | None:
    """The timestamp of a record that was found."""
    return found[1] if found is not None and found[0] >= 0 and found[1] >= 0 else None


def groups_seen(answers: Iterable[tuple[Answers, str]]) -> dict[str, GroupSeen]:
    """Every listed group. Of two brokers that list one, as while it moves, the one that knows it is believed.

    Args:
        answers: each broker's, and why it did not answer all; empty where it did.
    """
    found: dict[str, GroupSeen] = {}
    for each, failure in answers:
        for name, listed in each.listed.items():
            seen = _group(listed, each, failure or "not asked")
            if name not in found or found[name].fault:
                found[name] = seen
    return found


def _group(listed: Listed, answers: Answers, failure: str) -> GroupSeen:
    if listed.type not in (GroupType.CLASSIC, GroupType.CONSUMER):
        return GroupSeen(listed.name, listed.type, listed.state, listed.kind)
    described = answers.described.get(listed.name, Described(fault=failure))
    commits = answers.commits.get(listed.name, Commits(fault=failure))
    faults = (("members", described.fault), ("commits", commits.fault))
    return GroupSeen(
        listed.name,
        listed.type,
        described.state or listed.state,
        described.protocol or (listed.kind if listed.type is GroupType.CLASSIC and listed.kind != "consumer" else ""),
        described.members,
        commits.entries,
        "; ".join(f"{what}: {fault}" for what, fault in faults if fault),
    )
