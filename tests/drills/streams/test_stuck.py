"""What keeps a real stream from getting on: a lock, a stopped process, an endless start. It is told, and mended."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from millrace.adapters.apps.processes import Process, apps_of, send
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.streams.supervision import StreamState
from support.drills.crashes import Drill
from support.drills.plain_table import table
from support.waiting import Deadline

BOUND = "30s"
ENDLESS = """
    import time

    time.sleep(3600)
"""


class Case:
    """One stream; how long it took until each thing was told."""

    def __init__(self, drill: Drill) -> None:
        self.drill = drill
        self.lines: list[tuple[str, ...]] = []
        self._records = 0

    def more(self) -> None:
        self.drill.project.produce(500, first=2000 + self._records)
        self._records += 500

    def told(self, what: str, words: str, *, epoch: int) -> None:
        """Wait for the one alarm that says so of this epoch."""
        began = time.monotonic()

        def said() -> str | None:
            found = [alarm.detail for alarm in self.drill.platform.control.alarms.list()]
            return next(
                (text for text in found if text.startswith(f"epoch {epoch} is stuck: ") and words in text), None
            )

        text = self.drill.eventually(said, what=f"the alarm about {what}")
        self.lines.append((what, f"{time.monotonic() - began:.1f}", text))

    def open_alarms(self) -> list[str]:
        return [alarm.kind for alarm in self.drill.platform.control.alarms.list()]

    def well(self, epoch: int) -> None:
        """Wait until everything is done by this epoch and no alarm is open."""
        self.drill.eventually(self.drill.all_done, what="all records")
        assert self.drill.running_alone().epoch == epoch
        self.drill.eventually(lambda: not self.open_alarms(), what="the alarm to be closed", within=Deadline.STREAM)

    def process(self, wanted: Callable[[Process], bool]) -> Process:
        [found] = apps_of(self.drill.project.root)
        return next(one for one in found.all if wanted(one))

    def driver(self) -> Process:
        [found] = apps_of(self.drill.project.root)
        assert found.driver is not None
        return found.driver


def is_jvm(one: Process) -> bool:
    with open(f"/proc/{one.pid}/comm") as name:
        return name.read().strip() == "java"


@pytest.mark.full
def test_what_keeps_a_stream_from_getting_on_is_told_and_what_does_not_answer_is_started_again(
    make_drill: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    drill = make_drill(2_000, stuck_after=BOUND)
    case = Case(drill)
    drill.start()
    case.well(1)

    with psycopg.connect(**drill.project.sink.keywords()) as report:  # type: ignore[arg-type]
        report.execute(f"LOCK TABLE {drill.project.name}.rows")
        case.more()
        case.told("LOCK TABLE", ": merge since ", epoch=1)
        seen = drill.supervise()
        assert seen is not None
        assert (seen.state, seen.epoch) == (StreamState.STUCK, 1)
        assert f"waits for a lock of pid {report.info.backend_pid} (user {report.info.user}" in seen.why
        assert ": merge since " in seen.why
        assert case.open_alarms() == [AlarmKind.STREAM_STUCK]
    case.well(1)

    send(case.driver(), signal.SIGSTOP)
    case.more()
    case.told("SIGSTOP of the driver", "its driver does not answer", epoch=1)
    case.well(2)

    send(case.process(is_jvm), signal.SIGSTOP)
    case.more()
    case.told("SIGSTOP of the JVM", "Spark's JVM does not answer its driver", epoch=2)
    case.well(3)

    app = drill.project.root / "spark_apps" / drill.project.name / "transform.py"
    sound = app.read_text()
    drill.stop()
    app.write_text(textwrap.dedent(ENDLESS) + sound)
    drill.start()
    case.told("a start without an end", f"it does not finish its start: load the app {drill.project.name}", epoch=4)
    app.write_text(sound)
    case.more()
    drill.eventually(drill.all_done, what="all records")
    with capsys.disabled():
        print(table(f"told, with a bound of {BOUND}", ("what", "seconds", "alarm"), case.lines))
    drill.must_be_complete()
