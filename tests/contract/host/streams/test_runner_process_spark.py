"""The runner against a real JVM with real Python workers: whatever dies first, nothing is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.adapters.apps.processes import AppName, apps_of
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.settings import Settings
from support.checks.budget import Kind, spend
from support.stack.embedded import quick_java
from support.waiting import Deadline, eventually

DRIVER = Path(__file__).with_name("stub_spark_driver.py")
STREAM = "shop.purchases"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ProcessRunner]:
    def command(submission: Submission) -> list[str]:
        name = AppName(submission.stream, submission.epoch, submission.instance)
        return [sys.executable, str(DRIVER), *name.arguments()]

    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    (tmp_path / ".millrace").mkdir()
    (tmp_path / ".millrace" / "env").write_text(f"MILLRACE_JAVA_HOME={quick_java()}\n")
    runner = ProcessRunner(Settings(root=tmp_path, lookup=lambda name: None), command)
    yield runner
    runner.stop_all(timedelta())
    assert not apps_of(tmp_path)


def commands(root: Path) -> list[str]:
    """The command lines of the app's processes."""
    found = []
    for app in apps_of(root):
        for one in app.all:
            try:
                found.append(Path(f"/proc/{one.pid}/cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def busy_app(runner: ProcessRunner, root: Path, epoch: int) -> RunningApp:
    """An app whose Python workers are at work."""
    spend(Kind.DRIVER_STARTS)  # a stand-in with a real JVM: no epoch of a project tells of it
    app = runner.submit(Submission(STREAM, epoch, f"instance{epoch}"))
    eventually(
        lambda: sum("pyspark.daemon" in line for line in commands(root)) >= 2,
        within=Deadline.SPARK,
        what="the Python workers",
    )
    assert any("java" in line for line in commands(root))
    return app


def test_a_driver_that_is_killed_leaves_no_jvm_and_no_python(runner: ProcessRunner, tmp_path: Path) -> None:
    busy_app(runner, tmp_path, 1)
    driver = apps_of(tmp_path)[0].driver
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    eventually(lambda: not apps_of(tmp_path), within=Deadline.STREAM, what="JVM and workers to end")
    ended = runner.status(STREAM, 1)
    assert ended is not None
    assert ended.exit_code == 137


@pytest.mark.full
def test_a_driver_that_is_killed_with_its_guard_is_lost_and_leaves_nothing_once_that_is_written_down(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    busy_app(runner, tmp_path, 2)
    guard, driver = apps_of(tmp_path)[0].guard, apps_of(tmp_path)[0].driver
    assert guard is not None
    assert driver is not None
    os.kill(guard.pid, signal.SIGKILL)
    os.kill(driver.pid, signal.SIGKILL)
    lost = eventually(lambda: _lost(runner), within=Deadline.KILLED, what="the app to be lost")
    assert lost
    runner.kill(lost)  # as supervision does when it writes the end down
    assert not apps_of(tmp_path)


def _lost(runner: ProcessRunner) -> RunningApp | None:
    app = runner.status(STREAM, 2)
    return app if app and app.state is RunState.LOST else None
