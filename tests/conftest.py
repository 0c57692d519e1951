"""Fixtures for all tests. Importing this starts nothing and imports neither Airflow nor PySpark.

`kafka`, `s3`, `postgres` and `airflow` give the run's one `Stack` with that part started, `stack` with all of them;
a part starts when the first test asks for it and stops with the run. Tests share the servers: each uses topics,
schemas, prefixes and DAG names of its own.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytest_plugins = [
    "support.checks.run_plugin",
    "support.checks.tiers_plugin",
    "support.checks.report_plugin",
    "support.checks.budget_plugin",
]


@pytest.fixture(scope="session", autouse=True)
def _no_outside_connections() -> None:
    """What a developer's shell names must not be what tests write to."""
    for name in list(os.environ):
        if name.startswith(("AIRFLOW_", "MILLRACE_ROOT", "MILLRACE_ENVIRONMENT")):
            del os.environ[name]


@pytest.fixture(scope="session", autouse=True)
def _no_garbage_among_imports() -> Iterator[None]:
    """Search for cyclic garbage only among objects that tests make: what they import lasts until the end."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def turn(pytestconfig: pytest.Config) -> None:
    """This run may start servers: no other one of this user does, and there is memory for it."""
    from support.checks.run_plugin import take_turn

    take_turn(pytestconfig)


@pytest.fixture(scope="session")
def idle_stack(turn: None) -> Iterator[Stack]:
    """The run's stack with nothing started by this fixture; stopped with the run."""
    from millrace.embedded.progress import Silent
    from support.stack.embedded import open_stack

    opened = open_stack("run")
    yield opened
    opened.stop(Silent())


@pytest.fixture
def kafka(idle_stack: Stack) -> Stack:
    """The stack with Kafka running."""
    return _with(idle_stack, "kafka")


@pytest.fixture
def s3(idle_stack: Stack) -> Stack:
    """The stack with the object store running."""
    return _with(idle_stack, "s3")


@pytest.fixture
def postgres(idle_stack: Stack) -> Stack:
    """The stack with PostgreSQL running and the control database's tables made."""
    return _with(idle_stack, "postgres")


@pytest.fixture
def airflow(idle_stack: Stack) -> Stack:
    """The stack with Airflow and PostgreSQL running; the first time takes most of a minute."""
    return _with(idle_stack, "airflow")


@pytest.fixture
def stack(idle_stack: Stack) -> Stack:
    """The stack with every part running."""
    return _with(idle_stack, "kafka", "s3", "postgres", "airflow", "watchdog")


def _with(stack: Stack, *parts: str) -> Stack:
    from support.stack.embedded import start

    return start(stack, *parts)
