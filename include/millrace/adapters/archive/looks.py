"""A look at topics and their logs, as the writer of an archive needs it: topic ids, bounds, what their cleaners do."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.archive.proof.tiling import LogsSeen, ObservedLog
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, TopicAccessError, UnreachableError
from millrace.ports.kafka import TopicAdmin

_TOMBSTONES = "delete.retention.ms"
_POLICY = "cleanup.policy"
_TRIES = 3
_ANSWER_WITHIN = timedelta(seconds=5)
_SPARED_SECONDS = 30.0
_REMADE = f"it was deleted or created in each of {_TRIES} looks, or two brokers disagree on its id"


class Looks:
    """Looks at topics of one cluster, all of them in a few requests.

    Args:
        log: asks for bounds.
        admin: asks for topics and their settings.
        clock: the present, in UTC.
        seconds: of the machine's monotonic clock.
    """

    def __init__(
        self,
        log: KafkaLog,
        admin: TopicAdmin,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._admin = admin
        self._clock = clock
        self._seconds = seconds
        self._spared: dict[int, tuple[float, str]] = {}  # silent brokers: until when they are not asked, and why
        self._heard: dict[int, float] = {}  # brokers: when they last answered

    def look(self, topics: Collection[str]) -> dict[str, ObservedLog]:
        """Return each of these topics as it is now; a partition without a leader has no bounds.

        Raises:
            UnreachableError: a broker does not answer.
            TopicAccessError: some topics may not be described.
        """
        for _ in range(_TRIES):
            seen, remade = self._all(topics)
            if not remade:
                return dict(seen.logs)
        raise UnreachableError(
            f"topics were deleted or created {_TRIES} times while Millrace read them",
            where=", ".join(sorted(remade)),
            next_step="find out who creates and deletes them",
            code=Code.RECREATED_TOPIC,
        )

    def look_around(self, topics: Collection[str]) -> LogsSeen:
        """Return what answers about these topics, and name the rest. For rounds that come again, not for a proof.

        A broker that does not answer costs five seconds once in half a minute, however many partitions it leads.

        Raises:
            UnreachableError: no broker answers.
        """
        logs: dict[str, ObservedLog] = {}
        silent: dict[str, str] = {}
        left: Collection[str] = topics
        for _ in range(_TRIES):
            seen, left = self._answering(left)
            logs |= seen.logs
            silent |= seen.silent
            if not left:
                break
        return LogsSeen(logs, silent | dict.fromkeys(left, _REMADE))

    def _all(self, topics: Collection[str]) -> tuple[LogsSeen, Collection[str]]:
        at = self._clock()
        leaders = self._log.leaders(topics)
        bounds = self._log.bounds([partition for partition, has_one in leaders.items() if has_one])
        return _seen(topics, at, leaders, bounds, self._admin.observe(topics), {})

    def _answering(self, topics: Collection[str]) -> tuple[LogsSeen, Collection[str]]:
        at = self._clock()
        described = self._log.described(topics)
        silent = {topic: error.args[0].str() for topic, error in described.refused.items()}
        bounds, unanswered = self._answered_bounds(described.leaders)
        silent |= {f"{partition.topic}/{partition.partition}": why for partition, why in unanswered.items()}
        settings = self._settings([topic for topic in topics if topic not in silent], silent)
        return _seen(topics, at, described.leaders, bounds, settings, silent)

    def _settings(self, topics: Sequence[str], silent: dict[str, str]) -> Mapping[str, ObservedTopic]:
        """Return the topics with their settings; those that may not be described are silent."""
        while True:
            try:
                return self._admin.observe(topics)
            except TopicAccessError as error:  # again where rights change meanwhile; each time fewer topics are left
                silent |= error.failures
                topics = [topic for topic in topics if topic not in error.failures]

    def _answered_bounds(
        self, leaders: Mapping[TopicPartition, int | None]
    ) -> tuple[Mapping[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        now = self._seconds()
        self._spared = {broker: spared for broker, spared in self._spared.items() if spared[0] > now}
        silent = {
            partition: "it has no leader" if leader is None else self._spared[leader][1]
            for partition, leader in leaders.items()
            if leader is None or leader in self._spared
        }
        asked = [partition for partition in leaders if partition not in silent]
        answers = self._log.answered_bounds(asked, _ANSWER_WITHIN)
        unanswered = {p: f"broker {leaders[p]}: {why}" for p, why in answers.failed.items()}
        self._spare(leaders, asked, answers.unheard, unanswered)
        return answers.found, silent | unanswered

    def _spare(
        self,
        leaders: Mapping[TopicPartition, int | None],
        asked: Collection[TopicPartition],
        unheard: Collection[TopicPartition],
        unanswered: Mapping[TopicPartition, str],
    ) -> None:
        """Ask no more of brokers that sent nothing, for a while, where another broker has answered lately.

        Where none has, the cause may be on this side. That other answer may be of an earlier look: one at a single
        topic asks a single broker.
        """
        now = self._seconds()
        heard = {leaders[partition] for partition in asked if partition not in unheard}
        self._heard |= {broker: now for broker in heard if broker is not None}
        for partition in unheard:
            leader = leaders[partition]
            if leader is None or leader in heard:
                continue
            if any(now - at <= _SPARED_SECONDS for broker, at in self._heard.items() if broker != leader):
                self._spared[leader] = (now + _SPARED_SECONDS, unanswered[partition])


def _seen(
    topics: Collection[str],
    at: datetime,
    leaders: Collection[TopicPartition],
    bounds: Mapping[TopicPartition, LogBounds],
    settings: Mapping[str, ObservedTopic],
    silent: Mapping[str, str],
) -> tuple[LogsSeen, Collection[str]]:
    """Put a look together, and name the topics that were made or deleted in between.

    Bounds are asked for by name: those of a topic made anew in between would be taken for the former one's. A broker
    whose metadata are stale looks the same.
    """
    ids = {partition.topic: partition.topic_id for partition in leaders}
    found = {topic: settings[topic].topic_id if topic in settings else None for topic in topics}
    remade = [topic for topic in topics if topic not in silent and ids.get(topic) != found[topic]]
    left_out = {*silent, *remade}
    logs = {
        topic: _observed(topic, at, leaders, bounds, settings.get(topic)) for topic in topics if topic not in left_out
    }
    of_remade = {f"{p.topic}/{p.partition}" for p in leaders if p.topic in remade}
    return LogsSeen(logs, {name: why for name, why in silent.items() if name not in of_remade}), remade


def _observed(
    topic: str,
    at: datetime,
    leaders: Collection[TopicPartition],
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
