"""What tests on whole paths share besides the servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.embedded.stack import Stack
from millrace.usecases import streams
from millrace.wiring import open_platform
from support.waiting import Deadline, eventually

EXAMPLE, BACKUP = "shop.purchases", "shop.backup"
ACTOR = "test:example"


@pytest.fixture(scope="session")
def stopping_the_example(idle_stack: Stack) -> Iterator[None]:
    """Stops the example's stream, which several modules look at and the first of them starts, at the end of all."""
    yield
    stop(idle_stack, EXAMPLE)


@pytest.fixture(scope="module")
def stopping_the_backup(idle_stack: Stack) -> Iterator[None]:
    """Stops the example's backup at the end of the module that starts it: no other looks at it."""
    yield
    stop(idle_stack, BACKUP)


def stop(stack: Stack, app: str) -> None:
    """Stop an app as an operator does and wait for its end, unless nobody ever started it or servers are away."""
    if not all(status.healthy for status in stack.status(("kafka", "postgres"))):
        return
    platform = open_platform(stack.settings())
    if platform.control().streams.desired(app) is not None:
        streams.stop(platform, app, ACTOR, "the tests that look at it are over")

        def stopped() -> bool:
            streams.supervise(platform, app, ACTOR)  # it kills a driver whose grace is over
            return not platform.runner().find(app)

        eventually(stopped, within=Deadline.STREAM, what=f"{app} to stop")
    platform.control().close()
