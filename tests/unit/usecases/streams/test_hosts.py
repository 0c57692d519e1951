from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.adapters.apps.host import FILE, make_host, read_host
from millrace.domain.streams.control import Claim
from millrace.domain.streams.hosts import FRESH_FOR, HOST_LOST_AFTER, SUPERVISED_EVERY, Host
from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.errors import MillraceError, RefusedError, UsageError
from millrace.usecases.streams import supervise as streams
from millrace.usecases.streams.adoption import adopt
from millrace.usecases.streams.look import Supervised, look
from support.declarations import example_project
from support.fakes.streams import FakePlatform
from support.waiting import Deadline, joined

STREAM = "shop.purchases"
ALPHA = Host("a", "alpha", "boot a")
BETA = Host("b", "beta", "boot b")
WHY = ("cli:me", "test")


class TwoHosts:
    """Two hosts of one control database: each has a runner of its own, that sees its own apps only."""

    def __init__(self, root: Path) -> None:
        self.alpha = FakePlatform(example_project(root / "alpha"))
        self.beta = FakePlatform(example_project(root / "beta"), clock=self.alpha.clock)
        for name in ("streams", "alarms", "hosts", "logged"):
            setattr(self.beta, name, getattr(self.alpha, name))
        self.alpha.here, self.beta.here = ALPHA, BETA
        self.clock, self.streams, self.hosts = self.alpha.clock, self.alpha.streams, self.alpha.hosts

    def supervise(self, platform: FakePlatform, after: float = 0) -> Supervised:
        self.clock.pass_seconds(after)
        platform.signed.clear()  # the throttle of signs goes by the real clock
        return streams.supervise(platform, STREAM, "dag:test", now=self.clock.now)

    def start_on_alpha(self) -> None:
        self.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.RUNNING)
        self.supervise(self.alpha)
        self.beat()

    def stop_wished(self, *, end_now: bool = False) -> None:
        self.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.STOPPED, end_now=end_now)

    def beat(self, phase: str = "running") -> None:
        """Alpha's app gives a heartbeat."""
        self.hosts.beat(STREAM, self.alpha.app_runner.find(STREAM)[0].epoch, ALPHA, phase)

    def living(self) -> list[tuple[str, int]]:
        return [
            (platform.here.name, app.epoch)
            for platform in (self.alpha, self.beta)
            for app in platform.app_runner.find(STREAM, fresh=True)
        ]


@pytest.fixture
def hosts(tmp_path: Path) -> TwoHosts:
    return TwoHosts(tmp_path)


def test_another_host_reports_a_stream_and_starts_nothing(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    report = hosts.supervise(hosts.beta, 4)
    assert (report.state, report.epoch, report.host) == (StreamState.RUNNING, 1, "alpha")
    assert report.why == "runs on alpha, last heartbeat 4 s ago"
    assert hosts.living() == [("alpha", 1)]
    assert hosts.streams.attempts(STREAM)[0].ended_at is None
    assert hosts.alpha.alarms.open_kinds == []


def test_a_stream_stays_on_its_host_between_two_starts(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.app_runner.end(STREAM, 1, 1)
    assert hosts.supervise(hosts.alpha, 1).state is StreamState.BACKING_OFF
    assert hosts.supervise(hosts.beta, 20).state is StreamState.BACKING_OFF
    assert hosts.living() == []
    hosts.supervise(hosts.alpha)
    assert hosts.living() == [("alpha", 2)]


def test_a_stop_from_another_host_is_confirmed_only_when_its_own_host_has_seen_it(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(1)
    assert streams.stop(hosts.beta, STREAM, *WHY).state is StreamState.DRAINING
    assert hosts.supervise(hosts.alpha).state is StreamState.DRAINING
    assert hosts.supervise(hosts.beta).state is StreamState.DRAINING
    hosts.alpha.app_runner.end(STREAM, 1, 0)
    assert hosts.supervise(hosts.beta).state is StreamState.DRAINING
    assert hosts.supervise(hosts.alpha).state is StreamState.STOPPED
    assert hosts.supervise(hosts.beta).state is StreamState.STOPPED


def test_an_end_at_once_reaches_the_app_on_the_host_it_runs_on(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(1)
    assert streams.stop(hosts.beta, STREAM, *WHY, hard=True).state is StreamState.DRAINING
    assert hosts.living() == [("alpha", 1)]
    assert hosts.supervise(hosts.alpha).state is StreamState.STOPPED
    assert hosts.living() == []
    hosts.streams.set_desired(STREAM, actor="me", reason="again", state=DesiredState.RUNNING)
    hosts.supervise(hosts.alpha, 10)
    hosts.stop_wished()
    assert hosts.supervise(hosts.alpha).state is StreamState.DRAINING  # the former wish no longer counts
    assert hosts.living() == [("alpha", 2)]


def test_a_start_from_another_host_is_done_by_its_own(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.stop_wished(end_now=True)
    hosts.supervise(hosts.alpha)
    hosts.clock.pass_seconds(1)
    assert streams.start(hosts.beta, STREAM, *WHY).state is StreamState.STARTING
    assert hosts.living() == []
    hosts.supervise(hosts.alpha, 10)
    assert hosts.living() == [("alpha", 2)]


def test_a_silent_host_is_lost_after_five_minutes_and_told_once(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    assert hosts.supervise(hosts.beta, HOST_LOST_AFTER.total_seconds() - 1).state is StreamState.RUNNING
    report = hosts.supervise(hosts.beta, 1)
    assert report.state is StreamState.HOST_LOST
    assert "streams adopt" in report.why
    hosts.supervise(hosts.beta, 60)
    assert hosts.alpha.alarms.open_kinds == ["stream.host_lost"]
    assert hosts.living() == [("alpha", 1)]
    hosts.beat()
    assert hosts.supervise(hosts.beta).state is StreamState.RUNNING
    assert hosts.alpha.alarms.open_kinds == []


def test_a_host_without_an_app_is_given_the_time_between_two_looks_as_well(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.app_runner.end(STREAM, 1, 1)
    hosts.supervise(hosts.alpha)
    limit = (HOST_LOST_AFTER + SUPERVISED_EVERY).total_seconds()
    assert hosts.supervise(hosts.beta, limit - 1).state is StreamState.BACKING_OFF
    assert hosts.supervise(hosts.beta, 1).state is StreamState.HOST_LOST


def test_a_stopped_stream_misses_no_host(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.stop_wished(end_now=True)
    hosts.supervise(hosts.alpha)
    assert hosts.supervise(hosts.beta, 86_400).state is StreamState.STOPPED
    assert hosts.alpha.alarms.open_kinds == []


def test_the_environment_says_when_a_host_is_lost(hosts: TwoHosts) -> None:
    file = hosts.beta.root / "include" / "environments" / "embedded.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("host_lost_after: 1m\n")
    hosts.start_on_alpha()
    assert hosts.supervise(hosts.beta, 60).state is StreamState.HOST_LOST


def test_a_lost_hosts_stream_is_adopted_and_its_former_host_ends_what_it_still_runs(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.supervise(hosts.beta, 301)
    assert adopt(hosts.beta, STREAM, *WHY).epoch == 2
    assert hosts.living() == [("alpha", 1), ("beta", 2)]
    assert hosts.streams.attempts(STREAM)[1].outcome == "host lost"
    report = hosts.supervise(hosts.alpha)  # it slept, and wakes
    assert report.host == "beta"
    assert hosts.alpha.app_runner.find(STREAM)[0].stopping_since is not None
    assert report.state is StreamState.DRAINING
    hosts.supervise(hosts.alpha, 61)
    assert hosts.living() == [("beta", 2)]
    hosts.supervise(hosts.beta)
    assert hosts.alpha.alarms.open_kinds == []
    assert adopt(hosts.beta, STREAM, *WHY).epoch == 2  # twice is as good as once


def test_a_stream_of_a_host_that_is_there_is_adopted_only_when_it_is_stopped(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    with pytest.raises(RefusedError, match="runs on alpha, last heartbeat"):
        adopt(hosts.beta, STREAM, *WHY)
    hosts.stop_wished()
    with pytest.raises(RefusedError):
        adopt(hosts.beta, STREAM, *WHY)
    hosts.supervise(hosts.alpha)
    hosts.alpha.app_runner.end(STREAM, 1, 0)
    hosts.supervise(hosts.alpha)
    assert adopt(hosts.beta, STREAM, *WHY).state is StreamState.STOPPED
    streams.start(hosts.beta, STREAM, *WHY)
    assert hosts.living() == [("beta", 2)]


def test_nobody_adopts_what_nobody_started(hosts: TwoHosts) -> None:
    with pytest.raises(UsageError, match="was never started"):
        adopt(hosts.beta, STREAM, *WHY)


def test_an_adopted_stream_is_not_called_stopped_while_an_app_of_its_former_host_gives_heartbeats(
    hosts: TwoHosts,
) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(1)
    hosts.stop_wished()
    hosts.clock.pass_seconds(400)  # alpha is cut off
    assert adopt(hosts.beta, STREAM, *WHY).state is StreamState.STOPPED
    hosts.beat()  # it is not
    report = hosts.supervise(hosts.beta, 4)
    assert (report.state, report.until) == (StreamState.DRAINING, hosts.clock.now + timedelta(seconds=26))
    hosts.alpha.app_runner.end(STREAM, 1, 0)
    hosts.hosts.beat(STREAM, 1, ALPHA, "ended")
    assert hosts.supervise(hosts.beta, 1).state is StreamState.STOPPED


def test_a_host_whose_supervision_alone_is_away_is_named_and_keeps_its_living_apps(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(3 * 3_600)
    hosts.beat()
    report = hosts.supervise(hosts.beta, 4)
    assert report.state is StreamState.RUNNING
    assert "runs on alpha, last heartbeat 4 s ago; nothing supervises it" in report.why
    with pytest.raises(RefusedError, match="nothing supervises it"):
        adopt(hosts.beta, STREAM, *WHY)
    hosts.stop_wished()  # the app learns that by its heartbeat, and ends
    hosts.hosts.beat(STREAM, 1, ALPHA, "ended")
    assert hosts.supervise(hosts.beta, 1).state is StreamState.HOST_LOST
    assert hosts.alpha.alarms.open_kinds == []  # nobody wants it running
    assert adopt(hosts.beta, STREAM, *WHY).state is StreamState.STOPPED


def test_another_app_of_the_host_does_not_stand_in_for_one_that_is_dead(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(3 * 3_600)
    hosts.hosts.beat("shop.other", 1, ALPHA)
    assert hosts.supervise(hosts.beta).state is StreamState.HOST_LOST


def test_a_heartbeat_of_a_former_epoch_says_nothing_of_the_present_one(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.app_runner.end(STREAM, 1, 1)
    hosts.supervise(hosts.alpha, 1)
    hosts.supervise(hosts.alpha, 6)
    assert hosts.living() == [("alpha", 2)]
    hosts.hosts.beat(STREAM, 1, ALPHA)
    assert "heartbeat" not in hosts.supervise(hosts.beta).why


def test_two_hosts_that_wait_for_different_times_do_not_tell_again_and_again(hosts: TwoHosts) -> None:
    file = hosts.beta.root / "include" / "environments" / "embedded.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("host_lost_after: 1m\n")
    gamma = FakePlatform(example_project(hosts.beta.root.parent / "gamma"), clock=hosts.clock)
    for name in ("streams", "alarms", "hosts", "logged"):
        setattr(gamma, name, getattr(hosts.alpha, name))
    gamma.here = Host("c", "gamma", "boot c")
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(90)
    for _ in range(3):
        assert hosts.supervise(hosts.beta, 1).state is StreamState.HOST_LOST
        assert hosts.supervise(gamma, 1).state is StreamState.RUNNING
    assert [alarm.kind for alarm in hosts.alpha.alarms.rows] == ["stream.host_lost"]


def test_a_host_without_the_declaration_adopts_nothing_that_is_wanted(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.clock.pass_seconds(301)
    (hosts.beta.root / "include" / "pipelines" / "shop.yaml").unlink()
    with pytest.raises(MillraceError):
        adopt(hosts.beta, STREAM, *WHY)
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert wanted.host == "a"


def test_a_stream_of_no_host_is_adopted_as_well(hosts: TwoHosts) -> None:
    hosts.stop_wished()
    adopt(hosts.beta, STREAM, *WHY)
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert wanted.host == "b"


def test_what_the_former_host_saw_is_not_shown_as_the_new_ones(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.supervise(hosts.alpha)
    assert hosts.streams.looks[STREAM].host == "a"
    hosts.alpha.app_runner.apps.clear()
    hosts.streams.own(STREAM, "c")
    hosts.streams.abandon(STREAM)
    hosts.hosts.give_sign(Host("c", "gamma", "boot c"))
    assert hosts.supervise(hosts.beta).state is StreamState.STARTING


def test_two_apps_that_a_restored_control_database_forgot_are_not_taken_in_turns(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    app = hosts.alpha.app_runner.apps.pop((STREAM, 1))
    hosts.alpha.app_runner.apps[STREAM, 7] = replace(app, epoch=7)
    hosts.beta.app_runner.apps[STREAM, 8] = replace(app, epoch=8)
    owners = []
    for _ in range(3):
        hosts.supervise(hosts.alpha)
        hosts.supervise(hosts.beta)
        wanted = hosts.streams.desired(STREAM)
        assert wanted is not None
        owners.append((wanted.host, wanted.epoch))
    assert owners == [("b", 8)] * 3


def test_a_host_that_lost_its_identity_keeps_its_apps_under_a_new_one(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.here = replace(ALPHA, identity="new")
    assert hosts.supervise(hosts.alpha).state is StreamState.RUNNING
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert (wanted.host, hosts.living()) == ("new", [("alpha", 1)])
    assert hosts.alpha.app_runner.find(STREAM)[0].stopping_since is None


def test_a_damaged_identity_leaves_apps_alone_and_obeys_a_stop(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Host:
        raise RefusedError("the identity of this host is damaged")

    hosts.start_on_alpha()
    hosts.alpha.here = replace(ALPHA, identity="")
    monkeypatch.setattr(hosts.alpha, "apps_make_host", refuse)
    assert hosts.supervise(hosts.alpha).state is StreamState.RUNNING
    hosts.stop_wished()
    assert hosts.supervise(hosts.alpha).state is StreamState.DRAINING


def test_the_first_start_gives_a_sign_so_that_nobody_takes_its_host_for_an_old_one(hosts: TwoHosts) -> None:
    hosts.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.RUNNING)
    streams.raise_epoch(hosts.alpha, look(hosts.alpha, STREAM, now=hosts.clock.now))
    assert hosts.hosts.sign("a") is not None


def test_a_start_that_was_decided_before_an_adoption_raises_no_epoch(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.app_runner.end(STREAM, 1, 1)
    hosts.supervise(hosts.alpha)
    hosts.clock.pass_seconds(10)
    before = look(hosts.alpha, STREAM, now=hosts.clock.now)
    hosts.hosts.take(STREAM, BETA, was="a")
    assert streams.raise_epoch(hosts.alpha, before) is None


def test_an_app_that_a_restored_control_database_does_not_know_keeps_its_stream_here(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.streams.own(STREAM, "b")  # an hour ago it belonged to beta
    known = hosts.alpha.app_runner.apps.pop((STREAM, 1))
    hosts.alpha.app_runner.apps[STREAM, 7] = replace(known, epoch=7)
    assert hosts.supervise(hosts.alpha).host == ""
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert wanted.host == "a"
    assert hosts.supervise(hosts.beta).host == "alpha"


def test_an_attempt_of_a_version_without_hosts_belongs_to_the_host_that_finds_it_alive(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.streams.own(STREAM, None)
    hosts.hosts.signs.clear()
    hosts.streams.claims[STREAM, 1] = Claim(STREAM, 1, "app", "alpha", hosts.clock.now)
    report = hosts.supervise(hosts.beta, 60)
    assert (report.host, hosts.living()) == ("alpha", [("alpha", 1)])
    hosts.supervise(hosts.alpha)
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert wanted.host == "a"


def test_an_upgraded_host_takes_the_streams_that_it_finds_alive(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.start_on_alpha()
    hosts.streams.own(STREAM, None)
    hosts.alpha.here = replace(ALPHA, identity="")
    monkeypatch.setattr(hosts.alpha, "apps_make_host", lambda: ALPHA)
    hosts.supervise(hosts.alpha)
    wanted = hosts.streams.desired(STREAM)
    assert wanted is not None
    assert wanted.host == "a"


@pytest.mark.parametrize("claimed_by", ["alpha", "a-former-container", None])
def test_a_dead_attempt_of_a_version_without_hosts_is_recorded_by_the_host_it_was_started_on(
    hosts: TwoHosts, claimed_by: str | None
) -> None:
    hosts.start_on_alpha()
    hosts.streams.own(STREAM, None)
    if claimed_by:
        hosts.streams.claims[STREAM, 1] = Claim(STREAM, 1, "app", claimed_by, hosts.clock.now)
    hosts.alpha.app_runner.end(STREAM, 1, None)
    hosts.supervise(hosts.alpha, 1)
    assert hosts.streams.attempts(STREAM)[0].outcome == "lost"


def test_a_copied_state_folder_starts_and_buries_nothing_while_the_other_copy_beats(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.beta.here = replace(ALPHA, name="beta", namespace="boot b")
    report = hosts.supervise(hosts.beta, 4)
    assert "this host's identity" in report.why
    assert report.until == hosts.clock.now + FRESH_FOR - timedelta(seconds=4)
    assert hosts.streams.attempts(STREAM)[0].ended_at is None
    assert hosts.living() == [("alpha", 1)]
    hosts.stop_wished()
    assert hosts.supervise(hosts.beta, 4).state is not StreamState.STOPPED
    hosts.beat("ended")
    hosts.alpha.app_runner.apps.clear()
    assert hosts.supervise(hosts.beta, 20).state is StreamState.STOPPED  # a container that was made anew


def test_a_copied_state_folder_waits_with_a_start_as_well(hosts: TwoHosts) -> None:
    hosts.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.RUNNING)
    hosts.hosts.beat("shop.other", 1, replace(ALPHA, namespace="boot b"))
    hosts.supervise(hosts.alpha, 29)
    assert hosts.living() == []
    hosts.supervise(hosts.alpha, 1)
    assert hosts.living() == [("alpha", 1)]


def test_nothing_is_started_or_buried_by_a_scan_that_is_older_than_what_it_should_have_seen(hosts: TwoHosts) -> None:
    hosts.start_on_alpha()
    hosts.alpha.app_runner.blind = True
    assert hosts.supervise(hosts.alpha, 20).state is StreamState.RUNNING
    assert hosts.streams.attempts(STREAM)[0].ended_at is None
    assert hosts.living() == [("alpha", 1)]
    hosts.stop_wished()
    streams.stop(hosts.alpha, STREAM, *WHY, hard=True)
    assert hosts.living() == []


def test_a_stop_is_not_confirmed_while_a_submit_has_no_answer(hosts: TwoHosts) -> None:
    hosts.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.RUNNING)
    hosts.streams.raise_epoch(STREAM, 0, host="a")
    hosts.streams.record_submitted(STREAM, 1, runner="fake", instance="app")
    hosts.stop_wished()
    assert hosts.supervise(hosts.alpha, 1).state is not StreamState.STOPPED
    assert hosts.supervise(hosts.alpha, 15).state is StreamState.STOPPED


def test_who_waits_for_a_stop_does_not_believe_a_look_beside_another_supervisor(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BUSY_SECONDS", 0)
    hosts.streams.set_desired(STREAM, actor="me", reason="test", state=DesiredState.RUNNING)
    hosts.stop_wished()
    hosts.streams.busy = STREAM
    reports: list[Supervised] = []

    def pause() -> None:
        hosts.streams.busy = ""

    last = streams.supervise_until(
        hosts.alpha, STREAM, "me", done=lambda _: True, tell=reports.append, pause=pause, within=timedelta(minutes=1)
    )
    assert [report.busy for report in reports] == [True, False]
    assert last.state is StreamState.STOPPED


# The identity


def test_a_look_makes_no_identity_and_a_start_makes_one_for_good(tmp_path: Path) -> None:
    assert read_host(tmp_path).identity == ""
    assert list(tmp_path.iterdir()) == []
    made = make_host(tmp_path)
    assert made.identity
    assert read_host(tmp_path) == make_host(tmp_path) == made
    assert oct((tmp_path / FILE).parent.stat().st_mode)[-3:] == "700"
    assert oct((tmp_path / FILE).stat().st_mode)[-3:] == "600"


def test_two_that_ask_at_once_get_one_identity(tmp_path: Path) -> None:
    found: list[str] = []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        found.append(make_host(tmp_path).identity)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, within=Deadline.PROCESS, what="the threads that ask")
    assert len(found) == 8
    assert set(found) == {read_host(tmp_path).identity}
    assert os.listdir(tmp_path / ".millrace") == ["host.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "millrace.host/1"}', '{"schema": "millrace.host/2", "id": "x"}']
)
def test_a_damaged_identity_is_refused_and_not_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_text(text)
    assert read_host(tmp_path).identity == ""
    with pytest.raises(RefusedError, match="identity"):
        make_host(tmp_path)
    assert file.read_text() == text


def test_an_identity_is_that_of_the_file(tmp_path: Path) -> None:
    made = make_host(tmp_path)
    assert json.loads((tmp_path / FILE).read_text())["id"] == made.identity


def test_an_identity_is_made_on_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = make_host(tmp_path)
    assert made.identity
    assert make_host(tmp_path) == made
