"""Rows made once more from their records, and how they differ from those that are stored.

The books tell that of every offset something came; only making it again tells whether what is stored is what the app
makes. A sample is taken in places of some adjacent offsets, for to begin to read costs more than to read on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from operator import itemgetter
from random import Random

from millrace.domain.archive.proof.spans import Spans
from millrace.domain.formats.years import FIRST_MS, LAST_MS
from millrace.domain.quality.books import skipped
from millrace.domain.quality.ranges import Mark, Work, gained
from millrace.domain.quarantine.rules import Rule
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition

MOST_SAMPLED = 100_000
"""So many offsets are read again at most."""
_PLACE = 20
_NAMED = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Difference(StrEnum):
    """How what is stored of a record is not what the app makes of it."""

    CHANGED = "changed"  # a column of a row has another value
    UNMADE = "unmade"  # a row is stored, and the app makes none
    UNSTORED = "unstored"  # the app makes a row, and nothing of the record is stored
    BAD = "bad"  # the record is bad, and is not in quarantine
    GOOD = "good"  # the record is in quarantine, and is not bad
    OTHER_RULE = "other rule"  # it is in quarantine, and breaks another rule than the one that is stored


_SAID = {
    Difference.UNMADE: "stored, and the app makes no row of the record",
    Difference.UNSTORED: "made by the app, and nothing of the record is stored",
    Difference.BAD: "the record is bad, and is not in quarantine",
    Difference.GOOD: "in quarantine, and the record is not bad",
    Difference.OTHER_RULE: "in quarantine under another rule than the record breaks",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Rows of one record that are made, stored, or both, and if both differ in the same columns; how many they are."""

    source: SourceAt
    made: bool
    stored: bool
    columns: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of one record, or its entry in quarantine, held against what the app makes of it.

    Attributes:
        source: the record's place.
        timestamp_ms: the record's timestamp; None where it has none.
        difference: None where there is none.
        columns: the columns that differ, of a row that is changed.
        rows: how many rows of the record this is said of.
    """

    source: SourceAt
    timestamp_ms: int | None
    difference: Difference | None = None
    columns: tuple[str, ...] = ()
    rows: int = 1


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

    def __str__(self) -> str:
        """In a line, with the first sources."""
        text = f"column {self.column}: differs" if self.difference is Difference.CHANGED else _SAID[self.difference]
        text += f": {self.rows:,}"
        if self.since is not None and self.until is not None:
            until = f" to {_text(self.until)}" if self.since < self.until else ""
            text += f", of records of {_text(self.since)}{until}"
            text += f"; of the others {self.before:,} before, {self.between:,} between and {self.after:,} after"
        more = f" and {self.rows - len(self.named):,} more" if self.rows > len(self.named) else ""
        return f"{text}: {', '.join(map(str, self.named))}{more}"


class Likeness(StrEnum):
    """What came of it."""

    ALIKE = "alike"
    DIFFERENT = "different"
    NOTHING = "nothing"  # no record was there to be read: that is no success


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of a sample that was made again.

    Attributes:
        offsets: how many offsets were to be read.
        records: how many records were read; other offsets held none.
        unread: how many offsets the log does not hold any more.
        unjudged: how many rows, and records in quarantine, are stored of offsets that hold no record (any more).
        compared: how many other rows, and records in quarantine, there were or should have been.
        alike: how many of them are as the app makes them.
        apart: how the others are not, each with how many.
        lacking: columns that the app gives and the table does not have.
        retyped: columns that it gives as another type than the table has, said in words; they are not compared.
        idle: columns that the table has and the app does not give; they are not compared.
    """

    offsets: int = 0
    records: int = 0
    unread: int = 0
    unjudged: int = 0
    compared: int = 0
    alike: int = 0
    apart: tuple[Apart, ...] = ()
    lacking: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def likeness(self) -> Likeness:
        """The verdict."""
        if not self.records:
            return Likeness.NOTHING
        return Likeness.DIFFERENT if self.apart or self.lacking or self.retyped else Likeness.ALIKE

    @property
    def differences(self) -> tuple[str, ...]:
        """What is not as the app makes it, a line each."""
        return (
            *(f"not compared, because of another type: {column}" for column in self.retyped),
            *([f"not in the table: {', '.join(self.lacking)}"] if self.lacking else []),
            *map(str, self.apart),
        )

    def __str__(self) -> str:
        """What came of it, in a line."""
        if self.likeness is Likeness.NOTHING:
            return "nothing to compare: the topics hold no record that it has processed"
        return (
            f"{self.records:,} records of {self.offsets:,} offsets read again: {self.alike:,} of {self.compared:,} "
            "rows and records in quarantine equal the app's output"
        )


def readable(work: Sequence[Work], bounds: Mapping[TopicPartition, LogBounds]) -> tuple[OffsetRange, ...]:
    """What a stream has worked on and its log still holds.

    Args:
        work: all rows of the record of work, of every timeline.
        bounds: of the topics as they are now; a former topic of the same name has another id.

    Returns:
        In the order of partition and offset; none is empty.
    """
    of_each: dict[TopicPartition, list[Work]] = {}
    for row in work:
        of_each.setdefault(row.partition, []).append(row)
    found = []
    for range_ in gained(Mark(), work):
        if (log := bounds.get(range_.partition)) is None:
            continue
        there = Spans([(max(range_.first, log.start), min(range_.next, log.end))])
        worked = there.minus(skipped(of_each[range_.partition], range_))
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
    ends = list(accumulate(-(-len(range_) // _PLACE) for range_ in ranges))
    chosen: list[tuple[int, OffsetRange]] = []
    held = 0
    for place in random.sample(range(ends[-1]), min(ends[-1], count)):
        at = bisect_right(ends, place)
        whole = ranges[at]
        first = whole.first + (place - (ends[at - 1] if at else 0)) * _PLACE
        chosen.append((place, OffsetRange(whole.partition, first, min(first + _PLACE, whole.next))))
        held += len(chosen[-1][1])
        if held >= count:
            break
    found: list[OffsetRange] = []
    for _, one in sorted(chosen, key=itemgetter(0)):
        if found and (found[-1].partition, found[-1].next) == (one.partition, one.first):
            one = OffsetRange(one.partition, found.pop().first, one.next)
        found.append(one)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Made:
    """What the app makes of some records, and what is stored of them.

    Attributes:
        timestamps: the records that were read, each with its timestamp in milliseconds since 1970, if it has one.
        bad: those that are bad, each with the rule it breaks.
        rows: what is made, and what is stored.
        quarantined: what is in quarantine, each with the rule that is stored.
    """

    timestamps: Mapping[SourceAt, int | None]
    bad: Mapping[SourceAt, str]
    rows: Sequence[Row]
    quarantined: Mapping[SourceAt, str]

    @property
    def unjudged(self) -> int:
        """How many rows, and records in quarantine, are stored of offsets that hold no record."""
        of_rows = sum(row.count for row in self.rows if row.source not in self.timestamps)
        return of_rows + len(self.quarantined.keys() - self.timestamps.keys())


def compared(made: Made) -> Iterator[Compared]:
    """Hold rows, and records in quarantine, against what the app makes of the record, where there is one.

    Whether the sink would refuse a row once more is not known here: what is in quarantine because it did is taken as it
    is where the app makes rows of it.
    """
    stored_of = {row.source for row in made.rows if row.stored}
    for row in made.rows:
        if row.source in made.timestamps and (row.stored or row.source not in made.quarantined):
            difference = _difference(row, bad=row.source in made.bad)
            yield Compared(row.source, made.timestamps[row.source], difference, row.columns, row.count)
    yield from _of_quarantine(made)
    for source in (made.bad.keys() & made.timestamps.keys()) - made.quarantined.keys() - stored_of:
        yield Compared(source, made.timestamps[source], Difference.BAD)


def _difference(row: Row, *, bad: bool) -> Difference | None:
    if row.made and row.stored:
        return Difference.CHANGED if row.columns else None
    if row.stored:
        return Difference.BAD if bad else Difference.UNMADE
    return Difference.UNSTORED


def _of_quarantine(made: Made) -> Iterator[Compared]:
    made_of = {row.source for row in made.rows if row.made}
    for source, rule in made.quarantined.items():
        if source not in made.timestamps:
            continue
        if source in made.bad:
            difference = None if made.bad[source] == rule else Difference.OTHER_RULE
        else:
            difference = None if rule == Rule.SINK_REFUSED and source in made_of else Difference.GOOD
        yield Compared(source, made.timestamps[source], difference)


@dataclass(slots=True)
class Tally:
    """Counts what was compared; memory grows by two numbers with each record that has a timestamp."""

    unjudged: int = 0
    compared: int = 0
    alike: int = 0
    _times: list[tuple[int, int]] = field(default_factory=list)
    _apart: dict[tuple[Difference, str], _Kind] = field(default_factory=dict)

    def add(self, made: Made) -> None:
        """Count what was made of these records too."""
        self.unjudged += made.unjudged
        for one in compared(made):
            self.compared += one.rows
            if one.timestamp_ms is not None:
                self._times.append((one.timestamp_ms, one.rows))
            if one.difference is None:
                self.alike += one.rows
                continue
            for column in one.columns or ("",):
                self._apart.setdefault((one.difference, column), _Kind()).add(one)

    def apart(self) -> tuple[Apart, ...]:
        """How rows differ: the columns first, the most frequent first."""
        times = sorted(self._times)
        sums = [0, *accumulate(rows for _, rows in times)]
        found = [kind.apart(*key, [at for at, _ in times], sums) for key, kind in self._apart.items()]
        order = list(Difference)
        return tuple(sorted(found, key=lambda one: (order.index(one.difference), -one.rows, one.column)))


@dataclass(slots=True)
class _Kind:
    """Rows that are apart in one way. `timed` are those of records with a timestamp."""

    rows: int = 0
    timed: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    named: list[SourceAt] = field(default_factory=list)

    def add(self, one: Compared) -> None:
        self.rows += one.rows
        if one.source not in self.named:
            self.named = sorted([*self.named, one.source])[:_NAMED]
        if (at := one.timestamp_ms) is not None:
            self.timed += one.rows
            self.first_ms = at if self.first_ms is None else min(at, self.first_ms)
            self.last_ms = at if self.last_ms is None else max(at, self.last_ms)

    def apart(self, difference: Difference, column: str, times: Sequence[int], sums: Sequence[int]) -> Apart:
        """With how many others there are, of `times` in order; `sums` are the rows of so many first ones."""
        if self.first_ms is None or self.last_ms is None:
            return Apart(difference, column, self.rows, tuple(self.named))
        before = sums[bisect_left(times, self.first_ms)]
        upto = sums[bisect_right(times, self.last_ms)]
        return Apart(
            difference,
            column,
            self.rows,
            tuple(self.named),
            _moment(self.first_ms),
            _moment(self.last_ms),
            before=before,
            between=upto - before - self.timed,
            after=sums[-1] - upto,
        )


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _moment(timestamp_ms: int) -> datetime | None:
    return _EPOCH + timedelta(milliseconds=timestamp_ms) if FIRST_MS <= timestamp_ms <= LAST_MS else None
