"""Which offsets a window of time is, by the records' timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.rewind.time_travel import PartitionTimes, Quality, Resolved, resolve
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, RefusedError, UnreachableError, UsageError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

IN_A_ROW = 1_000
MOST_READ = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ranges_between(
    platform: Platform, pipeline: Pipeline, stream: Stream, since: datetime, until: datetime
) -> tuple[OffsetRange, ...]:
    """The offsets from the first record at or after one time up to the last before another, by partition.

    The broker names the first record at or after a time, and behind that one earlier ones may follow: records are read
    on until a thousand in a row are not of the window. What lies further behind is not found, and where timestamps do
    not rise, the offsets hold records of other times too.

    Args:
        platform: the adapters.
        pipeline: whose cluster it is.
        stream: whose topics are asked.
        since: when the window begins.
        until: when it ends, exclusive.

    Raises:
        UsageError: it ends before it begins.
        RefusedError: a log begins after the window does: of the rows below it nobody knows the time. Or timestamps do
            not rise at all, so that its end would have to be looked for in the whole log.
        UnreachableError: a broker does not answer, or a partition has no leader.
    """
    if since >= until:
        raise UsageError(
            "the window ends before it begins", next_step="give a --from before --to", code=Code.WRONG_TIME
        )
    log = platform.kafka.logs(pipeline.kafka)
    leaders = log.leaders(stream.reads)
    if silent := sorted(str(partition) for partition, has_one in leaders.items() if not has_one):
        raise UnreachableError(
            f"{', '.join(silent)} has no leader", next_step="check the brokers", code=Code.KAFKA_UNREACHABLE
        )
    begins, ends = (log.times(list(leaders), (at - _EPOCH) // timedelta(milliseconds=1)) for at in (since, until))
    found = []
    for partition in sorted(leaders):
        first = _first(partition, resolve((since - _EPOCH) // timedelta(milliseconds=1), begins[partition]))
        end = _end(resolve((until - _EPOCH) // timedelta(milliseconds=1), ends[partition]), ends[partition])
        if first is not None:
            end = _later(platform, pipeline.kafka, partition, max(first, end), ends[partition].bounds.end, until)
        if first is not None and first < end:
            found.append(OffsetRange(partition, first, end))
    return tuple(found)


def _first(partition: TopicPartition, resolved: Resolved) -> int | None:
    """The first offset of a window; None where no record is that late."""
    if resolved.quality is Quality.BEFORE_LOG_START:
        raise RefusedError(
            f"the log of {partition} begins after the window: the times of earlier records are unknown",
            where=str(partition),
            next_step="choose a later --from",
            code=Code.WRONG_TIME,
        )
    return resolved.offset if resolved.quality is Quality.EXACT else None


def _later(platform: Platform, kafka: str, partition: TopicPartition, end: int, stop: int, until: datetime) -> int:
    """The offset after the last record before a time, looked for from where the broker says that it is."""
    time_ms, strangers = (until - _EPOCH) // timedelta(milliseconds=1), 0
    records = platform.kafka.records(kafka).between(partition.topic, partition.partition, end, stop)
    for count, record in enumerate(records, 1):
        if record.timestamp_ms is not None and 0 <= record.timestamp_ms < time_ms:
            end, strangers = record.offset + 1, 0
        elif (strangers := strangers + 1) >= IN_A_ROW:
            break
        if count >= MOST_READ:
            raise RefusedError(
                f"timestamps of {partition} are not in order: the window still had records {count:,} records after "
                "its end",
                where=str(partition),
                next_step="choose another --to",
                code=Code.WRONG_TIME,
            )
    return end


def _end(resolved: Resolved, seen: PartitionTimes) -> int:
    """The offset after a window; the log's end where no record is that late."""
    return seen.bounds.end if resolved.offset is None else resolved.offset
