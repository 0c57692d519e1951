"""What a driver says of itself, read as its runner reads it; seconds pass when the test says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.adapters.apps.status import beat_of
from millrace.domain.streams.supervision import Phase
from millrace.domain.streams.vitals import Vitals, trouble
from millrace.runtime.life.pulse import Pulse
from support.waiting import Deadline, eventually

BOUND = timedelta(minutes=2)


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Driver:
    """A pulse, the clock it lives by and the file it writes."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.file = folder / "status.json"
        self.pulse = Pulse(self.file, BOUND, clock=self.clock)

    def vitals(self) -> Vitals:
        """As they are now: the file is written first, as by a beat."""
        self.pulse._write()
        status = json.loads(self.file.read_text())
        beat = beat_of(status)
        assert beat is not None
        return beat.vitals(phase=status["phase"], now=self.clock.seconds)

    def later(self, seconds: float) -> None:
        self.clock.seconds += seconds


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.pulse.close()


def test_a_start_has_an_age_until_it_is_over(driver: Driver) -> None:
    driver.pulse.phase(Phase.STARTING)
    driver.later(40)
    driver.pulse.at("take over the sink")
    driver.later(50)
    assert driver.vitals().starting_for == timedelta(seconds=90)
    assert driver.vitals().step == "take over the sink"
    driver.pulse.phase(Phase.RUNNING)
    assert driver.vitals().starting_for is None
    assert driver.vitals().bound == BOUND


def test_silence_is_counted_from_the_last_beat(driver: Driver) -> None:
    driver.pulse.phase(Phase.RUNNING)
    beat = beat_of(json.loads(driver.file.read_text()))
    assert beat is not None
    later = beat.vitals(phase="running", now=driver.clock.seconds + 77)
    assert later.silent == timedelta(seconds=77)


def test_of_a_driver_that_was_stopped_nothing_else_is_said_than_that_it_is_silent(driver: Driver) -> None:
    """Neither its JVM nor its batch is to blame for what it did not see."""
    driver.pulse.phase(Phase.RUNNING)
    driver.pulse.jvm_answered()
    with driver.pulse.batch(1):
        driver.later(20)
        driver.vitals()
        beat = beat_of(json.loads(driver.file.read_text()))
    assert beat is not None
    found = trouble(beat.vitals(phase="running", now=driver.clock.seconds + BOUND.total_seconds() + 1))
    assert found is not None
    assert "its driver does not answer" in found.why
    assert beat.vitals(phase="running", now=driver.clock.seconds + 200).jvm_silent == timedelta(seconds=20)


def test_it_beats_by_itself_once_it_has_a_phase(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    pulse = Pulse(file, timedelta(seconds=2))
    pulse.phase(Phase.STARTING)
    first = file.read_text()
    eventually(lambda: file.read_text() != first, within=Deadline.THREAD, what="the next beat")
    pulse.close()


def test_a_batch_in_flight_has_an_age_and_the_longest_of_the_last_hour_is_kept(driver: Driver) -> None:
    for batch_id, seconds in enumerate((5, 30, 10)):
        with driver.pulse.batch(batch_id):
            driver.later(seconds)
            assert driver.vitals().batch_for == timedelta(seconds=seconds)
        driver.pulse.done(batch_id)
    assert driver.vitals().batch_for is None
    assert driver.vitals().longest_batch == timedelta(seconds=30)
    driver.later(3600)  # an hour without any is no reason to forget how long they take
    assert driver.vitals().longest_batch == timedelta(seconds=30)
    with driver.pulse.batch(3):
        driver.later(7)
    assert driver.vitals().longest_batch == timedelta(seconds=7)
    assert json.loads(driver.file.read_text())["batch_id"] == 2


def test_a_batch_that_waited_or_failed_says_nothing_of_how_long_others_take(driver: Driver) -> None:
    with driver.pulse.batch(1):
        driver.pulse.at("merge", in_sink=True)
        driver.pulse.waits_for_lock("merge", "a lock of pid 7")
        driver.pulse.waits_for_lock("merge", "")
        driver.later(3000)

    def fail() -> None:
        driver.later(3000)
        raise OSError("away")

    with pytest.raises(OSError, match="away"), driver.pulse.batch(2):
        fail()
    assert driver.vitals().longest_batch == timedelta()
    with driver.pulse.batch(3):
        driver.later(5)
    assert driver.vitals().longest_batch == timedelta(seconds=5)


def test_an_end_that_does_not_come_has_an_age_from_the_last_batch_on(driver: Driver) -> None:
    with driver.pulse.batch(1):
        driver.pulse.phase(Phase.DRAINING)
        driver.later(500)
        assert driver.vitals().ending_for is None
    assert driver.vitals().ending_for == timedelta()
    driver.later(121)
    found = trouble(driver.vitals())
    assert found is not None
    assert (found.restart, found.why.partition(":")[0]) == (True, "it does not end")


def test_a_disk_without_room_for_a_second_file_stops_no_heartbeat(driver: Driver) -> None:
    driver.pulse.phase(Phase.RUNNING)
    driver.file.with_suffix(".new").mkdir()  # whatever keeps the draft from being written
    driver.later(60)
    assert driver.vitals().silent == timedelta()


def test_a_batch_that_fails_is_in_flight_no_more(driver: Driver) -> None:
    with pytest.raises(OSError, match="away"), driver.pulse.batch(1):
        raise OSError("away")
    driver.later(500)
    assert driver.vitals().batch_for is None


def test_records_count_as_waiting_only_while_a_batch_could_begin(driver: Driver) -> None:
    with driver.pulse.batch(1):
        driver.later(10)
    driver.pulse.behind(7)  # it rests until its trigger: whatever has come meanwhile waits as it should
    driver.later(3000)
    assert driver.vitals().behind_for == timedelta()
    driver.pulse.ready()
    driver.pulse.behind(7)
    driver.later(60)
    driver.pulse.behind(9)
    driver.later(60)
    assert (driver.vitals().behind, driver.vitals().behind_for) == (9, timedelta(seconds=120))
    driver.pulse.behind(0)
    assert driver.vitals().behind_for == timedelta()
    driver.pulse.behind(None, why="the brokers: no answer")
    driver.later(60)
    assert (driver.vitals().behind_for, driver.vitals().waits_for) == (timedelta(seconds=60), "the brokers: no answer")
    with driver.pulse.batch(2):
        driver.pulse.ready()  # said after the batch has begun
        driver.pulse.behind(7)
        driver.later(10)
        assert driver.vitals().behind_for == timedelta()
        assert driver.pulse.ready_for == 0


def test_a_lock_that_was_found_too_late_is_not_put_down_to_the_next_step(driver: Driver) -> None:
    driver.pulse.at("batch 1: merge", in_sink=True)
    found = driver.pulse.in_sink_step
    assert found is not None
    driver.pulse.waits_for_lock(found[0], "a lock of pid 7")
    assert driver.vitals().waits_for == "a lock of pid 7"
    driver.pulse.at("batch 1: group")
    driver.pulse.waits_for_lock(found[0], "a lock of pid 7")
    assert driver.vitals().waits_for == ""
    assert driver.pulse.in_sink_step is None


def test_a_disk_that_takes_nothing_ends_nothing(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "gone" / "status.json", BOUND)
    pulse.phase(Phase.RUNNING)
    pulse.at("batch 1: copy")
    pulse.close()


@pytest.mark.parametrize("status", [{}, {"schema": "millrace.stream-status/1", "phase": "running"}, {"beat": 3}])
def test_what_another_version_wrote_is_not_judged(status: dict[str, object]) -> None:
    assert beat_of(status) is None
    assert beat_of({"schema": "millrace.stream-status/2", "beat": {"unknown": 1}}) is None


def test_a_notice_stays_until_it_is_taken_back(driver: Driver) -> None:
    driver.pulse.notice("smaller batches")
    driver.pulse.at("batch 3: copy")
    assert driver.vitals().notice == "smaller batches"
    driver.pulse.notice("")
    assert driver.vitals().notice == ""
