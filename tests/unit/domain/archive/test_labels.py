"""What comes next in a chain, and which label offsets get, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from millrace.adapters.archive.summaries import put_summary
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.chain import Diverged, ReadRanges, Recreated, next_ranges
from millrace.domain.archive.manifest import Kind, PartitionSpan
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.partition import Cause, Label, Tile
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from support.archive.chains import AT, GONE, HERE, entry, log, read, started, what_is_wrong
from support.fakes.objects import MemoryStore


def test_what_is_gone_before_it_was_read_is_named_and_passed_over() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    plan = next_ranges(writer.tiling, log((6, 10)))
    assert plan == ReadRanges((PartitionSpan(0, 6, 10),), (Tile(0, 0, 6, Label.LOST, Cause.UNREAD),))


def test_a_new_partition_is_read_from_offset_0_also_where_that_is_gone() -> None:
    writer = started(MemoryStore(), bounds=(5, 10))
    plan = next_ranges(writer.tiling, log((5, 10), (3, 8)))
    assert plan == ReadRanges(
        (PartitionSpan(0, 5, 10), PartitionSpan(1, 3, 8)), (Tile(1, 0, 3, Label.LOST, Cause.UNREAD),)
    )


@pytest.mark.parametrize("now", [GONE, replace(log((0, 3)), topic_id="D" * 22)])
def test_a_topic_that_was_deleted_loses_what_was_seen_of_it(now: ObservedLog) -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    writer.append(Kind.DATA, log((0, 12)), objects=[entry(0, 4)])
    assert next_ranges(writer.tiling, now) == Recreated((Tile(0, 4, 12, Label.LOST, Cause.RECREATED),))


def test_a_log_that_ends_below_the_archive_stops_it_until_somebody_knows() -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 7))) == Diverged((Tile(0, 7, 10, Label.DIVERGED),))

    again = started(store, 2, "two", bounds=(0, 7))  # its takeover says so for good, whatever the log has by then
    assert next_ranges(again.tiling, log((0, 30))) == Diverged((Tile(0, 7, 10, Label.DIVERGED),))
    again.append(Kind.ACKNOWLEDGEMENT, log((0, 30)), acknowledged=[PartitionSpan(0, 7, 10)], by="me", reason="known")
    assert next_ranges(again.tiling, log((0, 30))) == ReadRanges((PartitionSpan(0, 10, 30),))
    coverage = again.tiling.end(log((0, 30)))
    assert coverage.verdict is Verdict.PENDING
    assert coverage.partitions[0].tiles == (Tile(0, 7, 10, Label.DIVERGED), Tile(0, 10, 30, Label.PENDING))


def test_an_acknowledgement_of_everything_excuses_nothing_that_comes_later() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    wide = [PartitionSpan(0, 0, 10**15)]
    writer.append(Kind.ACKNOWLEDGEMENT, log((3, 10)), acknowledged=wide, by="me", reason="known")
    assert writer.tiling.end(log((3, 10))).verdict is Verdict.PENDING
    assert what_is_wrong(writer.tiling.end(log((5, 10)))) == ["partition 0 [3, 5) is lost: deleted before it was read"]


def test_of_a_partition_without_a_leader_nothing_is_read_and_nothing_is_proven() -> None:
    writer = ArchiveWriter.take_over(MemoryStore(), Tiling(HERE), Writer(1, "one"), lambda: log((0, 10), (0, 10)))
    leaderless = replace(log((0, 20)), partitions=2)
    assert next_ranges(writer.tiling, leaderless) == ReadRanges((PartitionSpan(0, 0, 20),))
    writer.append(Kind.DATA, leaderless, objects=[entry(0, 20)])
    coverage = writer.tiling.end(leaderless)
    assert (coverage.verdict, coverage.unseen) == (Verdict.PENDING, (1,))


def test_a_partition_that_had_no_leader_at_first_has_not_come_later() -> None:
    store = MemoryStore()
    leaderless = replace(log((0, 10)), partitions=2)
    writer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: leaderless)
    assert next_ranges(writer.tiling, log((0, 10), (500, 600))) == ReadRanges(
        (PartitionSpan(0, 0, 10), PartitionSpan(1, 500, 600))
    )


def test_what_expired_has_diverged_too_where_the_log_ends_below_it() -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    writer.append(Kind.EXPIRY, log((0, 10)), objects=[entry(0, 10)], by="keep", reason="old")
    assert next_ranges(writer.tiling, log((0, 6))) == Diverged((Tile(0, 6, 10, Label.DIVERGED),))
    again = started(store, 2, "two", bounds=(0, 6))
    assert next_ranges(again.tiling, log((0, 60))) == Diverged((Tile(0, 6, 10, Label.DIVERGED),))
    with pytest.raises(ValueError, match="loss in partitions"):
        put_summary(store, again.tiling)


def test_an_expiry_acknowledges_nothing() -> None:
    writer = started(MemoryStore())
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    writer.append(Kind.EXPIRY, log((0, 6)), objects=[entry(0, 10)], by="keep", reason="old")
    assert isinstance(next_ranges(writer.tiling, log((0, 60))), Diverged)


def test_an_election_that_cuts_off_what_was_seen_and_not_read_is_told_until_somebody_knows() -> None:
    """The writer goes on: what it has archived is as the log is."""
    writer = started(MemoryStore(), bounds=(0, 20))
    writer.append(Kind.DATA, log((0, 20)), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 15))) == ReadRanges((PartitionSpan(0, 10, 15),))
    writer.append(Kind.DATA, log((0, 15)), objects=[entry(10, 15)])
    writer.append(Kind.DATA, log((0, 30)), objects=[entry(15, 30)])
    assert what_is_wrong(writer.tiling.end(log((0, 30)))) == [
        "partition 0 [15, 20) is diverged: seen in the log, and cut off it by an unclean election before it was read"
    ]
    writer.append(Kind.ACKNOWLEDGEMENT, log((0, 30)), acknowledged=[PartitionSpan(0, 15, 20)], by="me", reason="known")
    assert writer.tiling.end(log((0, 30))).verdict is Verdict.PROVEN


def test_a_log_start_that_the_chain_has_seen_is_not_forgotten() -> None:
    """A new leader's log may begin lower than the former one's, from which was read."""
    store = MemoryStore()
    writer = started(store, bounds=(0, 50))
    writer.append(Kind.DATA, log((0, 50)), objects=[entry(0, 50)])
    again = started(store, 2, "two", bounds=(100, 150))
    again.append(Kind.DATA, log((50, 150)), objects=[entry(50, 150, holes=((50, 100),))])
    assert again.tiling.end(log((50, 150))).partitions[0].tiles == (Tile(0, 50, 100, Label.LOST, Cause.TRIMMED),)


def test_the_cause_of_a_gap_is_the_log_start_as_far_as_that_reaches() -> None:
    writer = started(MemoryStore(), bounds=(0, 30))
    writer.append(Kind.DATA, log((4, 30)), objects=[entry(10, 20)])
    assert writer.tiling.end(log((4, 20))).partitions[0].tiles[:2] == (
        Tile(0, 0, 4, Label.LOST, Cause.UNREAD),
        Tile(0, 4, 10, Label.LOST, Cause.UNEXPLAINED),
    )


@pytest.mark.parametrize("look", [replace(log((0, 0)), bounds={}), GONE])
def test_an_acknowledgement_while_nobody_could_look_excuses_nothing_that_comes_later(look: ObservedLog) -> None:
    """No leader for a moment, or a broker that does not know the topic yet."""
    writer = started(MemoryStore(), bounds=(0, 10))
    wide = [PartitionSpan(0, 0, 10**15)]
    writer.append(Kind.ACKNOWLEDGEMENT, look, acknowledged=wide, by="me", reason="known")
    later = log((10, 12))
    writer.append(Kind.DATA, later, objects=[entry(10, 12)])
    assert what_is_wrong(writer.tiling.end(later)) == ["partition 0 [0, 10) is lost: deleted before it was read"]


def test_of_a_topic_that_is_gone_what_was_not_read_can_be_acknowledged() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    writer.append(Kind.ACKNOWLEDGEMENT, GONE, acknowledged=[PartitionSpan(0, 0, 10)], by="me", reason="known")
    assert writer.tiling.end(GONE).verdict is Verdict.PROVEN


def test_many_acknowledgements_are_taken_at_once() -> None:
    writer = started(MemoryStore(), bounds=(0, 10**6))
    for first in range(1, 40_000, 20):
        writer.append(Kind.DATA, log((first, 10**6)), objects=[entry(first, first + 10)])
    lost = [PartitionSpan(tile.partition, tile.first, tile.next) for tile in unknown_of(writer)]
    assert len(lost) == 2_000
    now = log((39_990, 10**6))
    writer.append(Kind.ACKNOWLEDGEMENT, now, acknowledged=lost, by="me", reason="known")
    assert not unknown_of(writer)


def unknown_of(writer: ArchiveWriter) -> tuple[Tile, ...]:
    return writer.tiling.end(log((writer.tiling.partitions[0].next, 10**6))).partitions[0].unacknowledged


@pytest.mark.parametrize(
    ("retention_ms", "later", "late"),
    [
        (None, timedelta(days=9), ()),
        (86_400_000, timedelta(hours=20), ()),
        (86_400_000, timedelta(days=2), ((10, 20),)),
    ],
)
def test_a_hole_that_is_read_late_may_hide_a_tombstone(
    retention_ms: int | None, later: timedelta, late: tuple[tuple[int, int], ...]
) -> None:
    """What lay beyond the end at the look before was written after it."""
    store = MemoryStore()
    seen = log((0, 10), retention_ms=retention_ms)
    writer = ArchiveWriter.take_over(
        store, Tiling(HERE), Writer(1, "one"), lambda: replace(seen, bounds={0: LogBounds(0, 0)})
    )
    writer.append(Kind.DATA, seen, objects=[entry(0, 10)])
    after = log((0, 20), at=AT + later, retention_ms=retention_ms)
    writer.append(Kind.DATA, after, objects=[entry(10, 20, holes=((12, 14),))])
    assert writer.tiling.end(after).partitions[0].late == late


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "passed", "is_late"),
    [
        (DAY_MS, DAY_MS // 2, timedelta(hours=20), True),  # the shorter time counts
        (DAY_MS // 2, DAY_MS, timedelta(hours=20), True),
        (None, DAY_MS, timedelta(days=2), True),  # compacted at one of the looks
        (DAY_MS, None, timedelta(days=2), True),
        (DAY_MS, DAY_MS, timedelta(hours=-2), True),  # a clock went back: nobody knows
        (DAY_MS, DAY_MS, timedelta(hours=2), False),
        (2**63 - 1, 2**63 - 1, timedelta(days=9000), False),  # Kafka allows any number
        (0, 0, timedelta(seconds=1), True),
    ],
)
def test_what_is_late_follows_from_both_looks(
    before_ms: int | None, after_ms: int | None, passed: timedelta, is_late: bool
) -> None:
    store = MemoryStore()
    first = log((0, 10), retention_ms=before_ms)
    empty = replace(first, bounds={0: LogBounds(0, 0)})
    writer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: empty)
    writer.append(Kind.DATA, first, objects=[entry(0, 10)])
    after = log((0, 20), at=AT + passed, retention_ms=after_ms)
    writer.append(Kind.DATA, after, objects=[entry(10, 20, holes=((12, 14),))])
    assert any(begin <= 12 < end for begin, end in writer.tiling.end(after).partitions[0].late) is is_late
    assert read(store).head == writer.tiling.head


def test_partitions_without_objects_are_looked_at_hourly() -> None:
    store = MemoryStore()
    writer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: log((0, 10), (0, 0)))
    for minutes, seen in ((1, 1), (59, 1), (60, 2), (61, 1)):
        now = log((0, 100), (0, 0), at=AT + timedelta(minutes=minutes))
        begin = writer.tiling.partitions[0].next
        assert len(writer.append(Kind.DATA, now, objects=[entry(begin, begin + 1)]).seen) == seen


# What must not be forgotten


def test_a_divergence_that_was_seen_and_written_down_stays() -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert isinstance(next_ranges(writer.tiling, log((0, 7))), Diverged)
    writer.append(Kind.LOOK, log((0, 7)))
    for chain in (writer, started(store, 2, "two", bounds=(0, 30))):
        assert next_ranges(chain.tiling, log((0, 30))) == Diverged((Tile(0, 7, 10, Label.DIVERGED),))
        with pytest.raises(ValueError, match="has diverged"):
            chain.append(Kind.DATA, log((0, 30)), objects=[entry(10, 30)])


@pytest.mark.parametrize(("news", "label"), [((0, 5), Label.DIVERGED), ((15, 15), Label.LOST)])
def test_bad_news_of_a_partition_is_written_though_it_brings_nothing(news: tuple[int, int], label: Label) -> None:
    store = MemoryStore()
    writer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: log((0, 30), (0, 10)))
    writer.append(Kind.DATA, log((0, 30), (0, 10)), objects=[entry(0, 10), entry(0, 10, partition=1)])
    writer.append(Kind.DATA, log((0, 30), news), objects=[entry(10, 20)])
    after = log((0, 30), (0, 30))
    if label is Label.LOST:
        writer.append(Kind.DATA, after, objects=[entry(10, 30, partition=1, holes=((10, 20),))])
    labels = {tile.label for tile in read(store).end(after).partitions[1].tiles}
    assert label in labels
    assert read(store).end(after).verdict is Verdict.BROKEN


def test_a_partition_that_came_later_began_at_0_also_if_it_had_no_leader_at_first() -> None:
    writer = started(MemoryStore(), bounds=(0, 0))
    writer.append(Kind.DATA, replace(log((0, 10)), partitions=2), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 10), (50, 60))) == ReadRanges(
        (PartitionSpan(1, 50, 60),), (Tile(1, 0, 50, Label.LOST, Cause.UNREAD),)
    )


def test_what_was_acknowledged_while_the_topic_seemed_gone_counts_for_nothing_where_it_is_there() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    wide = [PartitionSpan(0, 0, 10**15)]
    writer.append(Kind.ACKNOWLEDGEMENT, GONE, acknowledged=wide, by="me", reason="known")
    assert writer.tiling.end(log((10, 10))).verdict is Verdict.BROKEN
    nobody = replace(log((0, 0)), bounds={})
    writer.append(Kind.ACKNOWLEDGEMENT, nobody, acknowledged=[PartitionSpan(0, 0, 1)], by="me", reason="known")
    writer.append(Kind.DATA, log((10, 12)), objects=[entry(10, 12)])
    assert writer.tiling.end(log((10, 12))).verdict is Verdict.BROKEN


def test_an_acknowledgement_of_one_loss_excuses_no_other_at_the_same_offsets() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    known = [PartitionSpan(0, 0, 10)]
    writer.append(Kind.ACKNOWLEDGEMENT, log((10, 10)), acknowledged=known, by="me", reason="deleted")
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])  # a new leader has them still
    assert writer.tiling.end(log((0, 10))).verdict is Verdict.PROVEN
    assert next_ranges(writer.tiling, log((0, 5))) == Diverged((Tile(0, 5, 10, Label.DIVERGED),))
