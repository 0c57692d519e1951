"""The requests that a snapshot of a cluster is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    ListGroupsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

OFFSETS_KEPT = "offsets.retention.minutes"
CHECK_EVERY = "log.retention.check.interval.ms"
_SCHEMAS = "millrace.adapters.kafka.cluster.schemas"
_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_MAX_TIMESTAMP = -3
_FIRST_WITH = {_MAX_TIMESTAMP: 7}  # the version of the request


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]
    """Asks for groups of KIP-848, which kafka-python 3.0 has no message for. It can go when it has one."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]
    """The answer; kafka-python finds it by its key, so it has to be defined before one is received."""


class Bound(Enum):
    """What a leader is asked of each of its partitions: the timestamp of the request, and its isolation level.

    In the order in which they are asked, so that start, stable and end of one snapshot never go down.

    Source: ListOffsetsRequest.json of Kafka; KIP-79 (timestamps), KIP-98 (isolation), KIP-734 (greatest timestamp).
    """

    START = (-2, 0)
    FIRST = (0, 0)
    LAST = (_MAX_TIMESTAMP, 0)
    STABLE = (-1, 1)
    END = (-1, 0)


def all_topics() -> Any:
    """Metadata of every topic. None is ever made by asking."""
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


def bounds(partitions: Mapping[str, Sequence[int]], bound: Bound, timeout_ms: int) -> Any:
    """One bound of many partitions of one leader. Version 2 is the first with an isolation level."""
    timestamp, isolation = bound.value
    topic, partition = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    topics = [
        topic(
            name=name,
            partitions=[partition(partition_index=n, current_leader_epoch=-1, timestamp=timestamp) for n in numbers],
        )
        for name, numbers in partitions.items()
    ]
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=topics,
        timeout_ms=timeout_ms,
        min_version=_FIRST_WITH.get(timestamp, 2),
    )


def log_folders() -> Any:
    """The log folders of one broker with all replicas in them."""
    return DescribeLogDirsRequest(topics=None)


def listed_groups() -> Any:
    """The groups that one broker coordinates, of any type and state."""
    return ListGroupsRequest(states_filter=[], types_filter=[])


def classic_groups(names: Sequence[str]) -> Any:
    """Members of classic groups."""
    return DescribeGroupsRequest(groups=list(names), include_authorized_operations=False)


def consumer_groups(names: Sequence[str]) -> Any:
    """Members of groups of KIP-848."""
    return ConsumerGroupDescribeRequest(group_ids=list(names), include_authorized_operations=False)


def commits(names: Sequence[str]) -> Any:
    """All commits of many groups. Version 8 is the first with many groups; version 10 has no names of topics."""
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    groups = [group(group_id=name, topics=None) for name in names]
    return OffsetFetchRequest(groups=groups, require_stable=False, min_version=8, max_version=8)


def broker_settings(node: int) -> Any:
    """How long a broker keeps the commits of a group that is empty, and how often it looks for what it may delete."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    keys = [OFFSETS_KEPT, CHECK_EVERY]
    wanted = resource(resource_type=_BROKER_RESOURCE, resource_name=str(node), configuration_keys=keys)
    return DescribeConfigsRequest(resources=[wanted])


def topic_settings(names: Sequence[str], keys: Sequence[str]) -> Any:
    """Some settings of many topics; any broker knows them."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [
        resource(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(keys)) for name in names
    ]
    return DescribeConfigsRequest(resources=wanted)
