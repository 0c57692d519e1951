"""What a running stream tells of itself reaches the control database, also after that was away for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from millrace.domain.alarms.extent import Extent
from millrace.domain.streams.control import BatchSecond, StreamProgress
from millrace.errors import UnreachableError
from millrace.runtime.life.reporter import LONGEST_HISTORY, Reporter
from support.waiting import Deadline, eventually, happened

FULL, REFUSING = "stream.sink_exhausted", "stream.all_quarantined"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def progress(seconds: float = 0.0, rows: int = 10) -> StreamProgress:
    """Of a batch that ended so many seconds after noon."""
    at = NOON + timedelta(seconds=seconds)
    return StreamProgress("shop.purchases", 2, 1, at, int(seconds * 10), rows, rows - 1, 1, 0.5, None, {})


class Saved:
    """A control database that keeps seconds of history; while `away` it takes none."""

    def __init__(self) -> None:
        self.seconds: dict[datetime, BatchSecond] = {}
        self.sizes: list[int] = []
        self.last = -1
        self.refused = -1
        self.away = False

    def __call__(self, progress: StreamProgress, history: Sequence[BatchSecond]) -> None:
        if self.away:
            self.refused = progress.batch_id
            raise UnreachableError("the control database does not answer")
        self.seconds |= {second.at: second for second in history}
        self.sizes.append(len(history))
        self.last = progress.batch_id


class Told:
    """A control database in memory; `away` makes it fail, `slow` makes it wait to be let go on."""

    def __init__(self) -> None:
        self.alarms: list[str | None] = []
        self.kinds: list[str] = []
        self.asked = 0
        self.away = False
        self.slow = threading.Event()
        self.slow.set()

    def set_alarm(self, kind: str, detail: str | None, extent: Extent) -> None:
        self.asked += 1
        if self.away:
            raise UnreachableError("the control database does not answer")
        assert self.slow.wait(Deadline.THREAD.seconds)
        self.kinds.append(kind)
        self.alarms.append(detail)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reporter(told: Told) -> Iterator[Reporter]:
    made = Reporter(lambda progress, history: None, told.set_alarm)
    yield made
    made.close()


def until(told: Told, *alarms: str | None) -> None:
    eventually(lambda: told.alarms == list(alarms), within=Deadline.THREAD, what=f"the alarms {alarms}")


def test_an_alarm_is_opened_and_closed_once_however_often_it_is_said(reporter: Reporter, told: Told) -> None:
    for _ in range(3):
        reporter.alarm(FULL, "disk full")
    until(told, "disk full")
    for _ in range(3):
        reporter.alarm(FULL, None)
    until(told, "disk full", None)


def test_the_alarm_that_a_former_epoch_left_is_closed(reporter: Reporter, told: Told) -> None:
    reporter.alarm(FULL, None)
    until(told, None)


def test_an_alarm_that_could_not_be_set_is_set_when_it_is_said_again(reporter: Reporter, told: Told) -> None:
    told.away = True
    reporter.alarm(FULL, "disk full")
    eventually(lambda: told.asked, within=Deadline.THREAD, what="the first try")
    told.away = False
    reporter.alarm(FULL, "disk full")
    until(told, "disk full")


def test_an_alarm_that_is_over_before_it_is_open_is_closed_all_the_same(reporter: Reporter, told: Told) -> None:
    reporter.alarm(FULL, None)
    until(told, None)
    told.slow.clear()
    reporter.alarm(FULL, "disk full")
    eventually(lambda: told.asked == 2, within=Deadline.THREAD, what="the opening")
    reporter.alarm(FULL, None)
    told.slow.set()
    until(told, None, "disk full", None)


def test_alarms_of_two_kinds_are_opened_and_closed_apart(reporter: Reporter, told: Told) -> None:
    told.away = True
    reporter.alarm(FULL, "disk full")
    reporter.alarm(REFUSING, "all refused")
    eventually(lambda: told.asked, within=Deadline.THREAD, what="the first try")
    told.away = False
    reporter.progress(progress(), {})
    eventually(lambda: len(told.alarms) == 2, within=Deadline.THREAD, what="both alarms")
    for kind in (FULL, REFUSING):
        reporter.alarm(kind, None)
    eventually(lambda: len(told.alarms) == 4, within=Deadline.THREAD, what="their ends")
    history = list(zip(told.kinds, told.alarms, strict=True))
    assert set(history[:2]) == {(FULL, "disk full"), (REFUSING, "all refused")}
    assert set(history[2:]) == {(FULL, None), (REFUSING, None)}


def test_what_waits_is_saved_before_the_end(told: Told) -> None:
    saved = threading.Event()
    reporter = Reporter(lambda progress, history: saved.set(), told.set_alarm)
    reporter.progress(progress(), {})
    reporter.alarm(FULL, "disk full")
    reporter.close()
    happened(saved, what="the progress")
    assert told.alarms == ["disk full"]


def report(reporter: Reporter, saved: Saved, *reports: StreamProgress) -> None:
    """Report batches, and wait until the last of them is saved."""
    for each in reports:
        reporter.progress(each, {"copy": 0.3, "merge": 0.2})
    last = reports[-1].batch_id
    eventually(lambda: saved.last == last, within=Deadline.THREAD, what=f"batch {last} to be saved")


def test_history_has_every_batch_in_at_most_one_row_a_second(told: Told) -> None:
    saved = Saved()
    reporter = Reporter(saved, told.set_alarm)
    report(reporter, saved, progress(0.1), progress(0.2))
    report(reporter, saved, progress(0.3), progress(1.1), progress(1.2), progress(2.9, rows=100))
    reporter.close()
    assert {at: second.rows_in for at, second in saved.seconds.items()} == {
        NOON: 30,
        NOON + timedelta(seconds=1): 20,
        NOON + timedelta(seconds=2): 100,
    }
    first = saved.seconds[NOON]
    assert (first.batches, first.rows_out, first.quarantined, first.seconds) == (3, 27, 3, 1.5)
    assert first.steps == pytest.approx({"copy": 0.9, "merge": 0.6})
    assert max(saved.sizes) <= 3


def test_what_is_saved_is_not_sent_again_but_for_its_last_second(told: Told) -> None:
    saved = Saved()
    reporter = Reporter(saved, told.set_alarm)
    for second in range(5):
        report(reporter, saved, progress(second + 0.1))
    reporter.close()
    assert max(saved.sizes) <= 2


def test_history_waits_for_a_control_database_that_is_away_and_has_a_bound(told: Told) -> None:
    saved = Saved()
    saved.away = True
    reporter = Reporter(saved, told.set_alarm)
    given = [progress(second) for second in range(LONGEST_HISTORY + 50)]
    for one in given:
        reporter.progress(one, {})
    eventually(lambda: saved.refused == given[-1].batch_id, within=Deadline.THREAD, what="the last refusal")
    saved.away = False
    report(reporter, saved, progress(LONGEST_HISTORY + 50))
    reporter.close()
    assert len(saved.seconds) == LONGEST_HISTORY
    assert max(saved.seconds) == NOON + timedelta(seconds=LONGEST_HISTORY + 50)


def test_a_fault_that_nobody_thought_of_does_not_end_what_is_told(told: Told) -> None:
    saved, faults = Saved(), [ValueError("a bug")]

    def save(report: StreamProgress, history: Sequence[BatchSecond]) -> None:
        if faults:
            raise faults.pop()
        saved(report, history)

    reporter = Reporter(save, told.set_alarm)
    reporter.progress(progress(), {})
    eventually(lambda: not faults, within=Deadline.THREAD, what="the fault")
    report(reporter, saved, progress(1))
    reporter.close()
    assert len(saved.seconds) == 2
