"""Fixtures of the tests that need Airflow. Airflow ends with the last of them, and so does the example's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.embedded.stack import PARTS, Stack
from millrace.usecases.streams import supervise as streams
from millrace.wiring import open_platform
from support.stack.embedded import start
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from support.ui.browser import Complaints

HERE = Path(__file__).parent
EXAMPLE, BACKUP = "shop.purchases", "shop.backup"
ACTOR = "test:example"

_at_the_end: dict[str, Callable[[], None]] = {}
"""Calls after the last test here, by the name of what they end: the example first, while Airflow still watches it."""


@pytest.fixture(autouse=True)
def _airflow_ends_with_its_last_test(idle_stack: Stack) -> None:
    _at_the_end["airflow"] = partial(stop_airflow, idle_stack)


@pytest.fixture(scope="module")
def stack(idle_stack: Stack) -> Stack:
    """The stack with every part running. What modules deploy needs it for the module."""
    return start(idle_stack, *PARTS)


@pytest.fixture(autouse=True)
def _every_part_runs(request: pytest.FixtureRequest) -> None:
    """Start again, before each test, what died in a former one."""
    if "stack" in request.fixturenames:
        start(request.getfixturevalue("stack"), *PARTS)


@pytest.fixture(scope="module")
def stopping_the_example(idle_stack: Stack) -> None:
    """Stop the example's stream after the tests with Airflow: several modules use it, the first one starts it."""
    _at_the_end["example"] = partial(stop, idle_stack, EXAMPLE)


@pytest.fixture(scope="module")
def stopping_the_backup(idle_stack: Stack) -> Iterator[None]:
    """Stop the example's backup after the module that starts it: no other uses it."""
    yield
    stop(idle_stack, BACKUP)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One chromium for all pages of a module."""
    from support.ui.browser import open_browser

    with open_browser() as opened:
        yield opened


@pytest.fixture
def complaints() -> Complaints:
    """The errors of the operator's page."""
    from support.ui.browser import Complaints

    return Complaints()


@pytest.fixture
def operator(stack: Stack, browser: Browser, complaints: Complaints) -> Iterator[Page]:
    """A page of the user `operator`."""
    from support.ui.airflow_ui import AirflowUser
    from support.ui.browser import logged_in

    with logged_in(browser, AirflowUser(stack, "operator"), complaints) as page:
        yield page


@pytest.fixture
def viewer(stack: Stack, browser: Browser) -> Iterator[Page]:
    """A page of the user `viewer`, whose errors nobody counts."""
    from support.ui.airflow_ui import AirflowUser
    from support.ui.browser import Complaints, logged_in

    with logged_in(browser, AirflowUser(stack, "viewer"), Complaints()) as page:
        yield page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Airflow takes 1.5 GB and a fifth of a processor; other tests of the lane follow."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            with ExitStack() as ends:
                for name in ("airflow", "example"):
                    if end := _at_the_end.pop(name, None):
                        ends.callback(end)


def stop_airflow(stack: Stack) -> None:
    """End Airflow's programs and leave the servers running."""
    if stack.supervisor.is_running():
        stack.supervisor.stop_programs(PARTS["airflow"].program_names)


def stop(stack: Stack, app: str) -> None:
    """Stop an app as an operator does and wait for its end, unless nobody started it or servers are down."""
    if not all(status.healthy for status in stack.status(("kafka", "postgres"))):
        return
    platform = open_platform(stack.settings())
    if platform.control.streams.desired(app) is not None:
        streams.stop(platform, app, ACTOR, "the tests that look at it are over")

        def stopped() -> bool:
            streams.supervise(platform, app, ACTOR)  # it kills a driver whose grace is over
            return not platform.apps.runner().find(app)

        eventually(stopped, within=Deadline.STREAM, what=f"{app} to stop")
    platform.control.close()
