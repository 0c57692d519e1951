"""Tries at a restore on archives and topics in memory: whatever ends one, the next goes on, and all of it is judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.archive.restore.records import Placement, Restored
from millrace.domain.archive.selection import Selection
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import FencedError, MillraceError, RecreatedTopicError, RefusedError
from millrace.usecases.archive import restore_run
from millrace.usecases.archive.restore import RestoreProgress
from millrace.usecases.archive.restore_run import Phase
from support.archive.read_back import CountingStore
from support.archive.restores.in_memory import HERE, Killed, two_partitions, values, world
from support.archive.restores.real import BEGAN_MS, archive, plain_records


@pytest.fixture(autouse=True)
def _transactions_of_three() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore_run, "TRANSACTION_RECORDS", 3)
        yield


SIZES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6)
DEATHS = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=6)


@settings(deadline=None)
@given(SIZES, DEATHS, st.sampled_from([Placement.SAME, Placement.KEY]), st.integers(0, 30))
def test_however_it_is_killed_each_record_is_there_once(
    sizes: list[tuple[int, int, int]], deaths: list[tuple[int, bool]], placement: Placement, zero_at: int
) -> None:
    ends, objects = {0: 0, 1: 0}, []
    for partition, count, hole in sizes:
        first = ends[partition] + hole
        given_ms = [0 if offset == zero_at else BEGAN_MS + offset for offset in range(first, first + count)]
        records = plain_records(first, count)
        objects.append((partition, [_at(one, ms) for one, ms in zip(records, given_ms, strict=True)]))
        ends[partition] = first + count
    here = world(objects)
    for dies_at, before in deaths:
        here.topic.dies_at, here.topic.before = dies_at, before
        try:
            here.restore(placement=placement)
        except Killed:
            continue
    here.topic.dies_at = 0
    report = here.restore(placement=placement)
    assert (report.is_whole, report.restored + report.already_there) == (True, sum(size[1] for size in sizes))
    found = here.topic.values()
    if placement is Placement.SAME:
        assert found == {number: values(objects, number) for number in (0, 1)}
    else:
        assert sorted([v or b"" for log in found.values() for v in log]) == sorted(
            [v or b"" for number in (0, 1) for v in values(objects, number)]
        )


def _at(record: ArchivedRecord, timestamp_ms: int) -> ArchivedRecord:
    return ArchivedRecord(record.offset, timestamp_ms, record.timestamp_type, record.key, record.value, record.headers)


def test_what_was_archived_meanwhile_comes_with_the_next_try() -> None:
    objects = two_partitions()
    here = world(objects[:4])
    assert here.restore().restored == 20
    here.store = CountingStore()
    archive(here.store, HERE, 2, objects)
    report = here.restore()
    assert (report.restored, report.already_there, report.is_whole) == (20, 20, True)
    assert here.topic.values() == {number: values(objects, number) for number in (0, 1)}


def test_an_object_that_was_gone_and_comes_back_is_told_and_not_put_in_its_place() -> None:
    """The records behind it are there already, and none may come before them any more."""
    objects = two_partitions()
    here = world(objects)
    (key,) = [key for key in here.store.objects if "/0/00000000000000000005-" in key]
    data = here.store.objects.pop(key)
    first = here.restore()
    assert (first.problems, first.differences, first.restored) == (1, (), 35)
    here.store.objects[key] = data
    second = here.restore()
    assert (second.problems, second.restored) == (0, 0)
    assert second.differences == ("of partition 0 the target has 15 records, the archive 20",)
    assert not second.is_whole


def test_what_is_lost_is_told_unless_nobody_asked_for_it() -> None:
    objects = [(0, plain_records(0, 5)), (0, plain_records(9, 5)), (1, plain_records(0, 5))]
    here = world(objects, gap_at=9)
    report = here.restore()
    assert (report.problems, report.restored, report.differences) == (1, 15, ())
    assert any("not restored: lost: [5, 9) of partition 0, deleted before it was read" in line for line in here.told)
    for selection in (Selection(1), Selection(0, 9, 12)):
        other = world(objects, gap_at=9)
        assert other.restore(selection).is_whole
        assert other.told == []


def test_a_target_that_holds_something_else_is_refused_before_anything_is_written_or_logged() -> None:
    here = world(two_partitions())
    here.topic.put(1, b"somebody's")
    with pytest.raises(RefusedError, match="not empty"):
        here.restore()
    assert (here.topic.values()[0], here.log.entries) == ([], [])
    report = here.restore(append=True)
    assert (report.restored, report.others, report.is_whole) == (40, 1, True)


def test_records_that_come_from_elsewhere_meanwhile_are_counted_and_not_taken_for_ours() -> None:
    here = world(two_partitions())

    def disturb(progress: RestoreProgress) -> None:
        if progress.phase is Phase.RESTORING and here.topic.writes == 1:
            here.topic.put(0, b"somebody's")

    here.meanwhile = disturb
    report = here.restore()
    assert (report.is_whole, report.others) == (True, 1)


def test_records_that_are_changed_or_gone_in_the_target_are_found_when_it_is_read_back() -> None:
    for spoil in ("changed", "gone"):
        here = world(two_partitions())
        here.restore()
        log = here.topic.logs[1]
        if spoil == "gone":
            del log[3]
        else:
            one = log[3]
            log[3] = TopicRecord(1, one.offset, one.key, b"other", one.headers, one.timestamp_ms)
        report = here.restore()
        assert report.restored == 0
        assert len(report.differences) == 1
        assert "partition 1" in report.differences[0]


def test_who_was_fenced_while_its_client_was_changed_writes_no_more() -> None:
    objects = [(0, plain_records(0, 5)), (0, plain_records(5, 5, timestamp_ms=0))]
    there = world(objects)
    there.restore()
    newer = [Restored(0, 1, None, r.value, r.headers) for r in there.topic.logs[0][3:]]
    here = world(objects)
    here.topic.meanwhile = newer
    with pytest.raises(FencedError):
        here.restore()
    assert len(here.topic.logs[0]) == 3 + len(newer)


def test_a_target_that_was_made_again_ends_it() -> None:
    here = world(two_partitions())

    def remade(progress: RestoreProgress) -> None:
        if progress.phase is Phase.RESTORING:
            here.topic.topic_id = "E" * 22

    here.meanwhile = remade
    with pytest.raises(RecreatedTopicError):
        here.restore()
    assert [entry["outcome"] for entry in here.log.entries] == ["begun", "RecreatedTopicError"]


def test_the_action_log_says_who_why_and_what_came_of_it() -> None:
    here = world(two_partitions())
    here.restore()
    begun, done = here.log.entries
    assert (begun["outcome"], done["outcome"], done["subject"], done["action"]) == (
        "begun",
        "done",
        "back",
        "backup.restore",
    )
    assert (done["actor"], done["reason"]) == ("cli:ann", "they want it")
    assert done["before"]["archive"] == str(HERE)
    assert done["after"] == {"restored": "40", "verified": "40"}


def test_a_control_database_that_is_away_is_told_once_and_nothing_waits_for_it() -> None:
    here = world(two_partitions())
    here.log.is_away = True
    assert here.restore().is_whole
    assert here.told == ["the action log lacks this restore: the control database does not answer"]


def test_a_beginning_that_is_read_back_while_another_client_takes_over_is_counted_once() -> None:
    objects = [(0, plain_records(0, 5)), (1, plain_records(0, 5, timestamp_ms=0)), (0, plain_records(5, 5))]
    here = world(objects)
    report = here.restore()
    assert here.topic.is_exact
    assert (report.is_whole, report.verified, report.restored) == (True, 15, 15)


def test_progress_says_how_much_there_is_but_for_keys() -> None:
    here = world(two_partitions())
    here.restore()
    restoring = [one for one in here.phases if one.phase is Phase.RESTORING]
    assert restoring[-1] == RestoreProgress(Phase.RESTORING, 40, 40)
    other = world(two_partitions())
    other.restore(Selection(key=b"key 3"))
    assert {one.total for one in other.phases} == {None}


def test_expired_objects_are_not_restored_though_they_still_lie_there() -> None:
    here = world(two_partitions())
    here.expire(1)
    report = here.restore()
    assert (report.restored, report.is_whole) == (35, True)


def test_a_topic_that_is_not_there_comes_with_the_command_that_makes_it() -> None:
    here = world(two_partitions())
    with pytest.raises(MillraceError) as told:
        here.restore(into="elsewhere")
    assert "--partitions 2" in told.value.next_step
