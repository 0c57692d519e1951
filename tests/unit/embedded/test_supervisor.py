"""The supervisor's client, where its server does what the real one does not."""

from __future__ import annotations

import socket
import xmlrpc.client
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.embedded import supervisor
from millrace.embedded.layout import Layout
from millrace.embedded.progress import Silent
from millrace.embedded.stack import PARTS, Stack
from millrace.embedded.supervisor import ProgramState, Supervisor
from millrace.errors import PartFailedError


class Undying(Supervisor):
    """One whose programs outlive SIGKILL, as in a call of the kernel that does not return."""

    def _remote(self) -> Any:
        return SimpleNamespace(supervisor=SimpleNamespace(stopProcess=lambda name, wait: True))

    def states(self) -> dict[str, ProgramState]:
        return {name: ProgramState(name, "STOPPING", 4711, 9.0, "") for name in ("kafka", "s3", "postgres")}


def test_a_program_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.0)
    with pytest.raises(PartFailedError, match="did not end") as met:
        Undying(Layout(tmp_path)).stop_programs(["kafka", "postgres"])
    assert met.value.where == "kafka (process 4711), postgres (process 4711)"


def test_a_supervisor_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ANSWER_SECONDS", 0.1)
    client = Supervisor(Layout(tmp_path))
    path = client._socket()
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        assert not client.is_running()
        assert client.states() == {}
        with pytest.raises(PartFailedError, match="the supervisor does not answer"):
            client.stop_programs(["kafka"])
        with pytest.raises(PartFailedError, match="the supervisor does not answer"):
            client.start_program("kafka")


class Ending(Supervisor):
    """One that is shutting down, and says no to everything."""

    def _remote(self) -> Any:
        def refuse(name: str, wait: bool) -> bool:
            raise xmlrpc.client.Fault(6, "SHUTDOWN_STATE")

        return SimpleNamespace(supervisor=SimpleNamespace(stopProcess=refuse, startProcess=refuse))


@pytest.mark.parametrize("ask", [lambda one: one.stop_programs(["kafka"]), lambda one: one.start_program("kafka")])
def test_a_supervisor_that_says_no_fails_its_part(tmp_path: Path, ask: Callable[[Supervisor], None]) -> None:
    with pytest.raises(PartFailedError, match="SHUTDOWN_STATE"):
        ask(Ending(Layout(tmp_path)))


def test_what_does_not_stop_does_not_keep_the_rest_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    stack = Stack(tmp_path)
    stack.layout.make()

    def hang(names: list[str]) -> None:
        asked.extend(names)
        raise PartFailedError("did not end", where=names[0])

    monkeypatch.setattr(stack.supervisor, "is_running", lambda: True)
    monkeypatch.setattr(stack.supervisor, "stop_programs", hang)
    monkeypatch.setattr(stack.supervisor, "shut_down", lambda: asked.append("supervisord"))
    with pytest.raises(PartFailedError) as met:
        stack.stop(Silent())
    assert str(met.value.where).startswith("airflow")
    assert {"kafka", "s3", "postgres", "supervisord"} <= set(asked)
    assert asked.index("watchdog") < asked.index("postgres")  # a database that is stopped as desired pages nobody


def test_a_supervisor_that_does_not_know_a_new_part_is_stopped_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that an older version started, and that runs while the code is updated."""
    asked: list[str] = []
    stack = Stack(tmp_path)
    stack.layout.make()
    former = [name for part in PARTS.values() for name in part.program_names if name != "watchdog"]
    states = {name: ProgramState(name, "RUNNING", 0, 1.0, "") for name in former}
    monkeypatch.setattr(stack.supervisor, "is_running", lambda: "supervisord" not in asked)
    monkeypatch.setattr(stack.supervisor, "states", lambda: states)
    monkeypatch.setattr(stack.supervisor, "stop_programs", asked.extend)
    monkeypatch.setattr(stack.supervisor, "shut_down", lambda: asked.append("supervisord"))
    stack._make_way(Silent())
    assert asked[-1] == "supervisord"
    assert "watchdog" not in asked
