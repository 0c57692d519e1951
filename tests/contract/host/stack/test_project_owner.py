"""Who owns a project's state, where that is not plain: by half of his ids, by a program of his, not yet, no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from contract.host.streams.test_runner_process import runner_of, started
from millrace import ROOT_VARIABLE
from millrace.adapters.apps.processes import APP_VARIABLE, AppName, apps_of
from support.waiting import Deadline, line_of, output_of

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    runner_of(tmp_path).stop_all(timedelta())
    assert not apps_of(tmp_path)


@needs_root
def test_a_set_user_id_program_that_becomes_the_owner_wholly_is_no_app(root: Path) -> None:
    """As `sudo` does before it asks for the password: the real id is the owner's then, the arguments are not."""
    if os.statvfs(root).f_flag & os.ST_NOSUID:
        pytest.skip("the file system of the tests knows no set-user-id programs")
    (root / ".millrace").mkdir()
    program = shutil.copy(Path(sys.executable).resolve(), root / "program")
    os.chmod(program, 0o4755)
    name = AppName("shop.purchases", 99, "abc1")
    behaviour = "import os; os.setuid(0); print(os.getresuid(), flush=True); input()"
    with open(program, "rb") as file:  # the folders above it are not for others
        stranger = subprocess.Popen(
            [program, "-ISc", behaviour, *name.arguments()],
            executable=f"/proc/self/fd/{file.fileno()}",
            pass_fds=[file.fileno()],
            env={ROOT_VARIABLE: str(root), APP_VARIABLE: str(name)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=NOBODY,
        )
    try:
        assert line_of(stranger.stdout, what="the program to be its owner's") == "(0, 0, 0)\n"
        assert apps_of(root) == []
        assert runner_of(root).find("shop.purchases") == []
    finally:
        output_of(stranger, given="\n", what="the program to end")


@needs_root
def test_who_is_the_owner_by_his_effective_id_alone_starts_no_app(root: Path) -> None:
    (root / ".millrace").mkdir()
    script = textwrap.dedent(f"""
        import os, sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from contract.host.streams.test_runner_process import runner_of, submission
        from millrace.errors import RefusedError
        os.setresuid({NOBODY}, 0, 0)
        try:
            runner_of(Path({str(root)!r})).submit(submission())
        except RefusedError as error:
            print(error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=Deadline.COMMAND.seconds, check=True
    )
    assert "belongs to user 0" in done.stdout
    assert str(NOBODY) in done.stdout
    assert list((root / ".millrace").iterdir()) == []


@needs_root
def test_the_first_app_of_a_project_belongs_to_who_starts_it(root: Path) -> None:
    """As root in a container, in a folder of the host's user."""
    os.chown(root, NOBODY, NOBODY)
    started(root)
    assert [app.epoch for app in runner_of(root).find("shop.purchases")] == [1]
    os.chown(root, 0, 0)


def test_a_project_that_is_gone_has_no_apps(root: Path) -> None:
    started(root)
    away = root.rename(root.with_name("away"))
    try:
        assert runner_of(root).find("shop.purchases") == []
    finally:
        away.rename(root)
    assert [app.epoch for app in runner_of(root).find("shop.purchases")] == [1]
