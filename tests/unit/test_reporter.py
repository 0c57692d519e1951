"""What a running stream tells of itself reaches the control database, also after that was away for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from millrace.errors import UnreachableError
from millrace.runtime.reporter import Reporter
from support.waiting import Deadline, eventually, happened


class Told:
    """A control database in memory; `away` makes it fail, `slow` makes it wait to be let go on."""

    def __init__(self) -> None:
        self.alarms: list[str | None] = []
        self.asked = 0
        self.away = False
        self.slow = threading.Event()
        self.slow.set()

    def set_alarm(self, detail: str | None) -> None:
        self.asked += 1
        if self.away:
            raise UnreachableError("the control database does not answer")
        assert self.slow.wait(Deadline.THREAD.seconds)
        self.alarms.append(detail)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reporter(told: Told) -> Iterator[Reporter]:
    made = Reporter(lambda progress: None, told.set_alarm)
    yield made
    made.close()


def until(told: Told, *alarms: str | None) -> None:
    eventually(lambda: told.alarms == list(alarms), within=Deadline.THREAD, what=f"the alarms {alarms}")


def test_an_alarm_is_opened_and_closed_once_however_often_it_is_said(reporter: Reporter, told: Told) -> None:
    for _ in range(3):
        reporter.alarm("disk full")
    until(told, "disk full")
    for _ in range(3):
        reporter.alarm(None)
    until(told, "disk full", None)


def test_the_alarm_that_a_former_epoch_left_is_closed(reporter: Reporter, told: Told) -> None:
    reporter.alarm(None)
    until(told, None)


def test_an_alarm_that_could_not_be_set_is_set_when_it_is_said_again(reporter: Reporter, told: Told) -> None:
    told.away = True
    reporter.alarm("disk full")
    eventually(lambda: told.asked, within=Deadline.THREAD, what="the first try")
    told.away = False
    reporter.alarm("disk full")
    until(told, "disk full")


def test_an_alarm_that_is_over_before_it_is_open_is_closed_all_the_same(reporter: Reporter, told: Told) -> None:
    reporter.alarm(None)
    until(told, None)
    told.slow.clear()
    reporter.alarm("disk full")
    eventually(lambda: told.asked == 2, within=Deadline.THREAD, what="the opening")
    reporter.alarm(None)
    told.slow.set()
    until(told, None, "disk full", None)


def test_what_waits_is_saved_before_the_end(told: Told) -> None:
    saved = threading.Event()
    reporter = Reporter(lambda progress: saved.set(), told.set_alarm)
    reporter.progress(object())  # type: ignore[arg-type]
    reporter.alarm("disk full")
    reporter.close()
    happened(saved, what="the progress")
    assert told.alarms == ["disk full"]
