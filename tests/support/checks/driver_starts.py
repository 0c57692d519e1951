"""How many drivers of streams were started, by the folders that epochs leave: whoever starts one, none is forgotten.

Airflow starts drivers in processes of its own, and tests by several ways. Each epoch of a stream has its folder
`PROJECT/.millrace/streams/STREAM/EPOCH`, which runner and driver make before anything else. A project without
`spark_apps/stream.py` has no driver: what the runner starts there is a test's stand-in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.checks.runs import PYTEST, STACKS

STREAMS = Path(".millrace") / "streams"
DRIVER = Path("spark_apps") / "stream.py"


@dataclass
class DriverStarts:
    """The epochs that were found below one run's folder so far.

    Does not guarantee to see an epoch whose folder the runner has removed, which it does to all but the ten newest of a
    stream, nor a second instance of an epoch in the same project: whoever starts that one says so itself.
    """

    run: Path
    _seen: set[Path] = field(default_factory=set, init=False)

    def new_ones(self, *, everywhere: bool) -> int:
        """How many epochs there are that were not there at the last look.

        Args:
            everywhere: look also at projects in tests' temporary folders; a stack's own project is always looked at.
        """
        projects = list(_folders(self.run / STACKS))
        if everywhere:
            temporary = list(_folders(self.run / PYTEST))
            projects += temporary + [below for folder in temporary for below in _folders(folder)]
        found = {epoch for project in projects for epoch in _epochs(project)} - self._seen
        self._seen |= found
        return len(found)


def _epochs(project: Path) -> Iterator[Path]:
    streams = list(_folders(project / STREAMS))
    if streams and (project / DRIVER).exists():
        for stream in streams:
            yield from (epoch for epoch in _folders(stream) if epoch.name.isdigit())


def _folders(folder: Path) -> Iterator[Path]:
    """The folders in a folder, none where it is not there; without the links that pytest makes to its own."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
