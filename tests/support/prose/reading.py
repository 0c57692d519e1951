"""A reader who does what a page says, in a checkout of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.prose.steps import Commands, File, last_plan, missing, steps_of
from support.waiting import Deadline, eventually

CHECKOUT = Path(__file__).resolve().parents[3]
READS = re.compile(r"\./millrace (?:\w+ (?:list|show)|run -- psql -c 'SELECT) ?")
"""Commands that change nothing. They are repeated until they print the output of the page: a stream needs a moment."""


def clone(folder: Path) -> Path:
    """Copy the checkout's files, with changes that are not committed yet, and nothing that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name)
    return folder


class Reader:
    """Does the steps of pages one after the other in one checkout.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._printed: list[str] = []

    def do(self, page: str, *, but: str = "") -> None:
        """Do each step of a page. A command that fails, or does not print what the page shows, fails the test.

        Args:
            page: its path below the checkout.
            but: a command that is left out; the page must have it.
        """
        steps = steps_of((CHECKOUT / page).read_text(encoding="utf-8"))
        assert steps, f"{page} has no steps"
        left_out = Commands((but,))
        assert not but or left_out in steps
        for step in steps:
            if isinstance(step, File):
                (self._root / step.path).write_text(step.text, encoding="utf-8")
            elif step != left_out:
                self._do(step)

    def _do(self, step: Commands) -> None:
        *first, last = step.lines
        printed = [self.type(line) for line in first]
        if step.output is None:
            self.type(last)
        elif READS.match(last):
            eventually(
                lambda: not missing(step.output or "", self.type(last)),
                within=Deadline.STREAM,
                what=f"`{last}` to print what the page shows",
            )
        else:
            printed.append(self.type(last))
            lacks = missing(step.output, "\n".join(printed))
            assert not lacks, f"the page shows a line that was not printed: {lacks[0]}\n" + "\n".join(printed)

    def type(self, line: str) -> str:
        """Run a command as a shell does, and return what it printed, also to standard error."""
        if re.search(r"\bID\b", line):
            line = re.sub(r"\bID\b", last_plan(self._printed), line)
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=Deadline.LONG.seconds,
            env={**os.environ, "COLUMNS": "160"},
        )
        self._printed.append(ran.stdout)
        assert ran.returncode == 0, f"`{line}` ended with {ran.returncode}:\n{ran.stdout}"
        return ran.stdout
