"""Triggers that watch streams. They hold no slot and no worker, and carry names only.

None of them has an `on_kill`: clearing, failing or marking a task never touches an app. None ever raises: the DAGs are
@continuous, so a trigger that failed at once would be a run that fails at once, again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    TriggerEvent,
)

from millrace.airflow.shared import names
from millrace.airflow.shared.settings import airflow_platform, forget_platform
from millrace.airflow.streams.last_words import last_words
from millrace.domain.streams.supervision import DesiredState, StreamState, exit_text
from millrace.domain.streams.vitals import trouble
from millrace.domain.streams.watch import (
    KILLED_BY,
    TaskEnd,
    WatchTask,
    end_before_app,
    end_of_app,
    end_of_running,
    end_of_stuck,
    end_of_waiting,
    task_of,
)
from millrace.errors import MillraceError, UnreachableError
from millrace.ports.runner import RunningApp, RunState
from millrace.usecases.streams.look import Seen, Supervised, look
from millrace.usecases.streams.supervise import supervise

Answer = TypeVar("Answer")
EVENTS: dict[TaskEnd, type[BaseTaskEndEvent]] = {
    TaskEnd.SUCCESS: TaskSuccessEvent,
    TaskEnd.FAILED: TaskFailedEvent,
    TaskEnd.SKIPPED: TaskSkippedEvent,
}
SHORTEST_WATCH_SECONDS = 5.0
WATCH_SECONDS = 2.0
LOOK_SECONDS = 15.0
IDLE_SECONDS = 5.0
SUPERVISE_ANYWAY_SECONDS = 60.0
AFTER_ERROR_SECONDS = 10.0
_LOOKERS = ThreadPoolExecutor(4, "look")
_SUPERVISORS = ThreadPoolExecutor(2, "supervise")
"""Supervising holds one of the control database's few pooled connections while it asks for a second. Who waits for
its turn here takes no thread from those who look."""


class _StreamTrigger(BaseTrigger):
    """What the triggers of a stream share: its name, and calls that block kept off the event loop."""

    def __init__(self, stream: str) -> None:
        super().__init__()
        self.stream = stream
        self._told = ""

    @property
    def _actor(self) -> str:
        return f"dag:{names.watch(self.stream)}"

    async def _call(self, work: Callable[[], Answer], *, threads: Executor = _LOOKERS) -> Answer | None:
        """What `work` returns, from a thread; None where it failed, which is told and waited for."""
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)
        except MillraceError as error:
            if isinstance(error, UnreachableError):
                forget_platform()
            self.log.warning("%s", error)
        except Exception:
            self.log.exception("the check of %s failed, retrying", self.stream)
        await asyncio.sleep(AFTER_ERROR_SECONDS)
        return None

    def _tell(self, text: str) -> None:
        """Log what has changed since the last look, and nothing else."""
        if text != self._told:
            self._told = text
            self.log.info("%s", text)

    async def _seen(self) -> Seen:
        """A look, as soon as one succeeds."""
        while (seen := await self._call(self._look)) is None:
            pass
        return seen

    async def _status(self, epoch: int) -> tuple[RunningApp | None] | None:
        """What the runner knows of an epoch; None where it did not answer."""
        return await self._call(lambda: (airflow_platform().apps.runner().status(self.stream, epoch),))

    def _look(self) -> Seen:
        return look(airflow_platform(), self.stream)

    async def _supervise(self) -> Supervised | None:
        return await self._call(lambda: supervise(airflow_platform(), self.stream, self._actor), threads=_SUPERVISORS)

    async def _last_words(self, epoch: int) -> str:
        """The end of an epoch's driver log, for people."""
        text = await self._call(lambda: last_words(airflow_platform(), self.stream, epoch))
        return text or f"The driver's log: `millrace streams logs {self.stream} --epoch {epoch}`"


class StreamWaits(_StreamTrigger):
    """Holds a task as long as the stream stands in it: stopped, backing off or given up.

    Succeeds when the stream stands elsewhere; is skipped where it did so from the beginning. While it holds the
    task it supervises, so that what is due is started.

    Args:
        stream: PIPELINE.STREAM.
        waiting: the task, one of `domain.streams.watch.WAITING`.
    """

    def __init__(self, stream: str, waiting: str) -> None:
        super().__init__(stream)
        self.waiting = WatchTask(waiting)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is, the stream's name and the task's."""
        return "millrace.airflow.streams.triggers.StreamWaits", {"stream": self.stream, "waiting": self.waiting.value}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the stream stands elsewhere."""
        applied = False
        supervised_at = -SUPERVISE_ANYWAY_SECONDS
        while True:
            seen = await self._seen()
            report = seen.report
            if applied and (seen.due or time.monotonic() - supervised_at >= SUPERVISE_ANYWAY_SECONDS):
                supervised_at = time.monotonic()
                report = await self._supervise() or report
            self._tell(_described(report))
            stands_in = task_of(report.state, lives=bool(seen.apps), elsewhere=bool(report.host))
            if end := end_of_waiting(self.waiting, stands_in, applied=applied):
                yield EVENTS[end]()
                return
            if not applied and stands_in is self.waiting:
                applied = True
                await self._tell_why(report)
                continue
            await asyncio.sleep(pause_seconds(report, datetime.now(UTC)))

    async def _tell_why(self, report: Supervised) -> None:
        if self.waiting is not WatchTask.STOPPED and report.epoch is not None:
            self.log.info("%s", await self._last_words(report.epoch))


class _AppTrigger(_StreamTrigger):
    """What the triggers of a living app share: watching one epoch until it ends, or until a look says so."""

    @property
    def _run_began(self) -> datetime:
        """When this run of the DAG began; an app that ended before that ended in another run."""
        context = getattr(self.task_instance, "get_template_context", None)
        began = context()["dag_run"].start_date if context else None
        return began or datetime.now(UTC)

    async def _until(self, epoch: int, over: Callable[[Supervised], TaskEnd | None]) -> TaskEnd:
        looked_at = -LOOK_SECONDS
        was_in_trouble = False
        while True:
            answer = await self._status(epoch)
            app = answer[0] if answer else None
            if answer is not None and (app is None or app.state is not RunState.RUNNING):
                return await self._app_ended(epoch, app)
            in_trouble = bool(app and app.vitals and trouble(app.vitals))
            if in_trouble != was_in_trouble or time.monotonic() - looked_at >= LOOK_SECONDS:
                looked_at, was_in_trouble = time.monotonic(), in_trouble
                report = await self._supervise()
                if report:
                    self._tell(_described(report))
                if report and report.epoch == epoch and (end := over(report)):
                    now = await self._status(epoch)  # it may have died between the two looks, which is why it is so
                    if now is not None and (now[0] is None or now[0].state is not RunState.RUNNING):
                        return await self._app_ended(epoch, now[0])
                    return end
            await asyncio.sleep(WATCH_SECONDS)

    async def _app_ended(self, epoch: int, app: RunningApp | None) -> TaskEnd:
        """Have the end written down, and say how it was and why."""
        await self._supervise()
        code = app.exit_code if app else None
        # of a kill only what is wanted tells whether it was meant; any other end speaks for itself
        seen = await self._seen() if code in KILLED_BY else await self._call(self._look)
        wanted = seen.desired if seen else None
        end = end_of_app(code, stop_wanted=wanted is not None and wanted.state is DesiredState.STOPPED)
        if end is TaskEnd.SUCCESS:
            self.log.info("epoch %s ended: %s", epoch, exit_text(code))
        else:
            how = _recorded(seen, epoch) or exit_text(code)
            self.log.error("epoch %s died: %s. %s", epoch, how, await self._last_words(epoch))
        return end


class StreamRuns(_AppTrigger):
    """Watches the stream's app, which it starts where a start is due.

    Succeeds when the app stopped as asked or is stuck, fails when it died; is skipped where no app lives and the
    stream waits again.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is and the stream's name."""
        return "millrace.airflow.streams.triggers.StreamRuns", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Find the app and watch it, supervising now and then; never end at once, for the next run begins at once."""
        began = time.monotonic()
        found = await self._find_app()
        end = found if isinstance(found, TaskEnd) else await self._watch(found)
        await asyncio.sleep(max(0.0, SHORTEST_WATCH_SECONDS - (time.monotonic() - began)))
        yield EVENTS[end]()

    async def _find_app(self) -> int | TaskEnd:
        """The epoch to watch: that of the newest living app, or of the one that ended in this run already."""
        while True:
            seen = await self._seen()
            epoch = seen.apps[0].epoch if seen.apps else ended_since(seen, self._run_began)
            if epoch is not None:
                return epoch
            report = seen.report
            self._tell(_described(report))
            if end := end_before_app(task_of(report.state, lives=False, elsewhere=bool(report.host))):
                return end
            if seen.due:
                await self._supervise()
            await asyncio.sleep(WATCH_SECONDS if seen.due else pause_seconds(report, datetime.now(UTC)))

    async def _watch(self, epoch: int) -> TaskEnd:
        self._tell(f"watching epoch {epoch} of {self.stream}")
        stuck: list[str] = []

        def over(report: Supervised) -> TaskEnd | None:
            end = end_of_running(task_of(report.state, lives=True, elsewhere=bool(report.host)))
            if end:
                stuck.append(report.why)
            return end

        end = await self._until(epoch, over)
        for why in stuck:
            self.log.warning("epoch %s is stuck: %s. %s", epoch, why, await self._last_words(epoch))
        return end


class StreamStuck(_AppTrigger):
    """Holds its task as long as the stream is stuck.

    Succeeds when the app moves again or stopped as asked, fails when it died; is skipped where it is not stuck.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is and the stream's name."""
        return "millrace.airflow.streams.triggers.StreamStuck", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, and where it is stuck watch the app until it moves or is gone."""
        seen = await self._seen()
        report = seen.report
        self._tell(_described(report))
        ended = None if seen.apps else ended_since(seen, self._run_began)
        if seen.apps and report.state is StreamState.STUCK:
            yield EVENTS[await self._until(seen.apps[0].epoch, lambda now: end_of_stuck(now.state))]()
        elif ended is not None and not await self._ended_well(ended):
            yield TaskFailedEvent()  # after `running` had ended, or that would have failed
        else:
            yield TaskSkippedEvent()

    async def _ended_well(self, epoch: int) -> bool:
        answer = await self._status(epoch)
        while answer is None:
            answer = await self._status(epoch)
        return await self._app_ended(epoch, answer[0]) is TaskEnd.SUCCESS


def pause_seconds(report: Supervised, now: datetime) -> float:
    """How long to wait before the next look: until something is due, but at most a few seconds.

    An operator's start is acted on by the operator's own call; this look only has to see it.
    """
    if report.until is None:
        return IDLE_SECONDS
    return min(max((report.until - now) / timedelta(seconds=1), 1.0), IDLE_SECONDS)


def ended_since(seen: Seen, moment: datetime) -> int | None:
    """The stream's newest start, if it has ended and that not before this moment."""
    newest = max(seen.observed.attempts, key=lambda attempt: attempt.epoch, default=None)
    ended_at = newest.ended_at if newest else None
    return newest.epoch if newest and ended_at and ended_at >= moment else None


def _recorded(seen: Seen | None, epoch: int) -> str:
    """How an attempt ended, as supervision has recorded it: also that it was stuck, or never started, and why."""
    attempt = next((each for each in seen.attempts if each.epoch == epoch), None) if seen else None
    return ": ".join(filter(None, (attempt.outcome, attempt.detail))) if attempt else ""


def _described(report: Supervised) -> str:
    until = f" until {report.until:%H:%M:%S} UTC" if report.until else ""
    epoch = f" (epoch {report.epoch})" if report.epoch else ""
    return f"{report.stream} is {report.state}{until}{epoch}" + (f": {report.told}" if report.told else "")
