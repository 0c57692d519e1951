"""The triggers on a control database and a runner in memory: what ends a task, and that nothing makes one raise."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.fakes_streams import Clock, FakePlatform
from support.waiting import Deadline, eventually

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = "shop.purchases"
A_FEW_LOOKS = 6


class WatchedPlatform(FakePlatform):
    """Counts how often a trigger took it, once for each look."""

    looks = 0

    def taken(self) -> WatchedPlatform:
        self.looks += 1
        return self


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedPlatform:
    from millrace.airflow import triggers

    for folder in ("include/pipelines", "include/environments", "spark_apps", "sources"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    made = WatchedPlatform(tmp_path, Clock(datetime.now(UTC)))
    monkeypatch.setattr(triggers, "airflow_platform", made.taken)
    for name in ("SHORTEST_WATCH_SECONDS", "WATCH_SECONDS", "LOOK_SECONDS", "IDLE_SECONDS", "AFTER_ERROR_SECONDS"):
        monkeypatch.setattr(triggers, name, 0.02)
    return made


async def first_event(platform: WatchedPlatform, trigger: Any, meanwhile: Callable[[], None]) -> Any:
    """The trigger's first event; `meanwhile` is done once it has looked a few times and said nothing."""

    async def run() -> Any:
        async for event in trigger.run():
            return event

    running = asyncio.create_task(run())
    await until(lambda: running.done() or platform.looks >= A_FEW_LOOKS, "a few looks of the trigger")
    assert not running.done()
    meanwhile()
    await until(running.done, "the trigger's first event")
    return running.result()


async def until(condition: Callable[[], bool], what: str) -> None:
    every = timedelta(milliseconds=10)
    await asyncio.to_thread(eventually, condition, within=Deadline.THREAD, what=what, every=every)


def want(platform: WatchedPlatform, state: str) -> None:
    from millrace.domain.streams import DesiredState

    platform.streams.set_desired(STREAM, actor="cli:me", reason="test", state=DesiredState(state))


def test_wait_parks_until_wanted_then_starts_the_app_and_hands_on_its_epoch(platform: WatchedPlatform) -> None:
    from millrace.airflow.triggers import AppStarted

    event = asyncio.run(first_event(platform, AppStarted(STREAM), lambda: want(platform, "running")))
    assert (event.payload, event.xcoms) == ("success", {"epoch": 1})
    assert len(platform.app_runner.submissions) == 1


def test_wait_outlives_a_silent_control_database(platform: WatchedPlatform) -> None:
    from millrace.airflow.triggers import AppStarted

    want(platform, "running")
    platform.streams.down = True

    def back() -> None:
        platform.streams.down = False

    event = asyncio.run(first_event(platform, AppStarted(STREAM), back))
    assert event.xcoms == {"epoch": 1}


@pytest.mark.parametrize(
    ("wanted", "code", "ends"),
    [
        ("running", 137, "failed"),
        ("running", 1, "failed"),
        ("running", None, "failed"),
        ("running", 0, "success"),
        ("stopped", 0, "success"),
        ("stopped", 137, "success"),
        ("stopped", 15, "failed"),
    ],
)
def test_running_ends_as_the_app_did(platform: WatchedPlatform, wanted: str, code: int | None, ends: str) -> None:
    from millrace.airflow.triggers import AppEnded
    from millrace.usecases.streams import supervise

    want(platform, "running")
    supervise(platform, STREAM, "test")

    def end() -> None:
        want(platform, wanted)
        platform.app_runner.end(STREAM, 1, code, "last line")

    event = asyncio.run(first_event(platform, AppEnded(STREAM), end))
    assert event.payload == ends
    assert platform.streams.attempts(STREAM)[-1].ended_at is not None


def test_running_watches_on_while_the_control_database_is_silent(platform: WatchedPlatform) -> None:
    from millrace.airflow.triggers import AppEnded
    from millrace.usecases.streams import supervise

    want(platform, "running")
    supervise(platform, STREAM, "test")
    trigger = AppEnded(STREAM)

    def silent_then_dead() -> None:
        platform.streams.down = True
        platform.app_runner.end(STREAM, 1, 1)

    event = asyncio.run(first_event(platform, trigger, silent_then_dead))
    assert event.payload == "failed"


def test_an_alarm_wakes_the_alarms_dag(platform: WatchedPlatform) -> None:
    from millrace.airflow.triggers import UntoldAlarm

    raised = asyncio.run(first_event(platform, UntoldAlarm(), lambda: platform.alarms.rows.append(_alarm(platform))))
    assert raised.payload == "success"


def _alarm(platform: WatchedPlatform) -> Any:
    platform.alarms.open("stream.died", STREAM, "it ended")
    return platform.alarms.rows.pop()


def test_no_trigger_has_a_hook_that_acts_on_a_users_click() -> None:
    from airflow.triggers.base import BaseTrigger

    from millrace.airflow import triggers

    for trigger in (triggers.AppStarted, triggers.AppEnded, triggers.UntoldAlarm):
        assert trigger.on_kill is BaseTrigger.on_kill
        assert trigger.cleanup is BaseTrigger.cleanup
