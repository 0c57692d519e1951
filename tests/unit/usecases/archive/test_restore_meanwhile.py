"""What happens to archive and target while a restore runs, or between its tries: nothing is overlooked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.manifest import Kind, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.selection import Selection
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.errors import FencedError, RecreatedTopicError, RefusedError, UsageError
from millrace.usecases.archive import restore_run
from millrace.usecases.archive.restore import RestoreProgress
from millrace.usecases.archive.restore_run import Phase
from support.archive.read_back import CountingStore
from support.archive.restores.in_memory import HERE, MemoryTarget, MemoryTopic, World, two_partitions, world
from support.archive.restores.real import AT, archive, plain_records


@pytest.fixture(autouse=True)
def _transactions_of_three() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore_run, "TRANSACTION_RECORDS", 3)
        yield


def test_records_deleted_of_what_an_earlier_try_wrote_are_missed_however_late_that_happens() -> None:
    here = world(two_partitions())
    here.killed(8)
    here.at(25, lambda: here.topic.logs[0].__delitem__(slice(0, 5)))
    report = here.restore()
    assert report.differences == ("of partition 0 the target has 15 records, the archive 20",)


def test_a_target_that_is_made_again_while_it_is_read_back_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(two_partitions())
    here.restore()

    def remade(progress: RestoreProgress) -> None:
        if progress.phase is Phase.VERIFYING:
            here.topic.topic_id = "E" * 22

    here.meanwhile = remade
    monkeypatch.setattr(restore_run, "_BETWEEN_PROGRESS", 39)
    with pytest.raises(RecreatedTopicError):
        here.restore()


def test_any_other_restore_into_a_topic_of_the_name_ends_the_older_one() -> None:
    """Of another selection, and into a topic that was made again."""
    for newer in ({"selection": Selection(1), "append": True}, {"topic_id": HERE.topic_id}):
        here = world(two_partitions())
        other = World(here.store, here.topic)

        def take_over(other: World = other, newer: dict[str, Any] = newer) -> None:
            if "topic_id" in newer:
                other.topic.logs = {0: [], 1: []}
            assert other.restore(**newer).is_whole

        here.at(20, take_over)
        with pytest.raises(FencedError):
            here.restore()
        assert list(here.topic.holders) == ["millrace.restore.back"]


def test_nothing_is_written_into_a_topic_that_was_made_again() -> None:
    here = world(two_partitions())

    def again() -> None:
        here.topic.topic_id, here.topic.logs = "E" * 22, {0: [], 1: []}

    here.at(20, again)
    with pytest.raises(RecreatedTopicError, match="deleted"):
        here.restore()
    assert here.topic.values() == {0: [], 1: []}


def test_keys_decide_no_more_where_the_number_of_partitions_changes() -> None:
    here = world(two_partitions())

    def grow() -> None:
        here.topic.partitions = 4
        here.topic.logs |= {2: [], 3: []}

    here.at(20, grow)
    with pytest.raises(RefusedError, match="2 partitions when the restore by key began, and has 4 now"):
        here.restore(placement=Placement.KEY)
    assert sum(map(len, here.topic.logs.values())) == 21


def test_a_restore_that_is_refused_ends_nobody_else() -> None:
    here = world(two_partitions())
    other = World(here.store, here.topic)

    def refused() -> None:
        with pytest.raises(RefusedError, match="another restore"):
            other.restore(Selection(0))

    here.at(20, refused)
    assert here.restore().is_whole


def test_who_was_fenced_before_its_client_is_changed_does_not_end_the_newer_one() -> None:
    objects = [(0, plain_records(0, 3)), (0, plain_records(3, 9, timestamp_ms=0))]
    here = world(objects)
    other = World(here.store, here.topic)
    newer: list[MemoryTarget] = []

    def take_over() -> None:
        other.killed(1)
        newer.extend(here.topic.holders.values())

    here.at(3, take_over)
    with pytest.raises(FencedError):
        here.restore()
    assert list(here.topic.holders.values()) == newer
    assert len(here.topic.logs[0]) == 6


def test_what_has_expired_since_an_earlier_try_is_left_out_of_the_comparison() -> None:
    here = world(two_partitions())
    here.killed(8)
    here.expire(2)
    for already, restored in ((14, 16), (30, 0)):
        here.told.clear()
        report = here.restore()
        assert (report.is_whole, report.already_there, report.restored, report.verified) == (
            True,
            already,
            restored,
            30,
        )
        assert any(line.startswith("10 records of the target have expired") for line in here.told)


def test_what_is_archived_while_it_runs_is_left_to_the_next_try() -> None:
    objects = two_partitions(30)
    here = world(objects[:8])
    later = CountingStore()
    archive(later, HERE, 2, objects)
    here.at(20, lambda: here.store.objects.update(later.objects))
    first = here.restore()
    assert (first.is_whole, first.restored) == (True, 40)
    second = here.restore()
    assert (second.is_whole, second.restored, second.already_there) == (True, 20, 40)


def test_a_newer_one_that_goes_on_with_what_came_later_is_told_as_such() -> None:
    objects = two_partitions(30)
    here = world(objects[:8])
    other = World(CountingStore(), here.topic)
    archive(other.store, HERE, 2, objects)
    here.at(40, lambda: other.restore())
    with pytest.raises(FencedError):
        here.restore()
    report = here.restore()  # its archive still ends before that
    assert (report.restored, report.verified) == (0, 40)
    assert report.differences == ("20 records of this restore lie behind the end of the archive",)


def test_what_diverged_or_was_cut_off_is_told_until_somebody_acknowledges_it() -> None:
    here = world(two_partitions())
    tiling = Tiling(HERE)
    read_on(here.store, tiling)

    for epoch, end in ((2, 30), (3, 20)):
        log = ObservedLog(AT, HERE.topic_id, {0: LogBounds(0, 8), 1: LogBounds(0, end)})
        chain = ArchiveWriter.take_over(here.store, tiling, Writer(epoch, "one more"), lambda log=log: log)
    report = here.restore()
    assert (report.problems, report.restored, report.is_whole) == (2, 40, False)
    assert "restored as archived: diverged from the topic: [8, 20) of partition 0" in here.told[0]
    assert "not restored as it was: [20, 30) of partition 1" in here.told[1]
    assert World(here.store, MemoryTopic()).restore(Selection(0, 0, 8)).is_whole
    known = [PartitionSpan(0, 8, 20), PartitionSpan(1, 20, 30)]
    chain.append(Kind.ACKNOWLEDGEMENT, log, acknowledged=known, by="cli:ann", reason="an unclean election")
    assert World(here.store, MemoryTopic()).restore().is_whole


def test_a_rerun_does_not_turn_to_an_incarnation_that_came_since() -> None:
    former = Incarnation(HERE.topic, "B" * 22)
    store = CountingStore()
    archive(store, former, 2, two_partitions())
    here = World(store, MemoryTopic())
    here.killed(5)
    archive(store, HERE, 2, [(0, plain_records(0, 2))])
    for append in (False, True):
        with pytest.raises(RefusedError, match=former.topic_id) as refused:
            here.restore(append=append)
        assert f"--topic-id {former.topic_id} " in refused.value.next_step
    report = here.restore(topic_id=former.topic_id)
    assert (report.is_whole, report.already_there, report.restored) == (True, 15, 25)
    assert here.restore(topic_id=HERE.topic_id, append=True).is_whole


def test_a_partition_that_the_topic_never_had_is_an_error() -> None:
    here = world(two_partitions())
    with pytest.raises(UsageError, match="no partition 2") as told:
        here.restore(Selection(2))
    assert "from 0 to 1" in told.value.next_step
    assert here.log.entries == []
