"""Which task of its DAG a stream stands in, and when a task is over: the whole table of cases."""

from __future__ import annotations

import pytest

from millrace.domain.streams.supervision import StreamState
from millrace.domain.streams.watch import (
    WAITING,
    TaskEnd,
    WatchTask,
    end_before_app,
    end_of_app,
    end_of_running,
    end_of_stuck,
    end_of_waiting,
    task_of,
)

STANDS_IN = {
    StreamState.STOPPED: "stopped",
    StreamState.HOST_LOST: "stopped",
    StreamState.BACKING_OFF: "backing_off",
    StreamState.GIVEN_UP: "given_up",
    StreamState.RECREATED: "given_up",
    StreamState.STARTING: "running",
    StreamState.RUNNING: "running",
    StreamState.DRAINING: "running",
    StreamState.STUCK: "stuck",
    StreamState.UNKNOWN: None,
}


@pytest.mark.parametrize("state", [state for state in StreamState if state is not StreamState.UNDECLARED])
def test_each_state_stands_in_one_task(state: StreamState) -> None:
    assert task_of(state, lives=True) == task_of(state, lives=False) == STANDS_IN[state]


def test_an_undeclared_stream_is_watched_as_long_as_it_lives() -> None:
    assert task_of(StreamState.UNDECLARED, lives=True) is WatchTask.RUNNING
    assert task_of(StreamState.UNDECLARED, lives=False) is WatchTask.STOPPED


@pytest.mark.parametrize("state", StreamState)
def test_a_stream_of_another_host_is_as_one_that_is_stopped_unless_an_app_of_it_is_left_here(
    state: StreamState,
) -> None:
    assert task_of(state, lives=False, elsewhere=True) is WatchTask.STOPPED
    assert task_of(state, lives=True, elsewhere=True) is WatchTask.RUNNING


def test_a_task_and_the_state_it_shows_have_the_same_word() -> None:
    words = {state.value.replace(" ", "_") for state in StreamState}
    assert {task.value for task in WatchTask} <= words


@pytest.mark.parametrize("stands_in", WatchTask)
@pytest.mark.parametrize("task", WAITING)
def test_of_the_waiting_tasks_one_applies_and_the_others_are_skipped(task: WatchTask, stands_in: WatchTask) -> None:
    never, before = (end_of_waiting(task, stands_in, applied=applied) for applied in (False, True))
    assert (never, before) == ((None, None) if task is stands_in else (TaskEnd.SKIPPED, TaskEnd.SUCCESS))


@pytest.mark.parametrize("stands_in", WatchTask)
def test_every_way_of_waiting_has_a_task_that_stays(stands_in: WatchTask) -> None:
    stay = [task for task in WAITING if end_of_waiting(task, stands_in, applied=False) is None]
    assert stay == ([stands_in] if stands_in in WAITING else [])


def test_what_nobody_knows_ends_nothing() -> None:
    assert [end_of_waiting(task, None, applied=False) for task in WAITING] == [None, None, None]
    assert end_before_app(None) is end_of_running(None) is end_of_stuck(StreamState.UNKNOWN) is None


@pytest.mark.parametrize("stands_in", WatchTask)
def test_running_without_an_app_is_skipped_only_where_the_stream_waits_again(stands_in: WatchTask) -> None:
    assert end_before_app(stands_in) == (TaskEnd.SKIPPED if stands_in in WAITING else None)


@pytest.mark.parametrize("stands_in", WatchTask)
def test_running_leaves_a_living_app_only_to_stuck(stands_in: WatchTask) -> None:
    assert end_of_running(stands_in) == (TaskEnd.SUCCESS if stands_in is WatchTask.STUCK else None)


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (StreamState.STUCK, None),
        (StreamState.DRAINING, None),  # a stop was asked for and it has not moved
        (StreamState.RUNNING, TaskEnd.SUCCESS),
        (StreamState.STARTING, TaskEnd.SUCCESS),
        (StreamState.UNDECLARED, TaskEnd.SUCCESS),
    ],
)
def test_stuck_lasts_until_the_app_moves(state: StreamState, end: TaskEnd | None) -> None:
    assert end_of_stuck(state) is end


@pytest.mark.parametrize(
    ("stop_wanted", "code", "end"),
    [
        (False, 137, TaskEnd.FAILED),
        (False, 1, TaskEnd.FAILED),
        (False, None, TaskEnd.FAILED),
        (False, 0, TaskEnd.SUCCESS),
        (True, 0, TaskEnd.SUCCESS),
        (True, 137, TaskEnd.SUCCESS),
        (True, 143, TaskEnd.SUCCESS),
        (True, None, TaskEnd.SUCCESS),
        (True, 15, TaskEnd.FAILED),
    ],
)
def test_an_app_ends_well_as_asked_only(stop_wanted: bool, code: int | None, end: TaskEnd) -> None:
    assert end_of_app(code, stop_wanted=stop_wanted) is end
