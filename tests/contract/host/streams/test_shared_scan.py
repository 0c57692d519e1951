"""One scan of /proc answers all who look within a tick; nobody concludes anything from what it could not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.adapters.apps import processes as app_processes
from millrace.adapters.apps.processes import AppProcesses, SharedScan
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.settings import Settings
from support.streams.stand_ins import StandIns

APPS = 250


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[StandIns]:
    made = StandIns(tmp_path)
    yield made
    made.end()


@pytest.fixture
def runner(tmp_path: Path) -> ProcessRunner:
    return ProcessRunner(Settings(root=tmp_path, lookup=lambda name: None))


def test_looks_at_250_apps_within_a_tick_take_one_scan(
    tmp_path: Path, stand_ins: StandIns, runner: ProcessRunner
) -> None:
    for number in range(APPS):
        stand_ins.start(f"shop.s{number}")
    clock = Ticks()
    runner.scan = SharedScan(tmp_path, 1.0, clock)
    for _ in range(3):
        found = [runner.find(f"shop.s{number}") for number in range(APPS)]
        assert [len(apps) for apps in found] == [1] * APPS
        clock.now += 1.5
    assert runner.scan.taken == 3


def test_a_fresh_look_sees_what_began_after_the_shared_scan(
    tmp_path: Path, stand_ins: StandIns, runner: ProcessRunner
) -> None:
    clock = Ticks()
    runner.scan = SharedScan(tmp_path, 1.0, clock)
    assert runner.find("shop.purchases") == []
    stand_ins.start("shop.purchases")
    clock.now += 0.5
    assert runner.find("shop.purchases") == []
    assert len(runner.find("shop.purchases", fresh=True)) == 1
    assert len(runner.find("shop.purchases")) == 1


def test_a_scan_that_an_own_submit_overtakes_is_not_used_again(
    tmp_path: Path, stand_ins: StandIns, runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = runner.scan = SharedScan(tmp_path, 1.0, Ticks())
    original = app_processes.apps_of

    def overtaken(root: Path) -> list[AppProcesses]:
        found = original(root)
        if scan.taken == 0:
            stand_ins.start("shop.purchases")
            scan.forget()
        return found

    monkeypatch.setattr(app_processes, "apps_of", overtaken)
    assert runner.find("shop.purchases") == []
    assert len(runner.find("shop.purchases")) == 1
    scan.forget()
    runner.find("shop.purchases")
    assert scan.taken == 3
