"""The trigger that takes snapshots and the task that checks groups: what ends them, and that no trigger raises."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.groups.snapshots import Snapshot
from millrace.errors import UnreachableError
from support.declarations import example_project
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.waiting import Deadline

KAFKA = "millrace_kafka"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupsPlatform:
    from millrace.airflow.groups import triggers as group_triggers

    made = groups_platform(example_project(tmp_path), datetime.now(UTC))
    made.clusters[KAFKA] = FakeCluster(Snapshot(datetime.now(UTC), "cluster", {}, {}))
    monkeypatch.setattr(group_triggers, "airflow_platform", lambda: made)
    monkeypatch.setattr(group_triggers, "SNAPSHOT_SECONDS", 0.02)
    return made


def first_event(until: datetime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a run of the trigger ends with that is over at this time."""
    from millrace.airflow.groups import triggers as group_triggers

    monkeypatch.setattr(group_triggers, "end_of_hour", lambda now: until)

    async def run() -> Any:
        async for event in group_triggers.SnapshotsTaken().run():
            return event

    return asyncio.run(asyncio.wait_for(run(), Deadline.THREAD.seconds))


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.3)


def test_an_hour_ends_well_with_what_it_took(platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.triggers.base import TaskSuccessEvent

    assert isinstance(first_event(soon(), monkeypatch), TaskSuccessEvent)
    assert len(platform.snapshots.kept[KAFKA]) == 1  # the next one was not due
    assert platform.snapshots.tidied


def test_an_hour_in_which_every_try_failed_is_red_and_one_good_one_is_enough(
    platform: GroupsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent

    cluster = platform.clusters[KAFKA]
    cluster.error = UnreachableError("nobody answers")
    assert isinstance(first_event(soon(), monkeypatch), TaskFailedEvent)
    assert cluster.taken > 1
    platform.snapshots.silent = True
    assert isinstance(first_event(soon(), monkeypatch), TaskFailedEvent)
    platform.snapshots.silent = False

    take = cluster.take

    def better() -> Snapshot:
        if cluster.taken > 3:
            cluster.error = None
        return take()

    monkeypatch.setattr(cluster, "take", better)
    assert isinstance(first_event(soon(), monkeypatch), TaskSuccessEvent)


@pytest.mark.parametrize(
    ("now", "until"), [("10:20", "11:00"), ("10:57", "12:00"), ("10:00", "11:00"), ("23:58", "01:00")]
)
def test_a_run_ends_at_the_full_hour(now: str, until: str) -> None:
    from millrace.airflow.groups.triggers import end_of_hour

    at = datetime.fromisoformat(f"2026-11-02T{now}:30+00:00")
    assert f"{end_of_hour(at):%H:%M:%S}" == f"{until}:00"


def test_a_trigger_carries_nothing_and_is_found_again() -> None:
    from airflow.sdk.module_loading import import_string

    from millrace.airflow.groups.operators import TakeSnapshots
    from millrace.airflow.groups.triggers import SnapshotsTaken

    path, arguments = SnapshotsTaken().serialize()
    assert import_string(path) is SnapshotsTaken
    assert arguments == {}
    assert TakeSnapshots(task_id="take").start_trigger_args.trigger_cls == path


def test_a_breach_fails_at_once_and_what_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from millrace.airflow.groups.operators import CheckGroups
    from millrace.airflow.shared import settings
    from millrace.usecases.groups import check as group_checks
    from millrace.usecases.groups.check import Checked

    found = [Checked(known=["known"], told=["told"])]
    monkeypatch.setattr(settings, "airflow_platform", lambda: None)
    monkeypatch.setattr(group_checks, "check", lambda platform: found[-1])
    task = CheckGroups(task_id="check")
    task.execute({})  # type: ignore[typeddict-item]
    found.append(Checked(["stream shop.purchases is stuck"]))
    with pytest.raises(AirflowFailException, match=r"shop\.purchases is stuck"):
        task.execute({})  # type: ignore[typeddict-item]
    found.append(Checked(unseen=["no snapshot for an hour"]))
    with pytest.raises(AirflowException) as caught:
        task.execute({})  # type: ignore[typeddict-item]
    assert not isinstance(caught.value, AirflowFailException)
