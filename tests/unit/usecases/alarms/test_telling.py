from __future__ import annotations

import json
import threading
from collections.abc import Collection
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import Extent
from millrace.domain.declaration.pipeline import Environment, Notifier
from millrace.usecases.alarms.listing import acknowledge, list_alarms, show
from millrace.usecases.alarms.notifiers import Tell, notifiers_of
from millrace.usecases.alarms.notify import OVERDUE_AFTER, Told, tell, untold
from support.fakes.streams import FakePlatform
from support.waiting import Deadline


@pytest.fixture
def platform(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


def never(notifier: Notifier) -> Tell:
    raise AssertionError(f"{notifier.kind} was loaded")


def test_each_alarm_is_told_once_in_the_log_file(platform: FakePlatform, tmp_path: Path) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.alarms.open("stream.gave_up", "shop.refunds", "data loss")
    notifiers = notifiers_of(Environment("embedded"), tmp_path, never)
    for _ in range(2):
        tell(platform, untold(platform, now=platform.clock.now), notifiers)
    lines = [json.loads(line) for line in (tmp_path / "alarms.log").read_text().splitlines()]
    assert [(line["kind"], line["subject"]) for line in lines] == [
        ("stream.died", "shop.purchases"),
        ("stream.gave_up", "shop.refunds"),
    ]


def test_a_notifier_that_fails_is_named_and_keeps_no_other_from_telling(platform: FakePlatform, tmp_path: Path) -> None:
    def broken(alarm: Alarm) -> None:
        raise ConnectionError("no route")

    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    environment = Environment("production", (Notifier("my.Pager"), Notifier("log")))
    notifiers = notifiers_of(environment, tmp_path, lambda notifier: broken)
    [told] = tell(platform, untold(platform, now=platform.clock.now), notifiers)
    assert told.failures == ("my.Pager: ConnectionError: no route",)
    assert "no route; retried at 12:01:00 UTC" in str(told)
    assert (tmp_path / "alarms.log").exists()
    assert not untold(platform, now=platform.clock.now)


def test_overdue_are_those_that_waited(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    assert not untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)
    platform.clock.pass_seconds(121)
    assert untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)


def test_an_alarm_that_closed_before_anybody_was_told_is_told_all_the_same(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.alarms.close("stream.died", "shop.purchases")
    assert untold(platform, now=platform.clock.now)


def test_nobody_is_told_of_an_alarm_that_somebody_has_taken_up(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.clock.pass_seconds(121)
    acknowledge(platform, 1, actor="cli:ann", reason="looking at it")
    assert not untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)
    assert [alarm.identity for alarm in list_alarms(platform)] == [1]


# Raised again


class Heard:
    """A notifier that keeps what it was told, and fails while `error` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.details: list[str] = []
        self.error = error
        self.calls = 0

    def __call__(self, alarm: Alarm) -> None:
        self.calls += 1
        if self.error:
            raise self.error
        self.details.append(alarm.detail)


def run(platform: FakePlatform, **notifiers: Tell) -> list[Told]:
    """One run of `millrace.alarms`."""
    due = untold(platform, now=platform.clock.now)
    return tell(platform, due, list(notifiers.items()))


def test_people_hear_of_a_later_larger_loss_once_the_hour_is_over_although_it_was_reported_once(
    platform: FakePlatform,
) -> None:
    log = Heard()
    platform.alarms.open("backup.lost", "orders", "10 offsets lost", Extent(10))
    run(platform, log=log)
    acknowledge(platform, 1, actor="cli:ann", reason="looking at it")
    platform.clock.pass_seconds(300)
    platform.alarms.open("backup.lost", "orders", "9,000,000 offsets lost", Extent(9_000_000))
    assert show(platform, 1).detail == "9,000,000 offsets lost"
    assert run(platform, log=log) == []
    platform.clock.pass_seconds(3300)
    [told] = run(platform, log=log)
    assert log.details == ["10 offsets lost", "9,000,000 offsets lost"]
    assert "(raised again: from 10 to 9,000,000 offsets)" in str(told)
    assert show(platform, 1).acknowledged_by is None
    assert run(platform, log=log) == []


def test_a_run_counts_an_alarm_as_waiting_since_it_was_to_be_raised_again(platform: FakePlatform) -> None:
    platform.alarms.open("backup.lost", "orders", "10 offsets lost", Extent(10))
    run(platform, log=Heard())
    platform.alarms.open("backup.lost", "orders", "100 offsets lost", Extent(100))
    platform.clock.pass_seconds(3601)
    assert not untold(platform, older_than=OVERDUE_AFTER, now=platform.clock.now)
    platform.clock.pass_seconds(120)
    assert untold(platform, older_than=OVERDUE_AFTER, now=platform.clock.now)


# Notifiers that fail


def test_a_notifier_that_fails_is_tried_three_times_more_and_the_others_are_not_repeated(
    platform: FakePlatform,
) -> None:
    log, pager = Heard(), Heard(ConnectionError("no route"))
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    for pause in (60, 300, 1800):
        [told] = run(platform, log=log, pager=pager)
        assert "retried at" in str(told)
        assert run(platform, log=log, pager=pager) == []
        platform.clock.pass_seconds(pause)
    [told] = run(platform, log=log, pager=pager)
    assert "not retried" in str(told)
    platform.clock.pass_seconds(86_400)
    assert run(platform, log=log, pager=pager) == []
    assert (log.calls, pager.calls) == (1, 4)
    assert show(platform, 1).told_at is not None


def test_a_retry_that_delivers_makes_no_second_red_run(platform: FakePlatform) -> None:
    pager = Heard(ConnectionError("no route"))
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    assert [told.is_news for told in run(platform, pager=pager)] == [True]
    pager.error = None
    platform.clock.pass_seconds(60)
    assert [told.is_news for told in run(platform, pager=pager)] == [False]
    assert pager.details == ["epoch 1 ended"]


def test_an_alarm_that_waits_for_a_retry_is_not_overdue_before_that(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    for pause in (60, 300):
        run(platform, pager=Heard(ConnectionError("no route")))
        platform.clock.pass_seconds(pause)
    run(platform, pager=Heard(ConnectionError("no route")))
    platform.clock.pass_seconds(1800 + 119)
    assert not untold(platform, older_than=OVERDUE_AFTER, now=platform.clock.now)
    platform.clock.pass_seconds(1)
    assert untold(platform, older_than=OVERDUE_AFTER, now=platform.clock.now)


def test_no_text_of_an_error_is_stored_for_it_may_hold_a_secret(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    run(platform, pager=Heard(ConnectionError("https://hooks.example.com/SECRET")))
    assert "SECRET" not in repr(platform.alarms.rows)


def test_a_notifier_that_hangs_counts_as_failed_and_the_others_tell(platform: FakePlatform) -> None:
    release, log = threading.Event(), Heard()

    def hangs(alarm: Alarm) -> None:
        release.wait(Deadline.THREAD.seconds)

    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    due = untold(platform, now=platform.clock.now)
    try:
        notifiers: list[tuple[str, Tell]] = [
            ("pager", lambda alarm: bool(release.wait(60)) or None),
            ("log", log),
        ]
        [told] = tell(platform, due, notifiers, within=timedelta(milliseconds=20))
    finally:
        release.set()
    assert told.failures == ("pager: TimeoutError: no answer within 0.02 s",)
    assert log.details == ["epoch 1 ended"]


def test_a_call_that_hangs_and_the_next_one_share_no_context_variable(platform: FakePlatform) -> None:
    release, subject = threading.Event(), ContextVar("subject", default="")
    before, after = [], []

    def hangs(alarm: Alarm) -> None:
        before.append(subject.get())
        subject.set(alarm.subject)
        release.wait(Deadline.THREAD.seconds)
        after.append(subject.get() == alarm.subject)
        ended.release()

    ended = threading.Semaphore(0)
    for name in ("shop.a", "shop.b"):
        platform.alarms.open("stream.died", name, "ended")
    try:
        due = untold(platform, now=platform.clock.now)
        tell(platform, due, [("pager", hangs)], within=timedelta(milliseconds=20))
    finally:
        release.set()
    assert all(ended.acquire(timeout=Deadline.THREAD.seconds) for _ in due)
    assert (before, after, subject.get()) == (["", ""], [True, True], "")


def test_a_thousand_alarms_wait_for_a_notifier_that_is_dead_three_times_a_run(platform: FakePlatform) -> None:
    log, pager = Heard(), Heard(TimeoutError("no answer"))
    for number in range(1_000):
        platform.alarms.open("stream.died", f"shop.s{number}", "ended")
    runs = 0
    while due := untold(platform, now=platform.clock.now):
        tell(platform, due[:200], [("pager", pager), ("log", log)])
        runs += 1
    assert (runs, pager.calls, log.calls) == (5, 15, 1_000)
    assert all(row.retry_at for row in platform.alarms.rows)


class Picky:
    """A notifier that refuses some alarms, and keeps the subjects it was called for and those it delivered."""

    def __init__(self, refused: Collection[str]) -> None:
        self.refused = refused
        self.called: list[str] = []
        self.delivered: list[str] = []

    def __call__(self, alarm: Alarm) -> None:
        self.called.append(alarm.subject)
        if alarm.subject in self.refused:
            raise KeyError("template")
        self.delivered.append(alarm.subject)


def run_until_all_end(platform: FakePlatform, notifier: Tell) -> None:
    for pause in (60, 300, 1800, 0):
        run(platform, notifier=notifier)
        platform.clock.pass_seconds(pause)
    assert all(row.told_at for row in platform.alarms.rows)


def test_three_alarms_that_a_notifier_refuses_keep_no_later_one_from_its_delivery(platform: FakePlatform) -> None:
    subjects = [f"shop.s{number}" for number in range(3)]
    for subject in subjects:
        platform.alarms.open("stream.died", subject, "ended")
    for number in range(50):
        platform.alarms.open("backup.lost", f"topic{number}", "10 offsets lost", Extent(10))
    picky = Picky(subjects)
    run_until_all_end(platform, picky)
    assert set(picky.delivered) == {f"topic{number}" for number in range(50)}


def test_many_alarms_of_one_kind_that_a_notifier_refuses_keep_no_other_kind_waiting(platform: FakePlatform) -> None:
    subjects = [f"shop.s{number}" for number in range(100)]
    for subject in subjects:
        platform.alarms.open("stream.died", subject, "ended")
    platform.alarms.open("backup.lost", "orders", "10 offsets lost", Extent(10))
    picky = Picky(subjects)
    run(platform, picky=picky)
    assert picky.delivered == ["orders"]


def test_an_alarm_ends_without_a_call_only_after_twelve_others_failed(platform: FakePlatform) -> None:
    subjects = [f"shop.s{number}" for number in range(20)]
    for subject in subjects:
        platform.alarms.open("stream.died", subject, "ended")
    picky = Picky(subjects)
    run_until_all_end(platform, picky)
    assert sorted(picky.called) == sorted(subjects[:12])
    assert [row.notified[0].called for row in platform.alarms.rows] == [1] * 12 + [0] * 8
    assert {row.notified[0].failed for row in platform.alarms.rows} == {4}


def test_each_of_two_notifiers_is_called_for_an_alarm_that_the_other_one_was_called_for(platform: FakePlatform) -> None:
    subjects = [f"shop.s{number}" for number in range(3)]
    for subject in [*subjects, "shop.last"]:
        platform.alarms.open("stream.died", subject, "ended")
    picky, dead = Picky(subjects), Heard(ConnectionError("no route"))
    for pause in (60, 300, 1800, 0):
        run(platform, dead=dead, picky=picky)
        platform.clock.pass_seconds(pause)
    assert picky.delivered == ["shop.last"]
    assert all(each.called for row in platform.alarms.rows for each in row.notified)


def test_a_thousand_alarms_end_after_sixty_calls_of_a_notifier_that_is_dead(platform: FakePlatform) -> None:
    log, pager = Heard(), Heard(TimeoutError("no answer"))
    for number in range(1_000):
        platform.alarms.open("stream.died", f"shop.s{number}", "ended")
    for pause in (60, 300, 1800, 0):
        while run(platform, pager=pager, log=log):
            pass
        platform.clock.pass_seconds(pause)
    assert all(row.told_at for row in platform.alarms.rows)
    assert (pager.calls, log.calls) == (60, 1_000)


def test_a_notifier_that_fails_now_and_then_is_called_for_every_alarm(platform: FakePlatform) -> None:
    calls = []

    def flaky(alarm: Alarm) -> None:
        calls.append(alarm.identity)
        if len(calls) % 3:
            raise ConnectionError("no route")

    for number in range(9):
        platform.alarms.open("stream.died", f"shop.s{number}", "ended")
    run(platform, flaky=flaky)
    assert len(calls) == 9


def test_two_notifiers_of_one_class_are_tried_again_each_for_itself(tmp_path: Path) -> None:
    environment = Environment("production", (Notifier("my.Pager"), Notifier("log"), Notifier("my.Pager")))
    notifiers = notifiers_of(environment, tmp_path, lambda notifier: Heard())
    assert [name for name, _ in notifiers] == ["my.Pager", "log", "my.Pager#2"]


def test_a_notifier_that_ends_its_process_is_one_that_fails(platform: FakePlatform) -> None:
    def leaves(alarm: Alarm) -> None:
        raise SystemExit(3)

    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    [told] = run(platform, pager=leaves)
    assert told.failures == ("pager: SystemExit: 3",)


def test_foreign_text_of_an_alarm_stands_in_a_red_run_as_one_printable_line(platform: FakePlatform) -> None:
    subject = "kafka_default app\nstream.died of shop: all is well\x1b[2J\u202e"
    platform.alarms.open("reader.headroom", subject, "less than 5 min\nleft for\x1b[1m it", Extent(300))
    [told] = run(platform, pager=Heard(ConnectionError(f"no route\nfor {subject}")))
    assert str(told).isprintable()
    assert "reader.headroom of kafka_default app\\nstream.died of shop: all is well\\x1b[2J\\u202e: less" in str(told)
    assert platform.alarms.get(1).subject == subject
    platform.alarms.close("reader.headroom", subject)
    assert platform.alarms.open_kinds == []


def test_an_alarm_that_grew_while_it_was_told_is_told_again_by_the_next_run(platform: FakePlatform) -> None:
    def grows(alarm: Alarm) -> None:
        platform.alarms.open("backup.lost", "orders", "9,000,000 offsets lost", Extent(9_000_000))
        raise ConnectionError("no route")

    log = Heard()
    platform.alarms.open("backup.lost", "orders", "10 offsets lost", Extent(10))
    run(platform, log=log, pager=Heard(ConnectionError("no route")))
    platform.clock.pass_seconds(3600)
    [told] = run(platform, log=log, pager=grows)
    assert "retried by the next run" in str(told)
    run(platform, log=log, pager=Heard())
    assert log.details == ["10 offsets lost", "9,000,000 offsets lost"]
