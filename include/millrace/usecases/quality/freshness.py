"""How old the newest of a stream's table is, in the parts of its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.ranges import Work, reached
from millrace.domain.quality.results import Freshness, QualityCheck
from millrace.domain.quality.rules import Fresh, Rule
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

AHEAD = timedelta(minutes=5)
"""A record that is dated further ahead makes nothing fresh."""
MOST_READ = 32
"""Of so many partitions a record is fetched: of those that have the most to do."""
_BACK = 20
_NEVER = 2**62  # milliseconds: no record is that late, so that the broker names the one with the greatest timestamp
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def look_at_freshness(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    work: Sequence[Work],
    visible_at: datetime | None,
    last: QualityCheck | None,
    now: datetime,
) -> Freshness:
    """What is known of it before the rows are looked at; where no rule asks, nothing is."""
    if not work or not any(isinstance(rule.check, Fresh) for rule in _rules(stream)):
        return Freshness(now)
    progress = platform.control.streams.progress(stream.qualified_name)
    return Freshness(
        checked_at=now,
        events={} if last is None or last.freshness is None else last.freshness.events,
        record_at=_newest_record(platform, pipeline.kafka, reached(work).offsets, now),
        batch_at=None if progress is None else progress.at - timedelta(seconds=progress.batch_seconds),
        visible_at=visible_at,
    )


def _rules(stream: Stream) -> Sequence[Rule]:
    return stream.quality.rules if stream.quality is not None else ()


def known_ages(rules: Sequence[Rule], freshness: Freshness) -> dict[str, float]:
    """How old the newest is that was seen before these rows, or that Kafka knows, by rule of freshness, in seconds."""
    found = {}
    for rule in rules:
        if isinstance(rule.check, Fresh):
            at = freshness.record_at if rule.check.column is None else freshness.events.get(_event(rule))
            if at is not None:
                found[rule.name] = (freshness.checked_at - at).total_seconds()
    return found


def with_events(rules: Sequence[Rule], known: Freshness, ages: Mapping[str, float], now: datetime) -> Freshness | None:
    """The same with the newest event that rules of freshness found; None where no rule asks.

    Args:
        rules: all of a stream.
        known: what was known before.
        ages: what they found, in seconds, by rule.
        now: when.
    """
    fresh = [rule for rule in rules if isinstance(rule.check, Fresh)]
    if not fresh:
        return None
    found = {_event(rule): now - timedelta(seconds=ages[rule.name]) for rule in fresh if rule.name in ages}
    named = {_event(rule) for rule in fresh if isinstance(rule.check, Fresh) and rule.check.column is not None}
    events = {event: at for event, at in {**known.events, **found}.items() if event in named}
    return replace(known, events=events)


def _event(rule: Rule) -> str:
    """What the newest event of a rule is called: a rule that is about another column now begins anew."""
    return f"{rule.name}/{rule.check.column}" if isinstance(rule.check, Fresh) else rule.name


def _newest_record(
    platform: Platform, kafka: str, positions: Mapping[TopicPartition, int], now: datetime
) -> datetime | None:
    """The newest timestamp of records that are done; None where no broker tells it: the rest can be checked then."""
    try:
        return _newest(platform, kafka, positions, now)
    except MillraceError:
        return None


def _newest(platform: Platform, kafka: str, positions: Mapping[TopicPartition, int], now: datetime) -> datetime | None:
    log, reader = platform.kafka.logs(kafka), platform.kafka.records(kafka)
    there = log.leaders({partition.topic for partition in positions})
    asked = [partition for partition in positions if there.get(partition)]
    seen = log.times(asked, _NEVER)
    found: list[datetime] = []
    unread: list[TopicPartition] = []
    for partition in asked:
        latest = seen[partition].latest
        if latest is not None and latest.offset < positions[partition] and _at(latest.timestamp_ms) <= now + AHEAD:
            found.append(_at(latest.timestamp_ms))
        elif latest is not None:
            unread.append(partition)
    behind = sorted(unread, key=lambda p: (positions[p] - seen[p].bounds.end, p))
    for partition in behind[:MOST_READ]:
        end, start = min(positions[partition], seen[partition].bounds.end), seen[partition].bounds.start
        if start < end:
            records = reader.between(partition.topic, partition.partition, max(start, end - _BACK), end)
            found += _times((record.timestamp_ms for record in islice(records, _BACK)), now)
    return max(found, default=None)


def _times(timestamps: Iterable[int | None], now: datetime) -> list[datetime]:
    moments = [_at(each) for each in timestamps if each is not None and 0 <= each < 2**47]
    return [moment for moment in moments if moment <= now + AHEAD]


def _at(timestamp_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(timestamp_ms, 2**47))
