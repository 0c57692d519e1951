"""A Kafka cluster's topics in memory, for faults and scale that a real broker cannot show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from millrace.domain.topics.changes import NewTopic, ObservedTopic
from millrace.errors import TopicAccessError, UnreachableError

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "min.cleanable.dirty.ratio": "0.5",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.ms": "604800000",
}


class FakeTopicAdmin:
    """A `TopicAdmin` over a dictionary. The fields at the top are the faults a test may set."""

    def __init__(self, topics: Sequence[ObservedTopic] = (), *, cluster: str = "cluster-1") -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.cluster = cluster
        self.unreadable: dict[str, str] = {}
        self.failing: dict[str, str] = {}
        self.dies_at: str | None = None  # the name of the call that gets no answer, after it was carried out
        self.calls: list[str] = []
        self._ids = count(1)

    def cluster_id(self) -> str:
        return self.cluster

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        self.calls.append("observe")
        if refused := {name: self.unreadable[name] for name in names if name in self.unreadable}:
            raise TopicAccessError(refused)
        return {name: self.topics[name] for name in names if name in self.topics}

    def names(self) -> Collection[str]:
        self.calls.append("names")
        return set(self.topics)

    def create(self, topics: Sequence[NewTopic]) -> Mapping[str, str | None]:
        return self._each("create", {topic.name: topic for topic in topics}, self._create)

    def add_partitions(self, totals: Mapping[str, int]) -> Mapping[str, str | None]:
        return self._each("add_partitions", totals, self._grow)

    def set_config(self, changes: Mapping[str, Mapping[str, str | None]]) -> Mapping[str, str | None]:
        return self._each("set_config", changes, self._set)

    def recreate(self, name: str) -> None:
        """Delete a topic and make it again: all the same, but its id."""
        self.topics[name] = replace(self.topics[name], topic_id=f"id-{next(self._ids)}-again")

    def _each(self, call, wanted, do) -> Mapping[str, str | None]:  # type: ignore[no-untyped-def]
        self.calls.append(call)
        answers = {name: self.failing.get(name) or do(name, value) for name, value in wanted.items()}
        if self.dies_at == call:
            raise UnreachableError("the Kafka cluster does not answer", where="fake")
        return answers

    def _create(self, name: str, topic: NewTopic) -> str | None:
        if name in self.topics:
            return f"TOPIC_ALREADY_EXISTS: Topic '{name}' already exists."
        if alike := [each for each in self.topics if each.replace(".", "_") == name.replace(".", "_")]:
            return f"INVALID_TOPIC_EXCEPTION: Topic '{name}' collides with existing topic: {alike[0]}"
        if unknown := sorted(set(topic.config) - set(DEFAULTS)):
            return f"INVALID_CONFIG: Unknown topic config name: {unknown[0]}"
        partitions, replication = max(topic.partitions, 1), max(topic.replication, 1)
        self.topics[name] = ObservedTopic(
            name, f"id-{next(self._ids)}", partitions, replication, dict(topic.config), _rest(topic.config)
        )
        return None

    def _grow(self, name: str, total: int) -> str | None:
        if name not in self.topics:
            return "UNKNOWN_TOPIC_OR_PART: Unknown topic or partition"
        if total <= self.topics[name].partitions:
            return f"INVALID_PARTITIONS: Topic already has {self.topics[name].partitions} partition(s)."
        self.topics[name] = replace(self.topics[name], partitions=total)
        return None

    def _set(self, name: str, values: Mapping[str, str | None]) -> str | None:
        if name not in self.topics:
            return f"UNKNOWN_TOPIC_OR_PART: The topic '{name}' does not exist."
        if unknown := sorted(set(values) - set(DEFAULTS)):
            return f"INVALID_CONFIG: Unknown topic config name: {unknown[0]}"
        config = {k: v for k, v in {**self.topics[name].config, **values}.items() if v is not None}
        self.topics[name] = replace(self.topics[name], config=config, defaults=_rest(config))
        return None


def _rest(config: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in DEFAULTS.items() if key not in config}
