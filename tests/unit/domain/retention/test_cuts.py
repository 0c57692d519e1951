"""What a topic that keeps less would lose, by rules that hold for any log, reader and limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Backup, BackupApp, PostgresSink, Start, Stream, Topic
from millrace.domain.groups.commits import BackupMetadata, CommitMetadata, Committed, PlannedMove
from millrace.domain.retention.cuts import (
    Cut,
    LogNow,
    PartitionCut,
    Reader,
    cut_of,
    first_young,
    losses,
    narrowed,
    reader_of,
    young_from_ms,
)
from millrace.domain.retention.headroom import Limits
from millrace.domain.retention.settings import BrokerSettings, LogSettings
from millrace.domain.rewind.time_travel import PartitionTimes, RecordAt
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
DAY = timedelta(days=1)
P = TopicPartition("orders", "id-1", 0)
Q = TopicPartition("orders", "id-1", 1)
STREAM = Stream("s", "shop", "app", ("orders",), PostgresSink("sink", "a.b"), "millrace.shop.s")
BACKUP = BackupApp("shop", (Topic("orders", "shop", backup=Backup()),))


@pytest.mark.parametrize(
    ("before", "after", "limits"),
    [
        (LogSettings(time=7 * DAY), LogSettings(time=DAY), Limits(DAY, None)),
        (LogSettings(time=None), LogSettings(time=DAY), Limits(DAY, None)),
        (LogSettings(time=DAY), LogSettings(time=7 * DAY), None),
        (LogSettings(time=DAY), LogSettings(time=None), None),
        (LogSettings(time=DAY), LogSettings(time=DAY, size_bytes=10), Limits(None, 10)),
        (LogSettings(time=DAY, size_bytes=5), LogSettings(time=7 * DAY, size_bytes=4), Limits(None, 4)),
        (LogSettings(deletes=False, compacts=True), LogSettings(compacts=True), Limits(7 * DAY, None)),
        (LogSettings(), LogSettings(deletes=False, compacts=True, time=DAY), Limits(timedelta(0), None)),
        (LogSettings(deletes=False, compacts=True), LogSettings(time=None), None),
    ],
)
def test_only_a_limit_that_bites_sooner_cuts(before: LogSettings, after: LogSettings, limits: Limits | None) -> None:
    assert narrowed(before, after) == limits


def test_what_gets_too_old_before_the_next_sweep_counts_too() -> None:
    at = int(NOW.timestamp() * 1000)
    broker = BrokerSettings(check_every=timedelta(minutes=5))
    assert young_from_ms(DAY, NOW, broker) == at - 86_400_000 + 300_000
    assert young_from_ms(timedelta(seconds=10), NOW, broker) == at - 5_000
    assert young_from_ms(timedelta(), NOW, broker) == at
    assert young_from_ms(timedelta(days=100_000), NOW, broker) == 0


def test_the_first_young_record_may_hide_behind_one_below_the_log_start() -> None:
    bounds = LogBounds(10, 90)
    assert first_young(PartitionTimes(bounds, RecordAt(40, 5)), 5) == 40
    assert first_young(PartitionTimes(bounds, RecordAt(4, 5)), 5) == 10
    assert first_young(PartitionTimes(bounds, None, latest=RecordAt(70, 6)), 5) == 70


@pytest.mark.parametrize("latest", [None, RecordAt(80, 4), RecordAt(999, 6)])
def test_what_lies_behind_an_open_transaction_is_taken_too(latest: RecordAt | None) -> None:
    """A reader of committed data is told of nothing behind offset 50; the brokers delete up to 1,000."""
    young = first_young(PartitionTimes(LogBounds(0, 50), None, latest=latest), 5)
    cut = cut_of("t", Limits(DAY), [LogNow(TopicPartition("t", "i", 0), 0, 1_000, young)])
    assert cut.partitions[0].until >= 999


@given(
    start=st.integers(0, 50),
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=80),
    limit=st.integers(0, 30_000),
)
def test_by_size_nothing_is_called_kept_that_may_go(start: int, weights: list[int], limit: int) -> None:
    """The last bytes up to the limit are kept, and no more has to be: the record before them may go."""
    end, size = start + len(weights), sum(weights)
    samples = [(start + at, float(weight)) for at, weight in enumerate(weights)]
    [found] = cut_of(
        "orders", Limits(None, limit), [LogNow(P, start, end, size_bytes=size, samples=samples)]
    ).partitions
    if size <= limit:
        assert (found.until, found.size_bytes) == (start, 0)
    else:
        assert sum(weights[found.until - start :]) <= limit + 1e-6
        assert 0 < (found.size_bytes or 0) <= size + 1e-6


@given(
    count=st.integers(1, 500),
    weight=st.integers(1, 1000),
    limit=st.integers(0, 500_000),
    sampled=st.lists(st.integers(0, 499)),
)
def test_by_size_records_of_one_weight_are_counted_exactly(
    count: int, weight: int, limit: int, sampled: list[int]
) -> None:
    log = LogNow(P, 0, count, size_bytes=count * weight, samples=[(at, 3.0) for at in sampled])
    [found] = cut_of("orders", Limits(None, limit), [log]).partitions
    assert found.until == pytest.approx(max(0, count - limit / weight), abs=1.01)
    assert found.size_bytes == pytest.approx(found.records * weight)


def test_where_nobody_knows_the_size_a_limit_of_size_may_take_all() -> None:
    cut = cut_of("orders", Limits(None, 10), [LogNow(P, 5, 20)])
    assert (cut.records, cut.size_bytes) == (15, None)


def test_of_two_limits_the_one_that_takes_more_counts_and_nothing_before_the_log_start() -> None:
    logs = [LogNow(Q, 0, 100, 30, size_bytes=1000), LogNow(P, 50, 100, 20, size_bytes=500, oldest_ms=0)]
    cut = cut_of("orders", Limits(DAY, 600), logs)
    assert [(each.partition, each.start, each.until) for each in cut.partitions] == [(P, 50, 50), (Q, 0, 40)]
    assert (cut.records, cut.size_bytes, cut.oldest) == (40, 400, None)
    assert str(cut) == "orders: deletes at most 40 records, about 400 B of 1 of its 2 partitions"


def taken(until: int, start: int = 0) -> Cut:
    return Cut("orders", (PartitionCut(P, start, until), PartitionCut(Q, 0, 0)))


@given(start=st.integers(0, 20), length=st.integers(0, 20), position=st.integers(0, 60))
def test_a_reader_loses_exactly_what_is_taken_and_not_read(start: int, length: int, position: int) -> None:
    found = losses([taken(start + length, start)], [Reader(STREAM, {P: position, Q: 0})])
    lost = {offset for loss in found for each in loss.ranges for offset in range(each.first, each.next)}
    assert lost == {offset for offset in range(start, start + length) if offset >= position}
    assert bool(found) is bool(lost)


def commits(offset: int, metadata: str = "") -> dict[tuple[str, int], Committed]:
    return {("orders", 0): Committed(offset, metadata)}


@pytest.mark.parametrize(
    ("start", "made", "has_run", "positions"),
    [
        (Start.EARLIEST, {}, False, {P: 0, Q: 0}),
        (Start.LATEST, {}, False, {}),
        (Start.LATEST, {}, True, {P: 0, Q: 0}),
        (Start.LATEST, commits(7), False, {P: 7, Q: 0}),
        (Start.EARLIEST, commits(7), False, {P: 7, Q: 0}),
        (Start.EARLIEST, commits(7, CommitMetadata("shop.s", "id-1", 1, 1, 7).encode()), False, {P: 7, Q: 0}),
        (Start.EARLIEST, commits(7, CommitMetadata("shop.s", "id-0", 1, 1, 7).encode()), False, {P: 0, Q: 0}),
        (Start.EARLIEST, commits(7, PlannedMove("shop.s", "id-0", "plan", 1, 7).encode()), False, {P: 0, Q: 0}),
    ],
)
def test_a_stream_stands_where_its_group_has_committed(
    start: Start, made: dict[tuple[str, int], Committed], has_run: bool, positions: dict[TopicPartition, int]
) -> None:
    stream = Stream("s", "shop", "app", ("orders",), STREAM.sink, STREAM.group, start=start)
    assert reader_of(stream, [P, Q], made, has_run=has_run).positions == positions


def test_a_backup_stands_where_its_commits_call_it_archived() -> None:
    said = BackupMetadata("shop.backup", "id-1", 1, 7, 2, "a").encode()
    reader = reader_of(BACKUP, [P, Q], commits(9, said), has_run=False)
    assert (reader.positions, reader.uncommitted) == ({P: 7, Q: 0}, False)
    assert reader_of(BACKUP, [P, Q], commits(9), has_run=False).uncommitted


def test_a_loss_names_reader_partitions_and_offsets() -> None:
    [loss] = losses([taken(1500)], [Reader(BACKUP, {P: 20, Q: 0})])
    assert str(loss) == "backup shop.backup would lose 1,480 records that it has not archived: orders/0[20, 1500)"


def test_a_log_that_begins_to_be_compacted_may_lose_all_of_it() -> None:
    deleting, compacting = LogSettings(), LogSettings(deletes=False, compacts=True)
    limits = narrowed(deleting, compacting)
    assert limits is not None
    assert cut_of("t", limits, [LogNow(TopicPartition("t", "i", 0), 0, 1_000, 2**63 - 1)]).partitions[0].until == 1_000
    assert narrowed(compacting, compacting) is None
