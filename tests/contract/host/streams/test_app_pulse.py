"""What a runner says of living apps that get nowhere: real processes, a real heartbeat, real signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.adapters.apps.processes import AppName, apps_of, send
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.domain.streams.vitals import Trouble, trouble
from millrace.ports.runner import Submission
from millrace.settings import Settings
from support.waiting import Deadline, eventually

STREAM = "shop.purchases"
BOUND = timedelta(seconds=2)
SILENT = "import time; time.sleep(300)"
BEATING = """
import signal, sys
from datetime import timedelta
from pathlib import Path
from millrace.domain.streams.supervision import Phase
from millrace.runtime.life.pulse import Pulse

signal.alarm(300)
pulse = Pulse(Path(sys.argv[1]) / "status.json", timedelta(seconds=2))
pulse.phase(Phase.RUNNING)
with pulse.batch(7):
    pulse.at("batch 7: copy", in_sink=True)
    signal.pause()
"""


@pytest.fixture
def runner_of(tmp_path: Path) -> Iterator[Callable[[str], ProcessRunner]]:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)

    def made(program: str) -> ProcessRunner:
        def command(submission: Submission) -> Sequence[str]:
            name = AppName(submission.stream, submission.epoch, submission.instance)
            folder = tmp_path / ".millrace" / "streams" / submission.stream / str(submission.epoch)
            return [sys.executable, "-c", program, str(folder), *name.arguments()]

        return ProcessRunner(Settings(root=tmp_path, lookup=lambda name: None), command)

    yield made
    made(SILENT).stop_all(timedelta())


def told(runner: ProcessRunner, words: str) -> Trouble:
    """Wait until the runner's one app is in this trouble."""

    def found() -> Trouble | None:
        [app] = runner.find(STREAM)
        seen = trouble(app.vitals) if app.vitals else None
        return seen if seen and words in seen.why else None

    return eventually(found, within=Deadline.PROCESS, what=f"the runner to say `{words}`")


def test_a_driver_that_was_stopped_is_silent_and_one_that_goes_on_is_not(
    runner_of: Callable[[str], ProcessRunner], tmp_path: Path
) -> None:
    runner = runner_of(BEATING)
    runner.submit(Submission(STREAM, 1, "x1", stuck_after=BOUND))
    answers = "a batch that may come to an end, of a driver that answers"
    eventually(lambda: not told(runner, "batch 7: copy since ").restart, within=Deadline.PROCESS, what=answers)
    [app] = apps_of(tmp_path)
    assert app.driver is not None
    send(app.driver, signal.SIGSTOP)
    assert told(runner, "its driver does not answer; its last report: batch 7: copy since ").restart
    send(app.driver, signal.SIGCONT)
    eventually(lambda: not told(runner, "batch 7: copy since ").restart, within=Deadline.PROCESS, what="the next beat")


def test_an_app_that_never_says_a_word_does_not_get_past_starting(runner_of: Callable[[str], ProcessRunner]) -> None:
    runner = runner_of(SILENT)
    runner.submit(Submission(STREAM, 1, "x1", stuck_after=BOUND))
    assert told(runner, "it does not finish its start: no report yet since ").restart
