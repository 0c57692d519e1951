"""What tests on whole paths share besides the servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.embedded.stack import Stack
from millrace.usecases import streams
from millrace.wiring import open_platform
from support.waiting import Deadline, eventually

EXAMPLE = "shop.purchases"
ACTOR = "test:example"


@pytest.fixture(scope="session")
def stopping_the_example(idle_stack: Stack) -> Iterator[None]:
    """Stops the example's stream, which several modules look at and the first of them starts, at the end of all."""
    yield
    healthy = {status.name for status in idle_stack.status() if status.healthy}
    if {"kafka", "postgres"} <= healthy:
        stop_example(idle_stack)


def stop_example(stack: Stack) -> None:
    """Stop the stream as an operator does and wait for its end, unless nobody ever started it."""
    platform = open_platform(stack.settings())
    if platform.control().streams.desired(EXAMPLE) is None:
        return
    streams.stop(platform, EXAMPLE, ACTOR, "the tests that look at it are over")

    def stopped() -> bool:
        streams.supervise(platform, EXAMPLE, ACTOR)  # it kills a driver whose grace is over
        return not platform.runner().find(EXAMPLE)

    eventually(stopped, within=Deadline.STREAM, what="the example's stream to stop")
    platform.control().close()
