"""Which task of its DAG a stream stands in, and when that task is over.

The tasks `stopped`, `backing_off` and `given_up` (one applies, the others are skipped) come before `running`, and
that before `stuck`. A run of the DAG is one watch of one start.
"""

from __future__ import annotations

from enum import StrEnum

from millrace.domain.streams.supervision import ExitReason, StreamState

KILLED_BY = frozenset({137, 143, None})
"""Exit codes of an app that was killed; None where it left none."""


class WatchTask(StrEnum):
    """The tasks of a stream's DAG."""

    STOPPED = "stopped"
    BACKING_OFF = "backing_off"
    GIVEN_UP = "given_up"
    RUNNING = "running"
    STUCK = "stuck"


WAITING = (WatchTask.STOPPED, WatchTask.BACKING_OFF, WatchTask.GIVEN_UP)


class TaskEnd(StrEnum):
    """How a task of a stream's DAG is over."""

    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"


_TASKS = {
    StreamState.STOPPED: WatchTask.STOPPED,
    StreamState.HOST_LOST: WatchTask.STOPPED,
    StreamState.BACKING_OFF: WatchTask.BACKING_OFF,
    StreamState.GIVEN_UP: WatchTask.GIVEN_UP,
    StreamState.RECREATED: WatchTask.GIVEN_UP,
    StreamState.STARTING: WatchTask.RUNNING,
    StreamState.RUNNING: WatchTask.RUNNING,
    StreamState.DRAINING: WatchTask.RUNNING,
    StreamState.STUCK: WatchTask.STUCK,
}


def task_of(state: StreamState, *, lives: bool, elsewhere: bool = False) -> WatchTask | None:
    """The task a stream stands in; None where nobody knows how it is, so nothing may end for that.

    Args:
        state: how the stream is.
        lives: whether an app of it is alive here. One without a declaration is watched as long as it lives.
        elsewhere: whether it belongs to another host, whose own DAG watches it: here it is as one that is stopped.
    """
    if elsewhere:
        return WatchTask.RUNNING if lives else WatchTask.STOPPED
    if state is StreamState.UNDECLARED:
        return WatchTask.RUNNING if lives else WatchTask.STOPPED
    return _TASKS.get(state)


def end_of_waiting(task: WatchTask, stands_in: WatchTask | None, *, applied: bool) -> TaskEnd | None:
    """The end of one of the waiting tasks, None as long as it applies.

    Args:
        task: the waiting task.
        stands_in: the task the stream stands in now.
        applied: whether the stream stood in `task` at any look before.
    """
    if stands_in in (None, task):
        return None
    return TaskEnd.SUCCESS if applied else TaskEnd.SKIPPED


def end_before_app(stands_in: WatchTask | None) -> TaskEnd | None:
    """The end of `running` while no app lives: skipped where the stream waits again, None where a start is due."""
    return TaskEnd.SKIPPED if stands_in in WAITING else None


def end_of_running(stands_in: WatchTask | None) -> TaskEnd | None:
    """The end of `running` while its app lives: only that it is stuck, so that `stuck` takes over."""
    return TaskEnd.SUCCESS if stands_in is WatchTask.STUCK else None


def end_of_stuck(state: StreamState) -> TaskEnd | None:
    """The end of `stuck` while its app lives: it moves again. One that is being stopped has not moved by that."""
    unmoved = state in (StreamState.STUCK, StreamState.DRAINING, StreamState.UNKNOWN)
    return None if unmoved else TaskEnd.SUCCESS


def end_of_app(exit_code: int | None, *, stop_wanted: bool) -> TaskEnd:
    """The end of the task whose app ended: success only where it stopped as asked, or was killed while it should stop.

    Args:
        exit_code: the driver's, None where it left none.
        stop_wanted: whether the stream is wanted stopped now.
    """
    well = exit_code == ExitReason.STOPPED or (stop_wanted and exit_code in KILLED_BY)
    return TaskEnd.SUCCESS if well else TaskEnd.FAILED
