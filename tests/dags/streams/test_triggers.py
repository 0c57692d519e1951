"""The triggers on a control database and a runner in memory: what ends a task, and that nothing makes one raise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.streams.hosts import Host
from millrace.domain.streams.vitals import Vitals
from millrace.errors import UnreachableError
from millrace.settings import Settings
from support.declarations import example_project
from support.fakes.streams import Clock, FakePlatform
from support.waiting import Deadline, eventually

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
    from millrace.airflow.alarms import triggers as alarm_triggers
    from millrace.airflow.streams import triggers

    made = WatchedPlatform(example_project(tmp_path), Clock(datetime.now(UTC)))
    made.settings = Settings(root=tmp_path, lookup=lambda name: json.dumps({"conn_type": "any"}))
    monkeypatch.setattr(triggers, "airflow_platform", made.taken)
    monkeypatch.setattr("millrace.usecases.streams.supervise.ANSWERS_WITHIN", timedelta())
    for name in ("SHORTEST_WATCH_SECONDS", "WATCH_SECONDS", "LOOK_SECONDS", "IDLE_SECONDS", "AFTER_ERROR_SECONDS"):
        monkeypatch.setattr(triggers, name, 0.02)
    monkeypatch.setattr(alarm_triggers, "airflow_platform", made.taken)
    for name in ("LOOK_SECONDS", "AFTER_ERROR_SECONDS"):
        monkeypatch.setattr(alarm_triggers, name, 0.02)
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
    from millrace.domain.streams.supervision import DesiredState

    platform.streams.set_desired(STREAM, actor="cli:me", reason="test", state=DesiredState(state))


def began(trigger: Any, platform: WatchedPlatform) -> Any:
    """The trigger in a run of its DAG that began an hour ago, before all that happens in these tests."""
    run = SimpleNamespace(start_date=platform.clock.now - timedelta(hours=1))
    trigger.task_instance = SimpleNamespace(task_id="any", get_template_context=lambda: {"dag_run": run})
    return trigger


@pytest.fixture
def log(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was logged; to be asked once."""
    return lambda: "".join(capfd.readouterr())


async def event_at_once(trigger: Any) -> Any:
    async with asyncio.timeout(Deadline.THREAD.seconds):
        async for event in trigger.run():
            return event


def start(platform: WatchedPlatform) -> None:
    from millrace.usecases.streams.supervise import supervise

    want(platform, "running")
    supervise(platform, STREAM, "test")


def back_off(platform: WatchedPlatform) -> None:
    start(platform)
    platform.app_runner.end(STREAM, 1, 1)


def give_up(platform: WatchedPlatform) -> None:
    start(platform)
    platform.app_runner.end(STREAM, 1, 16)


STATES = {"stopped": lambda platform: None, "backing_off": back_off, "given_up": give_up, "running": start}


@pytest.mark.parametrize(("state", "task"), [(a, b) for a in STATES for b in STATES if a != b and b != "running"])
def test_a_task_the_stream_does_not_stand_in_is_skipped_at_once(
    platform: WatchedPlatform, state: str, task: str
) -> None:
    from millrace.airflow.streams.triggers import StreamWaits

    STATES[state](platform)
    assert asyncio.run(event_at_once(StreamWaits(STREAM, task))).payload == "skipped"


def test_stopped_lasts_until_wanted(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamWaits

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, "stopped"), lambda: want(platform, "running")))
    assert event.payload == "success"


def test_backing_off_lasts_until_its_time_has_come_and_starts_the_next_epoch(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamWaits
    from millrace.domain.streams.supervision import FIRST_BACKOFF

    back_off(platform)

    def its_time_has_come() -> None:
        (attempt,) = platform.streams.attempts(STREAM)
        platform.streams.reckon(attempt, ended_at=attempt.ended_at - FIRST_BACKOFF)

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, "backing_off"), its_time_has_come))
    assert event.payload == "success"
    assert [submission.epoch for submission in platform.app_runner.submissions] == [1, 2]


def test_given_up_lasts_until_an_operator_starts_it(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamWaits
    from millrace.usecases.streams.supervise import start as start_by_hand

    give_up(platform)

    def by_hand() -> None:
        platform.clock.pass_seconds(1)
        start_by_hand(platform, STREAM, "cli:me", "test")

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, "given_up"), by_hand))
    assert event.payload == "success"


def test_a_wait_outlives_a_silent_control_database(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamWaits

    platform.streams.down = True

    def back() -> None:
        platform.streams.down = False
        want(platform, "running")

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, "stopped"), back))
    assert event.payload == "skipped"


def test_running_starts_what_is_due(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    want(platform, "running")

    def end() -> None:
        assert len(platform.app_runner.submissions) == 1
        platform.app_runner.end(STREAM, 1, 1)

    event = asyncio.run(first_event(platform, began(StreamRuns(STREAM), platform), end))
    assert event.payload == "failed"


def test_a_backup_is_started_in_the_name_of_its_own_dag(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamRuns
    from millrace.domain.streams.supervision import DesiredState

    platform.streams.set_desired("shop.backup", actor="cli:me", reason="test", state=DesiredState.RUNNING)

    def end() -> None:
        [submitted] = platform.logged
        assert (submitted["subject"], submitted["actor"]) == ("shop.backup", "dag:shop.backup")
        platform.app_runner.end("shop.backup", 1, 1)

    event = asyncio.run(first_event(platform, began(StreamRuns("shop.backup"), platform), end))
    assert event.payload == "failed"


@pytest.mark.parametrize("state", ["stopped", "backing_off", "given_up"])
def test_running_is_skipped_where_the_stream_waits_again(platform: WatchedPlatform, state: str) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    STATES[state](platform)
    platform.clock.pass_seconds(2 * 60 * 60)  # whatever ended did so before this run
    trigger = began(StreamRuns(STREAM), platform)
    assert asyncio.run(event_at_once(trigger)).payload == "skipped"


@pytest.mark.parametrize(("code", "ends"), [(1, "failed"), (16, "failed"), (0, "success")])
def test_an_app_that_ended_before_running_looked_is_told_by_it(platform: WatchedPlatform, code: int, ends: str) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)
    platform.app_runner.end(STREAM, 1, code)
    want(platform, "stopped")
    assert asyncio.run(event_at_once(began(StreamRuns(STREAM), platform))).payload == ends


@pytest.mark.parametrize("state", STATES)
def test_running_never_ends_at_once(platform: WatchedPlatform, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.airflow.streams import triggers

    STATES[state](platform)
    waits: list[float] = []
    monkeypatch.setattr(triggers, "SHORTEST_WATCH_SECONDS", 1000.0)

    async def waited(seconds: float) -> None:
        waits.append(seconds)
        if platform.app_runner.apps:
            platform.app_runner.end(STREAM, 1, 1)

    monkeypatch.setattr(triggers.asyncio, "sleep", waited)
    asyncio.run(event_at_once(began(triggers.StreamRuns(STREAM), platform)))
    assert waits[-1] > 900


@pytest.mark.parametrize(
    ("wanted", "code", "ends"),
    [("running", 137, "failed"), ("running", None, "failed"), ("running", 0, "success"), ("stopped", 137, "success")],
)
def test_running_ends_as_the_app_did(platform: WatchedPlatform, wanted: str, code: int | None, ends: str) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)

    def end() -> None:
        want(platform, wanted)
        platform.app_runner.end(STREAM, 1, code, "last line")

    event = asyncio.run(first_event(platform, StreamRuns(STREAM), end))
    assert event.payload == ends
    assert platform.streams.attempts(STREAM)[-1].ended_at is not None


def test_running_watches_on_while_the_control_database_is_silent(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)

    def silent_then_dead() -> None:
        platform.streams.down = True
        platform.app_runner.end(STREAM, 1, 1)

    event = asyncio.run(first_event(platform, StreamRuns(STREAM), silent_then_dead))
    assert event.payload == "failed"


STUCK = Vitals(step="merging batch 7", batch_for=timedelta(hours=1), waits_for="a lock of backend 77")


def get_stuck(platform: WatchedPlatform) -> None:
    say_of_itself(platform, STUCK)


def say_of_itself(platform: WatchedPlatform, vitals: Vitals) -> None:
    apps = platform.app_runner.apps
    apps[STREAM, 1] = replace(apps[STREAM, 1], vitals=vitals)


def test_one_look_that_fails_makes_no_red_run_of_a_stream_that_was_stopped(
    platform: WatchedPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)
    desired, failures = platform.streams.desired, []

    def answers_late(stream: str) -> Any:
        if platform.app_runner.status(STREAM, 1).exit_code is not None and len(failures) < 3:
            failures.append(stream)
            raise UnreachableError("the control database does not answer")
        return desired(stream)

    def stopped_at_once() -> None:
        want(platform, "stopped")
        monkeypatch.setattr(platform.streams, "desired", answers_late)
        platform.app_runner.end(STREAM, 1, 137)

    event = asyncio.run(first_event(platform, StreamRuns(STREAM), stopped_at_once))
    assert failures
    assert event.payload == "success"


@pytest.mark.parametrize("look_seconds", [0.02, 3600.0], ids=["at its next look", "as soon as it says so"])
def test_running_leaves_a_stuck_app_to_stuck_and_says_why(
    platform: WatchedPlatform, log: Callable[[], str], look_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.streams import triggers

    monkeypatch.setattr(triggers, "LOOK_SECONDS", look_seconds)
    start(platform)
    platform.app_runner.said[STREAM, 1] = ["the last line of its log"]
    event = asyncio.run(first_event(platform, triggers.StreamRuns(STREAM), lambda: get_stuck(platform)))
    assert event.payload == "success"
    told = log()
    assert "epoch 1 is stuck: merging batch 7, waits for a lock of backend 77" in told
    assert "the last line of its log" in told


def test_an_app_that_is_restarted_because_it_does_not_answer_ends_with_that_reason(
    platform: WatchedPlatform, log: Callable[[], str]
) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)
    silent = replace(STUCK, silent=timedelta(hours=1))
    event = asyncio.run(first_event(platform, StreamRuns(STREAM), lambda: say_of_itself(platform, silent)))
    assert event.payload == "failed"
    assert "epoch 1 died: stuck: its driver does not answer; its last report: merging batch 7" in log()


def _moves(platform: WatchedPlatform) -> None:
    say_of_itself(platform, Vitals(step="reading batch 8"))


def _dies(platform: WatchedPlatform) -> None:
    platform.app_runner.end(STREAM, 1, 137)


def _is_stopped(platform: WatchedPlatform) -> None:
    want(platform, "stopped")
    platform.app_runner.end(STREAM, 1, 137)


@pytest.mark.parametrize(("change", "ends"), [(_moves, "success"), (_dies, "failed"), (_is_stopped, "success")])
@pytest.mark.parametrize("look_seconds", [0.02, 3600.0], ids=["at its next look", "as soon as it says so"])
def test_stuck_lasts_until_the_app_moves_or_ends(
    platform: WatchedPlatform,
    change: Callable[..., None],
    ends: str,
    look_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from millrace.airflow.streams import triggers

    monkeypatch.setattr(triggers, "LOOK_SECONDS", look_seconds)
    start(platform)
    get_stuck(platform)
    event = asyncio.run(first_event(platform, triggers.StreamStuck(STREAM), lambda: change(platform)))
    assert event.payload == ends


def test_stuck_outlasts_a_stop_that_is_only_asked_for(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamStuck

    start(platform)
    get_stuck(platform)

    def stop_and_then_end() -> None:
        want(platform, "stopped")
        asked = platform.looks
        eventually(lambda: platform.looks > asked + A_FEW_LOOKS, within=Deadline.THREAD, what="looks after the stop")
        assert platform.app_runner.apps[STREAM, 1].stopping_since
        platform.app_runner.end(STREAM, 1, 0)

    async def run() -> Any:
        ending = asyncio.create_task(event_at_once(StreamStuck(STREAM)))
        await until(lambda: platform.looks >= A_FEW_LOOKS, "a few looks of the trigger")
        await asyncio.to_thread(stop_and_then_end)
        return await ending

    assert asyncio.run(run()).payload == "success"


@pytest.mark.parametrize("state", STATES)
def test_stuck_is_skipped_where_the_stream_was_not(platform: WatchedPlatform, state: str) -> None:
    from millrace.airflow.streams.triggers import StreamStuck

    STATES[state](platform)
    platform.clock.pass_seconds(2 * 60 * 60)
    assert asyncio.run(event_at_once(began(StreamStuck(STREAM), platform))).payload == "skipped"


def test_stuck_tells_a_death_that_came_before_its_first_look(platform: WatchedPlatform) -> None:
    from millrace.airflow.streams.triggers import StreamStuck

    back_off(platform)
    assert asyncio.run(event_at_once(began(StreamStuck(STREAM), platform))).payload == "failed"


@pytest.mark.parametrize(("task", "code"), [("backing_off", 1), ("given_up", 16)])
def test_a_waiting_tasks_log_says_why_and_what_the_driver_said_last(
    platform: WatchedPlatform, task: str, code: int, log: Callable[[], str]
) -> None:
    from millrace.airflow.streams.triggers import StreamWaits

    start(platform)
    platform.app_runner.said[STREAM, 1] = [f"line {number}" for number in range(100)]
    platform.app_runner.end(STREAM, 1, code)

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, task), lambda: want(platform, "stopped")))
    assert event.payload == "success"
    told = log()
    assert f"shop.purchases is {task.replace('_', ' ')}" in told
    assert "line 80\n" in told
    assert "line 99\n" in told
    assert "line 79\n" not in told


def test_a_dead_apps_log_says_why_and_hides_the_secrets_of_its_connections(
    platform: WatchedPlatform, log: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared.settings import airflow_settings
    from millrace.airflow.streams.triggers import StreamRuns

    kafka = {"bootstrap.servers": "localhost:1", "sasl.password": "kafkas-own-word"}
    connections = {
        "kafka": {"conn_type": "kafka", "extra": kafka},
        "sink": {"conn_type": "postgres", "host": "localhost", "login": "us", "password": "the-sinks-word"},
        "control": {"conn_type": "postgres", "host": "localhost", "login": "us", "password": "the-controls-word"},
    }
    for name, document in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_MILLRACE_{name.upper()}", json.dumps(document))
    platform.settings = airflow_settings(platform.root)
    start(platform)
    platform.app_runner.said[STREAM, 1] = ["no answer: kafkas-own-word the-sinks-word the-controls-word"]

    def die() -> None:
        platform.app_runner.end(STREAM, 1, 1)

    assert asyncio.run(first_event(platform, StreamRuns(STREAM), die)).payload == "failed"
    told = log()
    assert "epoch 1 died: failed (1)" in told
    assert "no answer: *** *** ***" in told


def test_what_a_driver_said_is_not_shown_where_its_secrets_are_not_known(
    platform: WatchedPlatform, log: Callable[[], str]
) -> None:
    from millrace.airflow.streams.triggers import StreamRuns

    start(platform)
    platform.app_runner.said[STREAM, 1] = ["a word of a connection that nobody can look up"]
    (platform.root / "include" / "pipelines" / "shop.yaml").unlink()

    def die() -> None:
        platform.app_runner.end(STREAM, 1, 1)

    assert asyncio.run(first_event(platform, StreamRuns(STREAM), die)).payload == "failed"
    told = log()
    assert "is not shown" in told
    assert "millrace streams logs shop.purchases --epoch 1" in told
    assert "a word of a connection" not in told


def test_an_alarm_wakes_the_alarms_dag(platform: WatchedPlatform) -> None:
    from millrace.airflow.alarms.triggers import UntoldAlarm

    raised = asyncio.run(first_event(platform, UntoldAlarm(), lambda: platform.alarms.rows.append(_alarm(platform))))
    assert raised.payload == "success"


def _alarm(platform: WatchedPlatform) -> Any:
    platform.alarms.open("stream.died", STREAM, "it ended")
    return platform.alarms.rows.pop()


def test_no_trigger_has_a_hook_that_acts_on_a_users_click() -> None:
    from airflow.triggers.base import BaseTrigger

    from millrace.airflow.alarms.triggers import UntoldAlarm
    from millrace.airflow.streams import triggers

    for trigger in (triggers.StreamWaits, triggers.StreamRuns, triggers.StreamStuck, UntoldAlarm):
        assert trigger.on_kill is BaseTrigger.on_kill
        assert trigger.cleanup is BaseTrigger.cleanup


# A stream of another host


def of_another_host(platform: WatchedPlatform) -> None:
    """It was started on beta, where its app gives heartbeats."""
    start(platform)
    platform.streams.own(STREAM, "b")
    platform.app_runner.apps.clear()
    beta = Host("b", "beta", "boot b")
    platform.hosts.give_sign(beta)
    platform.hosts.beat(STREAM, 1, beta)


def test_a_stream_of_another_host_is_watched_there_and_stands_in_stopped_here_until_it_is_adopted(
    platform: WatchedPlatform, log: Callable[[], str]
) -> None:
    from millrace.airflow.streams.triggers import StreamRuns, StreamWaits

    of_another_host(platform)
    assert asyncio.run(event_at_once(StreamWaits(STREAM, "given_up"))).payload == "skipped"
    assert asyncio.run(event_at_once(began(StreamRuns(STREAM), platform))).payload == "skipped"

    def adopt() -> None:
        assert platform.streams.attempts(STREAM)[0].ended_at is None
        assert len(platform.app_runner.submissions) == 1
        platform.streams.own(STREAM, "here")

    event = asyncio.run(first_event(platform, StreamWaits(STREAM, "stopped"), adopt))
    assert event.payload == "success"
    assert "it belongs to beta" in log()
