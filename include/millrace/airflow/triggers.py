"""Triggers that watch streams and alarms. They hold no slot and no worker, and carry names only.

None of them has an `on_kill`: clearing, failing or marking a task never touches an app. None ever raises: the DAGs are
@continuous, so a trigger that failed at once would be a run that fails at once, again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from millrace.airflow.settings import airflow_platform, forget_platform
from millrace.domain.streams import DesiredState, ExitReason, StreamState, exit_text
from millrace.errors import MillraceError, UnreachableError
from millrace.ports import RunningApp, RunState
from millrace.usecases.alarms import untold
from millrace.usecases.stream_look import Seen, Supervised, look
from millrace.usecases.streams import supervise

Answer = TypeVar("Answer")
ALIVE = frozenset({StreamState.STARTING, StreamState.RUNNING, StreamState.DRAINING, StreamState.UNDECLARED})
SHORTEST_WATCH_SECONDS = 5.0
WATCH_SECONDS = 2.0
LOOK_SECONDS = 15.0
IDLE_SECONDS = 5.0
SUPERVISE_ANYWAY_SECONDS = 60.0
AFTER_ERROR_SECONDS = 10.0
XCOM_SECONDS = 15.0
KILLED_BY = frozenset({137, 143, None})
_SUPERVISORS = threading.BoundedSemaphore(2)
"""Supervising holds one of the control database's few pooled connections while it asks for a second."""


class _StreamTrigger(BaseTrigger):
    """What both triggers of a stream share: its name, and calls that block kept off the event loop."""

    def __init__(self, stream: str) -> None:
        super().__init__()
        self.stream = stream
        self._told = ""

    @property
    def _actor(self) -> str:
        pipeline, _, name = self.stream.partition(".")
        return f"dag:{pipeline}.stream.{name}"

    async def _call(self, work: Callable[[], Answer]) -> Answer | None:
        """What `work` returns, from a thread; None where it failed, which is told and waited for."""
        try:
            return await asyncio.to_thread(work)
        except MillraceError as error:
            if isinstance(error, UnreachableError):
                forget_platform()
            self.log.warning("%s", error)
        except Exception:
            self.log.exception("could not look at %s; trying again", self.stream)
        await asyncio.sleep(AFTER_ERROR_SECONDS)
        return None

    def _tell(self, text: str) -> None:
        """Log what has changed since the last look, and nothing else."""
        if text != self._told:
            self._told = text
            self.log.info("%s", text)

    def _look(self) -> Seen:
        return look(airflow_platform(), self.stream)

    def _supervise(self) -> Supervised:
        with _SUPERVISORS:
            return supervise(airflow_platform(), self.stream, self._actor)


class AppStarted(_StreamTrigger):
    """Succeeds when the stream has a living app, which it starts when it is wanted and due."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is and the stream's name."""
        return "millrace.airflow.triggers.AppStarted", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until an app lives; then end the task with the app's epoch as XCom `epoch`."""
        supervised_at = -SUPERVISE_ANYWAY_SECONDS
        while True:
            seen = await self._call(self._look)
            if seen is None:
                continue
            report = seen.report
            if seen.due or time.monotonic() - supervised_at >= SUPERVISE_ANYWAY_SECONDS:
                supervised_at = time.monotonic()
                report = await self._call(self._supervise) or report
            self._tell(_described(report))
            if report.epoch is not None and report.state in ALIVE and await self._lives(report.epoch):
                yield TaskSuccessEvent(xcoms={"epoch": report.epoch})
                return
            await asyncio.sleep(pause_seconds(report, datetime.now(UTC)))

    async def _lives(self, epoch: int) -> bool:
        app = await self._call(lambda: airflow_platform().runner().status(self.stream, epoch))
        return app is not None and app.state is RunState.RUNNING


class AppEnded(_StreamTrigger):
    """Succeeds when the app of one epoch stopped as asked, fails when it died.

    The epoch is the XCom that the task before it left; where there is none, the newest app's.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is and the stream's name."""
        return "millrace.airflow.triggers.AppEnded", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the app until it is gone, supervising now and then."""
        began = time.monotonic()
        epoch = await self._watched_epoch()
        self._tell(f"watching epoch {epoch} of {self.stream}")
        app = await self._watch(epoch)
        await asyncio.sleep(max(0.0, SHORTEST_WATCH_SECONDS - (time.monotonic() - began)))
        seen = await self._call(self._look)
        await self._call(self._supervise)
        if self._ended_well(app, seen):
            self.log.info("epoch %s ended: %s", epoch, exit_text(app.exit_code if app else None))
            yield TaskSuccessEvent()
        else:
            log = airflow_platform().settings.state_folder / "streams" / self.stream / str(epoch) / "driver.log"
            detail = app.detail if app else ""
            code = exit_text(app.exit_code if app else None)
            self.log.error("epoch %s died: %s. %s\nThe whole log is %s", epoch, code, detail, log)
            yield TaskFailedEvent()

    async def _watched_epoch(self) -> int:
        """The epoch that `wait` found.

        Not a template: Airflow 3.3 renders a trigger's fields in its event loop, where `xcom_pull` never returns
        (the triggerer does not know the request GetXComSequenceSlice).
        """
        with contextlib.suppress(Exception):  # a watch of the newest app is better than none
            found = await asyncio.wait_for(asyncio.to_thread(self._epoch_of_wait), XCOM_SECONDS)
            if isinstance(found, int):
                return found
        while True:
            seen = await self._call(self._look)
            if seen is not None:
                return seen.report.epoch or 0

    def _epoch_of_wait(self) -> object:
        instance = self.task_instance
        return XCom.get_one(key="epoch", dag_id=instance.dag_id, task_id="wait", run_id=instance.run_id)

    async def _watch(self, epoch: int) -> RunningApp | None:
        looked_at = time.monotonic()
        while True:
            answer = await self._call(lambda: (airflow_platform().runner().status(self.stream, epoch),))
            if answer is not None and (answer[0] is None or answer[0].state is not RunState.RUNNING):
                return answer[0]
            if time.monotonic() - looked_at >= LOOK_SECONDS:
                looked_at = time.monotonic()
                report = await self._call(self._supervise)
                if report:
                    self._tell(_described(report))
            await asyncio.sleep(WATCH_SECONDS)

    @staticmethod
    def _ended_well(app: RunningApp | None, seen: Seen | None) -> bool:
        code = app.exit_code if app else None
        if code == ExitReason.STOPPED:
            return True
        stop_wanted = seen is not None and seen.desired is not None and seen.desired.state is DesiredState.STOPPED
        return stop_wanted and code in KILLED_BY


class UntoldAlarm(BaseTrigger):
    """Succeeds when there is an alarm nobody was told of."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is."""
        return "millrace.airflow.triggers.UntoldAlarm", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the control database every few seconds."""
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            try:
                found = await asyncio.to_thread(lambda: untold(airflow_platform()))
            except Exception as error:
                forget_platform()
                self.log.warning("could not look for alarms, trying again: %s", error)
                await asyncio.sleep(AFTER_ERROR_SECONDS)
                continue
            if found:
                self.log.info("%d alarms nobody was told of", len(found))
                yield TaskSuccessEvent()
                return


def pause_seconds(report: Supervised, now: datetime) -> float:
    """How long to wait before the next look: until something is due, but at most a few seconds.

    An operator's start is acted on by the operator's own call; this look only has to see it.
    """
    if report.until is None:
        return IDLE_SECONDS
    return min(max((report.until - now) / timedelta(seconds=1), 1.0), IDLE_SECONDS)


def _described(report: Supervised) -> str:
    until = f" until {report.until:%H:%M:%S} UTC" if report.until else ""
    epoch = f" (epoch {report.epoch})" if report.epoch else ""
    return f"{report.stream} is {report.state}{until}{epoch}" + (f": {report.why}" if report.why else "")
