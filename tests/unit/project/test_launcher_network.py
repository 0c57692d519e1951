"""The launcher as a person meets it where no package index can be reached."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from support.waiting import Deadline, eventually, exit_code_of

CHECKOUT = Path(__file__).resolve().parents[3]


def copied_to(folder: Path) -> list[str]:
    """The launcher's files in a folder of their own, and the command that starts it there."""
    for name in ("millrace", "requirements.txt", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, folder / name)
    return [sys.executable, str(folder / "millrace"), "status"]


def with_index(address: str, home: Path) -> dict[str, str]:
    """The variables of a machine whose one package index is here."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PIP_INDEX_URL": address,
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_DEFAULT_INDEX": address,
    }


@pytest.mark.full
def test_without_a_network_it_says_so_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    command = copied_to(tmp_path)
    environment = with_index("http://127.0.0.1:9/simple", tmp_path / "home")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=Deadline.COMMAND.seconds
    )
    assert done.returncode == 3, done.stderr
    assert "the package index cannot be reached" in done.stderr
    assert [f"try {number} of 3" in done.stderr for number in (1, 2, 3, 4)] == [False, True, True, False]
    assert "check the network" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".venv" / "millrace-installed.json").exists()


@pytest.mark.parametrize(
    ("step", "told", "code"),
    [
        pytest.param("ensurepip", signal.SIGTERM, 143, id="SIGTERM while it makes the environment"),
        pytest.param("--require-hashes", signal.SIGTERM, 143, id="SIGTERM while it downloads", marks=pytest.mark.full),
        pytest.param("--require-hashes", signal.SIGINT, 130, id="SIGINT while it downloads", marks=pytest.mark.full),
    ],
)
def test_a_launcher_that_is_told_to_end_leaves_no_step_running(
    tmp_path: Path, step: str, told: signal.Signals, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = with_index(f"http://127.0.0.1:{silent.getsockname()[1]}/simple", tmp_path / "home")
        heed = partial(signal.signal, told, signal.SIG_DFL)  # a run in a shell's background ignores SIGINT
        launcher = subprocess.Popen(copied_to(tmp_path), env=environment, stderr=subprocess.DEVNULL, preexec_fn=heed)

        def at_work() -> list[psutil.Process]:
            children = psutil.Process(launcher.pid).children(recursive=True)
            return [child for child in children if step in child.cmdline()]

        running = eventually(
            at_work, within=Deadline.COMMAND, what=f"a process with {step}", ignoring=(psutil.NoSuchProcess,)
        )
        launcher.send_signal(told)
        assert exit_code_of(launcher, within=Deadline.COMMAND, what="the launcher's end") == code
    _, left = psutil.wait_procs(running, timeout=Deadline.KILLED.seconds)
    assert left == []
