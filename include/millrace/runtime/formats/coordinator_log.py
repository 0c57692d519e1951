"""What the records of `__consumer_offsets` say: who committed which offset, and who is in which group.

Decoded are commits (of both protocols), the metadata of classic groups, and of groups of the new consumer protocol
(KIP-848) each member's facts and its present assignment. The other record types of Kafka 4.3 are known by name. What
is of a type or version not known here, and what is garbage, is `Unreadable` and says why: no length in a record is
trusted, so nothing here hangs, allocates without bound, or raises.

Source of the layouts: `common/message/*.json` in Kafka 4.3.1's group-coordinator and clients jars, the types of records
from `apiKey` there (`CoordinatorRecordType`).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.runtime.formats.kafka_bytes import MalformedError, Reader

OFFSETS_TOPIC = "__consumer_offsets"

OTHER_RECORDS: Mapping[int, str] = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
"""Types of records that say nothing of who reads what, by the number in their key."""

_LEGACY_COMMIT, _COMMIT = 0, 1
_NO_ID = bytes(16)

Assigned = Mapping[str, tuple[int, ...]]
"""Partitions by topic: by its name in classic groups, by its id (as Kafka writes it) in those of the new protocol."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset; `offset` None: the commit was taken back, or has expired.

    Attributes:
        at_ms: when the coordinator took it, in milliseconds since 1970.
        topic_id: of the topic, where the broker wrote it (since Kafka 4.1, by members that named it).
    """

    group: str
    topic: str
    partition: int
    offset: int | None = None
    metadata: str = ""
    at_ms: int = 0
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """A member of a classic group; `assigned` None: its group is not of consumers, or hides what it assigned."""

    member_id: str
    instance: str | None
    client_id: str
    host: str
    assigned: Assigned | None


@dataclass(frozen=True, slots=True)
class ClassicGroup:
    """All that a classic group is from here on; without members it is empty, or gone."""

    group: str
    members: tuple[ClassicMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """What a member of a KIP-848 group said of itself; `client_id` None: it left."""

    group: str
    member_id: str
    instance: str | None = None
    client_id: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """What a member of a KIP-848 group has from here on, by topic id; nothing once it left."""

    group: str
    member_id: str
    assigned: Assigned = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Other:
    """A record of a known type that is not decoded further."""

    version: int
    name: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that nobody here can read.

    Attributes:
        version: the type in its key; None where it has no whole key.
        error: what is wrong, without anything of the record's own text.
    """

    version: int | None
    error: str


Entry = Commit | ClassicGroup | ConsumerMember | ConsumerAssignment | Other | Unreadable


def decode(key: bytes | None, value: bytes | None) -> Entry:
    """What one record says.

    Args:
        key: of the record; it begins with two bytes for the record's type.
        value: of the record; None, a tombstone, ends what was under the key.

    Guarantees: returns for any bytes, in time and memory bounded by their number.
    """
    if key is None or len(key) < 2:
        return Unreadable(None, "the record has no key" if key is None else "the key is too short")
    version = int.from_bytes(key[:2], "big", signed=True)
    if version in OTHER_RECORDS:
        return Other(version, OTHER_RECORDS[version])
    try:
        reader = Reader(key, 2)
        match version:  # by CoordinatorRecordType
            case 0 | 1:
                return _commit(version, reader, value)
            case 2:
                return _classic_group(reader.last_string(), value)
            case 5:
                return _member(reader.string(), reader.last_string(), value)
            case 8:
                return _assignment(reader.string(), reader.last_string(), value)
        return Unreadable(version, f"key version {version}: not a record that Kafka 4.3 knows")
    except MalformedError as error:
        return Unreadable(version, f"key version {version}: {error}")


def commit_key_prefixes(group: str) -> tuple[bytes, ...]:
    """How the keys of a group's commits begin, and no other group's; of both versions that there are."""
    name = group.encode()
    return tuple(struct.pack(f">hh{len(name)}s", version, len(name), name) for version in (_LEGACY_COMMIT, _COMMIT))


def _commit(version: int, key: Reader, value: bytes | None) -> Commit:
    group, topic, partition = key.string(), key.string(), key.int32()
    key.end()
    if value is None:
        return Commit(group, topic, partition)
    reader = Reader(value)
    layout = reader.version(0, 0 if version == _LEGACY_COMMIT else 4)
    offset = reader.int64()
    if layout >= 3:
        reader.int32()  # the epoch of the leader
    metadata = reader.string(compact=layout >= 4)
    at_ms = reader.int64()
    if layout == 1:
        reader.int64()  # when it expires
    found = reader.tags().get(0) if layout >= 4 else None
    if found is not None and len(found) != 16:
        raise MalformedError("the topic id has not 16 bytes")
    return Commit(group, topic, partition, offset, metadata, at_ms, _id(found) if found and found != _NO_ID else None)


def _classic_group(group: str, value: bytes | None) -> ClassicGroup:
    if value is None:
        return ClassicGroup(group)
    reader = Reader(value)
    layout = reader.version(0, 4)
    compact = layout >= 4
    kind = reader.string(compact=compact)
    reader.int32()  # the generation
    reader.nullable_string(compact=compact)  # the protocol
    reader.nullable_string(compact=compact)  # the leader
    if layout >= 2:
        reader.int64()  # since when
    members = [_classic_member(reader, layout, kind) for _ in reader.items(compact=compact)]
    if compact:
        reader.tags()
    return ClassicGroup(group, tuple(members))


def _classic_member(reader: Reader, layout: int, kind: str) -> ClassicMember:
    compact = layout >= 4
    member_id = reader.string(compact=compact)
    instance = reader.nullable_string(compact=compact) if layout >= 3 else None
    client_id, host = reader.string(compact=compact), reader.string(compact=compact)
    if layout >= 1:
        reader.int32()  # the rebalance timeout
    reader.int32()  # the session timeout
    reader.blob(compact=compact)  # the subscription
    assignment = reader.blob(compact=compact)
    if compact:
        reader.tags()
    assigned = _protocol_assignment(assignment) if kind == "consumer" else None
    return ClassicMember(member_id, instance, client_id, _host(host), assigned)


def _protocol_assignment(data: bytes) -> Assigned | None:
    """A `ConsumerProtocolAssignment`; None where the members wrote something else, which the broker never looks at.

    Newer versions only add to the end, so they are read alike. No bytes: the member has nothing.
    """
    if not data:
        return {}
    try:
        reader = Reader(data)
        reader.version(0, 2**15 - 1)
        return _merged((reader.string(), _numbers(reader, compact=False)) for _ in reader.items())
    except MalformedError:
        return None


def _member(group: str, member_id: str, value: bytes | None) -> ConsumerMember:
    if value is None:
        return ConsumerMember(group, member_id)
    reader = Reader(value)
    reader.version(0, 0)
    instance = reader.nullable_string(compact=True)
    reader.nullable_string(compact=True)  # the rack
    client_id, host = reader.string(compact=True), reader.string(compact=True)
    return ConsumerMember(group, member_id, instance, client_id, _host(host))


def _assignment(group: str, member_id: str, value: bytes | None) -> ConsumerAssignment:
    if value is None:
        return ConsumerAssignment(group, member_id)
    reader = Reader(value)
    reader.version(0, 0)
    for _ in range(2):
        reader.int32()  # the member's epoch, the one before
    reader.int8()  # its state
    # What is to be revoked is the member's until it has said that it let go, and it commits it before that.
    both = [*_of_topics(reader), *_of_topics(reader)]
    return ConsumerAssignment(group, member_id, _merged(both))


def _of_topics(reader: Reader) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for _ in reader.items(compact=True):
        topic = _id(reader.raw(16))
        found.append((topic, _numbers(reader, compact=True)))
        reader.tags()
    return found


def _numbers(reader: Reader, *, compact: bool) -> tuple[int, ...]:
    return tuple(reader.int32() for _ in reader.items(compact=compact, each_bytes=4))


def _merged(assigned: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in assigned:
        found[topic] = tuple(sorted({*found.get(topic, ()), *partitions}))
    return found


def _id(data: bytes) -> str:
    """An id as Kafka writes it, and as every `_topic_id` here stands."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _host(text: str) -> str:
    """A host without the slash that Java writes before an address."""
    return text.removeprefix("/")
