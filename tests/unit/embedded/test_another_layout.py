"""`up` beside apps whose code lies in other folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace import LAYOUT, LAYOUT_VARIABLE, ROOT_VARIABLE
from millrace.adapters.apps.processes import APP_VARIABLE
from millrace.embedded.layout import Layout
from millrace.embedded.processes import Identity, PartRecord, of_another_layout
from millrace.embedded.progress import Silent
from millrace.embedded.stack import Stack
from millrace.embedded.supervisor import RECORD, Supervisor
from millrace.errors import RefusedError
from support.waiting import Deadline


@contextmanager
def app(root: Path, marks: dict[str, str], *, program: str = "spark_apps/stream.py") -> Iterator[Identity]:
    """A process that has the command line of a stream's driver, or of another program, and ends with its input."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", program]
    environment = {name: value for name, value in os.environ.items() if name != LAYOUT_VARIABLE}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment | {ROOT_VARIABLE: str(root)} | marks,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        found = Identity.of(process.pid)
        assert found is not None
        yield found
    finally:
        process.communicate(timeout=Deadline.PROCESS.seconds)


APP = {APP_VARIABLE: "shop.purchases#1#one"}
FORMER = pytest.mark.parametrize(
    "marks", [{}, {LAYOUT_VARIABLE: str(LAYOUT - 1)}], ids=["before layouts", "a former one"]
)


@FORMER
def test_up_refuses_to_run_beside_apps_of_another_layout(tmp_path: Path, marks: dict[str, str]) -> None:
    with app(tmp_path, marks | APP) as process:
        with pytest.raises(RefusedError, match="whose folders have moved") as refused:
            Stack(tmp_path).start(Silent())
        assert refused.value.where == f"processes {process.pid}"
        assert "millrace down" in refused.value.next_step
        assert process.is_alive()
        assert not (tmp_path / ".millrace" / "run" / "supervisord.conf").exists()


def test_up_knows_an_app_by_its_mark_whatever_its_command_line(tmp_path: Path) -> None:
    with app(tmp_path, APP, program="a guard, or a program that the app has started") as process:
        with pytest.raises(RefusedError, match="whose folders have moved") as refused:
            Stack(tmp_path).start(Silent())
        assert refused.value.where == f"processes {process.pid}"


def test_apps_of_this_layout_and_those_that_ended_are_no_reason(tmp_path: Path) -> None:
    with app(tmp_path, {LAYOUT_VARIABLE: str(LAYOUT)} | APP) as process:
        assert of_another_layout([process], APP_VARIABLE) == []
    with app(tmp_path, APP) as process:
        assert of_another_layout([process], APP_VARIABLE) == [process]
    assert of_another_layout([process], APP_VARIABLE) == []


def test_a_persons_own_spark_is_no_reason(tmp_path: Path) -> None:
    with app(tmp_path, {}) as process:
        assert of_another_layout([process], APP_VARIABLE) == []


@FORMER
def test_a_supervisor_of_another_layout_is_known(tmp_path: Path, marks: dict[str, str]) -> None:
    layout = Layout(tmp_path)
    layout.make()
    supervisor = Supervisor(layout)
    assert not supervisor.is_of_another_layout()  # there is none
    with app(tmp_path, marks) as process:
        PartRecord(RECORD, process, 15).write(layout)
        assert supervisor.is_of_another_layout()
    assert not supervisor.is_of_another_layout()  # it has ended
    with app(tmp_path, {LAYOUT_VARIABLE: str(LAYOUT)}) as process:
        PartRecord(RECORD, process, 15).write(layout)
        assert not supervisor.is_of_another_layout()
