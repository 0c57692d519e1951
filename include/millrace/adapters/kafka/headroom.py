"""What a reader has not read of its topics, and how long that stays there, asked of the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.retention.headroom import Headroom, Limits, Unread, headroom, least
from millrace.domain.rewind.time_travel import PartitionTimes
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.ports.kafka import TopicAdmin

RATE_OVER = timedelta(minutes=10)
MOST_PARTITIONS = 32  # that a record is fetched of: those with the most unread records
_SAMPLED = 100
_RECORD_BYTES = 32  # that a record takes in a log beside key, value and headers, about


class UnreadLogs:
    """Looks at what is not read of the logs of one cluster.

    Args:
        log: asks for bounds and times.
        admin: asks for the topics' limits.
        reader: fetches some of the first unread records.
        clock: the present, in UTC.
    """

    def __init__(
        self,
        log: KafkaLog,
        admin: TopicAdmin,
        reader: TopicReader,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._log = log
        self._admin = admin
        self._reader = reader
        self._clock = clock

    def least(self, positions: Mapping[TopicPartition, int]) -> Headroom | None:
        """The unread record that may be deleted first; None: none may, by what is known.

        The rate is that of the last ten minutes, by the records' timestamps; sizes are those of some records, not
        compressed.

        Args:
            positions: the next offset to read of each partition.

        Raises:
            UnreachableError: a broker does not answer.
            DataLossError: what was unread has been deleted while it was looked at.
        """
        now = self._clock()
        names = {partition.topic for partition in positions}
        limits = {name: _limits(topic) for name, topic in self._admin.observe(names).items()}
        limited = [p for p in positions if limits.get(p.topic, Limits()) != Limits()]
        leaders = self._log.leaders(sorted({partition.topic for partition in limited}))
        asked = [partition for partition in limited if leaders.get(partition)]
        times = self._log.times(asked, _ms(now - RATE_OVER))
        behind = {p: times[p].bounds.end - max(positions[p], times[p].bounds.start) for p in asked}
        worst = sorted((p for p in asked if behind[p] > 0), key=lambda p: (-behind[p], p))[:MOST_PARTITIONS]
        found = [headroom(self._unread(p, positions[p], times[p]), limits[p.topic], _ms(now)) for p in sorted(worst)]
        return least(one for one in found if one is not None)

    def _unread(self, partition: TopicPartition, position: int, times: PartitionTimes) -> Unread:
        bounds = times.bounds
        first = max(position, bounds.start)
        records = self._reader.between(partition.topic, partition.partition, first, min(first + _SAMPLED, bounds.end))
        sample = list(islice(records, _SAMPLED))
        sizes = [
            _RECORD_BYTES
            + len(record.key or b"")
            + len(record.value or b"")
            + sum(len(name) + len(value or b"") for name, value in record.headers)
            for record in sample
        ]
        each = sum(sizes) / len(sizes) if sizes else 0.0
        recent = bounds.end - times.at.offset if times.at else 0
        return Unread(
            partition=partition,
            first=first,
            first_ms=sample[0].timestamp_ms if sample else None,
            bytes=each * (bounds.end - first),
            bytes_per_second=each * recent / RATE_OVER.total_seconds(),
        )


def _limits(topic: ObservedTopic) -> Limits:
    if "delete" not in topic.setting("cleanup.policy").split(","):
        return Limits()
    time_ms, size = (_number(topic.setting(key)) for key in ("retention.ms", "retention.bytes"))
    return Limits(None if time_ms is None else timedelta(milliseconds=time_ms), size)


def _number(text: str) -> int | None:
    """A limit as Kafka has it: -1, and what no time can hold, is without limit."""
    number = int(text) if text else -1
    longest = timedelta.max // timedelta(milliseconds=1)
    return None if number < 0 or number > longest else number


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
