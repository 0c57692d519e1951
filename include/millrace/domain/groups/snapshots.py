"""What a cluster was seen to be at one moment, and over a time: its logs, its consumer groups, and who is in them.

Offsets and sizes are as the brokers say them. None stands for what nobody could tell then, as of a broker that did not
answer; it is never taken for zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.groups.commits import Committed

SNAPSHOT_EVERY = timedelta(minutes=1)
SNAPSHOTS_KEPT = timedelta(days=7)

Partition = tuple[str, int]
"""A topic's name and the number of one of its partitions."""


class GroupType(StrEnum):
    """Which protocol a group's members speak, by the broker's own word for it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071
    UNKNOWN = "unknown"  # the broker is older than the question (before 3.8), or newer than this


@dataclass(frozen=True, slots=True)
class LogSeen:
    """One partition's log.

    Attributes:
        start: its first offset.
        end: the offset after its last record that is replicated (the high watermark), open transactions or not. The
            stock tools count lag up to here.
        stable: the offset up to which a reader of committed data may read (the last stable offset).
        first_ms: the timestamp of its first record, in milliseconds since 1970; None where it holds none, or none
            with a timestamp.
        size_bytes: of the leader's replica on disk, None where the log folders could not be described.
        last_ms: the greatest timestamp of its records, in milliseconds since 1970; None as for `first_ms`. It is not
            kept.
    """

    start: int
    end: int
    stable: int
    first_ms: int | None = None
    size_bytes: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic.

    Attributes:
        topic_id: Kafka's own id of it.
        logs: the log of each of its partitions by number; None of those nobody answered for.
        settings: those of `retention.settings.KEYS` that are in force on it, a few minutes old at most; None where
            nobody said them. They are not kept.
        replication: how many replicas its partitions have; 0 where that is not known. It is not kept.
    """

    topic_id: str
    logs: tuple[LogSeen | None, ...]
    settings: Mapping[str, str] | None = None
    replication: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group.

    Attributes:
        member_id: the coordinator's name for it.
        client_id: what its client calls itself.
        host: the address that the broker sees, without the leading slash.
        instance: its `group.instance.id` where it is a static member.
        partitions: what is assigned to it, sorted; None where the client cannot tell.
    """

    member_id: str
    client_id: str
    host: str
    instance: str | None = None
    partitions: tuple[Partition, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group as its coordinator describes it.

    Attributes:
        name: the group's id.
        type: which protocol its members speak.
        state: the broker's own word: Stable, Empty, PreparingRebalance, Assigning, Dead ...
        protocol: what its members agreed on, as `range`; for a classic group that is not of consumers, its kind.
        members: sorted by id; None where they could not be asked for.
        commits: its commits by topic and partition; None where they could not be asked for.
        fault: why something of it is not known; empty where all is.
    """

    name: str
    type: GroupType
    state: str
    protocol: str = ""
    members: tuple[Member, ...] | None = None
    commits: Mapping[Partition, Committed] | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """A folder of logs of one broker.

    Attributes:
        broker: its number.
        folder: where it is there.
        total_bytes: of the volume it is in; None where the broker does not tell.
        usable_bytes: what is free there.
        topics: what each topic's replicas take there, in bytes.
    """

    broker: int
    folder: str
    total_bytes: int | None
    usable_bytes: int | None
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a whole cluster.

    Attributes:
        at: when it was begun, UTC.
        cluster_id: the cluster's own id.
        topics: every topic by name, internal ones too.
        groups: every group by name that a broker listed.
        requests: how many requests it cost.
        seconds: how long it took.
        offsets_kept: the cluster's `offsets.retention.minutes`; None where no broker said it.
        faults: what could not be asked, and why, one line each.
        check_every: the brokers' `log.retention.check.interval.ms`; None where no broker said it. It is not kept.
        disks: the brokers' folders. They are not kept.
    """

    at: datetime
    cluster_id: str
    topics: Mapping[str, TopicSeen]
    groups: Mapping[str, GroupSeen]
    requests: int = 0
    seconds: float = 0.0
    offsets_kept: timedelta | None = None
    faults: tuple[str, ...] = ()
    check_every: timedelta | None = None
    disks: tuple[DiskSeen, ...] = ()

    def log(self, partition: Partition) -> LogSeen | None:
        """What is known of one partition's log; None: nothing, or the topic has no such partition."""
        topic, number = partition
        seen = self.topics.get(topic)
        return seen.logs[number] if seen is not None and 0 <= number < len(seen.logs) else None


@dataclass(frozen=True, slots=True)
class LogSeries:
    """One partition's log over a time: an entry a snapshot, oldest first; None where it was not known, or not there.

    Only of the topic as it is now: what was of a former topic of that name is None.
    """

    starts: Sequence[int | None]
    ends: Sequence[int | None]
    stables: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class LogSample:
    """One partition's log at one of the snapshots that are kept, as `LogSeen` has it."""

    at: datetime
    start: int
    end: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class History:
    """What the snapshots of one cluster saw over a time; every sequence has an entry a snapshot, oldest first.

    Attributes:
        times: when each was taken.
        logs: by partition.
        commits: the committed offsets of each group by partition; None where there was no commit, or nobody knew.
        members: how many members each group had; None where nobody knew or the group was not there.
    """

    times: Sequence[datetime]
    logs: Mapping[Partition, LogSeries] = field(default_factory=dict)
    commits: Mapping[str, Mapping[Partition, Sequence[int | None]]] = field(default_factory=dict)
    members: Mapping[str, Sequence[int | None]] = field(default_factory=dict)


def history_of(snapshot: Snapshot) -> History:
    """The history that one snapshot alone is."""
    return History(
        times=(snapshot.at,),
        logs={
            (topic, number): LogSeries([log.start], [log.end], [log.stable])
            for topic, seen in snapshot.topics.items()
            for number, log in enumerate(seen.logs)
            if log is not None
        },
        commits={
            name: {partition: (commit.offset,) for partition, commit in (group.commits or {}).items()}
            for name, group in snapshot.groups.items()
        },
        members={
            name: (None if group.members is None else len(group.members),) for name, group in snapshot.groups.items()
        },
    )


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """The newest snapshot, but for what it saw.

    Attributes:
        at: when it was taken.
        base: the whole snapshot whose rows it continues; itself where it is whole.
        cluster_id: the cluster's own id.
        offsets_kept_seconds: the cluster's retention of commits.
    """

    at: datetime
    base: datetime
    cluster_id: str
    seconds: float
    requests: int
    offsets_kept_seconds: int | None
    faults: Sequence[str]
