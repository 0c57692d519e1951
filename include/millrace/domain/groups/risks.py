"""What of a consumer group will surprise somebody one day: told by name, whatever its status is now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from millrace.domain.groups.snapshots import History, Member, Snapshot
from millrace.domain.groups.status import GroupReading

_SHOWN = 3

# What clients call themselves where nobody told them to. Source: `client.id` in librdkafka's CONFIGURATION.md; Java's
# ConsumerConfig (consumer-GROUP-N since KIP-411, consumer-N before) and ConsoleConsumer; the defaults of kafka-python,
# Sarama, KafkaJS, franz-go and kafka-go.
_FAMILIES = {
    "librdkafka": re.compile(r"rdkafka"),
    "Java": re.compile(r"consumer-\d+|console-consumer|perf-consumer-client"),
    "kafka-python": re.compile(r"kafka-python-.*"),
    "Sarama": re.compile(r"sarama"),
    "KafkaJS": re.compile(r"kafkajs"),
    "franz-go": re.compile(r"kgo"),
    "kafka-go": re.compile(r".* \(github\.com/segmentio/kafka-go\)"),
}


class Risk(StrEnum):
    """What may go wrong."""

    DEFAULT_CLIENT_ID = "default-client-id"  # nobody can tell whose client it is
    MIXED_CLIENTS = "mixed-clients"  # clients of different families: perhaps two applications under one name
    IDLE_MEMBER = "idle-member"  # a member has no partition
    READS_NOTHING = "reads-nothing"  # it has members or a name, and nothing to read
    UNASSIGNED = "unassigned"  # it has committed a partition that none of its members has now
    STALE = "stale"  # nobody is in it, and its offsets will be deleted
    UNREAD_DELETED = "unread-deleted"  # the log begins after its commit
    BEYOND_END = "beyond-end"  # its commit lies after the end of the log


@dataclass(frozen=True, slots=True)
class GroupRisk:
    """One risk of one group, in a line for people; `measure` counts its offsets, where the risk is about such."""

    risk: Risk
    detail: str
    measure: int | None = None


def family(client_id: str, group: str) -> str | None:
    """Which client library gives its clients in this group such an id by default; None where somebody has chosen it."""
    if re.fullmatch(f"consumer-{re.escape(group)}-\\d+", client_id):
        return "Java"
    return next((name for name, pattern in _FAMILIES.items() if pattern.fullmatch(client_id)), None)


def risks(reading: GroupReading, snapshot: Snapshot, history: History) -> tuple[GroupRisk, ...]:
    """Every risk of a group that a snapshot shows; none is guessed from what is not known.

    Args:
        reading: the group as `judge` found it.
        snapshot: the newest snapshot.
        history: up to and with it.
    """
    members = reading.group.members
    found: list[GroupRisk] = []
    if members:
        found += _of_members(reading.group.name, members)
    found += _of_offsets(reading)
    if members == ():
        found += _without_members(reading, snapshot, history)
    return tuple(found)


def _of_members(group: str, members: Sequence[Member]) -> Iterator[GroupRisk]:
    by_default = sorted({m.client_id for m in members if family(m.client_id, group) or not m.client_id})
    if by_default:
        hosts = _listed(sorted({m.host for m in members if m.client_id in by_default}))
        names = _listed([name or "an empty one" for name in by_default])
        yield GroupRisk(Risk.DEFAULT_CLIENT_ID, f"client id {names} from {hosts}: set `client.id` to name its owner")
    families = {name for member in members if (name := family(member.client_id, group))}
    if len(families) > 1:
        yield GroupRisk(Risk.MIXED_CLIENTS, f"clients of {_listed(sorted(families))} share this group id")
    told = [member for member in members if member.partitions is not None]
    without = [member for member in told if not member.partitions]
    if told and len(without) == len(told) == len(members):
        yield GroupRisk(Risk.READS_NOTHING, f"none of its {len(members)} members has a partition")
    elif without:
        names = _listed([f"{member.client_id} on {member.host}" for member in without])
        yield GroupRisk(Risk.IDLE_MEMBER, f"{len(without)} of {len(members)} members have no partition: {names}")


def _of_offsets(reading: GroupReading) -> Iterator[GroupRisk]:
    deleted, beyond, unassigned = [], [], []
    gone = 0
    members = reading.group.members
    all_tell = bool(members) and all(member.partitions is not None for member in members or ())
    for one in reading.partitions:
        name = f"{one.partition[0]}/{one.partition[1]}"
        if one.committed is None or one.start is None or one.end is None:
            continue
        if one.committed < one.start:
            deleted.append(f"{name} {one.start - one.committed:,}")
            gone += one.start - one.committed
        if one.committed > one.end:
            beyond.append(f"{name} at {one.committed:,}, which ends at {one.end:,}")
        if all_tell and one.member is None and one.end > one.committed:
            unassigned.append(name)
    if deleted:
        text = f"unread offsets are gone from the log: {_listed(deleted)}"
        yield GroupRisk(Risk.UNREAD_DELETED, text, gone)
    if beyond:
        text = f"committed beyond the end of the log: {_listed(beyond)}; the topic may have been created again"
        yield GroupRisk(Risk.BEYOND_END, text)
    if unassigned:
        text = f"read before, but assigned to no member now: {_listed(unassigned)}"
        yield GroupRisk(Risk.UNASSIGNED, text)


def _without_members(reading: GroupReading, snapshot: Snapshot, history: History) -> Iterator[GroupRisk]:
    if reading.group.commits == {}:
        yield GroupRisk(Risk.READS_NOTHING, "it has neither members nor commits")
        return
    seen = history.members.get(reading.group.name, ())
    last_in = max((index for index, count in enumerate(seen) if count), default=None)
    if reading.changed_at is not None or last_in is not None:
        return  # somebody was in it a while ago
    since = history.times[0]
    if snapshot.offsets_kept is None:
        yield GroupRisk(Risk.STALE, f"without members since {_moment(since)} at least")
    else:
        text = f"without members since {_moment(since)} at least; its offsets are deleted by "
        yield GroupRisk(Risk.STALE, f"{text}{_moment(since + snapshot.offsets_kept)} if no member joins")


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
