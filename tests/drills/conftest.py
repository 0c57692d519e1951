"""Fixtures of the drills: pipelines of their own on the run's Kafka and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.drills.crashes import Drill

MakeDrill = Callable[..., "Drill"]


@pytest.fixture
def make_drill(idle_stack: Stack, tmp_path: Path) -> Iterator[MakeDrill]:
    """Makes drills: `make_drill(records, batch=..., mutants=...)`, and `make_drill.second(drill)`."""
    from support.drills.crashes import Drill
    from support.drills.dataset_project import DatasetProject
    from support.stack import control_databases
    from support.stack import embedded as runs
    from support.streams.project import StreamProject

    started = ["kafka", "postgres"]
    runs.start(idle_stack, *started)
    databases = control_databases.on(idle_stack)
    drills: list[Drill] = []

    def make(
        records: int, project_of: type[StreamProject] = StreamProject, drill_of: type[Drill] = Drill, **settings: Any
    ) -> Drill:
        if project_of is DatasetProject and "s3" not in started:
            started.append("s3")
            runs.start(idle_stack, *started)
        project = project_of(tmp_path / f"m{len(drills)}", idle_stack, databases.create(), **settings).make()
        project.create_topic()
        project.produce(records)
        drills.append(drill_of(project))
        return drills[-1]

    def on_second_machine(first: Drill, mutants: tuple[str, ...] = ()) -> Drill:
        drills.append(type(first)(first.project.second_machine(tmp_path / f"m{len(drills)}", mutants)))
        return drills[-1]

    make.second = on_second_machine  # type: ignore[attr-defined]
    yield make
    runs.start(idle_stack, *started)  # a drill that failed may have left one killed
    for drill in drills:
        drill.close()
    for name in {drill.project.name: drill.project for drill in drills}.values():
        name.drop()
