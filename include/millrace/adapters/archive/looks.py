"""A look at topics and their logs, as the writer of an archive needs it: topic ids, bounds, what their cleaners do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from millrace.adapters.kafka_log import KafkaLog
from millrace.domain.archive.tiling import ObservedLog
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds
from millrace.domain.topics import ObservedTopic
from millrace.errors import UnreachableError
from millrace.ports import TopicAdmin

_TOMBSTONES = "delete.retention.ms"
_POLICY = "cleanup.policy"
_TRIES = 3


class Looks:
    """Looks at topics of one cluster, all of them in a few requests.

    Args:
        log: asks for bounds.
        admin: asks for topics and their settings.
        clock: the present, in UTC.
    """

    def __init__(
        self, log: KafkaLog, admin: TopicAdmin, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._log = log
        self._admin = admin
        self._clock = clock

    def look(self, topics: Collection[str]) -> dict[str, ObservedLog]:
        """Each of these topics as it is now; of partitions without a leader nobody knows the bounds.

        Raises:
            UnreachableError: a broker does not answer.
            TopicAccessError: some topics may not be described.
        """
        for _ in range(_TRIES):
            at = self._clock()
            leaders = self._log.leaders(topics)
            bounds = self._log.bounds([partition for partition, has_one in leaders.items() if has_one])
            settings = self._admin.observe(topics)
            ids = {partition.topic: partition.topic_id for partition in leaders}
            # Bounds are asked for by name: of a topic made anew in between they would be taken for the former one's.
            if ids == {name: topic.topic_id for name, topic in settings.items()}:
                return {topic: _observed(topic, at, leaders, bounds, settings.get(topic)) for topic in topics}
        raise UnreachableError(
            f"topics were deleted or made {_TRIES} times while they were looked at",
            where=", ".join(sorted(topics)),
            next_step="see who makes and deletes them",
        )


def _observed(
    topic: str,
    at: datetime,
    leaders: Mapping[TopicPartition, bool],
    bounds: Mapping[TopicPartition, LogBounds],
    settings: ObservedTopic | None,
) -> ObservedLog:
    partitions = [partition for partition in leaders if partition.topic == topic]
    return ObservedLog(
        at=at,
        topic_id=settings.topic_id if settings else None,
        bounds={each.partition: bounds[each] for each in partitions if each in bounds},
        delete_retention_ms=_tombstones_ms(settings),
        partitions=len(partitions),
    )


def _tombstones_ms(topic: ObservedTopic | None) -> int | None:
    """For how long the topic's cleaner leaves tombstones; None where it is not compacted."""
    if topic is None or "compact" not in topic.setting(_POLICY).split(","):
        return None
    return max(0, int(topic.setting(_TOMBSTONES) or 0))
