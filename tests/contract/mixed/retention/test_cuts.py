"""A topic is cut only once its declared readers have read what that takes, on the real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.domain.groups.commits import BackupMetadata
from millrace.domain.plans.plan import Plan, PlanStatus
from millrace.embedded.stack import Stack
from millrace.errors import RefusedError
from millrace.usecases.plans import running
from millrace.usecases.retention import cuts
from millrace.usecases.topics import plan as topics
from support.retention.cut_projects import CutProject

OLD, NEW = 60, 40
Make = Callable[..., CutProject]


@pytest.fixture
def make(kafka: Stack, postgres: Stack, tmp_path: Path) -> Make:
    """Makes a project whose topic keeps 30 days."""

    def project(**fields: object) -> CutProject:
        made = CutProject(tmp_path / "project", kafka, **fields)  # type: ignore[arg-type]
        made.provision("{time: 30d}")
        return made

    return project


def old_and_new(project: CutProject) -> None:
    """In each partition, offsets 0 to 59 of two days ago and 60 to 99 of now."""
    project.produce([100] * OLD, age=timedelta(days=2))
    project.produce([100] * NEW)


def plan_of(project: CutProject, retention: str) -> Plan:
    return topics.make_plan(project.platform, project.declare(retention), by="test:me")


def refused(project: CutProject, plan: Plan) -> str:
    """What the refusal of a plan says; it is left as it was, and so is the topic."""
    before = project.setting("retention.ms"), project.setting("retention.bytes")
    with pytest.raises(RefusedError) as caught:
        running.run(project.platform, plan.id, actor="test:me")
    assert caught.value.exit_code == 4
    assert project.platform.control.plans.get(plan.id).status is PlanStatus.OPEN
    assert (project.setting("retention.ms"), project.setting("retention.bytes")) == before
    return str(caught.value)


def runs(project: CutProject, plan: Plan) -> None:
    assert running.run(project.platform, plan.id, actor="test:me").status is PlanStatus.DONE


def test_a_cut_waits_for_a_stopped_stream_and_names_what_it_would_lose(make: Make) -> None:
    project = make()
    old_and_new(project)
    project.commit(project.group, [20, 60])
    plan = plan_of(project, "{time: 1d}")
    about = dict(plan.about)
    assert "at most 120 records" in about["cut_1"]
    assert f"stream {project.name}.s would lose 40 records" in about["unread_1"]
    said = refused(project, plan)
    assert f"stream {project.name}.s would lose 40 records that it has not read: {project.topic}/0[20, 60)" in said
    assert f"{project.topic}/1" not in said
    assert f"millrace streams start {project.name}.s" in said
    project.commit(project.group, [60, 60])
    assert plan_of(project, "{time: 1d}").id == plan.id  # what it would take is no other plan
    runs(project, plan)
    project.shown(project.declare("{time: 1d}"))
    assert project.setting("retention.ms") == "86400000"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_stream_that_has_uncommitted_loses_what_it_is_to_start_from(make: Make, start: str) -> None:
    project = make(stream=start)
    old_and_new(project)
    plan = plan_of(project, "{time: 1d}")
    if start == "latest":
        runs(project, plan)
    else:
        said = refused(project, plan)
        assert f"would lose 120 records that no commit of its group marks as read: {project.topic}/0[0, 60)" in said


def test_a_cut_by_size_keeps_the_last_bytes_of_records_that_weigh_differently(make: Make) -> None:
    """The last 100,000 bytes are about ten records; were all of one weight, they would be the last 34."""
    project = make()
    project.produce([100] * 160)
    project.produce([10_000] * 40)
    plan = plan_of(project, "{time: 30d, size_per_partition: 100KB}")
    project.commit(project.group, [185, 185])
    assert f"{project.topic}/1[185, 19" in refused(project, plan)
    project.commit(project.group, [192, 192])
    runs(project, plan)


def test_a_cut_waits_until_the_backup_has_archived_and_a_foreign_commit_is_not_that(make: Make) -> None:
    project = make(stream=None, backup=True)
    old_and_new(project)
    group, app = f"millrace.{project.name}.backup", f"{project.name}.backup"
    topic_id = project.platform.kafka.logs().partitions([project.topic])[0].topic_id

    def archived(offset: int, of: str = topic_id) -> list[str]:
        return [BackupMetadata(app, of, 1, offset, 3, "a" * 64).encode()] * 2

    project.commit(group, [100, 100])
    plan = plan_of(project, "{time: 1d}")
    assert f"backup {app} would lose 120 records that no commit of its group marks as archived" in refused(
        project, plan
    )
    project.commit(group, [100, 100], archived(100, of="AAAAAAAAAAAAAAAAAAAAAA"))
    refused(project, plan)
    project.commit(group, [30, 30], archived(30))
    assert f"backup {app} would lose 60 records that it has not archived" in refused(project, plan)
    project.commit(group, [60, 60], archived(60))
    runs(project, plan)


def test_deleting_where_a_topic_was_compacted_is_a_cut(make: Make) -> None:
    project = make()
    old_and_new(project)
    project.set_config({"cleanup.policy": "compact", "retention.ms": "86400000"})
    plan = plan_of(project, "{time: 1d}")
    assert "would lose 120 records" in refused(project, plan)


def test_the_plan_is_measured_again_right_before_it_runs(make: Make) -> None:
    project = make()
    plan = plan_of(project, "{time: 1d}")  # of an empty topic
    assert not [name for name, _ in plan.about if name.startswith("unread")]
    old_and_new(project)
    refused(project, plan)
    assert cuts.measure(project.platform, "millrace_kafka", plan.changes).losses
