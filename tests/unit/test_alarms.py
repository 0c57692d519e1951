from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.domain.control import Alarm
from millrace.domain.declaration import Environment, Notifier
from millrace.usecases import alarms
from support.fakes_streams import FakePlatform


@pytest.fixture
def platform(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


def never(notifier: Notifier) -> alarms.Tell:
    raise AssertionError(f"{notifier.kind} was loaded")


def test_each_alarm_is_told_once_in_the_log_file(platform: FakePlatform, tmp_path: Path) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.alarms.open("stream.gave_up", "shop.refunds", "data loss")
    notifiers = alarms.notifiers_of(Environment("embedded"), tmp_path, never)
    for _ in range(2):
        alarms.tell(platform, alarms.untold(platform, now=platform.clock.now), notifiers)
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
    notifiers = alarms.notifiers_of(environment, tmp_path, lambda notifier: broken)
    [told] = alarms.tell(platform, alarms.untold(platform, now=platform.clock.now), notifiers)
    assert told.failures == ("my.Pager: ConnectionError: no route",)
    assert "no route" in str(told)
    assert (tmp_path / "alarms.log").exists()
    assert not alarms.untold(platform, now=platform.clock.now)


def test_overdue_are_those_that_waited(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    assert not alarms.untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)
    platform.clock.pass_seconds(121)
    assert alarms.untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)


def test_an_alarm_that_closed_before_anybody_was_told_is_told_all_the_same(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.alarms.close("stream.died", "shop.purchases")
    assert alarms.untold(platform, now=platform.clock.now)


def test_nobody_is_told_of_an_alarm_that_somebody_has_taken_up(platform: FakePlatform) -> None:
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    platform.clock.pass_seconds(121)
    alarms.acknowledge(platform, 1, actor="cli:ann", reason="looking at it")
    assert not alarms.untold(platform, older_than=timedelta(minutes=2), now=platform.clock.now)
    assert [alarm.identity for alarm in alarms.list_alarms(platform)] == [1]
