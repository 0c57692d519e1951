"""`millrace streams stop`: what it says of a driver that does not stop, and how to force it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.streams import commands as streams
from millrace.domain.streams.supervision import DesiredState
from millrace.domain.streams.vitals import Vitals
from millrace.ports.runner import RunningApp
from millrace.usecases.streams.supervise import supervise
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.streams import FakePlatform, FakeRunner

STREAM = "shop.purchases"
REASON = ("--reason", "a test of stopping")


class BusyRunner(FakeRunner):
    """Its app goes on with its batch for some looks after it was asked to stop."""

    looks = 5

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        for app in super().find(stream):
            if app.stopping_since is not None:
                self.looks -= 1
                if not self.looks:
                    self.end(app.stream, app.epoch, 0)
        return super().find(stream)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    platform = FakePlatform(example_project(tmp_path))
    platform.clock.now = datetime.now(UTC)
    platform.app_runner = BusyRunner(platform.clock)
    groups = SimpleNamespace(members=lambda group: [], newest_epoch=lambda *_: 0)
    monkeypatch.setattr(platform, "kafka_groups", lambda connection: groups)
    use_platform(monkeypatch, platform, streams)
    platform.streams.set_desired(STREAM, actor="cli:me", reason="a test", state=DesiredState.RUNNING)
    supervise(platform, STREAM, "cli:me")  # type: ignore[arg-type]
    [app] = platform.app_runner.find(STREAM)
    vitals = Vitals(step="batch 7: merge", waits_for="a lock of pid 12 (user report)")
    platform.app_runner.apps[STREAM, 1] = replace(app, vitals=vitals)
    return platform


def stopped(*arguments: str) -> Result:
    done = CliRunner().invoke(streams.app, ["stop", STREAM, *REASON, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.usefixtures("platform")
def test_a_stop_that_lasts_says_what_it_waits_for_and_how_to_force_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SLOW_AFTER", timedelta())
    lines = [line for line in stopped("--json").stderr.splitlines() if "not stopped after" in line]
    assert len(lines) == 1
    assert (
        "epoch 1 finishes its batch: batch 7: merge, waits for a lock of pid 12 (user report); it is ended at"
        in lines[0]
    )
    assert f"millrace streams stop {STREAM} --now --reason" in lines[0]


@pytest.mark.usefixtures("platform")
def test_a_stop_that_comes_about_says_nothing_of_force() -> None:
    assert "--now" not in stopped().stderr


def test_now_ends_it_without_waiting_and_stands_in_the_action_log(platform: FakePlatform) -> None:
    document = json.loads(stopped("--now", "--json").stdout)
    assert document["state"] == "stopped"
    assert platform.app_runner.status(STREAM, 1).exit_code == 137  # type: ignore[union-attr]
    assert [entry["action"] for entry in platform.logged] == ["stream.submit", "stream.kill"]
    assert platform.logged[-1]["reason"] == REASON[1]
    assert platform.alarms.open_kinds == [], "who ends it does not want to be told that it died"
