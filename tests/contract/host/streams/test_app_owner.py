"""Whose processes count as apps: the owner's of the project, whatever others call theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace import ROOT_VARIABLE
from millrace.adapters.apps.processes import APP_VARIABLE, AppName, apps_of
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.errors import RefusedError
from millrace.ports.runner import Submission
from millrace.settings import Settings
from support.waiting import Deadline, exit_code_of, line_of

NOBODY = 65534
APP = AppName("shop.purchases", 99, "abc1")
SAYS_AND_WAITS = "echo ready; read line"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")


@contextmanager
def process(root: Path, become: Callable[[], None]) -> Iterator[int]:
    """A process that says of itself what an app says; it ends with its standard input."""
    with subprocess.Popen(
        ["/bin/sh", "-p", "-c", SAYS_AND_WAITS, "sh", *APP.arguments()],
        env={ROOT_VARIABLE: str(root), APP_VARIABLE: str(APP), "PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=become,
    ) as started:
        assert line_of(started.stdout, what="the process to run") == "ready\n"
        yield started.pid
        assert started.stdin is not None
        started.stdin.close()
        exit_code_of(started, within=Deadline.PROCESS, what="the process to end")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".millrace").mkdir()
    return tmp_path


def nobody() -> None:
    os.setresuid(NOBODY, NOBODY, NOBODY)


def nobody_by_a_set_user_id_program() -> None:
    os.setresuid(NOBODY, 0, 0)


def found(root: Path) -> list[int]:
    living = ProcessRunner(Settings(root=root, lookup={}.get)).find(APP.stream)
    return [one.pid for app in apps_of(root) for one in app.all] + [app.epoch for app in living]


@pytest.mark.parametrize("become", [nobody, nobody_by_a_set_user_id_program])
def test_another_users_process_is_no_app_whatever_it_is_called(root: Path, become: Callable[[], None]) -> None:
    with process(root, become):
        assert found(root) == []


def test_the_owners_process_is_one(root: Path) -> None:
    with process(root, lambda: None) as pid:
        assert found(root) == [pid, APP.epoch]


def test_the_owner_need_not_be_root(root: Path) -> None:
    os.chown(root / ".millrace", NOBODY, NOBODY)
    with process(root, nobody) as pid, process(root, lambda: None):
        assert found(root) == [pid, APP.epoch]


def test_an_app_is_found_although_the_state_of_its_project_is_gone(root: Path) -> None:
    (root / ".millrace").rmdir()
    with process(root, lambda: None) as pid:
        assert found(root) == [pid, APP.epoch]


def test_who_does_not_own_the_project_starts_no_app_that_nobody_would_find(root: Path) -> None:
    os.chown(root / ".millrace", NOBODY, NOBODY)
    with pytest.raises(RefusedError, match="belongs to user 65534"):
        ProcessRunner(Settings(root=root, lookup={}.get)).submit(Submission("shop.purchases", 1, "abc1"))
    assert list((root / ".millrace").iterdir()) == []
