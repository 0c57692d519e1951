from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from millrace.errors import UnreachableError
from millrace.runtime.life import heartbeat
from millrace.runtime.life.heartbeat import Heartbeat
from support.waiting import Deadline, eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_EVERY", timedelta(milliseconds=5))


def test_a_heartbeat_is_given_again_and_again_and_once_more_at_the_end() -> None:
    given: list[bool] = []
    ending = threading.Event()
    made = Heartbeat(lambda: given.append(ending.is_set()))
    made.start()
    eventually(lambda: len(given) >= 3, within=Deadline.THREAD, what="three heartbeats")
    ending.set()
    made.close()
    assert given[-1] is True


@pytest.mark.parametrize("error", [UnreachableError("away"), ValueError("a bug")])
def test_a_database_that_is_away_is_logged_once_and_asked_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    logged: list[str] = []
    # Not structlog's own capture: it counts as a configuration, and Airflow, imported later, would then make none.
    monkeypatch.setattr(heartbeat.log, "warning", lambda event, **more: logged.append(event), raising=False)

    def beat() -> None:
        calls.append(1)
        if len(calls) in (1, 2, 3, 5):
            raise error

    made = Heartbeat(beat)
    made.start()
    eventually(lambda: len(calls) >= 7, within=Deadline.THREAD, what="seven heartbeats")
    made.close()
    assert logged == ["heartbeat_not_saved"] * 2


def test_one_that_never_began_ends_without_a_heartbeat() -> None:
    given: list[int] = []
    Heartbeat(lambda: given.append(1)).close()
    assert given == []
