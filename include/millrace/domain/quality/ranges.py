"""Which rows a check is about: what the record of work gained since what is proven.

Rows below the record of work do not change but by a rewind, which opens a new timeline and writes again what lies
between its first offset and the former end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.domain.topics.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Work:
    """A row of a sink's record of work: what one timeline has done of a partition, `first <= offset < next`."""

    timeline: int
    partition: TopicPartition
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to where rows are proven, exclusive, as of a timeline. Timeline 0 with no offsets: nothing is.

    Attributes:
        timeline: the newest when that was so.
        offsets: by partition.
        older: the timeline of the partitions that had no part in the newest yet; they may join it later.
    """

    timeline: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    older: Mapping[TopicPartition, int] = field(default_factory=dict)

    def timeline_of(self, partition: TopicPartition) -> int:
        """As of which timeline a partition's offset is."""
        return self.older.get(partition, self.timeline)


def covers_any(work: Iterable[Work]) -> bool:
    """Return whether a record of work covers any offset.

    A first start writes the rows of this record some seconds before it creates the table.
    """
    return any(row.next > row.first for row in work)


def reached(work: Iterable[Work]) -> Mark:
    """Where a record of work stands now.

    Args:
        work: all rows of the stream's record of work, of every timeline.
    """
    rows = tuple(work)
    timeline = max((row.timeline for row in rows), default=0)
    # Of a partition that the newest timeline has no row for, the newest that has one says where it stands.
    newest: dict[TopicPartition, Work] = {}
    for row in rows:
        held = newest.get(row.partition)
        if held is None or (row.timeline, -row.next) > (held.timeline, -held.next):
            newest[row.partition] = row
    older = {partition: row.timeline for partition, row in newest.items() if row.timeline != timeline}
    return Mark(timeline, {partition: row.next for partition, row in newest.items()}, older)


def gained(mark: Mark, work: Iterable[Work]) -> tuple[OffsetRange, ...]:
    """The offsets whose rows are not proven: from the mark, or from where a newer timeline began, to the record's end.

    Args:
        mark: what is proven.
        work: all rows of the stream's record of work, of every timeline.

    Returns:
        By partition; none is empty.
    """
    rows = tuple(work)
    ends = reached(rows).offsets
    begins: dict[TopicPartition, int] = {}
    for row in rows:
        known = mark.offsets.get(row.partition)
        if known is None or row.timeline > mark.timeline_of(row.partition):
            begins[row.partition] = min(begins.get(row.partition, row.first), row.first)
    found = []
    for partition, end in sorted(ends.items()):
        known = mark.offsets.get(partition)
        first = min(each for each in (known, begins.get(partition)) if each is not None)
        if first < end:
            found.append(OffsetRange(partition, first, end))
    return tuple(found)


def bounded(ranges: Sequence[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """The first offsets of these ranges, so many at most; what is small is whole, what is large shares the rest."""
    found: dict[TopicPartition, OffsetRange] = {}
    for place, one in enumerate(sorted(ranges, key=len)):
        share = min(len(one), most // (len(ranges) - place))
        most -= share
        if share:
            found[one.partition] = OffsetRange(one.partition, one.first, one.first + share)
    return tuple(found[one.partition] for one in ranges if one.partition in found)


def proven(reached_: Mark, all_: Sequence[OffsetRange], looked: Sequence[OffsetRange]) -> Mark:
    """Up to where rows are proven once some of the ranges that were not are.

    Args:
        reached_: where the record of work stands.
        all_: what is not proven.
        looked: the part of it that was looked at, from the beginning of each.
    """
    left = {one.partition: one.first for one in all_}
    ends = {one.partition: one.next for one in looked}
    return Mark(reached_.timeline, {**reached_.offsets, **left, **ends}, reached_.older)


def within(ranges: Sequence[OffsetRange], work: Iterable[Work]) -> tuple[OffsetRange, ...]:
    """The part of these ranges that the record of work has reached; none is empty."""
    ends = reached(work).offsets
    found = []
    for one in ranges:
        end = min(one.next, ends.get(one.partition, 0))
        if one.first < end:
            found.append(OffsetRange(one.partition, one.first, end))
    return tuple(found)
