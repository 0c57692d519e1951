"""The launcher as a person meets it where no package index can be reached."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.waiting import Deadline

CHECKOUT = Path(__file__).resolve().parents[2]


def test_without_a_network_it_says_so_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    for name in ("millrace", "requirements.txt", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    nowhere = "http://127.0.0.1:9/simple"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "PIP_INDEX_URL": nowhere,
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_DEFAULT_INDEX": nowhere,
    }
    command = [sys.executable, str(tmp_path / "millrace"), "status"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=Deadline.COMMAND.seconds
    )
    assert done.returncode == 3, done.stderr
    assert "the package index cannot be reached" in done.stderr
    assert "check the network" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".venv" / "millrace-installed.json").exists()
