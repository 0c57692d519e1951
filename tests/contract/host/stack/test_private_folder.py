"""PostgreSQL as root where only root may go: its programs and its data under a folder of mode 0700."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from millrace.embedded.processes import left_of_part
from millrace.embedded.progress import Silent
from millrace.embedded.servers.postgres import REACH_EVERYTHING, SYSTEM_USER, as_unprivileged, programs_folder
from millrace.embedded.stack import Stack
from support.checks.runs import RUN_VARIABLE, STACKS
from support.stack.embedded import CHECKOUT, make_project
from support.waiting import Deadline


@pytest.fixture(autouse=True)
def _root_may_all() -> None:
    if os.geteuid() != 0:
        pytest.skip("PostgreSQL changes its user only where root starts it")
    if REACH_EVERYTHING not in as_unprivileged():
        pytest.skip("root may not set secure bits here, so PostgreSQL needs a folder that others may enter")


@pytest.fixture
def private_folder() -> Path:
    """A folder as root's own home is: root's, and closed to everybody else."""
    folder = Path(os.environ[RUN_VARIABLE]) / STACKS / "private"
    folder.mkdir(mode=0o700)
    return folder


def test_postgresql_runs_as_root_in_a_folder_that_others_may_not_enter(
    private_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = programs_folder().parents[1]
    for installed in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(installed, private_folder / installed.name)
    monkeypatch.syspath_prepend(private_folder)
    assert programs_folder().is_relative_to(private_folder)
    stack = Stack(make_project(private_folder / "project"))
    try:
        stack.start(Silent(), ["postgres"])
        with psycopg.connect(**stack.settings().postgres("millrace_sink").keywords()) as connection:  # type: ignore[arg-type]
            connection.execute("CREATE TABLE kept (id int)")
        server = psutil.Process(stack.supervisor.states()["postgres"].pid)
        assert server.username() in (SYSTEM_USER, "nobody")
        assert _capabilities(server.pid) == {"CapEff": 2, "CapPrm": 2, "CapAmb": 2}  # CAP_DAC_OVERRIDE is bit 1
        assert stat.S_IMODE(private_folder.stat().st_mode) == 0o700
    finally:
        stack.stop(Silent(), wipe=True)
    data = stack.layout.state / "postgres" / "data"
    assert not left_of_part(stack.layout, "postgres", working_in=data)
    assert {path.suffix for path in stack.layout.state.iterdir()} <= {".lock"}


def test_a_root_that_may_not_set_secure_bits_goes_without_them() -> None:
    """As in a container that was given few capabilities: there only a folder that others may enter works."""
    ask = "from millrace.embedded.servers.postgres import as_unprivileged; print(*as_unprivileged())"
    answer = subprocess.run(
        ["setpriv", "--bounding-set=-setpcap", "--inh-caps=-setpcap", sys.executable, "-c", ask],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT / "include")},
        capture_output=True,
        text=True,
        check=True,
        timeout=Deadline.COMMAND.seconds,
    )
    assert answer.stdout.split() == [word for word in as_unprivileged() if word != REACH_EVERYTHING]


def _capabilities(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":\t") for line in lines if line.startswith("Cap"))
    return {name: int(found[name], 16) for name in ("CapEff", "CapPrm", "CapAmb")}
