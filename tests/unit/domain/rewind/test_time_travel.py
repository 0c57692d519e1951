"""What a time means on a partition, held against one who keeps every record that was ever written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.rewind.time_travel import (
    PartitionTimes,
    Policy,
    Quality,
    RecordAt,
    Resolved,
    WrongTimeError,
    disorder,
    expected_duration,
    moves_of,
    parse_offsets,
    parse_time,
    parse_window,
    resolve,
    resolve_offset,
)
from millrace.domain.streams.position import LogBounds, WorkRecord
from millrace.domain.topics.offsets import TopicPartition
from support.checks.tiers import examples

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
P0, P1, P2 = (TopicPartition("t", "id-one", number) for number in range(3))


class Fate(Enum):
    """What became of one offset."""

    HELD = "held"
    ABORTED = "aborted"  # or a transaction's marker: an offset that no reader of committed records is given
    COMPACTED = "compacted"  # taken out by the cleaner, which leaves the log start where it is


@dataclass(frozen=True)
class Everything:
    """A partition with all that was ever written to it: timestamp and fate of each offset."""

    written: list[tuple[int, Fate]]
    start: int  # everything below has expired
    stable: int  # everything from here on is of a transaction that is open
    segment: int = 0  # where the segment of the log start begins: what lies between has expired, and is still there

    def bounds(self) -> LogBounds:
        return LogBounds(self.start, self.stable)

    def asked(self, time_ms: int) -> PartitionTimes:
        """What a broker answers: the first record at or after a time, unless that lies below the log start."""
        held = [offset for offset in range(self.segment, self.stable) if self.written[offset][1] is Fate.HELD]

        def first_from(least: int) -> RecordAt | None:
            for offset in held:
                if self.written[offset][0] >= least:
                    return RecordAt(offset, self.written[offset][0]) if offset >= self.start else None
            return None

        at = first_from(time_ms)
        latest = max(held, key=lambda offset: self.written[offset][0], default=None)
        if at is not None:
            return PartitionTimes(self.bounds(), at, first=first_from(0))
        return PartitionTimes(
            self.bounds(), None, latest=None if latest is None else RecordAt(latest, self.written[latest][0])
        )

    def truth(self, time_ms: int) -> tuple[Quality, int | None]:
        """By going through all records: what is left to be read, whether any of it is late enough, what expired."""
        of_segment = [o for o in range(self.segment, self.stable) if self.written[o][1] is Fate.HELD]
        left = [offset for offset in of_segment if offset >= self.start]
        if self.start >= self.stable or not of_segment:
            return Quality.EMPTY, None
        expired_late = [o for o in of_segment if o < self.start and self.written[o][0] >= time_ms]
        if expired_late:  # whatever is left begins too late
            return Quality.BEFORE_LOG_START, self.start
        late = [offset for offset in left if self.written[offset][0] >= time_ms]
        if not late:
            return Quality.AFTER_END, None
        if self.start and (of_segment[0] < self.start or late[0] == left[0]):  # nothing before it can be told
            return Quality.BEFORE_LOG_START, late[0]
        return Quality.EXACT, late[0]


@st.composite
def partitions(draw: st.DrawFn) -> Everything:
    fates = st.sampled_from([Fate.HELD, Fate.HELD, Fate.HELD, Fate.ABORTED, Fate.COMPACTED])
    written = draw(st.lists(st.tuples(st.integers(0, 60), fates), max_size=40))
    if draw(st.booleans()):  # as most logs are: nearly in order
        written = [(timestamp % 7 + 2 * at, fate) for at, (timestamp, fate) in enumerate(written)]
    stable = draw(st.integers(0, len(written)))
    start = draw(st.integers(0, stable) | st.just(0))
    return Everything(written, start, stable, draw(st.integers(0, start) | st.just(start)))


@settings(max_examples=examples(500))
@given(partitions(), st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_a_time_means_the_first_record_at_or_after_it_that_is_left(log: Everything, times: list[int]) -> None:
    for time_ms in times:
        found = resolve(time_ms, log.asked(time_ms))
        assert (found.quality, found.offset) == log.truth(time_ms)
        if found.offset is not None:
            between = [o for o in range(log.start, found.offset) if log.written[o][1] is Fate.HELD]
            assert all(log.written[o][0] < time_ms for o in between), "a record at or after the time is left out"


@settings(max_examples=examples(300))
@given(partitions(), st.integers(0, 100), st.integers(0, 10), st.integers(0, 10))
def test_what_expires_or_comes_in_between_two_answers_is_not_skipped(
    log: Everything, time_ms: int, expired: int, more: int
) -> None:
    """The bounds are asked for last: an answer from before them is of an older log."""
    former = Everything(log.written, log.start, max(log.start, log.stable - more), log.start)
    start = min(log.start + expired, log.stable)
    later = Everything(log.written, start, log.stable, start)
    old, new = former.asked(time_ms), later.asked(time_ms)
    answers = {"first": later.asked(0).at} if old.at else {"latest": new.latest or new.at}
    found = resolve(time_ms, PartitionTimes(later.bounds(), old.at, **answers))
    left = [o for o in range(start, log.stable) if log.written[o][1] is Fate.HELD and log.written[o][0] >= time_ms]
    if found.offset is not None:
        assert not left or found.offset <= left[0]
        assert found.offset >= start
    elif old.at is not None:
        assert start >= log.stable, "what was there when it was asked for is left out"
    else:
        assert not [o for o in left if o < former.stable], "what was there when it was asked for is left out"


def test_by_how_much_a_log_begins_later_is_told() -> None:
    seen = PartitionTimes(LogBounds(5, 9), RecordAt(5, 90_000), first=RecordAt(5, 90_000))
    assert resolve(30_000, seen) == Resolved(Quality.BEFORE_LOG_START, 5, timedelta(minutes=1))
    assert resolve(0, None) == Resolved(Quality.NO_LEADER)


@pytest.mark.parametrize(
    ("offset", "bounds", "found"),
    [
        (5, LogBounds(2, 9), Resolved(Quality.EXACT, 5)),
        (9, LogBounds(2, 9), Resolved(Quality.EXACT, 9)),
        (1, LogBounds(2, 9), Resolved(Quality.BEFORE_LOG_START, 2)),
        (10, LogBounds(2, 9), Resolved(Quality.AFTER_END)),
        (5, None, Resolved(Quality.NO_LEADER)),
    ],
)
def test_a_given_offset(offset: int, bounds: LogBounds | None, found: Resolved) -> None:
    assert resolve_offset(offset, bounds) == found


def test_partitions_without_such_a_record_keep_their_position_and_new_ones_are_left_alone() -> None:
    record = WorkRecord(1, {P0: 50, P1: 40})
    resolved = {P0: Resolved(Quality.EXACT, 10), P1: Resolved(Quality.AFTER_END), P2: Resolved(Quality.EXACT, 3)}
    found = moves_of(record, resolved, Policy.FAIL)
    assert found.refusals == ()
    assert [(m.partition, m.now, m.target, m.quality) for m in found.moves] == [
        (P0, 50, 10, Quality.EXACT),
        (P1, 40, 40, Quality.AFTER_END),
    ]
    assert [move.records for move in found.moves] == [40, 0]


REFUSED = {
    "t/0: the log begins 0:01:00 later": (Resolved(Quality.BEFORE_LOG_START, 5, timedelta(minutes=1)), P0),
    "t/0 has no leader": (Resolved(Quality.NO_LEADER), P0),
    "ahead of the record of work, which ends at 50": (Resolved(Quality.EXACT, 51), P0),
    "t was deleted and created again": (Resolved(Quality.EXACT, 5), TopicPartition("t", "id-two", 0)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_may_not_be_moved_is_named(why: str) -> None:
    answer, partition = REFUSED[why]
    found = moves_of(WorkRecord(1, {P0: 50}), {partition: answer}, Policy.FAIL)
    assert any(why.replace("begins 0:01:00", "begins by 0:01:00") in text for text in found.refusals), found


def test_the_policy_earliest_begins_where_the_log_does() -> None:
    resolved = {P0: Resolved(Quality.BEFORE_LOG_START, 5)}
    assert moves_of(WorkRecord(1, {P0: 50}), resolved, Policy.EARLIEST).moves[0].target == 5


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-03-28T12:00Z", 12),
        ("2026-03-28 12:00+02:00", 10),
        ("2026-03-28T12:00 Europe/Berlin", 11),
        ("2026-03-29 12:00 Europe/Berlin", 10),
        (" 2026-03-28T12:00:00.000-05:00 ", 17),
    ],
)
def test_a_time_with_its_zone(text: str, hour: int) -> None:
    found = parse_time(text, NOW)
    assert (found.hour, found.utcoffset()) == (hour, timedelta())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-03-28T12:00", "no zone"),
        ("2026-03-29 02:30 Europe/Berlin", "does not exist"),
        ("2026-10-25 02:30 Europe/Berlin", "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"),
        ("2026-11-24T12:00:01Z", "in the future"),
        ("2026-03-28 12:00 Europe/Nowhere", "is unknown on this machine"),
        ("2026-03-28T12:00+02:00 Europe/Berlin", "two zones"),
        ("yesterday", "is not a time"),
        ("", "is not a time"),
        ("1711627200", "is not a time"),
        ("2026-02-30T12:00Z", "is not a time"),
        ("0001-01-01T00:00+02:00", "not within the years"),
    ],
)
def test_a_text_that_names_no_moment_says_why(text: str, why: str) -> None:
    with pytest.raises(WrongTimeError) as found:
        parse_time(text, NOW)
    assert why in str(found.value)


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        ("2026-03-28T12:00Z", None, "give both"),
        (None, "2026-03-28T12:00Z", "give both"),
        ("", "2026-03-28T12:00Z", "is not a time"),
        ("2026-03-28T12:00Z", "2026-03-28T12:00Z", "ends before it begins"),
        ("2026-03-28T12:00Z", "2026-03-28T13:00+02:00", "ends before it begins"),
    ],
)
def test_a_window_that_is_none_says_why(since: str | None, until: str | None, why: str) -> None:
    with pytest.raises(WrongTimeError) as found:
        parse_window(since, until, NOW)
    assert why in str(found.value)


def test_nobody_has_to_name_a_window() -> None:
    assert parse_window(None, None, NOW) is None


def test_offsets_are_read_as_the_stock_tool_writes_them() -> None:
    assert parse_offsets('"t",0,12\nt,1,3\n\n') == {("t", 0): 12, ("t", 1): 3}


@pytest.mark.parametrize("text", ["", "t,0", "t,0,-1", "t,x,1", ",0,1", "t,0,1\nt,0,2", "t,0,1,2", "t,٣,1"])
def test_a_file_that_is_none_of_offsets(text: str) -> None:
    with pytest.raises(WrongTimeError):
        parse_offsets(text)


def test_disorder_is_how_far_a_record_is_behind_one_before_it() -> None:
    assert disorder([]) == disorder([5]) == disorder([1, 2, 2]) == timedelta()
    assert disorder([10, 4, 12, 7, 11]) == timedelta(milliseconds=6)


def test_the_expected_duration_is_the_records_by_the_rate() -> None:
    given_ = {"records_per_batch": 100, "trigger": timedelta(seconds=2), "start": timedelta(seconds=30)}
    assert expected_duration(200, rows_per_second=10, **given_) == timedelta(seconds=50)
    assert expected_duration(250, rows_per_second=10, **given_) == timedelta(seconds=57)
    assert expected_duration(200, rows_per_second=0, **given_) is None
