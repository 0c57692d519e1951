"""Connections are looked up anew once a server did not answer, and what the former adapters keep is closed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.waiting import Deadline, eventually


class Adapters:
    """What is kept between calls; a call that goes on holds up its end."""

    def __init__(self) -> None:
        self.call_ends, self.closed = threading.Event(), threading.Event()

    def close(self) -> None:
        assert self.call_ends.wait(Deadline.THREAD.seconds)
        self.closed.set()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Adapters]:
    from millrace.airflow.shared import settings

    opened: list[Adapters] = []

    def open_platform(_: object) -> Adapters:
        opened.append(Adapters())
        return opened[-1]

    settings._opened.cache_clear()
    monkeypatch.setattr(settings, "open_platform", open_platform)
    return opened


def test_adapters_that_are_forgotten_are_closed_and_hold_nobody_up(made: list[Adapters]) -> None:
    from millrace.airflow.shared import settings

    former = settings.airflow_platform()
    settings.forget_platform()  # returns, though a call goes on
    assert settings.airflow_platform() is not former
    assert not made[0].closed.is_set()
    made[0].call_ends.set()
    eventually(made[0].closed.is_set, within=Deadline.THREAD, what="the former adapters to be closed")
    assert not made[1].closed.is_set()
    settings._opened.cache_clear()


def test_nothing_is_opened_to_be_forgotten(made: list[Adapters]) -> None:
    from millrace.airflow.shared import settings

    settings.forget_platform()
    assert made == []


def test_threads_that_find_no_adapters_open_them_once(made: list[Adapters], monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.airflow.shared import settings

    def open_slowly(_: object) -> Adapters:
        made.append(Adapters())
        time.sleep(0.05)
        return made[-1]

    monkeypatch.setattr(settings, "open_platform", open_slowly)
    with ThreadPoolExecutor(8) as threads:
        found = {id(one.result()) for one in [threads.submit(settings.airflow_platform) for _ in range(8)]}
    settings._opened.cache_clear()
    assert (len(found), len(made)) == (1, 1)
