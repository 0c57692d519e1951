"""Small processes that stand in for apps: they bear apps' names in /proc, and do nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from millrace import ROOT_VARIABLE
from millrace.adapters.apps.processes import APP_VARIABLE, AppName
from support.waiting import Deadline, exit_code_of


class StandIns:
    """Small processes that bear apps' names; they end by themselves when this process does."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reading, self._writing = os.pipe()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, stream: str) -> None:
        name = AppName(stream, 1, "stand-in")
        environment = {ROOT_VARIABLE: str(self._root), APP_VARIABLE: str(name), "PATH": os.environ["PATH"]}
        command = ["sh", "-c", "read line", *name.arguments()]
        self._processes.append(subprocess.Popen(command, stdin=self._reading, env=environment))

    def end(self) -> None:
        os.close(self._reading)
        os.close(self._writing)
        for one in self._processes:
            exit_code_of(one, within=Deadline.PROCESS, what="a stand-in to end")
