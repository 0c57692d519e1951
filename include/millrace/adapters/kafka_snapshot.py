"""Takes a snapshot of a whole cluster: logs, groups, members, commits.

Three rounds of requests, each sent to all brokers at once. The first asks every broker what the topics are, which
groups it coordinates, and how large its logs are; the others, for groups and then for offsets, ask those that answered.
So a broker that is away costs one time-out. No request carries one group or one partition alone, so their number grows
with neither.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from kafka.errors import for_code
from kafka.protocol.admin import DescribeConfigsRequest, DescribeLogDirsRequest, ListGroupsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from millrace.adapters.kafka_conversation import Conversation, Request, Unanswered
from millrace.adapters.kafka_group_answers import Listed, groups_of_answers, listed, requests_for_groups
from millrace.adapters.kafka_ids import uuid_text
from millrace.domain.snapshots import GroupSeen, LogSeen, Partition, Snapshot, TopicSeen
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings

TIMEOUT = timedelta(seconds=10)
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_BROKER = 4  # DescribeConfigs: the kind of resource
_OFFSETS_RETENTION = "offsets.retention.minutes"
_OFFSETS_TOPIC = "__consumer_offsets"
_SHOWN = 3
# What is asked of each log: its isolation level, and which offset. Source: ListOffsets, KIP-79: -2 is the first
# offset, -1 the one after the last, a time the first record at or after it.
_ASKED = {
    "start": (_READ_UNCOMMITTED, -2),
    "end": (_READ_UNCOMMITTED, -1),
    "stable": (_READ_COMMITTED, -1),
    "first": (_READ_UNCOMMITTED, 0),
}


@dataclass
class _Cluster:
    """What the first round told; `leaders` has a broker a partition, None where there is none."""

    cluster_id: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    leaders: dict[str, list[int | None]] = field(default_factory=dict)
    groups: dict[int, list[Listed]] = field(default_factory=dict)
    sizes: dict[Partition, int] = field(default_factory=dict)
    offsets_kept: timedelta | None = None
    faults: list[str] = field(default_factory=list)


class ClusterReader:
    """Looks at one cluster; changes nothing.

    Args:
        settings: the cluster's Connection.
        client_id: what the brokers are told of this client.
        timeout: how long a round may take.
        clock: the present, in UTC.

    Raises:
        UnreachableError: no broker answers.
        UsageError: no client can be made of the Connection's properties.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str = "millrace.snapshots",
        timeout: timedelta = TIMEOUT,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._where = settings.bootstrap_servers
        self._clock = clock
        self._asked_before = 0  # what it took to get connected belongs to the first snapshot
        self._talk = Conversation(settings, client_id=client_id, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._talk.close()

    def take(self) -> Snapshot:
        """A look at everything. What a broker did not answer is None in it, and named in its `faults`.

        Does not guarantee one moment: commits are asked for before the ends of logs, so that a reader that keeps up is
        never seen ahead of them. A leader that moved meanwhile is not known until the next snapshot.

        Raises:
            UnreachableError: no broker answers.
        """
        at, began, before = self._clock(), time.monotonic(), self._asked_before
        cluster = _Cluster()
        alive = self._first_round(cluster)
        groups = self._groups(cluster, alive)
        logs = self._logs(cluster, alive)
        self._asked_before = self._talk.requests
        return Snapshot(
            at=at,
            cluster_id=cluster.cluster_id,
            topics={name: TopicSeen(cluster.ids[name], logs[name]) for name in cluster.ids},
            groups=groups,
            requests=self._talk.requests - before,
            seconds=time.monotonic() - began,
            offsets_kept=cluster.offsets_kept,
            faults=tuple(cluster.faults),
        )

    def _first_round(self, cluster: _Cluster) -> list[int]:
        """Fill in what brokers tell of the cluster and of themselves; the brokers that answered."""
        brokers = self._talk.brokers
        configs = DescribeConfigsRequest.DescribeConfigsResource
        requests: list[Request] = []
        for broker in brokers:
            retention = configs(
                resource_type=_BROKER, resource_name=str(broker), configuration_keys=[_OFFSETS_RETENTION]
            )
            requests += [
                (broker, MetadataRequest(topics=None, allow_auto_topic_creation=False)),
                (broker, ListGroupsRequest()),
                (broker, DescribeLogDirsRequest(topics=None)),
                (broker, DescribeConfigsRequest(resources=[retention])),
            ]
        answers = self._talk.ask(requests)
        by_broker = {broker: answers[4 * index : 4 * index + 4] for index, broker in enumerate(brokers)}
        alive = [broker for broker, (metadata, *_) in by_broker.items() if not isinstance(metadata, Unanswered)]
        if not alive:
            reasons = "; ".join(f"broker {broker}: {metadata}" for broker, (metadata, *_) in by_broker.items())
            raise UnreachableError(
                f"the Kafka cluster does not answer: {reasons or 'it names no broker'}",
                where=self._where,
                next_step="see with `millrace doctor` whether it runs and the connection is right",
            )
        _read_metadata(cluster, max((by_broker[broker][0] for broker in alive), key=lambda one: len(one.topics)))
        for broker, (metadata, groups, logs, configs_told) in by_broker.items():
            if isinstance(metadata, Unanswered):
                cluster.faults.append(f"broker {broker}: {metadata}")
                continue
            _read_groups(cluster, broker, groups)
            _read_sizes(cluster, broker, logs)
            _read_retention(cluster, configs_told)
        return alive

    def _groups(self, cluster: _Cluster, alive: list[int]) -> dict[str, GroupSeen]:
        """Describe and ask for commits, by coordinator. A broker that does not answer is asked nothing more."""
        asked = [one for broker in alive for one in requests_for_groups(broker, cluster.groups.get(broker, []))]
        answers = self._talk.ask([(one.broker, one.request) for one in asked])
        silent = {one.broker for one, answer in zip(asked, answers, strict=True) if isinstance(answer, Unanswered)}
        told = [one for one, answer in zip(asked, answers, strict=True) if not isinstance(answer, Unanswered)]
        for broker in sorted(silent - {one.broker for one in told}):
            cluster.faults.append(f"broker {broker}: no answer about its groups")
            alive.remove(broker)
        return groups_of_answers([each for groups in cluster.groups.values() for each in groups], asked, answers)

    def _logs(self, cluster: _Cluster, alive: list[int]) -> dict[str, tuple[LogSeen | None, ...]]:
        """Ask the leaders for offsets; what each partition's log is, by topic."""
        led: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic, leaders in cluster.leaders.items():
            for number, leader in enumerate(leaders):
                if leader in alive:
                    led[leader][topic].append(number)
        kinds = [(broker, kind) for broker in led for kind in _ASKED]
        answers = self._talk.ask([(broker, _offsets_request(led[broker], *_ASKED[kind])) for broker, kind in kinds])
        found: dict[str, dict[Partition, tuple[int, int]]] = {kind: {} for kind in _ASKED}
        refused: dict[str, list[str]] = defaultdict(list)
        for (broker, kind), answer in zip(kinds, answers, strict=True):
            if isinstance(answer, Unanswered):
                refused[f"broker {broker}: {answer}"].append(kind)
            else:
                _read_offsets(answer, found[kind], refused)
        cluster.faults += [_fault(reason, where) for reason, where in refused.items()]
        return {
            topic: tuple(_log(found, cluster.sizes, (topic, number)) for number in range(len(leaders)))
            for topic, leaders in cluster.leaders.items()
        }


def _read_metadata(cluster: _Cluster, answer: Any) -> None:
    cluster.cluster_id = answer.cluster_id or ""
    without: dict[str, list[str]] = defaultdict(list)
    for topic in answer.topics:
        if topic.error_code:
            without[f"cannot be described: {for_code(topic.error_code).__name__}"].append(str(topic.name))
            continue
        leaders: list[int | None] = [None] * (1 + max((one.partition_index for one in topic.partitions), default=-1))
        for one in topic.partitions:
            leaders[one.partition_index] = one.leader_id if one.leader_id >= 0 else None
            if one.leader_id < 0:
                without["no leader"].append(f"{topic.name}/{one.partition_index}")
        cluster.ids[topic.name], cluster.leaders[topic.name] = uuid_text(topic.topic_id), leaders
    cluster.faults += [_fault(reason, where) for reason, where in without.items()]
    if away := [number for number, leader in enumerate(cluster.leaders.get(_OFFSETS_TOPIC, [])) if leader is None]:
        cluster.faults.append(
            f"groups of {len(away)} of {len(cluster.leaders[_OFFSETS_TOPIC])} coordinators are not known"
        )


def _read_groups(cluster: _Cluster, broker: int, answer: Any) -> None:
    if isinstance(answer, Unanswered) or answer.error_code:
        why = answer if isinstance(answer, Unanswered) else for_code(answer.error_code).__name__
        cluster.faults.append(f"broker {broker}: its groups are not known: {why}")
        return
    cluster.groups[broker] = listed(answer)


def _read_sizes(cluster: _Cluster, broker: int, answer: Any) -> None:
    """Sizes of the logs that a broker leads; a copy that is being moved to another folder does not count."""
    if isinstance(answer, Unanswered) or answer.error_code:
        why = answer if isinstance(answer, Unanswered) else for_code(answer.error_code).__name__
        cluster.faults.append(f"broker {broker}: its log folders are not known: {why}")
        return
    for folder in answer.results:
        if folder.error_code:
            cluster.faults.append(f"broker {broker}: a log folder is offline: {for_code(folder.error_code).__name__}")
            continue
        for topic in folder.topics:
            leaders = cluster.leaders.get(topic.name, [])
            for one in topic.partitions:
                if (
                    not one.is_future_key
                    and one.partition_index < len(leaders)
                    and leaders[one.partition_index] == broker
                ):
                    cluster.sizes[topic.name, one.partition_index] = one.partition_size


def _read_retention(cluster: _Cluster, answer: Any) -> None:
    """How long commits are kept: who may not read a broker's settings goes without."""
    if cluster.offsets_kept is not None or isinstance(answer, Unanswered):
        return
    for result in answer.results:
        for config in result.configs or ():
            if config.name == _OFFSETS_RETENTION and str(config.value).isdigit():
                cluster.offsets_kept = timedelta(minutes=int(config.value))


def _offsets_request(led: Mapping[str, Sequence[int]], isolation: int, timestamp: int) -> Any:
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    partition_type = topic_type.ListOffsetsPartition
    topics = [
        topic_type(
            name=name,
            partitions=[
                partition_type(partition_index=number, current_leader_epoch=-1, timestamp=timestamp)
                for number in numbers
            ],
        )
        for name, numbers in led.items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


def _read_offsets(answer: Any, found: dict[Partition, tuple[int, int]], refused: dict[str, list[str]]) -> None:
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                refused[for_code(one.error_code).__name__].append(f"{topic.name}/{one.partition_index}")
            else:
                found[topic.name, one.partition_index] = (one.offset, one.timestamp)


def _log(
    found: Mapping[str, Mapping[Partition, tuple[int, int]]], sizes: Mapping[Partition, int], partition: Partition
) -> LogSeen | None:
    start, end, stable, first = (found[kind].get(partition) for kind in _ASKED)
    if start is None or end is None or stable is None:
        return None
    first_ms = first[1] if first is not None and first[0] >= 0 else None
    return LogSeen(start[0], end[0], stable[0], first_ms, sizes.get(partition))


def _fault(reason: str, where: Sequence[str]) -> str:
    names = list(dict.fromkeys(where))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}: {reason}"
