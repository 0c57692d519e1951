from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.streams.supervision import GRACE, LONGEST_BACKOFF, SETTLING, DesiredState, StreamState
from millrace.domain.streams.vitals import Vitals
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.ports.runner import RunningApp, RunState
from millrace.usecases.streams import supervise as streams
from millrace.usecases.streams.listing import list_streams
from millrace.usecases.streams.look import Supervised, look
from support.declarations import example_project
from support.fakes.streams import FakePlatform

STREAM = "shop.purchases"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    monkeypatch.setattr(streams, "ANSWERS_WITHIN", timedelta(seconds=0.01))
    monkeypatch.setattr(streams, "LOOK_AGAIN", timedelta(seconds=0.01))
    return FakePlatform(example_project(tmp_path))


def supervise(platform: FakePlatform, after: float = 0) -> Supervised:
    platform.clock.pass_seconds(after)
    return streams.supervise(platform, STREAM, "dag:test", now=platform.clock.now)


def started(platform: FakePlatform) -> Supervised:
    _wish(platform, DesiredState.RUNNING)
    return supervise(platform)


def _wish(platform: FakePlatform, state: DesiredState, **more: bool) -> None:
    platform.streams.set_desired(STREAM, actor="cli:me", reason="test", state=state, **more)


def living(platform: FakePlatform) -> list[int]:
    return [app.epoch for app in platform.app_runner.find(STREAM)]


def test_a_wanted_stream_is_started_once_with_its_own_connections_only(platform: FakePlatform) -> None:
    report = started(platform)
    assert (report.state, report.epoch) == (StreamState.RUNNING, 1)
    for _ in range(3):
        supervise(platform, 5)
    assert living(platform) == [1]
    [submission] = platform.app_runner.submissions
    assert submission.connections == ("millrace_kafka", "millrace_sink", "millrace_control")
    assert submission.arguments == ()
    [attempt] = platform.streams.attempts(STREAM)
    assert (attempt.handle, attempt.instance) == ("handle-1", submission.instance)
    assert [entry["action"] for entry in platform.logged] == ["stream.submit"]


def test_a_stream_nobody_ever_started_stays_stopped(platform: FakePlatform) -> None:
    assert supervise(platform).state is StreamState.STOPPED
    assert not platform.app_runner.submissions


def ill(platform: FakePlatform, **vitals: Any) -> None:
    """The newest app says this of itself from now on."""
    app = platform.app_runner.find(STREAM)[0]
    platform.app_runner.apps[STREAM, app.epoch] = replace(app, vitals=Vitals(**vitals))


def test_a_driver_that_does_not_answer_is_ended_told_once_and_followed_by_the_next_epoch(
    platform: FakePlatform,
) -> None:
    started(platform)
    ill(platform, step="batch 7: copy", silent=timedelta(minutes=3))
    seen = look(platform, STREAM, now=platform.clock.now)
    assert (seen.report.state, seen.due) == (StreamState.STUCK, True)
    assert supervise(platform).state is StreamState.BACKING_OFF
    assert living(platform) == []
    [attempt] = platform.streams.attempts(STREAM)
    assert (attempt.outcome, attempt.exit_code) == ("stuck", 137)
    assert "batch 7: copy" in (attempt.detail or "")
    assert supervise(platform, 10).epoch == 2
    assert living(platform) == [2]
    [alarm] = platform.alarms.list()
    assert (alarm.kind, alarm.subject) == ("stream.stuck", STREAM)
    assert "its driver does not answer; its last report: batch 7: copy" in alarm.detail
    assert [entry["action"] for entry in platform.logged] == ["stream.submit", "stream.kill", "stream.submit"]
    supervise(platform, 61)
    assert platform.alarms.open_kinds == []


def test_an_app_that_answers_after_all_is_left_alone_and_nobody_is_told(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stood still stopped the supervisor too; each app beats again soon after."""
    started(platform)
    ill(platform, silent=timedelta(minutes=3))
    status = platform.app_runner.status

    def again(stream: str, epoch: int) -> Any:
        ill(platform, step="ready for the next batch")
        return status(stream, epoch)

    monkeypatch.setattr(platform.app_runner, "status", again)
    assert supervise(platform).epoch == 1
    assert living(platform) == [1]
    assert platform.alarms.open_kinds == []


def test_a_start_is_given_twice_the_time_after_one_that_was_killed(platform: FakePlatform) -> None:
    started(platform)
    ill(platform, starting_for=timedelta(minutes=3))
    assert supervise(platform).state is StreamState.BACKING_OFF
    assert supervise(platform, 10).epoch == 2
    ill(platform, starting_for=timedelta(minutes=3))
    supervise(platform, 1)
    assert living(platform) == [2]
    ill(platform, starting_for=timedelta(minutes=5))
    supervise(platform, 1)
    assert living(platform) == []


def test_who_waits_for_a_lock_is_told_and_left_alone(platform: FakePlatform) -> None:
    started(platform)
    ill(platform, step="batch 7: merge", batch_for=timedelta(minutes=3), waits_for="a lock of pid 12")
    for _ in range(3):
        report = supervise(platform, 20)
        assert (report.state, report.epoch) == (StreamState.STUCK, 1)
        assert report.why == "batch 7: merge, waits for a lock of pid 12"
    assert [(alarm.kind, alarm.extent.fault) for alarm in platform.alarms.list()] == [("stream.stuck", "batch")]
    ill(platform, step="ready for the next batch")
    assert supervise(platform, 20).state is StreamState.RUNNING
    assert platform.alarms.open_kinds == []
    assert living(platform) == [1]


def test_a_running_stream_says_what_people_should_know(platform: FakePlatform) -> None:
    started(platform)
    ill(platform, step="batch 7: copy", notice="batches of at most 1,000 records instead of 4,000")
    report = supervise(platform)
    assert (report.state, report.why) == (StreamState.RUNNING, "batches of at most 1,000 records instead of 4,000")
    ill(platform, step="batch 8: copy")
    assert supervise(platform).why == ""


@pytest.mark.parametrize("gone", [True, False])
def test_what_could_not_be_started_again_is_not_ended(platform: FakePlatform, gone: bool) -> None:
    """A deploy that spoils or drops the declaration takes no app down, also none that does not answer."""
    started(platform)
    ill(platform, silent=timedelta(minutes=3))
    declaration = platform.root / "include" / "pipelines" / "shop.yaml"
    declaration.unlink() if gone else declaration.write_text("pipeline: shop\nowner: [\n")
    assert supervise(platform).state is StreamState.STUCK
    assert living(platform) == [1]
    assert "stream.stuck" in platform.alarms.open_kinds


def test_the_bound_that_is_declared_is_what_a_start_is_given(platform: FakePlatform) -> None:
    declaration = platform.root / "include" / "pipelines" / "shop.yaml"
    declaration.write_text(declaration.read_text().replace("    trigger:", "    stuck_after: 7m\n    trigger:"))
    started(platform)
    [submission] = platform.app_runner.submissions
    assert submission.stuck_after == timedelta(minutes=7)


def test_who_finds_another_supervisor_at_it_does_nothing(platform: FakePlatform) -> None:
    platform.streams.busy = STREAM
    report = started(platform)
    assert report.busy
    assert not platform.app_runner.submissions


def test_a_silent_control_database_lets_running_apps_run(platform: FakePlatform) -> None:
    started(platform)
    platform.streams.down = True
    with pytest.raises(UnreachableError):
        supervise(platform)
    assert living(platform) == [1]


@pytest.mark.parametrize("step", ["raise_epoch", "record_attempt", "submit_app", "record_answer"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_supervisor_killed_at_any_step_leaves_a_stream_that_comes_up_once(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    class KilledError(BaseException):
        pass

    real = getattr(streams, step)

    def dying(*arguments: object) -> object:
        if when == "after":
            real(*arguments)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(streams, step, dying)
        with pytest.raises(KilledError):
            started(platform)
    waited = 0
    while not living(platform) and waited < 90:
        supervise(platform, 5)
        waited += 5
    supervise(platform)
    assert len(living(platform)) == 1, f"not back within {waited} s"
    epoch = living(platform)[0]
    attempts = {attempt.epoch: attempt for attempt in platform.streams.attempts(STREAM)}
    assert attempts[epoch].handle == f"handle-{epoch}"
    assert all(attempt.ended_at for attempt in attempts.values() if attempt.epoch != epoch)


def test_a_lost_answer_is_settled_by_looking(platform: FakePlatform) -> None:
    platform.app_runner.lose_answer = True
    assert started(platform).state is StreamState.RUNNING
    platform.app_runner.lose_answer = False
    supervise(platform, 30)
    assert living(platform) == [1]
    assert platform.streams.attempts(STREAM)[0].handle == "handle-1"


def test_an_app_that_cannot_be_started_backs_off_and_alarms(platform: FakePlatform) -> None:
    platform.app_runner.refuse = True
    report = started(platform)
    assert report.state is StreamState.BACKING_OFF
    assert platform.streams.attempts(STREAM)[0].outcome == "not started"
    assert [(alarm.kind, alarm.extent.fault) for alarm in platform.alarms.list()] == [("stream.died", "not started")]


def test_a_crash_loop_backs_off_and_is_one_alarm_until_it_runs_well(platform: FakePlatform) -> None:
    started(platform)
    for _ in range(300):
        for app in platform.app_runner.find(STREAM):
            platform.app_runner.end(STREAM, app.epoch, 1, "out of memory")
        supervise(platform, 2)
    assert 5 <= len(platform.app_runner.submissions) <= 8
    assert platform.alarms.open_kinds == ["stream.died"]
    assert "out of memory" in platform.alarms.rows[0].detail
    assert platform.alarms.rows[0].extent.fault == "failed (1)"
    for _ in range(LONGEST_BACKOFF // timedelta(seconds=10) + 1):
        if not living(platform):
            supervise(platform, 10)
    assert living(platform)
    supervise(platform, 30)
    assert platform.alarms.open_kinds == ["stream.died"]
    supervise(platform, 31)
    assert platform.alarms.open_kinds == []


def test_a_lost_app_is_swept_and_started_again(platform: FakePlatform) -> None:
    started(platform)
    platform.app_runner.end(STREAM, 1, None)
    supervise(platform, 1)
    assert platform.streams.attempts(STREAM)[0].outcome == "lost"
    supervise(platform, 6)
    assert living(platform) == [2]


def errors(platform: FakePlatform) -> tuple[str, str]:
    [row] = [row for row in list_streams(platform, with_lag=False).streams if row.stream == STREAM]
    return row.last_error, row.former_error


@pytest.mark.parametrize("code", [1, None], ids=["exited", "lost"])
def test_the_error_of_the_present_epoch_is_listed_and_that_of_a_former_one_apart_from_it(
    platform: FakePlatform, code: int | None
) -> None:
    started(platform)
    platform.app_runner.end(STREAM, 1, code, "out of memory")
    supervise(platform, 1)
    present, former = errors(platform)
    assert (present[:9], former) == ("epoch 1: ", "")
    supervise(platform, 6)
    assert living(platform) == [2]
    present, former = errors(platform)
    assert (present, former[:9]) == ("", "epoch 1: ")


def test_an_app_given_up_at_once_is_one_alarm_that_says_how_it_ended(platform: FakePlatform) -> None:
    started(platform)
    platform.app_runner.end(STREAM, 1, 16, "app shop_purchases lost `_source`")
    assert supervise(platform, 1).state is StreamState.GIVEN_UP
    supervise(platform, 600)
    assert platform.alarms.open_kinds == ["stream.gave_up"]
    assert "epoch 1 ended: declaration (16). app shop_purchases lost `_source`; " in platform.alarms.rows[0].detail
    assert platform.alarms.rows[0].extent.fault == "declaration"
    assert not living(platform)


def test_stop_drains_and_kills_after_the_grace(platform: FakePlatform) -> None:
    started(platform)
    _wish(platform, DesiredState.STOPPED)
    assert supervise(platform).state is StreamState.DRAINING
    assert platform.app_runner.apps[STREAM, 1].stopping_since == platform.clock.now
    assert supervise(platform, GRACE.total_seconds() - 1).state is StreamState.DRAINING
    assert supervise(platform, 1).state is StreamState.STOPPED
    assert platform.app_runner.apps[STREAM, 1].state is RunState.EXITED
    assert platform.logged[-1]["action"] == "stream.kill"
    supervise(platform, 1)
    assert platform.alarms.open_kinds == [], "a wanted stop is no breach"


def test_a_recreated_topic_waits_for_an_operator_and_the_acceptance_is_used_once(platform: FakePlatform) -> None:
    started(platform)
    platform.app_runner.end(STREAM, 1, 13, "topic shop.purchases was recreated")
    supervise(platform, 1)
    report = supervise(platform, 10_000)
    assert report.state is StreamState.RECREATED
    assert "stream.recreated" in platform.alarms.open_kinds
    assert not living(platform)
    platform.streams.set_desired(STREAM, actor="cli:me", reason="yes", accept_recreated=True, reset_backoff=True)
    supervise(platform)
    assert platform.app_runner.submissions[-1].arguments == ("--accept-recreated",)
    supervise(platform, 1)
    desired = platform.streams.desired(STREAM)
    assert desired is not None
    assert not desired.accept_recreated


def test_an_app_without_a_declaration_goes_on_and_is_not_started_again(platform: FakePlatform) -> None:
    started(platform)
    (platform.root / "include" / "pipelines" / "shop.yaml").unlink()
    supervise(platform, 60)
    assert living(platform) == [1]
    platform.app_runner.end(STREAM, 1, 1)
    supervise(platform, 1)
    assert supervise(platform, 600).state is StreamState.UNDECLARED
    assert not living(platform)


def test_a_broken_declaration_starts_nothing_and_is_named(platform: FakePlatform) -> None:
    (platform.root / "include" / "pipelines" / "shop.yaml").write_text("pipeline: shop\nstreams: 3\n")
    report = started(platform)
    assert report.state is StreamState.GIVEN_UP
    assert report.why
    assert platform.alarms.open_kinds == ["stream.gave_up"]
    assert not platform.app_runner.submissions


def test_two_living_epochs_leave_the_newer(platform: FakePlatform) -> None:
    started(platform)
    newer = platform.app_runner.apps[STREAM, 1]
    platform.app_runner.apps[STREAM, 2] = type(newer)(STREAM, 2, "other", "handle-2", RunState.RUNNING)
    supervise(platform)
    assert platform.app_runner.apps[STREAM, 1].stopping_since is not None
    supervise(platform, GRACE.total_seconds())
    assert living(platform) == [2]


def test_an_unanswered_attempt_is_not_called_dead_while_it_may_still_come(platform: FakePlatform) -> None:
    _wish(platform, DesiredState.RUNNING)
    platform.streams.raise_epoch(STREAM, 0, host="here")
    platform.streams.record_submitted(STREAM, 1, runner="fake", instance="x")
    assert supervise(platform, SETTLING.total_seconds() - 1).state is StreamState.STARTING
    assert platform.streams.attempts(STREAM)[0].ended_at is None
    supervise(platform, 1)
    assert platform.streams.attempts(STREAM)[0].outcome == "never started"


def test_operators_act_by_full_names_that_exist(platform: FakePlatform) -> None:
    for name in ("purchases", "shop.nope", "nope.purchases"):
        with pytest.raises(UsageError):
            streams.start(platform, name, "cli:me", "because")
    with pytest.raises(MillraceError):
        streams.stop(platform, "shop.nope", "cli:me", "because")
    assert streams.start(platform, STREAM, "cli:me", "because").epoch == 1
    assert streams.stop(platform, STREAM, "cli:me", "because").state is StreamState.DRAINING


def test_waiting_tells_each_look_and_ends_in_time(platform: FakePlatform) -> None:
    told: list[StreamState] = []
    report = streams.supervise_until(
        platform,
        STREAM,
        "cli:me",
        done=lambda now: now.state is StreamState.RUNNING,
        tell=lambda now: told.append(now.state),
        pause=lambda: None,
        within=timedelta(seconds=0),
    )
    assert report.state is StreamState.STOPPED
    assert told == [StreamState.STOPPED]


def test_an_operators_wish_waits_for_the_supervisor_that_is_at_it(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_away(seconds: float) -> None:
        platform.streams.busy = ""

    monkeypatch.setattr(streams.time, "sleep", go_away)
    platform.streams.busy = STREAM
    report = streams.start(platform, STREAM, "cli:me", "because")
    assert not report.busy
    assert living(platform) == [1]


def test_two_supervisors_that_look_elsewhere_at_once_start_one_app(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sink and broker may take seconds to answer: the lock may be lost meanwhile, and another has looked too."""
    platform.epochs = {"fence": 40, "group": 41}
    real, others = platform.sinks_fences, [lambda: supervise(platform)]

    def slow(connection: str) -> object:
        while others:
            others.pop()()
        return real(connection)

    monkeypatch.setattr(platform, "sinks_fences", slow)
    started(platform)
    assert living(platform) == [42]
    assert [submitted.epoch for submitted in platform.app_runner.submissions] == [42]


@pytest.mark.parametrize("fence", [40, None])
def test_a_start_is_above_the_app_that_a_restored_control_database_found_alive(
    platform: FakePlatform, fence: int | None
) -> None:
    """Its attempt is on record then, but the count is not: below it, no failure would be backed off from."""
    app = RunningApp(STREAM, 41, "x", "handle-41", RunState.RUNNING, started_at=platform.clock.now, phase="running")
    platform.app_runner.apps[STREAM, 41] = app
    assert started(platform).epoch == 41
    platform.app_runner.end(STREAM, 41, 1)
    platform.epochs = {"fence": fence, "group": None}
    supervise(platform, 1)
    supervise(platform, 6)
    assert living(platform) == [42]
    assert platform.logged[-1]["before"] == {"epoch": "41"}
    assert platform.logged[-1]["after"] == {"epoch": "42"}


def test_what_supervision_saw_is_written_down_after_what_it_did(platform: FakePlatform) -> None:
    report = started(platform)
    seen = platform.streams.looks[STREAM]
    assert (seen.state, seen.epoch, seen.why, seen.until) == (report.state, report.epoch, report.why, report.until)
    platform.app_runner.end(STREAM, 1, 1)
    report = supervise(platform, 1)
    seen = platform.streams.looks[STREAM]
    assert (seen.state, seen.until) == (StreamState.BACKING_OFF, report.until)
    assert seen.why


def test_supervision_goes_on_where_what_it_saw_cannot_be_written_down(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(look: object) -> None:
        raise UnreachableError("the control database is not at the version this Millrace reads")

    monkeypatch.setattr(platform.streams, "save_look", refuse)
    assert started(platform).epoch == 1
    assert living(platform) == [1]
