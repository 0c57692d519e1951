"""Fixtures of the contract tests: the real parts each suite runs against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.control_databases import Databases


@pytest.fixture(scope="session")
def control_databases(idle_stack: Stack) -> Iterator[Databases]:
    """Empty control databases on the real PostgreSQL; dropped at the end of the run."""
    from support import control_databases

    databases = control_databases.on(idle_stack)
    yield databases
    databases.drop_all()
