"""Rows made once more from their records, and how they differ from those that are stored.

The books tell that of every offset something came; only making it again tells whether what is stored is what the app
makes. A sample is taken in places of some adjacent offsets, for to begin to read costs more than to read on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

from millrace.domain.archive.spans import Spans
from millrace.domain.books import SourceAt
from millrace.domain.offsets import OffsetRange, TopicPartition
from millrace.domain.position import LogBounds
from millrace.domain.quality.books import skipped
from millrace.domain.quality.ranges import Mark, Work, gained
from millrace.domain.quarantine import Rule

MOST_SAMPLED = 100_000
"""So many offsets are read again at most."""
_PLACE = 20
_NAMED = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999


class Difference(StrEnum):
    """How what is stored of a record is not what the app makes of it."""

    CHANGED = "changed"  # a column of a row has another value
    UNMADE = "unmade"  # a row is stored, and the app makes none
    UNSTORED = "unstored"  # the app makes a row, and nothing of the record is stored
    BAD = "bad"  # the record is bad, and is not in quarantine
    GOOD = "good"  # the record is in quarantine, and is not bad
    OTHER_RULE = "other rule"  # it is in quarantine, and breaks another rule than the one that is stored
    NO_RECORD = "no record"  # something is stored of an offset that holds no record


@dataclass(frozen=True, slots=True)
class Compared:
    """One row, or one record in quarantine, held against what the app makes of its record.

    Attributes:
        source: the record's place.
        timestamp_ms: the record's timestamp; None where it has none, or there is no record.
        difference: None where there is none.
        columns: the columns that differ, of a row that is changed.
    """

    source: SourceAt
    timestamp_ms: int | None
    difference: Difference | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Apart:
    """One way in which rows differ, and the span of time of their records.

    Attributes:
        difference: how.
        column: of a change, which; else empty.
        rows: how many rows, or records in quarantine.
        named: the first of them, by partition and offset.
        since: the first timestamp of their records; None where none of them has one that is a time.
        until: the last one.
        before: how many others, that are not apart in this way, have a record with an earlier timestamp.
        between: how many of the others one from `since` to `until`.
        after: how many of the others a later one.
    """

    difference: Difference
    column: str
    rows: int
    named: tuple[SourceAt, ...]
    since: datetime | None = None
    until: datetime | None = None
    before: int = 0
    between: int = 0
    after: int = 0


class Likeness(StrEnum):
    """What came of it."""

    ALIKE = "alike"
    DIFFERENT = "different"
    NOTHING = "nothing"  # there was nothing to compare: that is no success


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of a sample that was made again.

    Attributes:
        offsets: how many offsets were to be read.
        records: how many records were read; other offsets held none.
        unread: how many offsets the log does not hold any more.
        compared: how many rows, and records in quarantine, there were or should have been.
        alike: how many of them are as the app makes them.
        apart: how the others are not, each with how many.
        lacking: columns that the app gives and the table does not have.
        idle: columns that the table has and the app does not give; they are not compared.
    """

    offsets: int = 0
    records: int = 0
    unread: int = 0
    compared: int = 0
    alike: int = 0
    apart: tuple[Apart, ...] = ()
    lacking: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def likeness(self) -> Likeness:
        """The verdict."""
        if self.apart or (self.lacking and self.compared):
            return Likeness.DIFFERENT
        return Likeness.ALIKE if self.compared else Likeness.NOTHING


def readable(work: Sequence[Work], bounds: Mapping[TopicPartition, LogBounds]) -> tuple[OffsetRange, ...]:
    """What a stream has worked on and its log still holds.

    Args:
        work: all rows of the record of work, of every timeline.
        bounds: of the topics as they are now; a former topic of the same name has another id.

    Returns:
        In the order of partition and offset; none is empty.
    """
    found = []
    for range_ in gained(Mark(), work):
        if (log := bounds.get(range_.partition)) is None:
            continue
        there = Spans([(max(range_.first, log.start), min(range_.next, log.end))])
        worked = there.minus(skipped(work, range_))
        found += [OffsetRange(range_.partition, first, next_) for first, next_ in worked]
    return tuple(found)


def sampled(ranges: Sequence[OffsetRange], count: int, random: Random) -> tuple[OffsetRange, ...]:
    """About so many offsets of these ranges, in places of adjacent ones, each as likely as any other; or all of them.

    Args:
        ranges: what there is; none overlaps another.
        count: how many offsets; at least one.
        random: decides; of the same seed it decides the same for the same ranges.
    """
    if sum(map(len, ranges)) <= count:
        return tuple(ranges)
    places = [-(-len(range_) // _PLACE) for range_ in ranges]
    chosen = sorted(random.sample(range(sum(places)), min(sum(places), -(-count // _PLACE))))
    found: list[OffsetRange] = []
    at, before = 0, 0
    for place in chosen:
        while place >= before + places[at]:
            before += places[at]
            at += 1
        whole = ranges[at]
        first = whole.first + (place - before) * _PLACE
        next_ = min(first + _PLACE, whole.next)
        if found and (found[-1].partition, found[-1].next) == (whole.partition, first):
            first = found.pop().first
        found.append(OffsetRange(whole.partition, first, next_))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Made:
    """What the app makes of some records, and what is stored of them.

    Attributes:
        timestamps: the records that were read, each with its timestamp in milliseconds since 1970, if it has one.
        bad: those that are bad, each with the rule it breaks.
        rows: each row that is made, stored, or both: its source, whether it is made, whether it is stored, and which
            columns differ.
        quarantined: what is in quarantine, each with the rule that is stored.
    """

    timestamps: Mapping[SourceAt, int | None]
    bad: Mapping[SourceAt, str]
    rows: Sequence[tuple[SourceAt, bool, bool, tuple[str, ...]]]
    quarantined: Mapping[SourceAt, str]


def compared(made: Made) -> Iterator[Compared]:
    """Hold each row, and each record in quarantine, against what the app makes of its record.

    Whether the sink would refuse a row once more is not known here: what is in quarantine because it did is taken as it
    is where the app makes rows of it.
    """
    made_of = {source for source, is_made, _, _ in made.rows if is_made}
    stored_of = {source for source, _, is_stored, _ in made.rows if is_stored}

    def said(source: SourceAt, difference: Difference | None, columns: tuple[str, ...] = ()) -> Compared:
        return Compared(source, made.timestamps.get(source), difference, columns)

    for source, is_made, is_stored, columns in made.rows:
        if is_made and is_stored:
            yield said(source, Difference.CHANGED if columns else None, columns)
        elif is_stored:
            no_record = source not in made.timestamps
            bad = Difference.BAD if source in made.bad else Difference.UNMADE
            yield said(source, Difference.NO_RECORD if no_record else bad)
        elif source not in made.quarantined:
            yield said(source, Difference.UNSTORED)
    for source, rule in made.quarantined.items():
        if source not in made.timestamps:
            yield said(source, Difference.NO_RECORD)
        elif source in made.bad:
            yield said(source, None if made.bad[source] == rule else Difference.OTHER_RULE)
        else:
            refused = rule == Rule.SINK_REFUSED and source in made_of
            yield said(source, None if refused else Difference.GOOD)
    for source in made.bad.keys() - made.quarantined.keys() - stored_of:
        yield said(source, Difference.BAD)


@dataclass(slots=True)
class Tally:
    """Counts what was compared; memory grows with the rows that differ, and by a number with each other."""

    compared: int = 0
    alike: int = 0
    _times: list[int] = field(default_factory=list)
    _apart: dict[tuple[Difference, str], list[Compared]] = field(default_factory=dict)

    def add(self, found: Iterable[Compared]) -> None:
        """Count these too."""
        for one in found:
            self.compared += 1
            if one.timestamp_ms is not None:
                self._times.append(one.timestamp_ms)
            if one.difference is None:
                self.alike += 1
                continue
            for column in one.columns or ("",):
                self._apart.setdefault((one.difference, column), []).append(one)

    def apart(self) -> tuple[Apart, ...]:
        """How rows differ: the columns first, the most frequent first."""
        times = sorted(self._times)
        found = [_apart(difference, column, rows, times) for (difference, column), rows in self._apart.items()]
        order = list(Difference)
        return tuple(sorted(found, key=lambda one: (order.index(one.difference), -one.rows, one.column)))


def _apart(difference: Difference, column: str, rows: Sequence[Compared], times: Sequence[int]) -> Apart:
    named = tuple(sorted({row.source for row in rows})[:_NAMED])
    own = sorted(row.timestamp_ms for row in rows if row.timestamp_ms is not None)
    if not own:
        return Apart(difference, column, len(rows), named)
    before, after = bisect_left(times, own[0]), len(times) - bisect_right(times, own[-1])
    return Apart(
        difference,
        column,
        len(rows),
        named,
        _moment(own[0]),
        _moment(own[-1]),
        before=before,
        between=len(times) - len(own) - before - after,
        after=after,
    )


def _moment(timestamp_ms: int) -> datetime | None:
    return _EPOCH + timedelta(milliseconds=timestamp_ms) if _FIRST_MS <= timestamp_ms <= _LAST_MS else None
