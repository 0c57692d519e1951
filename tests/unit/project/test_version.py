"""`--version`: the same from the package's metadata, the command line, and a launcher without an environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from millrace.cli import main
from support.waiting import Deadline

CHECKOUT = Path(__file__).resolve().parents[3]
DECLARED = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]


def test_the_command_line_says_the_version_that_the_package_declares() -> None:
    done = CliRunner().invoke(main.build(["--version"]), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"millrace {DECLARED}\n")


def test_the_launcher_says_it_before_anything_is_set_up(tmp_path: Path) -> None:
    (tmp_path / "include" / "millrace").mkdir(parents=True)
    for name in ("millrace", "include/millrace/__init__.py"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    command = [sys.executable, str(tmp_path / "millrace"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=Deadline.COMMAND.seconds)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"millrace {DECLARED}\n", "")
    assert {path.name for path in tmp_path.iterdir()} == {"millrace", "include"}
