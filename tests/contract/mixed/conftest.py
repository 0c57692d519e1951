"""Fixtures of the tests that need several servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import Databases
    from support.streams.crashed_streams import CrashedStreams


@pytest.fixture(scope="module")
def streams(
    idle_stack: Stack, control_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CrashedStreams]:
    """Streams without Spark that may die anywhere, in a project of the module's own."""
    from support.stack import embedded as stack
    from support.streams.crashed_streams import CrashedStreams
    from support.streams.driver_without_spark import without_spark

    stack.start(idle_stack, "kafka", "postgres")
    project = tmp_path_factory.mktemp("crashes") / "project"
    made = CrashedStreams(project, idle_stack, control_databases.create_upgraded())
    with without_spark(made.project.root):
        yield made
    made.close()
